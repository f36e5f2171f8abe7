//! What is known of a worker, how that changes, and what is guessed meanwhile.

use std::time::Duration;

use tandem_kvplane::{Keep, Knowledge, Pace, Plane, PlaneConfig, WorkerSpec};
use tandem_types::{EngineKind, KvEvent, MatchSource, Tier};

use crate::told::*;

fn steps(plane: &mut Plane) -> Vec<(Option<Knowledge>, Option<Knowledge>)> {
    plane.drain_transitions().into_iter().map(|step| (step.from, step.to)).collect()
}

/// I-KVP-7.
#[test]
fn a_worker_goes_from_blind_to_exact_to_stale_to_approximate_and_back() {
    use Knowledge::{Approximate, Blind, Exact, Stale};
    let mut plane = Plane::new(config());
    let reader = plane.reader();
    let prompt = tokens(1, 9);
    plane.worker(worker(0), vllm(), at(0));
    assert_eq!(
        (reader.knowledge(worker(0)), find(&reader, &prompt, at(0)).blind),
        (Blind, std::iter::once(worker(0)).collect())
    );
    store(&mut plane, 0, stored(&[1, 2], None, &prompt[..8]), at(1));
    assert_eq!(reader.knowledge(worker(0)), Blind, "history is still coming in");
    plane.live(worker(0), at(2));
    let found = find(&reader, &prompt, at(2));
    assert_eq!((depths(&found, 0), found.blind.len()), (Some([2, 2, 2]), 0));
    plane.stale(worker(0), at(100));
    plane.tick(at(159));
    assert_eq!(depths(&find(&reader, &prompt, at(159)), 0), Some([2, 2, 2]), "believed for a while");
    // What is sent there while it is silent counts as well.
    let other = tokens(50, 58);
    reader.dispatched(worker(0), &reader.chain(&other, None, None, None), at(159));
    assert_eq!(depths(&find(&reader, &other, at(159)), 0), Some([2, 2, 2]));
    plane.tick(at(160));
    assert_eq!(depths(&find(&reader, &prompt, at(160)), 0), Some([0, 0, 0]), "too old");
    let found = find(&reader, &other, at(160));
    assert_eq!(
        found.of(worker(0)).map(|held| (held.device, held.source)),
        Some((2, MatchSource::Approximate))
    );
    plane.live(worker(0), at(200));
    assert_eq!(depths(&find(&reader, &prompt, at(200)), 0), Some([2, 2, 2]), "nothing was missed");
    plane.worker_gone(worker(0), at(201));
    let expected = [
        (None, Some(Blind)),
        (Some(Blind), Some(Exact)),
        (Some(Exact), Some(Stale)),
        (Some(Stale), Some(Approximate)),
        (Some(Approximate), Some(Exact)),
        (Some(Exact), None),
    ];
    assert_eq!(steps(&mut plane), expected);
    assert_eq!(steps(&mut plane), []);
}

#[test]
fn a_restarted_worker_recovers_by_itself() {
    let mut plane = plane(1);
    let reader = plane.reader();
    let prompt = tokens(1, 9);
    store(&mut plane, 0, stored(&[1, 2], None, &prompt[..8]), at(1));
    plane.cleared(worker(0), at(2));
    assert_eq!(
        (reader.knowledge(worker(0)), depths(&find(&reader, &prompt, at(2)), 0)),
        (Knowledge::Exact, Some([0; 3]))
    );
    // Silent since: after a while nobody can say that it holds nothing.
    plane.tick(at(70));
    assert_eq!(reader.knowledge(worker(0)), Knowledge::Approximate);
    store(&mut plane, 0, stored(&[8, 9], None, &prompt[..8]), at(80));
    assert_eq!(
        (reader.knowledge(worker(0)), depths(&find(&reader, &prompt, at(80)), 0)),
        (Knowledge::Exact, Some([2; 3]))
    );
    store(&mut plane, 0, stored(&[3], Some(2), &tokens(9, 12)), at(81));
    assert_eq!(
        depths(&held(&reader, &tokens(1, 12)), 0),
        Some([2; 3]),
        "ids of the old process mean nothing"
    );
}

