//! What tests say to a plane.

use std::time::Duration;

use tandem_kvplane::{Plane, PlaneConfig, PlaneReader, WorkerSpec};
use tandem_types::{
    BlockRemoved, BlockStored, EngineId, EngineKind, KvBatch, KvEvent, PrefixMatch, ProgramKey, SessionId,
    TenantId, Tier, Time, WorkerId, WorkerPrefix,
};

pub(crate) const SIZE: u32 = 4;

pub(crate) const fn worker(engine: u32) -> WorkerId {
    WorkerId { engine: EngineId(engine), rank: 0 }
}

pub(crate) const fn at(seconds: u64) -> Time {
    Time::from_millis(seconds * 1000)
}

pub(crate) fn tokens(from: u32, to: u32) -> Vec<u32> {
    (from..=to).collect()
}

pub(crate) fn key(session: &str) -> ProgramKey {
    ProgramKey::root(TenantId::default(), SessionId::new(session).expect("an id"))
}

/// A plane with so many vLLM workers whose events are live.
pub(crate) fn plane(workers: u32) -> Plane {
    let mut plane = Plane::new(config());
    for engine in 0..workers {
        plane.worker(worker(engine), vllm(), at(0));
        plane.live(worker(engine), at(0));
    }
    plane
}

pub(crate) fn config() -> PlaneConfig {
    PlaneConfig {
        block_size: SIZE,
        predict: Duration::from_secs(5),
        stale_after: Duration::from_secs(60),
        ..PlaneConfig::default()
    }
}

pub(crate) fn vllm() -> WorkerSpec {
    WorkerSpec { block_size: Some(SIZE), ..WorkerSpec::new(EngineKind::Vllm, true) }
}

pub(crate) fn stored(ids: &[u64], parent: Option<u64>, tokens: &[u32]) -> BlockStored {
    BlockStored {
        block_hashes: ids.to_vec(),
        parent,
        tokens: tokens.to_vec(),
        block_size: SIZE,
        ..BlockStored::default()
    }
}

pub(crate) fn removed(ids: &[u64], tier: Tier) -> BlockRemoved {
    BlockRemoved { block_hashes: ids.to_vec(), tier, ..BlockRemoved::default() }
}

pub(crate) fn batch(events: Vec<KvEvent>) -> KvBatch {
    KvBatch { timestamp: 0.0, events, rank: None }
}

pub(crate) fn store(plane: &mut Plane, engine: u32, event: BlockStored, now: Time) {
    plane.batch(worker(engine), &batch(vec![KvEvent::Stored(event)]), now);
}

pub(crate) fn remove(plane: &mut Plane, engine: u32, event: BlockRemoved, now: Time) {
    plane.batch(worker(engine), &batch(vec![KvEvent::Removed(event)]), now);
}

pub(crate) fn find(reader: &PlaneReader, tokens: &[u32], now: Time) -> PrefixMatch {
    reader.find(&reader.chain(tokens, None, None, None), now)
}

pub(crate) fn held(reader: &PlaneReader, tokens: &[u32]) -> PrefixMatch {
    reader.held(&reader.chain(tokens, None, None, None), at(0))
}

/// Blocks on a worker: device, with host, with disk.
pub(crate) fn depths(found: &PrefixMatch, engine: u32) -> Option<[u32; 3]> {
    found.of(worker(engine)).map(|WorkerPrefix { device, host, disk, .. }| [device, host, disk])
}
