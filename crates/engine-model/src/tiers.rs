//! Cache tiers below the device: host memory, local disk, the way to a shared store.
//!
//! - Purpose: know which blocks lie where, how long moving them takes, and what an engine publishes of it.
//! - Inputs: keys that the device cached, evicted or looks up; time. Outputs: events, places of blocks, ends of
//!   transfers.
//! - Invariants:
//!   - I-TIR-1 a tier never holds more than its capacity; the least recently used block makes room, and of one
//!     prefix the head goes last.
//!   - I-TIR-2 a block is found in a tier only after its copy has arrived there; transfers of one link and
//!     direction do not overlap.
//!   - I-TIR-3 what the events say of a tier is what it holds, except of a shared store: engines announce what
//!     they put there and never what was lost.
//! - Deliberately absent: losses on the way, partial blocks, compression, direct storage access; reads from
//!   disk do not pass through host memory; a block whose copy is under way may leave the device meanwhile.
//! - Sources: vLLM 0.33's offloading and store connectors, SGLang 0.5.23's HiCache, aisimulate-core 0.13.

mod config;
mod link;
mod lru;
mod store;

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::BuildHasherDefault;

use tandem_types::{BlockRemoved, BlockStored, KvEvent, Tier, Time};

use crate::config::{EngineConfig, Flavor};
use crate::pool::{KeyHasher, Pool};
use link::Link;
use lru::Lru;

pub use config::{LinkConfig, TierConfig, TiersConfig, WritePolicy};
pub use store::{MemoryStore, NoStore, SharedStore};

/// The two directions of a link.
#[derive(Debug, Clone)]
struct Ways {
    config: LinkConfig,
    read: Link,
    write: Link,
    /// Copies on their way: when they arrive, and of what.
    writes: VecDeque<(Time, Vec<u64>)>,
}

impl Ways {
    fn new(config: LinkConfig) -> Self {
        Self { config, read: Link::default(), write: Link::default(), writes: VecDeque::new() }
    }

    /// Begins to copy blocks.
    fn send(&mut self, now: Time, block_bytes: f64, keys: Vec<u64>) {
        if keys.is_empty() {
            return;
        }
        let bytes = (block_bytes * keys.len() as f64) as u64;
        let at = self.write.transfer(now, bytes, self.config.write_gb_s);
        self.writes.push_back((at, keys));
    }

    /// The next copy that has arrived.
    fn arrived(&mut self, now: Time) -> Option<Vec<u64>> {
        self.writes.front().filter(|(at, _)| *at <= now)?;
        self.writes.pop_front().map(|(_, keys)| keys)
    }
}

#[derive(Debug, Clone)]
struct Store {
    blocks: Lru,
    ways: Ways,
}

/// Where a lookup found blocks, in blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) host: u32,
    pub(crate) disk: u32,
    pub(crate) shared: u32,
}