#[test]
fn one_that_never_comes_up_counts_as_one_without_events() {
    let mut plane = Plane::new(config());
    plane.worker(worker(0), vllm(), at(0));
    plane.worker(worker(1), WorkerSpec::new(EngineKind::OpenAi, false), at(0));
    plane.tick(at(59));
    let of = |engine| plane.reader().knowledge(worker(engine));
    assert_eq!((of(0), of(1)), (Knowledge::Blind, Knowledge::Approximate));
    plane.tick(at(60));
    assert_eq!(plane.reader().knowledge(worker(0)), Knowledge::Approximate);
    let mut off = Plane::new(PlaneConfig { approximate: None, ..config() });
    off.worker(worker(1), WorkerSpec::new(EngineKind::OpenAi, false), at(0));
    assert_eq!(off.reader().knowledge(worker(1)), Knowledge::Blind);
}

/// I-KVP-10.
#[test]
fn a_dispatch_counts_at_once_until_its_event_says_better() {
    let mut plane = plane(1);
    let reader = plane.reader();
    let prompt = tokens(1, 13);
    let chain = reader.chain(&prompt, None, None, None);
    store(&mut plane, 0, stored(&[1], None, &prompt[..4]), at(0));
    reader.dispatched(worker(0), &chain, at(0)).expect("noted");
    assert_eq!(depths(&reader.find(&chain, at(0)), 0), Some([3, 3, 3]));
    store(&mut plane, 0, stored(&[2], Some(1), &prompt[4..8]), at(1));
    assert_eq!(depths(&reader.find(&chain, at(1)), 0), Some([3, 3, 3]), "not all of it is there yet");
    store(&mut plane, 0, stored(&[3], Some(2), &prompt[8..12]), at(1));
    assert_eq!(plane.stats().confirmed, 1);
    remove(&mut plane, 0, removed(&[3], Tier::Device), at(1));
    assert_eq!(depths(&reader.find(&chain, at(1)), 0), Some([2, 2, 2]), "an eviction is not hidden");
    // No event comes: the guess ends by its time.
    reader.dispatched(worker(0), &chain, at(2)).expect("noted");
    plane.tick(at(6));
    assert_eq!(depths(&reader.find(&chain, at(6)), 0), Some([3, 3, 3]));
    plane.tick(at(7));
    assert_eq!(depths(&reader.find(&chain, at(7)), 0), Some([2, 2, 2]));
    // It failed: taken back.
    let dispatched = reader.dispatched(worker(0), &chain, at(8)).expect("noted");
    assert_eq!((depths(&reader.find(&chain, at(8)), 0), plane.stats().pending), (Some([3, 3, 3]), 1));
    reader.withdrawn(dispatched);
    assert_eq!((depths(&reader.find(&chain, at(8)), 0), plane.stats().pending), (Some([2, 2, 2]), 0));
    // All of it is there: no event will come, and none is waited for.
    let short = reader.chain(&prompt[..8], None, None, None);
    reader.dispatched(worker(0), &short, at(8));
    assert_eq!(plane.stats().pending, 0);
}

#[test]
fn a_cleared_cache_takes_predictions_with_it() {
    for clear in [true, false] {
        let mut plane = plane(1);
        let reader = plane.reader();
        let chain = reader.chain(&tokens(1, 9), None, None, None);
        reader.dispatched(worker(0), &chain, at(0)).expect("noted");
        if clear {
            plane.batch(worker(0), &batch(vec![KvEvent::Cleared]), at(0));
        } else {
            plane.cleared(worker(0), at(0));
        }
        assert_eq!(depths(&reader.find(&chain, at(0)), 0), Some([0, 0, 0]));
    }
}

#[test]
fn without_events_what_was_sent_is_believed_for_a_time_and_within_the_pool() {
    let mut plane =
        Plane::new(PlaneConfig { approximate: Some(Keep::For(Duration::from_secs(30))), ..config() });
    let spec = WorkerSpec { events: false, kv_capacity_tokens: Some(24), ..vllm() };
    plane.worker(worker(0), spec, at(0));
    let reader = plane.reader();
    let (first, second) = (tokens(1, 17), tokens(101, 117));
    for (prompt, now) in [(&first, 0), (&second, 1)] {
        reader.dispatched(worker(0), &reader.chain(prompt, None, None, None), at(now)).expect("noted");
    }
    // The pool has room for six blocks: what was sent last is there whole, and the other had to go.
    let of = |prompt: &[u32], now| depths(&find(&reader, prompt, at(now)), 0);
    assert_eq!((of(&second, 1), of(&first, 1)), (Some([4; 3]), Some([0; 3])));
    plane.tick(at(31));
    assert_eq!((of(&second, 31), of(&first, 31)), (Some([0; 3]), Some([0; 3])));
}

