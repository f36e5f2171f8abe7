//! Names against a model.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// What each block of some runs is called.
#[derive(Default)]
struct Model {
    names: Names,
    ids: BTreeMap<(RunNo, u32), BTreeSet<u64>>,
}

/// Ids differ from block to block, but that one is like the mark of what is gone.
fn id(run: RunNo, position: u32, variant: u64) -> u64 {
    if (run, position, variant) == (3, 7, 0) { GONE } else { u64::from(run << 8 | position) << 8 | variant }
}

impl Model {
    fn give(&mut self, run: RunNo, start: u32, len: u32, variant: u64) {
        let held = |p: &u32| self.ids.contains_key(&(run, *p));
        let known: Vec<(u32, u32)> = (start..start + len).filter(held).map(|p| (p, p + 1)).collect();
        let ids: Vec<u64> = (start..start + len).map(|p| id(run, p, variant)).collect();
        self.names.give(run, start, &ids, &known);
        for (position, id) in (start..).zip(ids) {
            self.ids.entry((run, position)).or_default().insert(id);
        }
    }

    /// Loses `len` held blocks at most, from `start` down or up, as a removal of their first ids does.
    fn lose(&mut self, run: RunNo, start: u32, len: u32, down: bool) {
        let beside = |n: u32| if down { start.checked_sub(n) } else { Some(start + n) };
        let held = |p: &u32| self.ids.contains_key(&(run, *p));
        let positions: Vec<u32> = (0..len).map_while(beside).take_while(held).collect();
        let ids: Vec<u64> = positions.iter().map(|p| id(run, *p, 0)).collect();
        let Some(at) = ids.first().and_then(|id| self.names.locate(*id)) else { return };
        let Stretch { count, start, end } = self.names.stretch(at, &ids);
        assert!(count <= ids.len() && (end - start) as usize == count);
        self.names.lose(at, start, end);
        for position in start..end {
            assert!(self.ids.remove(&(run, position)).is_some());
        }
    }

    fn check(&self) {
        assert_eq!(self.names.len(), self.ids.len());
        assert!(self.names.marks <= 2 * self.names.held + SPARE_MARKS);
        for run in 0..6 {
            for position in 0..256 {
                for variant in 0..2 {
                    let id = id(run, position, variant);
                    let named = self.ids.get(&(run, position)).is_some_and(|ids| ids.contains(&id));
                    let place = named.then(|| Place::new(run, position as usize));
                    assert_eq!(self.names.place(id), place, "{run} {position} {variant}");
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    /// I-NAM-1, I-NAM-3.
    #[test]
    fn ids_name_what_they_were_given_to(
        steps in prop::collection::vec((0u32..8, 0u32..6, 0u32..200, 1u32..56), 1..120),
    ) {
        let mut model = Model::default();
        for (step, run, start, len) in steps {
            match step {
                0..=2 => model.give(run, start, len, 0),
                3 => model.give(run, start, len, 1),
                _ => model.lose(run, start, len, step % 2 == 0),
            }
        }
        model.check();
        let even = |place: Place| place.position().is_multiple_of(2);
        model.names.retain(even);
        model.ids.retain(|(_, position), _| position % 2 == 0);
        model.check();
    }
}

/// I-NAM-2.
#[test]
fn an_id_of_two_blocks_means_one_and_then_the_other() {
    let mut names = Names::default();
    names.give(1, 0, &[10, 11], &[]);
    names.give(2, 0, &[10, 21], &[]);
    let mut seen = BTreeSet::new();
    for _ in 0..2 {
        let at = names.locate(10).expect("named");
        seen.insert(names.run(at));
        names.lose(at, 0, 1);
    }
    assert_eq!(seen, BTreeSet::from([Some(1), Some(2)]));
    assert_eq!(names.place(10), None);
}

/// I-NAM-3, I-WIX-7.
#[test]
fn churn_leaves_no_marks_behind() {
    let mut names = Names::default();
    let mut next = 0u64;
    for run in 0..4000 {
        let ids: Vec<u64> = (0..256).map(|n| next + n).collect();
        next += 256;
        names.give(run, 0, &ids, &[]);
        if let Some(old) = run.checked_sub(100) {
            let last = u64::from(old) * 256 + 255;
            let at = names.locate(last).expect("named");
            names.lose(at, 0, 256);
            assert_eq!(names.place(last), None);
        }
        assert!(names.marks <= 2 * names.held + SPARE_MARKS);
    }
    assert_eq!((names.held, names.holds.len()), (25_600, 101));
    let room: usize = names.classes.iter().map(Class::room).sum();
    assert!(4 * room < 9 * names.held, "{room}");
}

/// I-NAM-1.
#[test]
fn ids_are_found_in_more_runs_than_16_bits_number() {
    let mut names = Names::default();
    let place = |run: RunNo| Place::new(run, run as usize % 256);
    for run in 0..70_000 {
        names.give(run, place(run).position(), &[u64::from(run)], &[]);
    }
    for run in (0..70_000).step_by(7) {
        assert_eq!(names.place(u64::from(run)), Some(place(run)));
    }
}