impl Found {
    pub(crate) const fn blocks(self) -> u32 {
        self.host + self.disk + self.shared
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Tiers {
    host: Option<Store>,
    disk: Option<Store>,
    shared: Option<Ways>,
    policy: WritePolicy,
    flavor: Flavor,
    emit: bool,
    block_size: u32,
    /// Bytes of a block over the speed-up: what transfers take is sped up as passes are.
    block_bytes: f64,
    /// How many copies of a key are on their way.
    moving: HashMap<u64, u32, BuildHasherDefault<KeyHasher>>,
    /// What each block that lies anywhere is made of, for events.
    texts: HashMap<u64, Box<BlockStored>, BuildHasherDefault<KeyHasher>>,
}

impl Tiers {
    pub(crate) fn new(config: &EngineConfig) -> Self {
        let tiers = config.tiers;
        let store = |tier: TierConfig| Store {
            blocks: Lru::new(
                u32::try_from(tier.tokens / u64::from(config.block_size)).unwrap_or(u32::MAX - 1),
            ),
            ways: Ways::new(tier.link),
        };
        Self {
            host: tiers.host.map(store),
            disk: tiers.disk.map(store),
            shared: tiers.shared.map(Ways::new),
            policy: tiers.policy,
            flavor: config.flavor,
            emit: config.emit_events,
            block_size: config.block_size,
            block_bytes: tiers.token_bytes as f64 * f64::from(config.block_size) / config.speedup,
            moving: HashMap::default(),
            texts: HashMap::default(),
        }
    }

    /// Whether there are any.
    pub(crate) const fn any(&self) -> bool {
        self.host.is_some() || self.disk.is_some() || self.shared.is_some()
    }

    /// (held, capacity) of host and disk, in blocks.
    pub(crate) fn sizes(&self) -> [(u32, u32); 2] {
        [&self.host, &self.disk]
            .map(|store| store.as_ref().map_or((0, 0), |store| (store.blocks.len(), store.blocks.capacity())))
    }

    /// Whether a block lies in host memory or, if asked, on disk.
    pub(crate) fn holds(&self, key: u64, disk: bool) -> bool {
        let holds = |store: &Option<Store>| store.as_ref().is_some_and(|store| store.blocks.contains(key));
        holds(&self.host) || (disk && holds(&self.disk))
    }

    /// When the next copy arrives.
    pub(crate) fn next_arrival(&self) -> Option<Time> {
        [self.host.as_ref().map(|s| &s.ways), self.disk.as_ref().map(|s| &s.ways), self.shared.as_ref()]
            .into_iter()
            .flatten()
            .filter_map(|ways| ways.writes.front().map(|(at, _)| *at))
            .min()
    }

    /// Notes what a block is made of.
    pub(crate) fn describe(&mut self, key: u64, text: impl FnOnce() -> BlockStored) {
        if self.emit && self.any() {
            self.texts.entry(key).or_insert_with(|| Box::new(text()));
        }
    }

    /// Blocks that the device has cached by `now`, in order.
    pub(crate) fn cached(&mut self, keys: &[u64], now: Time) {
        if self.policy == WritePolicy::Through {
            self.write_own(keys, now);
        }
        if self.shared.is_some() && !keys.is_empty() {
            keys.iter().for_each(|key| *self.moving.entry(*key).or_default() += 1);
            if let Some(ways) = &mut self.shared {
                ways.send(now, self.block_bytes, keys.to_vec());
            }
        }
    }

    /// Blocks that came back to the device from lower tiers.
    pub(crate) fn came_back(&mut self, keys: &[u64], now: Time) {
        if self.policy == WritePolicy::Through {
            self.write_own(keys, now);
        }
    }

    /// Blocks that the device evicted, in order.
    pub(crate) fn evicted(&mut self, keys: &[u64], now: Time, pool: &Pool) {
        if self.policy == WritePolicy::Back {
            let gone: Vec<u64> = keys.iter().copied().filter(|key| !pool.contains(*key)).collect();
            self.write_own(&gone, now);
        }
        keys.iter().for_each(|key| self.forget(*key, pool));
    }

    /// Copies blocks to the tier under the device, unless they are there.
    fn write_own(&mut self, keys: &[u64], now: Time) {
        let block_bytes = self.block_bytes;
        let Some(store) = self.host.as_mut().or(self.disk.as_mut()) else { return };
        let news: Vec<u64> = keys.iter().copied().filter(|key| !store.blocks.touch(*key)).collect();
        if news.is_empty() {
            return;
        }
        news.iter().for_each(|key| *self.moving.entry(*key).or_default() += 1);
        store.ways.send(now, block_bytes, news);
    }

    /// Takes in what has arrived by `now` and says so.
    pub(crate) fn settle(
        &mut self,
        now: Time,
        pool: &Pool,
        shared: &mut dyn SharedStore,
        events: &mut Vec<KvEvent>,
    ) {
        while let Some(keys) = self.host.as_mut().and_then(|store| store.ways.arrived(now)) {
            let gone = self.take_in(Tier::Host, &keys, events);
            if let Some(disk) = &mut self.disk {
                let down: Vec<u64> = gone.into_iter().filter(|key| !disk.blocks.touch(*key)).collect();
                down.iter().for_each(|key| *self.moving.entry(*key).or_default() += 1);
                disk.ways.send(now, self.block_bytes, down);
            } else {
                gone.into_iter().for_each(|key| self.forget(key, pool));
            }
            // Only now: what goes on to disk is still to be described.
            self.landed(&keys, pool);
        }
        while let Some(keys) = self.disk.as_mut().and_then(|store| store.ways.arrived(now)) {
            let gone = self.take_in(Tier::Disk, &keys, events);
            gone.into_iter().for_each(|key| self.forget(key, pool));
            self.landed(&keys, pool);
        }
        while let Some(keys) = self.shared.as_mut().and_then(|ways| ways.arrived(now)) {
            let news = shared.put(&keys, now);
            let put: Vec<u64> =
                keys.iter().zip(news).filter(|(_, news)| *news).map(|(key, _)| *key).collect();
            // SGLang says nothing of what it writes to a store.
            if self.flavor == Flavor::Vllm {
                self.stored(Tier::Host, true, &put, events);
            }
            self.landed(&keys, pool);
        }
    }

    /// Puts arrived blocks into a tier; returns those that had to go.
    fn take_in(&mut self, tier: Tier, keys: &[u64], events: &mut Vec<KvEvent>) -> Vec<u64> {
        let store = if tier == Tier::Host { &mut self.host } else { &mut self.disk };
        let Some(store) = store else { return Vec::new() };
        let mut seen: HashSet<u64, BuildHasherDefault<KeyHasher>> = HashSet::default();
        let news: Vec<u64> =
            keys.iter().copied().filter(|key| !store.blocks.contains(*key) && seen.insert(*key)).collect();
        // Last block first, so that of a prefix the head goes last.
        let mut gone: Vec<u64> = keys.iter().rev().filter_map(|key| store.blocks.insert(*key)).collect();
        // A batch larger than the tier pushes out its own blocks, some of them twice.
        let mut counted: HashSet<u64, BuildHasherDefault<KeyHasher>> = HashSet::default();
        gone.retain(|key| !store.blocks.contains(*key) && counted.insert(*key));
        let stored: Vec<u64> = news.iter().copied().filter(|key| store.blocks.contains(*key)).collect();
        let removed: Vec<u64> = gone.iter().copied().filter(|key| !seen.contains(key)).collect();
        self.stored(tier, false, &stored, events);
        self.removed(tier, &removed, events);
        gone
    }

    /// Copies of these keys are no longer on their way.
    fn landed(&mut self, keys: &[u64], pool: &Pool) {
        for key in keys {
            if let Some(count) = self.moving.get_mut(key) {
                *count -= 1;
                if *count == 0 {
                    self.moving.remove(key);
                }
            }
            self.forget(*key, pool);
        }
    }

    /// Blocks that lie below the device, from the first of `keys` on and without a hole.
    pub(crate) fn find(&mut self, keys: &[u64], shared: &mut dyn SharedStore, now: Time) -> Found {
        let mut found = Found::default();
        while let Some(rest) = keys.get(found.blocks() as usize..).filter(|rest| !rest.is_empty()) {
            let holds = |store: &Option<Store>| store.as_ref().is_some_and(|s| s.blocks.contains(rest[0]));
            if holds(&self.host) {
                found.host += 1;
            } else if holds(&self.disk) {
                found.disk += 1;
            } else {
                let there = if self.shared.is_some() { shared.find(rest, now).min(rest.len()) } else { 0 };
                if there == 0 {
                    break;
                }
                // At most the blocks of a prompt.
                found.shared += there as u32;
            }
        }
        found
    }

    /// Begins to read what was found; returns when all of it is there.
    pub(crate) fn read(&mut self, found: Found, shared: &mut dyn SharedStore, now: Time) -> Time {
        let mut end = now;
        let own = [(self.host.as_mut(), found.host), (self.disk.as_mut(), found.disk)];
        for (store, blocks) in own {
            if let Some(store) = store.filter(|_| blocks > 0) {
                let bytes = (self.block_bytes * f64::from(blocks)) as u64;
                end = end.max(store.ways.read.transfer(now, bytes, store.ways.config.read_gb_s));
            }
        }
        if let Some(ways) = self.shared.as_mut().filter(|_| found.shared > 0) {
            let bytes = (self.block_bytes * f64::from(found.shared)) as u64;
            end = end.max(ways.read.transfer(now, bytes, ways.config.read_gb_s));
            end = end.max(shared.read(bytes, now));
        }
        end
    }

    /// When blocks that are fetched from another engine from `now` on are all there.
    pub(crate) fn fetched_at(&self, blocks: u32, gb_s: f64, now: Time) -> Time {
        Link::default().transfer(now, (self.block_bytes * f64::from(blocks)) as u64, gb_s)
    }

    /// A request uses these blocks: they become the most recently used ones, the last first.
    pub(crate) fn touch(&mut self, keys: &[u64]) {
        for store in [&mut self.host, &mut self.disk].into_iter().flatten() {
            keys.iter().rev().for_each(|key| {
                store.blocks.touch(*key);
            });
        }
    }

    /// The device's cache was emptied; `all`: so are the engine's other tiers.
    pub(crate) fn device_cleared(&mut self, all: bool) {
        if !all {
            // Few of these lie below; the rest is described again when it is computed again.
            let below = |key: u64, store: &Option<Store>| {
                store.as_ref().is_some_and(|store| store.blocks.contains(key))
            };
            let (host, disk, moving) = (&self.host, &self.disk, &self.moving);
            self.texts.retain(|key, _| moving.contains_key(key) || below(*key, host) || below(*key, disk));
            return;
        }
        for store in [&mut self.host, &mut self.disk].into_iter().flatten() {
            store.blocks.clear();
            store.ways.writes.clear();
        }
        self.texts.clear();
        self.moving.clear();
        if let Some(ways) = &mut self.shared {
            ways.writes.clear();
        }
    }

    /// Drops what is known of a block that lies nowhere any more.
    fn forget(&mut self, key: u64, pool: &Pool) {
        if self.texts.is_empty() {
            return;
        }
        let holds = |store: &Option<Store>| store.as_ref().is_some_and(|s| s.blocks.contains(key));
        if !pool.contains(key) && !self.moving.contains_key(&key) && !holds(&self.host) && !holds(&self.disk)
        {
            self.texts.remove(&key);
        }
    }

    /// One event per block from vLLM, one per run from SGLang.
    fn stored(&self, tier: Tier, echo: bool, keys: &[u64], events: &mut Vec<KvEvent>) {
        if !self.emit {
            return;
        }
        let mut last = None;
        for key in keys {
            let text = self.texts.get(key);
            let mut event = text.map_or_else(BlockStored::default, |text| (**text).clone());
            if self.flavor == Flavor::Sglang
                && event.parent.is_some()
                && event.parent == last
                && let Some(KvEvent::Stored(run)) = events.last_mut()
            {
                run.block_hashes.push(*key);
                run.tokens.append(&mut event.tokens);
            } else {
                event.block_hashes = vec![*key];
                (event.block_size, event.tier, event.echo) = (self.block_size, tier, echo);
                // The store connector does not know the session.
                event.session = event.session.filter(|_| !echo);
                events.push(KvEvent::Stored(event));
            }
            last = Some(*key);
        }
    }

    fn removed(&self, tier: Tier, keys: &[u64], events: &mut Vec<KvEvent>) {
        if !self.emit || keys.is_empty() {
            return;
        }
        let mut push = |block_hashes| {
            events.push(KvEvent::Removed(BlockRemoved { block_hashes, tier, ..BlockRemoved::default() }));
        };
        match self.flavor {
            Flavor::Vllm => keys.iter().for_each(|key| push(vec![*key])),
            Flavor::Sglang => push(keys.to_vec()),
        }
    }
}
