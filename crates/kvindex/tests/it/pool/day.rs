//! A store that loses events and changes in silence, its wire, and listings of it.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use proptest::prelude::*;
use tandem_kvindex::pool::{Layout, LayoutSpec, Object, PoolEvent, PoolIndex, PoolLimits};

use super::{NOW, claim, object, page, settle, sglang};

/// What may happen on a day; numbers choose pages and slots.
#[derive(Debug, Clone)]
enum Hour {
    Put(u64, usize),
    Remove(u64, usize),
    /// Watermark eviction: so many objects go, and nobody is told.
    Evict(usize),
    /// A client dies with every third page.
    Die(u64),
    RemoveAll,
    RemoveAllSilently,
    /// The gateway hears so many of the batches under way.
    Hear(usize),
    /// So many batches under way are lost.
    Lose(usize),
    Restart,
    Reconnect,
    BeginListing,
    /// So many lines of the listing under way are sampled and said.
    Lines(usize),
    Step(usize),
}

fn hour() -> impl Strategy<Value = Hour> {
    prop_oneof![
        12 => (0..24u64, 0..4usize).prop_map(|(page, slot)| Hour::Put(page, slot)),
        5 => (0..24u64, 0..4usize).prop_map(|(page, slot)| Hour::Remove(page, slot)),
        1 => (1..6usize).prop_map(Hour::Evict),
        1 => (0..3u64).prop_map(Hour::Die),
        1 => Just(Hour::RemoveAll),
        1 => Just(Hour::RemoveAllSilently),
        8 => (1..8usize).prop_map(Hour::Hear),
        1 => (1..3usize).prop_map(Hour::Lose),
        1 => Just(Hour::Restart),
        1 => Just(Hour::Reconnect),
        3 => Just(Hour::BeginListing),
        6 => (1..12usize).prop_map(Hour::Lines),
        4 => (1..40usize).prop_map(Hour::Step),
    ]
}

type Name = (u64, usize);

#[derive(Debug, Clone)]
enum Word {
    Stored(Name),
    Removed(Name),
    Cleared,
}

const SLOTS: [&str; 4] = ["_0_k", "_0_v", "_1_k", "_1_v"];

/// A store, the wire from it, and a listing that samples each object when its line is made.
struct Day {
    index: PoolIndex,
    layout: Layout,
    store: BTreeSet<Name>,
    wire: VecDeque<(u64, Word)>,
    number: u64,
    /// Objects not yet asked about by the listing under way.
    to_list: Option<Vec<Name>>,
    /// Silent changes, losses or restarts happen only while this is set.
    disturbed: bool,
}

fn name(name: &Name) -> Object<'static> {
    object("model_", name.0, SLOTS[name.1])
}

impl Day {
    fn new() -> Self {
        let mut index = PoolIndex::new(PoolLimits::default());
        let layout = claim(&mut index, &LayoutSpec { foreign: Vec::new(), ..sglang("", 2) });
        Self {
            index,
            layout,
            store: BTreeSet::new(),
            wire: VecDeque::new(),
            number: 1,
            to_list: None,
            disturbed: true,
        }
    }

    fn publish(&mut self, word: Word) {
        self.wire.push_back((self.number, word));
        self.number += 1;
    }

    fn hear(&mut self, count: usize) {
        for (number, word) in self.wire.drain(..count.min(self.wire.len())) {
            let event = match word {
                Word::Stored(object) => PoolEvent::Stored(name(&object)),
                Word::Removed(object) => PoolEvent::Removed(name(&object)),
                Word::Cleared => PoolEvent::Cleared { tenant: "default" },
            };
            self.index.apply(number, &[event], NOW);
        }
    }

    fn begin(&mut self) -> bool {
        let begun = self.index.begin_listing("", NOW).is_ok();
        if begun {
            let all = (0..24).flat_map(|page| (0..4).map(move |slot| (page, slot)));
            self.to_list = Some(all.collect());
        }
        begun
    }

    fn lines(&mut self, count: usize) {
        let Some(left) = &mut self.to_list else { return };
        for asked in left.drain(..count.min(left.len())) {
            if self.store.contains(&asked) {
                self.index.listed(&name(&asked));
            }
        }
        if left.is_empty() {
            self.to_list = None;
            self.index.finish_listing(true);
        }
    }

