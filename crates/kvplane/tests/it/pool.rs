//! The shared store beside the workers' own tiers.

use tandem_kvplane::{Plane, StoreChange, StoreDoubt, StoreUse, VllmHashing, WorkerSpec};
use tandem_kvwire::hash::vllm::{VllmAlgorithm, VllmHasher, VllmKeyForm};
use tandem_kvwire::mooncake::vllm::VllmLayout;
use tandem_kvwire::mooncake::{ObjectChange, StoreBatch, StoreEvent};
use tandem_types::{BlockStored, Tier, Time};

use crate::told::*;

fn event(change: ObjectChange) -> StoreEvent {
    StoreEvent {
        event_id: 0,
        timestamp_ms: 0,
        change,
        tenant: None,
        backend: None,
        group: None,
        medium: None,
    }
}

fn said(plane: &mut Plane, seq: u64, changes: Vec<ObjectChange>, now: Time) {
    let events = changes.into_iter().map(event).collect();
    plane.store(StoreChange::Batch { seq, batch: &StoreBatch { timestamp_ms: 0, events } }, now);
}

/// A prompt's objects as a vLLM of one GPU names them, and the ids of its blocks.
fn objects(prompt: &[u32]) -> (Vec<String>, Vec<u64>) {
    let hasher = VllmHasher::reproducible(VllmAlgorithm::Sha256, VllmKeyForm::Tagged).expect("reproducible");
    let digests = hasher.prompt(prompt, SIZE as usize, |_| &[]);
    let layout = VllmLayout::single("model");
    let keys = digests.iter().flat_map(|digest| layout.keys(digest.bytes()).map(|key| key.to_string()));
    (keys.collect(), digests.iter().map(tandem_kvwire::hash::vllm::VllmDigest::id).collect())
}

fn using(hash: Option<VllmHashing>) -> WorkerSpec {
    let layout = VllmLayout::single("model");
    WorkerSpec { store: Some(StoreUse::Vllm { tenant: String::new(), layout, hash }), ..vllm() }
}

fn hashing() -> VllmHashing {
    VllmHashing { algorithm: VllmAlgorithm::Sha256, seed: None, form: VllmKeyForm::Tagged }
}

/// Blocks that a worker could load behind its own.
fn beyond(plane: &Plane, prompt: &[u32], engine: u32, now: Time) -> u32 {
    let found = find(&plane.reader(), prompt, now);
    found.of(worker(engine)).map_or(0, |held| found.shared_beyond(held))
}

/// I-KVP-12, with names computed and with names learned.
#[test]
fn a_block_seen_three_ways_is_credited_once() {
    for hash in [Some(hashing()), None] {
        let mut plane = plane(2);
        for engine in [0, 1] {
            plane.worker(worker(engine), using(hash.clone()), at(0));
        }
        let prompt = tokens(1, 17);
        let (keys, ids) = objects(&prompt);
        store(&mut plane, 0, stored(&ids, None, &prompt[..16]), at(0));
        let mut echo = stored(&ids, None, &prompt[..16]);
        (echo.tier, echo.echo) = (Tier::Host, true);
        store(&mut plane, 0, echo, at(0));
        let puts = keys.iter().map(|key| ObjectChange::Stored(key.as_str().into())).collect();
        said(&mut plane, 1, puts, at(0));
        let found = find(&plane.reader(), &prompt, at(0));
        assert_eq!((depths(&found, 0), beyond(&plane, &prompt, 0, at(0))), (Some([4, 4, 4]), 0));
        assert_eq!((depths(&found, 1), beyond(&plane, &prompt, 1, at(0))), (Some([0, 0, 0]), 4));
        let [run] = found.shared.as_slice() else { panic!("one run") };
        assert_eq!((run.clone(), plane.stats().store.objects), (0..4, 4));
        remove(&mut plane, 0, removed(&ids[1..], Tier::Device), at(0));
        let found = find(&plane.reader(), &prompt, at(0));
        assert_eq!((depths(&found, 0), beyond(&plane, &prompt, 0, at(0))), (Some([1, 1, 1]), 3));
        // The last token is computed, whoever holds its block.
        assert_eq!(beyond(&plane, &prompt[..16], 0, at(0)), 2);
        // A hole ends what can be loaded, and where it was there is no credit.
        said(&mut plane, 2, vec![ObjectChange::Removed(keys[2].as_str().into())], at(0));
        assert_eq!([0, 1].map(|engine| beyond(&plane, &prompt, engine, at(0))), [1, 2]);
    }
}