#[test]
fn hashes_of_another_kind_match_what_was_sent_with_such_hashes() {
    let mut plane = plane(1);
    plane.worker(worker(1), WorkerSpec { events: false, ..vllm() }, at(0));
    let reader = plane.reader();
    let text = reader.chain_of_blocks(32, &[71, 72, 73]);
    for engine in [0, 1] {
        reader.dispatched(worker(engine), &text, at(0));
    }
    let found = reader.find(&reader.chain_of_blocks(32, &[71, 72, 99]), at(0));
    assert_eq!((found.block_size, found.blocks), (32, 3));
    assert_eq!((depths(&found, 0), depths(&found, 1)), (Some([0; 3]), Some([2; 3])), "events know better");
}

/// Readers on other threads never miss what is there all along, whatever comes and goes beside it.
#[test]
fn look_ups_go_on_while_events_come_in() {
    let mut plane = plane(1);
    let prompt = tokens(1, 13);
    store(&mut plane, 0, stored(&[1, 2], None, &prompt[..8]), at(0));
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let (reader, done, prompt) = (plane.reader(), &done, &prompt);
            scope.spawn(move || {
                let mut chain = None;
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    let next = reader.chain(prompt, None, None, chain.as_ref());
                    let held = depths(&reader.find(&next, at(0)), 0).expect("not blind");
                    assert!((2..=3).contains(&held[0]), "{held:?}");
                    reader.dispatched(worker(1), &next, at(0));
                    chain = Some(next);
                }
            });
        }
        for round in 0..300u64 {
            store(&mut plane, 0, stored(&[3], Some(2), &prompt[8..12]), at(0));
            remove(&mut plane, 0, removed(&[3], Tier::Device), at(0));
            plane.worker(worker(1), vllm(), at(round));
            store(&mut plane, 1, stored(&[round, round + 1], None, &prompt[..8]), at(round));
            plane.tick(at(0));
            plane.cleared(worker(1), at(round));
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

/// I-KVP-13: a loss is no restart. What the engine held it still holds, so what was sent there lately counts.
#[test]
fn after_a_loss_a_worker_is_stale_until_its_engine_starts_anew_or_time_has_passed() {
    use Knowledge::{Exact, Stale};
    for rebuilt in [true, false] {
        let mut plane = plane(1);
        let reader = plane.reader();
        let (before, after) = (tokens(1, 9), tokens(51, 59));
        reader.dispatched(worker(0), &reader.chain(&before, None, None, None), at(1)).expect("noted");
        store(&mut plane, 0, stored(&[1, 2], None, &before[..8]), at(1));
        plane.lost(worker(0), at(10));
        let told = |found: tandem_types::PrefixMatch| found.of(worker(0)).map(|h| (h.device, h.source));
        let of = |prompt: &[u32], now| told(find(&reader, prompt, at(now)));
        assert_eq!(reader.knowledge(worker(0)), Stale);
        assert_eq!(of(&before, 10), Some((2, MatchSource::Approximate)), "it was sent there 9 s ago");
        store(&mut plane, 0, stored(&[3, 4], None, &after[..8]), at(11));
        assert_eq!(
            (reader.knowledge(worker(0)), of(&after, 11)),
            (Stale, Some((2, MatchSource::Approximate)))
        );
        if rebuilt {
            plane.batch(worker(0), &batch(vec![KvEvent::Cleared]), at(12));
            let nothing = Some((0, MatchSource::Exact));
            assert_eq!(
                (of(&before, 12), of(&after, 12)),
                (nothing, nothing),
                "all is gone, and that is known"
            );
            assert_eq!(reader.knowledge(worker(0)), Exact);
        } else {
            plane.tick(at(69));
            assert_eq!(reader.knowledge(worker(0)), Stale);
            plane.tick(at(70));
            assert_eq!((reader.knowledge(worker(0)), of(&after, 70)), (Exact, Some((2, MatchSource::Exact))));
            // Sent at 1 s, believed for two minutes: nothing is left to guess.
            plane.tick(at(121));
            assert_eq!(of(&before, 121), Some((0, MatchSource::Exact)));
        }
        assert_eq!(plane.stats().workers[0].events.voided, 1);
        let expected = [(None, Some(Knowledge::Blind)), (Some(Knowledge::Blind), Some(Exact))];
        assert_eq!(steps(&mut plane)[..2], expected);
    }
}

#[test]
fn a_new_process_has_nothing_of_what_was_sent_to_the_old_one() {
    let mut plane = plane(1);
    let reader = plane.reader();
    let prompt = tokens(1, 9);
    reader.dispatched(worker(0), &reader.chain(&prompt, None, None, None), at(1)).expect("noted");
    store(&mut plane, 0, stored(&[1, 2], None, &prompt[..8]), at(1));
    plane.cleared(worker(0), at(2));
    plane.tick(at(70));
    assert_eq!(reader.knowledge(worker(0)), Knowledge::Approximate);
    assert_eq!(depths(&find(&reader, &prompt, at(70)), 0), Some([0; 3]));
}

/// I-KVP-13: events that wait make all workers stale that have any, and the last of them makes all exact.
#[test]
fn while_events_wait_workers_are_stale_and_recover_by_themselves() {
    use Knowledge::{Approximate, Exact, Stale};
    let second = Duration::from_secs(1);
    let mut plane = plane(2);
    plane.worker(worker(2), WorkerSpec { events: false, ..vllm() }, at(0));
    let reader = plane.reader();
    let (prompt, new) = (tokens(1, 9), tokens(51, 59));
    store(&mut plane, 0, stored(&[1, 2], None, &prompt[..8]), at(0));
    plane.drain_transitions();
    let all = |reader: &tandem_kvplane::PlaneReader| [0, 1, 2].map(|engine| reader.knowledge(worker(engine)));
    assert_eq!(plane.waited(second, false, at(1)), None, "the bound itself is no wait");
    assert_eq!(plane.waited(second + Duration::from_nanos(1), false, at(1)), Some(Pace::Behind));
    assert_eq!((all(&reader), plane.stats().pace), ([Stale, Stale, Approximate], Pace::Behind));
    let found = find(&reader, &prompt, at(1));
    assert_eq!(
        found.of(worker(0)).map(|held| (held.device, held.source)),
        Some((2, MatchSource::Approximate))
    );
    // What is sent counts at once, behind or not, and until its event.
    reader.dispatched(worker(1), &reader.chain(&new, None, None, None), at(1)).expect("noted");
    assert_eq!(depths(&find(&reader, &new, at(1)), 1), Some([2, 2, 2]));
    assert_eq!(plane.waited(second, false, at(2)), None, "back at half of the bound only");
    assert_eq!(plane.waited(Duration::ZERO, true, at(2)), None, "who holds up publishers does not know");
    assert_eq!(plane.waited(Duration::from_secs(61), true, at(2)), Some(Pace::FarBehind));
    assert_eq!(all(&reader), [Approximate; 3]);
    assert_eq!(depths(&find(&reader, &prompt, at(2)), 0), Some([0, 0, 0]), "too old to be believed");
    assert_eq!(plane.waited(second / 2, false, at(3)), Some(Pace::Abreast));
    assert_eq!(all(&reader), [Exact, Exact, Approximate]);
    assert_eq!(plane.stats().pending, 1, "its event is still to come");
    assert_eq!(depths(&find(&reader, &new, at(3)), 1), Some([2, 2, 2]));
    store(&mut plane, 1, stored(&[5, 6], None, &new[..8]), at(3));
    assert_eq!((plane.stats().confirmed, plane.stats().pending), (1, 0));
    let steps = steps(&mut plane);
    let of_one =
        [(Some(Exact), Some(Stale)), (Some(Stale), Some(Approximate)), (Some(Approximate), Some(Exact))];
    let expected: Vec<_> = of_one.iter().flat_map(|step| [*step; 2]).collect();
    assert_eq!(steps, expected, "each once for both of them");
}
