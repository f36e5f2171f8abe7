//! The shared-pool index: hand-worked cases, and a model of a store that loses events and changes in silence.

#![expect(clippy::single_range_in_vec_init, reason = "one range of pages is meant")]

mod day;

use std::collections::BTreeSet;
use std::time::Duration;

use tandem_kvindex::pool::{
    ClaimError, Doubt, Layout, LayoutSpec, ListingError, ListingOutcome, Object, Order, PageHash, PoolEvent,
    PoolIndex, PoolLimits, RunStart, Trailing,
};
use tandem_types::Time;

const NOW: Time = Time::ZERO;

fn page(number: u64) -> PageHash {
    let mut digest = [0u8; 32];
    digest[24..].copy_from_slice(&number.to_be_bytes());
    PageHash::from_digest(&digest)
}

fn pages(range: std::ops::Range<u64>) -> Vec<PageHash> {
    range.map(page).collect()
}

/// Slots as SGLang writes them for grouped-query attention on so many ranks.
fn ranks(range: std::ops::Range<u32>) -> Vec<String> {
    range.flat_map(|rank| [format!("_{rank}_k"), format!("_{rank}_v")]).collect()
}

fn sglang(tenant: &str, tp: u32) -> LayoutSpec {
    LayoutSpec {
        tenant: tenant.to_owned(),
        space: "model_".to_owned(),
        every: ranks(0..tp),
        trailing: Vec::new(),
        foreign: ranks(tp..8),
        run: RunStart::LocalEnd,
    }
}

/// One object per page: enough where completeness is not the matter.
fn single(run: RunStart) -> LayoutSpec {
    LayoutSpec {
        tenant: String::new(),
        space: "s".to_owned(),
        every: vec!["k".to_owned()],
        trailing: Vec::new(),
        foreign: Vec::new(),
        run,
    }
}

fn object<'a>(space: &'a str, number: u64, slot: &'a str) -> Object<'a> {
    Object { tenant: "", space, page: page(number), slot }
}