#[test]
fn salts_name_other_objects_and_adapters_none() {
    let mut plane = plane(1);
    plane.worker(worker(0), using(Some(hashing())), at(0));
    let prompt = tokens(1, 9);
    let (keys, _) = objects(&prompt);
    said(&mut plane, 1, keys.iter().map(|key| ObjectChange::Stored(key.as_str().into())).collect(), at(0));
    let reader = plane.reader();
    let of = |lora, salt| {
        let found = reader.find(&reader.chain(&prompt, lora, salt, None), at(0));
        found.of(worker(0)).map(|held| found.shared_beyond(held))
    };
    assert_eq!([of(None, None), of(None, Some("a")), of(Some("a"), None)], [Some(2), Some(0), Some(0)]);
}

#[test]
fn listings_settle_doubts_and_an_old_store_is_not_counted_on() {
    let mut plane = plane(1);
    assert!(!plane.wants_listing(at(0)), "nobody uses the store");
    plane.worker(worker(0), using(Some(hashing())), at(0));
    assert!(plane.wants_listing(at(0)), "a layout is new");
    let prompt = tokens(1, 17);
    let (keys, _) = objects(&prompt);
    let list: Vec<std::sync::Arc<str>> = keys.iter().map(|key| key.as_str().into()).collect();
    let listing = |plane: &mut Plane, listed: &[std::sync::Arc<str>], now| {
        plane.store(StoreChange::ListingBegins, now);
        plane.store(StoreChange::Listed(listed), now);
        plane.store(StoreChange::ListingEnds { complete: true }, now);
        plane.tick(now);
    };
    listing(&mut plane, &list, at(1));
    assert!(!plane.wants_listing(at(1)) && !plane.stats().store.doubted);
    assert_eq!(beyond(&plane, &prompt, 0, at(1)), 4);
    assert_eq!(plane.store_contains([keys[0].as_str(), "x"]), [true, false]);
    for doubt in [StoreDoubt::Gap, StoreDoubt::Restart, StoreDoubt::Disconnected, StoreDoubt::Dropped] {
        plane.store(StoreChange::Doubt(doubt), at(2));
        assert!(
            plane.stats().store.doubted && beyond(&plane, &prompt, 0, at(2)) == 4,
            "what is known stands"
        );
        listing(&mut plane, &list[..2], at(3));
        assert_eq!((plane.stats().store.doubted, beyond(&plane, &prompt, 0, at(3))), (false, 2));
        listing(&mut plane, &list, at(3));
    }
    assert_eq!([603, 604].map(|now| beyond(&plane, &prompt, 0, at(now))), [4, 0]);
    said(&mut plane, 9, vec![ObjectChange::Cleared, ObjectChange::Stored("odd".into())], at(5));
    assert_eq!((beyond(&plane, &prompt, 0, at(5)), plane.stats().store.odd_keys), (0, 1));
    plane.worker_gone(worker(0), at(6));
    assert!(find(&plane.reader(), &prompt, at(6)).loadable.is_none());
}

/// Names learned from one worker's events lead another worker to the objects.
#[test]
fn names_outlive_the_block_that_taught_them() {
    let mut plane = plane(2);
    for engine in [0, 1] {
        plane.worker(worker(engine), using(None), at(0));
    }
    let prompt = tokens(1, 9);
    let (keys, ids) = objects(&prompt);
    said(&mut plane, 1, keys.iter().map(|key| ObjectChange::Stored(key.as_str().into())).collect(), at(0));
    assert_eq!(beyond(&plane, &prompt, 1, at(0)), 0, "nobody knows how these blocks are called");
    store(&mut plane, 0, stored(&ids, None, &prompt[..8]), at(0));
    plane.worker_gone(worker(0), at(0));
    assert_eq!((beyond(&plane, &prompt, 1, at(0)), plane.stats().names), (2, 2));
    // A worker of another model with the same blocks is not led there.
    let other = StoreUse::Vllm { tenant: String::new(), layout: VllmLayout::single("other"), hash: None };
    plane.worker(worker(1), WorkerSpec { store: Some(other), ..vllm() }, at(0));
    assert_eq!(beyond(&plane, &prompt, 1, at(0)), 0);
    // Its own names for them are kept apart from the first one's.
    store(&mut plane, 1, stored(&[71, 72], None, &prompt[..8]), at(0));
    remove(&mut plane, 1, removed(&[71, 72], Tier::Device), at(0));
    let digest = |id: u8| [vec![0; 31], vec![id]].concat();
    let other = VllmLayout::single("other");
    let keys =
        [71, 72].map(|id| other.keys(&digest(id)).map(|key| key.to_string()).collect::<Vec<_>>()).concat();
    said(&mut plane, 2, keys.iter().map(|key| ObjectChange::Stored(key.as_str().into())).collect(), at(0));
    assert_eq!(beyond(&plane, &prompt, 1, at(0)), 2);
    let event = BlockStored { tier: Tier::Shared, ..stored(&ids, None, &prompt[..8]) };
    store(&mut plane, 1, event, at(0));
    assert_eq!(depths(&find(&plane.reader(), &prompt, at(0)), 1), Some([0, 0, 0]), "no tier of its own");
}
