//! The fuzz targets' corpora, replayed on stable, as they are and mangled.

#[path = "../../../../fuzz/src/kv_batch.rs"]
#[expect(unreachable_pub, reason = "the fuzz package uses it from outside")]
mod kv_batch;
#[path = "../../../../fuzz/src/mooncake_event.rs"]
#[expect(unreachable_pub, reason = "the fuzz package uses it from outside")]
mod mooncake_event;
#[path = "../../../../fuzz/src/replay_answer.rs"]
#[expect(unreachable_pub, reason = "the fuzz package uses it from outside")]
mod replay_answer;

use std::path::Path;

use proptest::prelude::*;

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.expect("entry").path())
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    files.iter().map(|file| std::fs::read(file).expect("corpus file")).collect()
}

fn replay(target: &str, check: fn(&[u8])) {
    corpus(target).iter().for_each(|data| check(data));
}

#[test]
fn kv_batch_corpus() {
    replay("kv_batch", kv_batch::check);
}

#[test]
fn mooncake_event_corpus() {
    replay("mooncake_event", mooncake_event::check);
}

#[test]
fn replay_answer_corpus() {
    replay("replay_answer", replay_answer::check);
}

/// A corpus file, with some bytes changed.
fn mangled(target: &str) -> impl Strategy<Value = Vec<u8>> + use<> {
    let flips = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
    (prop::sample::select(corpus(target)), flips).prop_map(|(mut data, flips)| {
        for (at, byte) in flips {
            if let Some(slot) =
                (!data.is_empty()).then(|| at.index(data.len())).and_then(|at| data.get_mut(at))
            {
                *slot = byte;
            }
        }
        data
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn mangled_batches_keep_the_promises(data in mangled("kv_batch")) {
        kv_batch::check(&data);
    }

    #[test]
    fn mangled_store_events_keep_the_promises(data in mangled("mooncake_event")) {
        mooncake_event::check(&data);
    }

    #[test]
    fn any_script_keeps_the_trackers_promises(data in prop::collection::vec(0_u8..255, 0..80)) {
        replay_answer::check(&data);
    }

    #[test]
    fn any_frames_are_read(data in prop::collection::vec(any::<u8>(), 0..60)) {
        replay_answer::check(&[&[0xff], data.as_slice()].concat());
    }
}