fn put_all(index: &mut PoolIndex, batch: u64, objects: &[Object<'_>]) {
    let events: Vec<PoolEvent<'_>> = objects.iter().map(|object| PoolEvent::Stored(*object)).collect();
    index.apply(batch, &events, NOW);
}

fn claim(index: &mut PoolIndex, spec: &LayoutSpec) -> Layout {
    index.claim(spec, NOW).expect("valid layout")
}

fn settle(index: &mut PoolIndex) {
    while !index.step(100).idle {}
}

fn list(index: &mut PoolIndex, tenant: &str, objects: &[Object<'_>], now: Time) {
    settle(index);
    index.begin_listing(tenant, now).expect("idle");
    for object in objects {
        index.listed(object);
    }
    assert_eq!(index.finish_listing(true), ListingOutcome::Sweeping);
    settle(index);
}

/// I-POOL-1.
#[test]
fn a_page_counts_when_every_object_of_the_layout_is_there() {
    let mut index = PoolIndex::new(PoolLimits::default());
    let layout = claim(&mut index, &sglang("", 2));
    let reader = index.reader();
    for (batch, slot) in ["_0_k", "_0_v", "_1_k"].into_iter().enumerate() {
        put_all(&mut index, batch as u64 + 1, &[object("model_", 0, slot)]);
        assert_eq!(reader.hits(&layout, &pages(0..1)).total, 0, "after {slot}");
    }
    put_all(&mut index, 4, &[object("model_", 0, "_1_v")]);
    assert_eq!(reader.hits(&layout, &pages(0..1)).ranges, [0..1]);
    // A second replica type, then one object goes: the page goes with it.
    put_all(&mut index, 5, &[object("model_", 0, "_1_v")]);
    index.apply(6, &[PoolEvent::Removed(object("model_", 0, "_0_v"))], NOW);
    assert_eq!(reader.hits(&layout, &pages(0..1)).total, 0);
    assert_eq!(index.objects(""), 3);
}

/// I-POOL-1.
#[test]
fn layouts_of_one_space_are_told_apart_by_foreign_objects() {
    let mut index = PoolIndex::new(PoolLimits::default());
    let (tp4, tp8) = (claim(&mut index, &sglang("", 4)), claim(&mut index, &sglang("", 8)));
    let reader = index.reader();
    let written_by = |index: &mut PoolIndex, batch, number, tp| {
        let slots = ranks(0..tp);
        let objects: Vec<_> = slots.iter().map(|slot| object("model_", number, slot)).collect();
        put_all(index, batch, &objects);
    };
    written_by(&mut index, 1, 0, 4);
    written_by(&mut index, 2, 1, 8);
    assert_eq!(reader.hits(&tp4, &pages(0..2)).ranges, [0..1]);
    assert_eq!(reader.hits(&tp8, &pages(0..2)).ranges, [1..2]);
}

/// I-POOL-3.
#[test]
fn vllm_and_sglang_spaces_and_tenants_do_not_mix() {
    let mut index = PoolIndex::new(PoolLimits::default());
    let slots = ["tp_rank:0@pcp0@dcp0@pp_rank:0@group:0", "tp_rank:1@pcp0@dcp0@pp_rank:0@group:0"];
    let vllm = LayoutSpec {
        space: "model_".to_owned(),
        every: slots.map(str::to_owned).to_vec(),
        foreign: Vec::new(),
        run: RunStart::FirstPage,
        ..sglang("", 1)
    };
    let vllm = claim(&mut index, &LayoutSpec { space: "tiny".to_owned(), ..vllm });
    let own = claim(&mut index, &sglang("default", 1));
    let other = claim(&mut index, &sglang("b", 1));
    let reader = index.reader();
    put_all(&mut index, 1, &[object("tiny", 0, slots[0]), object("tiny", 0, slots[1])]);
    put_all(&mut index, 2, &[object("model_", 1, "_0_k"), object("model_", 1, "_0_v")]);
    let theirs = |slot| Object { tenant: "b", ..object("model_", 2, slot) };
    put_all(&mut index, 3, &[theirs("_0_k"), theirs("_0_v")]);
    let found = |layout: &Layout| reader.hits(layout, &pages(0..3)).ranges;
    assert_eq!(found(&vllm), [0..1]);
    assert_eq!(found(&own), [1..2]);
    assert_eq!(found(&other), [2..3]);
    index.apply(4, &[PoolEvent::Cleared { tenant: "b" }], NOW);
    assert_eq!((found(&own), found(&other)), (vec![1..2], vec![]));
    assert_eq!((index.objects("default"), index.objects("b")), (4, 0));
}

/// I-POOL-1.
#[test]
fn more_than_64_objects_make_a_page() {
    let mut index = PoolIndex::new(PoolLimits::default());
    let slots = ranks(0..96);
    let layout =
        claim(&mut index, &LayoutSpec { every: slots.clone(), foreign: Vec::new(), ..sglang("", 1) });
    let objects: Vec<_> = slots.iter().map(|slot| object("model_", 7, slot)).collect();
    put_all(&mut index, 1, &objects[..191]);
    assert_eq!(index.reader().hits(&layout, &[page(7)]).total, 0);
    put_all(&mut index, 2, &objects[191..]);
    assert_eq!(index.reader().hits(&layout, &[page(7)]).total, 1);
    for (at, gone) in objects.iter().enumerate() {
        index.apply(3 + 2 * at as u64, &[PoolEvent::Removed(*gone)], NOW);
        assert_eq!(index.reader().hits(&layout, &[page(7)]).total, 0, "{}", slots[at]);
        put_all(&mut index, 4 + 2 * at as u64, &[*gone]);
    }
    assert_eq!(index.reader().hits(&layout, &[page(7)]).total, 1);
}

/// Pages 0, 1, 2 and 5 of 8 are in the store.
///
/// I-POOL-2.
#[test]
fn credit_is_the_run_beyond_what_the_worker_holds() {
    let mut index = PoolIndex::new(PoolLimits::default());
    let local = claim(&mut index, &single(RunStart::LocalEnd));
    let first = claim(&mut index, &single(RunStart::FirstPage));
    let reader = index.reader();
    put_all(&mut index, 1, &[0, 1, 2, 5].map(|number| object("s", number, "k")));
    let prompt = pages(0..8);
    let hits = reader.hits(&local, &prompt);
    assert_eq!((hits.ranges, hits.total), (vec![0..3, 5..6], 4));
    // Device prefix, credit from its end on, credit of an engine that looks up from the first page. Counting
    // every hit at or behind the device prefix would give 4, 3, 2, 1, 1, 1, 0: behind the hole nothing is of use.
    for (device, from_end, from_first) in
        [(0, 3, 3), (1, 2, 2), (2, 1, 1), (3, 0, 0), (4, 0, 0), (5, 1, 0), (6, 0, 0), (8, 0, 0), (9, 0, 0)]
    {
        assert_eq!(reader.shared_beyond_device(&local, device, &prompt), from_end, "device {device}");
        assert_eq!(reader.shared_beyond_device(&first, device, &prompt), from_first, "device {device}");
    }
    // A page in host memory too is credited as such: what is held locally ends at 2, and one page is left.
    assert_eq!(reader.shared_beyond_device(&local, 2, &prompt), 1);
    // The first page was evicted from the store while the worker still holds it.
    index.apply(2, &[PoolEvent::Removed(object("s", 0, "k"))], NOW);
    assert_eq!(reader.shared_beyond_device(&local, 1, &prompt), 2);
    assert_eq!(reader.shared_beyond_device(&first, 1, &prompt), 0);
    assert_eq!(reader.shared_beyond_device(&local, 0, &[]), 0);
}

/// I-POOL-2.
#[test]
fn tokens_inside_a_page_are_not_credited_twice() {
    let mut index = PoolIndex::new(PoolLimits::default());
    let layout = claim(&mut index, &single(RunStart::LocalEnd));
    put_all(&mut index, 1, &[0, 1, 2].map(|number| object("s", number, "k")));
    let reader = index.reader();
    let prompt = pages(0..5);
    for (local, credit) in
        [(0, 192), (64, 128), (100, 92), (127, 65), (128, 64), (191, 1), (192, 0), (250, 0)]
    {
        assert_eq!(reader.shared_tokens_beyond(&layout, local, 64, &prompt), credit, "local {local}");
    }
    assert_eq!(reader.shared_tokens_beyond(&layout, 5, 0, &prompt), 0);
}

/// A window of two pages and a state checkpoint of one: a run may only end where the window before it and the
/// checkpoint are whole.
#[test]
fn trailing_objects_bound_where_a_run_may_end() {
    let mut index = PoolIndex::new(PoolLimits::default());
    let layout = claim(
        &mut index,
        &LayoutSpec {
            trailing: vec![
                Trailing { pages: 2, slots: vec!["swa".to_owned()] },
                Trailing { pages: 1, slots: vec!["state".to_owned()] },
            ],
            ..single(RunStart::LocalEnd)
        },
    );
    for number in 0..6 {
        put_all(&mut index, number + 1, &[object("s", number, "k")]);
    }
    put_all(&mut index, 7, &[0, 1, 3, 4, 5].map(|number| object("s", number, "swa")));
    put_all(&mut index, 8, &[1, 2, 3, 4].map(|number| object("s", number, "state")));
    let reader = index.reader();
    // Ends at 2 (pages 0, 1) and at 5 (pages 3, 4) are possible; page 5 has no checkpoint, page 2 no window.
    assert_eq!(reader.shared_beyond_device(&layout, 0, &pages(0..6)), 5);
    assert_eq!(reader.shared_beyond_device(&layout, 0, &pages(0..4)), 2);
    // From page 3 on one page of window is all that the run has.
    assert_eq!(reader.shared_beyond_device(&layout, 3, &pages(0..4)), 1);
    assert_eq!(reader.shared_beyond_device(&layout, 5, &pages(0..6)), 0);
}

/// I-POOL-4.
#[test]
fn batches_out_of_step_raise_doubts_and_wipe_nothing() {
    let mut index = PoolIndex::new(PoolLimits::default());
    let layout = claim(&mut index, &single(RunStart::LocalEnd));
    let held = [0, 1].map(|number| object("s", number, "k"));
    let later = Time::from_millis(5);
    let step = |index: &mut PoolIndex, number, object| {
        index.apply(number, &[PoolEvent::Stored(object)], later).order
    };
    let settled = |index: &mut PoolIndex| {
        list(index, "", &held, later);
        assert_eq!(index.doubted(""), None);
    };
    assert_eq!(index.doubted(""), Some((Doubt::NewLayout, NOW)));
    settled(&mut index);
    assert_eq!(step(&mut index, 1, held[0]), Order::First);
    assert_eq!(step(&mut index, 1, held[0]), Order::Repeat);
    assert_eq!(step(&mut index, 2, held[1]), Order::Next);
    assert_eq!(index.doubted(""), None);
    assert_eq!(step(&mut index, 5, held[1]), Order::Gap { missed: 2 });
    assert_eq!(index.doubted(""), Some((Doubt::Gap, later)));
    assert!(layout.freshness(later).doubted);
    settled(&mut index);
    assert_eq!(step(&mut index, 1, held[1]), Order::Restart);
    assert_eq!(index.doubted(""), Some((Doubt::Restart, later)));
    settled(&mut index);
    // The same number, but with news: another process that has come as far.
    assert_eq!(step(&mut index, 1, object("s", 9, "k")), Order::Restart);
    settled(&mut index);
    index.disconnected(later);
    assert_eq!(step(&mut index, 7, held[0]), Order::First);
    assert_eq!(index.doubted(""), Some((Doubt::Disconnected, later)));
    settled(&mut index);
    assert!(!layout.freshness(later).doubted);
    assert_eq!(index.reader().hits(&layout, &pages(0..2)).total, 2);
    let counters = index.counters();
    assert_eq!((counters.gaps, counters.missed_batches, counters.restarts, counters.repeats), (1, 2, 2, 1));
    assert_eq!(counters.ghosts, 1);
}

/// I-POOL-4: what the store did before is not known, unless its first batch was heard.
#[test]
fn who_joins_late_doubts_what_it_knows() {
    for (first, doubt) in [(1, None), (7, Some((Doubt::LateJoin, NOW)))] {
        let mut index = PoolIndex::new(PoolLimits::default());
        claim(&mut index, &single(RunStart::LocalEnd));
        list(&mut index, "", &[], NOW);
        assert_eq!(index.apply(first, &[PoolEvent::Stored(object("s", 1, "k"))], NOW).order, Order::First);
        assert_eq!(index.doubted(""), doubt);
    }
}

/// I-POOL-7: removals are remembered for one listing, and the next one may have as many.
#[test]
fn removals_of_one_listing_do_not_count_for_the_next() {
    let mut index = PoolIndex::new(PoolLimits { tombstones: 2, ..PoolLimits::default() });
    claim(&mut index, &single(RunStart::LocalEnd));
    for round in 0..3 {
        index.begin_listing("", NOW).expect("idle");
        let events = [10, 11].map(|number| PoolEvent::Removed(object("s", number, "k")));
        index.apply(round + 1, &events, NOW);
        assert_eq!(index.finish_listing(true), ListingOutcome::Sweeping, "{round}");
        settle(&mut index);
        assert_eq!(index.pages(), 0);
    }
}

/// I-POOL-5.
#[test]
fn what_events_said_since_the_listing_began_stands() {
    let mut index = PoolIndex::new(PoolLimits::default());
    claim(&mut index, &single(RunStart::LocalEnd));
    let [ghost, kept, gone, fresh, learned, unknown] =
        [0, 1, 2, 3, 4, 5].map(|number| object("s", number, "k"));
    put_all(&mut index, 1, &[ghost, kept, gone]);
    index.begin_listing("", NOW).expect("idle");
    assert_eq!(index.begin_listing("", NOW), Err(ListingError::Busy));
    let events = [PoolEvent::Removed(gone), PoolEvent::Stored(fresh), PoolEvent::Removed(unknown)];
    index.apply(2, &events, NOW);
    // The listing was taken before the removals and the put, and does not know of them.
    assert!(!index.listed(&kept));
    assert!(!index.listed(&gone));
    assert!(!index.listed(&unknown));
    assert!(index.listed(&learned));
    assert!(!index.listed(&Object { tenant: "b", ..ghost }));
    assert_eq!(index.finish_listing(true), ListingOutcome::Sweeping);
    // Events go on while it is swept.
    let mut order = 3;
    while !index.step(1).idle {
        index.apply(order, &[PoolEvent::Removed(kept), PoolEvent::Stored(kept)], NOW);
        order += 1;
    }
    let there = [ghost, kept, gone, fresh, learned, unknown].map(|object| index.contains(&object));
    assert_eq!(there, [false, true, false, true, true, false]);
    assert_eq!((index.objects(""), index.pages()), (3, 3));
    assert_eq!((index.counters().ghosts, index.counters().learned), (1, 1));
}

#[test]
fn listings_that_break_off_or_are_overtaken_settle_nothing() {
    let mut index = PoolIndex::new(PoolLimits { tombstones: 2, ..PoolLimits::default() });
    let layout = claim(&mut index, &single(RunStart::LocalEnd));
    let [a, b, c] = [0, 1, 2].map(|number| object("s", number, "k"));
    put_all(&mut index, 1, &[a]);
    index.begin_listing("", NOW).expect("idle");
    index.listed(&b);
    index.listed_absent(&a);
    assert_eq!(index.finish_listing(false), ListingOutcome::Partial);
    settle(&mut index);
    assert_eq!([a, b].map(|object| index.contains(&object)), [false, true]);
    assert_eq!(layout.freshness(NOW).listed, None);
    // Cleared under way: what the listing says may be from before.
    index.begin_listing("", NOW).expect("idle");
    index.listed(&b);
    index.apply(2, &[PoolEvent::Cleared { tenant: "" }, PoolEvent::Stored(c)], NOW);
    assert!(!index.listed(&a));
    assert_eq!(index.finish_listing(true), ListingOutcome::Void);
    settle(&mut index);
    assert_eq!([a, b, c].map(|object| index.contains(&object)), [false, false, true]);
    assert_eq!((index.objects(""), index.pages()), (1, 1));
    // More removals of unknown objects than can be remembered.
    index.begin_listing("", NOW).expect("idle");
    for number in 10..13 {
        index.apply(number, &[PoolEvent::Removed(object("s", number, "k"))], NOW);
    }
    assert_eq!(index.finish_listing(true), ListingOutcome::Void);
    settle(&mut index);
    assert_eq!(index.pages(), 1);
    assert_eq!(index.due(NOW, Duration::MAX), ["default"]);
    // A doubt raised under way is not settled by what was sampled before it.
    index.begin_listing("", NOW).expect("idle");
    index.listed(&c);
    index.apply(90, &[], Time(7));
    assert_eq!(index.finish_listing(true), ListingOutcome::Sweeping);
    settle(&mut index);
    assert!(index.doubted("").is_some());
    list(&mut index, "", &[c], Time::from_millis(1_000));
    assert_eq!(index.doubted(""), None);
    let hour = Duration::from_secs(3_600);
    assert!(index.due(Time::from_millis(2_000), hour).is_empty());
    assert_eq!(index.due(Time::from_millis(1_000) + hour, hour), ["default"]);
    assert_eq!(layout.freshness(Time::from_millis(3_000)).listed, Some(Duration::from_secs(2)));
    assert_eq!(index.begin_listing("nobody", NOW), Err(ListingError::UnknownTenant));
    assert_eq!(index.finish_listing(true), ListingOutcome::None);
}

/// I-POOL-7.
#[test]
fn limits_refuse_and_ask_again() {
    let limits = PoolLimits { pages: 10, spaces: 1, slots_per_space: 2, ..PoolLimits::default() };
    let mut index = PoolIndex::new(limits);
    let spec = single(RunStart::LocalEnd);
    let layout = claim(&mut index, &spec);
    let refused = |index: &mut PoolIndex, spec: LayoutSpec| index.claim(&spec, NOW).expect_err("refused");
    assert_eq!(refused(&mut index, LayoutSpec { every: vec![], ..spec.clone() }), ClaimError::NoSlots);
    let foreign = vec!["k".to_owned()];
    assert_eq!(refused(&mut index, LayoutSpec { foreign, ..spec.clone() }), ClaimError::Contradiction);
    assert_eq!(
        refused(&mut index, LayoutSpec { space: "t".into(), ..spec.clone() }),
        ClaimError::TooManySpaces
    );
    let every = ["k", "l", "m"].map(str::to_owned).to_vec();
    assert_eq!(refused(&mut index, LayoutSpec { every, ..spec.clone() }), ClaimError::TooManySlots);

    list(&mut index, "", &[], NOW);
    for number in 0..12 {
        put_all(&mut index, number + 1, &[object("s", number, "k")]);
    }
    assert_eq!((index.pages(), index.counters().refused), (10, 2));
    assert!(index.due(NOW, Duration::MAX).is_empty());
    let events = [0, 1].map(|number| PoolEvent::Removed(object("s", number, "k")));
    index.apply(13, &events, NOW);
    assert_eq!(index.due(NOW, Duration::MAX), ["default"]);
    let store: Vec<_> = (2..12).map(|number| object("s", number, "k")).collect();
    list(&mut index, "", &store, NOW);
    assert_eq!(index.reader().hits(&layout, &pages(2..12)).total, 10);
    assert!(index.due(NOW, Duration::MAX).is_empty());
}

/// I-POOL-7.
#[test]
fn released_spaces_vanish_and_are_reclaimed() {
    let mut index = PoolIndex::new(PoolLimits::default());
    let (one, two) =
        (claim(&mut index, &single(RunStart::LocalEnd)), claim(&mut index, &single(RunStart::FirstPage)));
    put_all(&mut index, 1, &[object("s", 0, "k"), object("other", 0, "k"), object("s", 0, "unclaimed")]);
    assert_eq!((index.pages(), index.counters().unclaimed), (1, 2));
    index.release(&one);
    assert!(index.contains(&object("s", 0, "k")));
    index.release(&two);
    assert!(!index.contains(&object("s", 0, "k")));
    let again = claim(&mut index, &single(RunStart::LocalEnd));
    assert_eq!(index.reader().hits(&again, &[page(0)]).total, 0);
    settle(&mut index);
    assert_eq!((index.pages(), index.objects("")), (0, 0));
    // The old handle does not end the new claim.
    index.release(&one);
    put_all(&mut index, 2, &[object("s", 0, "k")]);
    assert_eq!(index.reader().hits(&again, &[page(0)]).total, 1);
    assert_eq!(index.reader().hits(&one, &[page(0)]).total, 0);
    index.release(&again);
    settle(&mut index);
    assert_eq!(index.begin_listing("", NOW), Err(ListingError::UnknownTenant));
}

#[test]
fn readers_see_whole_pages_while_the_writer_works() {
    let mut index = PoolIndex::new(PoolLimits::default());
    let layout = claim(&mut index, &single(RunStart::LocalEnd));
    put_all(&mut index, 1, &[0, 1, 2, 3].map(|number| object("s", number, "k")));
    let reader = index.reader();
    let prompt = pages(0..4);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let runs: BTreeSet<usize> =
                (0..5_000).map(|_| reader.shared_beyond_device(&layout, 0, &prompt)).collect();
            runs
        });
        let mut batch = 2;
        while !asking.is_finished() {
            index.apply(batch, &[PoolEvent::Removed(object("s", 2, "k"))], NOW);
            index.apply(batch + 1, &[PoolEvent::Stored(object("s", 2, "k"))], NOW);
            batch += 2;
        }
        let runs = asking.join().expect("no panic");
        assert!(runs.is_subset(&BTreeSet::from([2, 4])), "{runs:?}");
    });
}

#[test]
fn churn_keeps_memory_flat() {
    let mut index = PoolIndex::new(PoolLimits::default());
    claim(&mut index, &single(RunStart::LocalEnd));
    let held = 20_000;
    let mut after_first = 0;
    for number in 0..held * 10 {
        put_all(&mut index, number + 1, &[object("s", number, "k")]);
        if number >= held {
            index.apply(number + 1, &[PoolEvent::Removed(object("s", number - held, "k"))], NOW);
        }
        if number == held {
            after_first = index.bytes();
        }
    }
    assert_eq!(index.pages() as u64, held);
    assert!(index.bytes() <= after_first * 3 / 2, "{} after {after_first}", index.bytes());
    assert!(index.bytes() as u64 / held < 150, "{} bytes per page", index.bytes() as u64 / held);
    for number in held * 9..held * 10 {
        index.apply(1, &[PoolEvent::Removed(object("s", number, "k"))], NOW);
    }
    assert!(index.bytes() < after_first / 4, "{} of {after_first} left", index.bytes());
}