    fn live(&mut self, hour: &Hour) {
        match *hour {
            Hour::Put(page, slot) => {
                self.store.insert((page, slot));
                self.publish(Word::Stored((page, slot)));
            }
            Hour::Remove(page, slot) => {
                if self.store.remove(&(page, slot)) {
                    self.publish(Word::Removed((page, slot)));
                }
            }
            Hour::RemoveAll => {
                self.store.clear();
                self.publish(Word::Cleared);
            }
            Hour::Hear(count) => self.hear(count),
            Hour::BeginListing => {
                if self.to_list.is_none() {
                    self.begin();
                }
            }
            Hour::Lines(count) => self.lines(count),
            Hour::Step(count) => {
                let progress = self.index.step(count);
                assert!(progress.visited <= count, "{progress:?} of {count}");
            }
            _ if !self.disturbed => {}
            Hour::Evict(count) => {
                let gone: Vec<Name> = self.store.iter().copied().step_by(3).take(count).collect();
                self.store.retain(|object| !gone.contains(object));
            }
            Hour::Die(third) => self.store.retain(|object| object.0 % 3 != third),
            Hour::RemoveAllSilently => self.store.clear(),
            Hour::Lose(count) => {
                self.wire.drain(..count.min(self.wire.len()));
            }
            Hour::Restart => {
                self.store.clear();
                self.wire.clear();
                self.number = 1;
            }
            Hour::Reconnect => {
                self.wire.clear();
                self.index.disconnected(NOW);
            }
        }
    }

    fn assert_equal(&self) {
        for page_number in 0..24 {
            for slot in 0..4 {
                let object = (page_number, slot);
                assert_eq!(self.index.contains(&name(&object)), self.store.contains(&object), "{object:?}");
            }
            let whole = (0..4).all(|slot| self.store.contains(&(page_number, slot)));
            assert_eq!(
                self.index.reader().hits(&self.layout, &[page(page_number)]).total,
                usize::from(whole)
            );
        }
        assert_eq!(self.index.objects(""), self.store.len() as u64);
    }
}

/// Whatever happened: the listings that follow, taken while events go on but without further silent changes,
/// make the index equal to the store once the wire is empty (I-POOL-5), and no doubt is left.
fn a_day_ends_equal(disturbed: &[Hour], calm: &[Hour]) {
    let mut day = Day::new();
    for hour in disturbed {
        day.live(hour);
    }
    day.disturbed = false;
    day.hear(usize::MAX);
    day.lines(usize::MAX);
    settle(&mut day.index);
    assert!(day.begin());
    let mut calm = calm.iter();
    while day.to_list.is_some() {
        match calm.next() {
            Some(hour) => day.live(hour),
            None => day.lines(usize::MAX),
        }
    }
    for hour in calm {
        day.live(hour);
    }
    day.lines(usize::MAX);
    day.hear(usize::MAX);
    settle(&mut day.index);
    // A clear voids a listing: ask again, as the index says.
    while !day.index.due(NOW, Duration::MAX).is_empty() {
        assert!(day.begin());
        day.lines(usize::MAX);
        settle(&mut day.index);
    }
    day.assert_equal();
    assert_eq!(day.index.pages(), day.store.iter().map(|object| object.0).collect::<BTreeSet<_>>().len());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn any_day_ends_equal_to_the_listing(
        disturbed in prop::collection::vec(hour(), 0..120),
        calm in prop::collection::vec(hour(), 0..80),
    ) {
        a_day_ends_equal(&disturbed, &calm);
    }
}

/// Long days, from a fixed seed.
#[test]
fn long_days_end_equal_to_the_listing() {
    long_days(10, |_| ());
}

/// Millions of hours; `cargo xtask oracle` runs them.
#[test]
#[ignore = "long"]
fn hundreds_of_long_days_end_equal_to_the_listing() {
    long_days(250, |done| println!("pool index: {done} hours of events equal to the listing"));
}

/// Tells `progress` of the hours done, now and then.
fn long_days(days: usize, progress: impl Fn(usize)) {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    for day in 1..=days {
        let mut draw = |count| -> Vec<Hour> {
            (0..count)
                .map(|_| hour().new_tree(&mut runner).expect("strategy never rejects").current())
                .collect()
        };
        let (disturbed, calm) = (draw(8_000), draw(500));
        a_day_ends_equal(&disturbed, &calm);
        if day % 50 == 0 {
            progress(day * 8_500);
        }
    }
}
