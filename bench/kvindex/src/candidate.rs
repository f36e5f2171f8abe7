//! The indexes, behind one face.

use std::collections::{HashMap, HashSet};
use std::sync::RwLock;

use dynamo_kv_router::ConcurrentRadixTreeCompressed;
use dynamo_kv_router::PositionalIndexer;
use dynamo_kv_router::SyncIndexer;
use dynamo_kv_router::indexer::WorkerTask;
use dynamo_kv_router::protocols::{
    ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData, KvCacheStoreData,
    KvCacheStoredBlockData, LocalBlockHash, RouterEvent,
};
use tandem_kvindex::worker::{Copies, Matches, Stored, WorkerIndex};
use tandem_types::{EngineId, Tier, WorkerId};

use crate::workload::{Load, Op, Prompt, engine_id};

/// Puts one index in its place behind the face.
pub trait Candidate: Sync {
    /// An event in the index's own form, made before the clock starts.
    type Event: Send;
    /// A prompt in the index's own form, likewise.
    type Query: Send;
    /// What a reader keeps between matches.
    type Scratch: Default;

    fn event(&self, load: &Load, op: &Op) -> Option<Self::Event>;
    fn query(&self, prompt: &Prompt) -> Self::Query;
    /// Applies events until the channel closes.
    fn serve(&self, events: flume::Receiver<Self::Event>);
    /// Depth of the deepest match.
    fn find(&self, query: &Self::Query, scratch: &mut Self::Scratch) -> u32;
}

/// Ours.
#[derive(Default)]
pub struct Tandem(pub WorkerIndex);

pub struct TandemEvent {
    worker: u32,
    parent: Option<u64>,
    stored: bool,
    /// Ids; of a store, local hashes after them.
    words: Vec<u64>,
}

impl TandemEvent {
    fn stored(&self) -> Option<(&[u64], &[u64])> {
        self.stored.then(|| self.words.split_at(self.words.len() / 2))
    }
}

impl Candidate for Tandem {
    type Event = TandemEvent;
    type Query = Vec<u64>;
    type Scratch = Matches;

    fn event(&self, load: &Load, op: &Op) -> Option<TandemEvent> {
        match op {
            Op::Find(_) => None,
            Op::Stored { worker, prompt, from, to } => {
                let p = &load.prompts[*prompt as usize];
                let (from, to) = (*from as usize, *to as usize);
                let mut words = Vec::with_capacity(2 * (to - from));
                words.extend(p.contents[from..to].iter().map(|c| engine_id(*c)));
                words.extend_from_slice(&p.locals[from..to]);
                let parent = from.checked_sub(1).map(|b| engine_id(p.contents[b]));
                Some(TandemEvent { worker: *worker, parent, stored: true, words })
            }
            Op::Removed { worker, contents } => {
                let words = contents.iter().map(|c| engine_id(*c)).collect();
                Some(TandemEvent { worker: *worker, parent: None, stored: false, words })
            }
        }
    }

    fn query(&self, prompt: &Prompt) -> Vec<u64> {
        prompt.contents.clone()
    }

    fn serve(&self, events: flume::Receiver<TandemEvent>) {
        let id = |n: u32| WorkerId { engine: EngineId(n), rank: 0 };
        while let Ok(event) = events.recv() {
            match event.stored() {
                Some((ids, locals)) => {
                    let parent = event.parent;
                    let stored = Stored { parent, ids, locals, tier: Tier::Device, copies: Copies::Each };
                    self.0.stored(id(event.worker), &stored);
                }
                None => {
                    self.0.removed(id(event.worker), Tier::Device, &event.words);
                }
            }
        }
    }

    fn find(&self, query: &Vec<u64>, matches: &mut Matches) -> u32 {
        self.0.find(query, matches);
        matches.workers().iter().map(|m| m.device).max().unwrap_or(0)
    }
}

/// Ours, when a prompt's blocks are hashed into a chain anew for each match; the gateway keeps the chain with the
/// session, and hashes only what a turn adds.
#[derive(Default)]
pub struct TandemHashing(Tandem);

impl Candidate for TandemHashing {
    type Event = TandemEvent;
    type Query = Vec<u64>;
    type Scratch = Matches;

    fn event(&self, load: &Load, op: &Op) -> Option<TandemEvent> {
        self.0.event(load, op)
    }

    fn query(&self, prompt: &Prompt) -> Vec<u64> {
        prompt.locals.clone()
    }

    fn serve(&self, events: flume::Receiver<TandemEvent>) {
        self.0.serve(events);
    }

    fn find(&self, query: &Vec<u64>, matches: &mut Matches) -> u32 {
        self.0.find(&tandem_kvindex::chain::chain(query), matches)
    }
}

/// Dynamo's, driven by its own worker loop on one thread.
pub struct Dynamo<T> {
    index: T,
    /// The positional index needs ids that it can compute itself.
    chained: bool,
}

impl Dynamo<ConcurrentRadixTreeCompressed> {
    #[must_use]
    pub fn concurrent() -> Self {
        Self { index: ConcurrentRadixTreeCompressed::new(), chained: false }
    }
}

impl Dynamo<PositionalIndexer> {
    #[must_use]
    pub fn positional() -> Self {
        Self { index: PositionalIndexer::new(32), chained: true }
    }
}

impl<T> Dynamo<T> {
    fn id(&self, content: u64) -> ExternalSequenceBlockHash {
        ExternalSequenceBlockHash(if self.chained { content } else { engine_id(content) })
    }
}

impl<T: SyncIndexer> Candidate for Dynamo<T> {
    type Event = WorkerTask;
    type Query = Vec<LocalBlockHash>;
    type Scratch = ();

    fn event(&self, load: &Load, op: &Op) -> Option<WorkerTask> {
        let (worker, data) = match op {
            Op::Find(_) => return None,
            Op::Stored { worker, prompt, from, to } => {
                let p = &load.prompts[*prompt as usize];
                let blocks = (*from as usize..*to as usize).map(|i| KvCacheStoredBlockData {
                    block_hash: self.id(p.contents[i]),
                    tokens_hash: LocalBlockHash(p.locals[i]),
                    mm_extra_info: None,
                });
                let stored = KvCacheStoreData {
                    parent_hash: (*from as usize).checked_sub(1).map(|b| self.id(p.contents[b])),
                    start_position: Some(*from),
                    blocks: blocks.collect(),
                };
                (worker, KvCacheEventData::Stored(stored))
            }
            Op::Removed { worker, contents } => {
                let block_hashes = contents.iter().map(|c| self.id(*c)).collect();
                (worker, KvCacheEventData::Removed(KvCacheRemoveData { block_hashes }))
            }
        };
        let event = KvCacheEvent { event_id: 0, data, dp_rank: 0 };
        Some(WorkerTask::Event(RouterEvent::new(u64::from(*worker), event)))
    }

    fn query(&self, prompt: &Prompt) -> Vec<LocalBlockHash> {
        prompt.locals.iter().map(|l| LocalBlockHash(*l)).collect()
    }

    fn serve(&self, events: flume::Receiver<WorkerTask>) {
        if let Err(error) = self.index.worker(events, None) {
            eprintln!("index stopped: {error}");
        }
    }

    fn find(&self, query: &Vec<LocalBlockHash>, (): &mut ()) -> u32 {
        self.index.find_matches(query, false).scores.into_values().max().unwrap_or(0)
    }
}

/// SMG's (the gateway that sglang-router became): its event-driven run index.
pub struct Smg {
    index: kv_index::ChainIndex,
}

impl Default for Smg {
    fn default() -> Self {
        Self { index: kv_index::ChainIndex::with_max_workers(1024) }
    }
}

pub enum SmgEvent {
    Stored { worker: u32, parent: Option<kv_index::SequenceHash>, blocks: Vec<kv_index::StoredBlock> },
    Removed { worker: u32, ids: Vec<kv_index::SequenceHash> },
}

impl Candidate for Smg {
    type Event = SmgEvent;
    type Query = Vec<kv_index::ContentHash>;
    type Scratch = ();

    fn event(&self, load: &Load, op: &Op) -> Option<SmgEvent> {
        let id = |content: u64| kv_index::SequenceHash(engine_id(content));
        match op {
            Op::Find(_) => None,
            Op::Stored { worker, prompt, from, to } => {
                let p = &load.prompts[*prompt as usize];
                let blocks = (*from as usize..*to as usize).map(|i| kv_index::StoredBlock {
                    seq_hash: id(p.contents[i]),
                    content_hash: kv_index::ContentHash(p.locals[i]),
                });
                Some(SmgEvent::Stored {
                    worker: *worker,
                    parent: (*from as usize).checked_sub(1).map(|b| id(p.contents[b])),
                    blocks: blocks.collect(),
                })
            }
            Op::Removed { worker, contents } => {
                Some(SmgEvent::Removed { worker: *worker, ids: contents.iter().map(|c| id(*c)).collect() })
            }
        }
    }

    fn query(&self, prompt: &Prompt) -> Self::Query {
        prompt.locals.iter().map(|l| kv_index::ContentHash(*l)).collect()
    }

    fn serve(&self, events: flume::Receiver<SmgEvent>) {
        let mut lanes: rustc_hash::FxHashMap<u32, (u32, kv_index::ChainBlockMap)> = Default::default();
        while let Ok(event) = events.recv() {
            let (SmgEvent::Stored { worker, .. } | SmgEvent::Removed { worker, .. }) = &event;
            let (number, map) = lanes.entry(*worker).or_insert_with(|| {
                let number = self.index.intern_worker(&worker.to_string()).unwrap_or_default();
                (number, kv_index::ChainBlockMap::new())
            });
            match event {
                SmgEvent::Stored { parent, blocks, .. } => {
                    let _ = self.index.apply_stored(*number, &blocks, parent, map);
                }
                SmgEvent::Removed { ids, .. } => self.index.apply_removed(*number, &ids, map),
            }
        }
    }

    fn find(&self, query: &Self::Query, (): &mut ()) -> u32 {
        self.index.find_matches(query, false).scores.into_values().max().unwrap_or(0)
    }
}

/// Content to its holders, and each worker's ids, in standard maps behind one lock.
#[derive(Default)]
pub struct Naive(RwLock<NaiveMaps>);

#[derive(Default)]
struct NaiveMaps {
    holders: HashMap<u64, HashSet<u32>>,
    contents: HashMap<(u32, u64), u64>,
}

impl Candidate for Naive {
    type Event = TandemEvent;
    type Query = Vec<u64>;
    type Scratch = ();

    fn event(&self, load: &Load, op: &Op) -> Option<TandemEvent> {
        Tandem::default().event(load, op)
    }

    fn query(&self, prompt: &Prompt) -> Vec<u64> {
        prompt.contents.clone()
    }

    fn serve(&self, events: flume::Receiver<TandemEvent>) {
        while let Ok(event) = events.recv() {
            let mut guard = self.0.write().unwrap_or_else(std::sync::PoisonError::into_inner);
            let maps = &mut *guard;
            match event.stored() {
                Some((ids, locals)) => {
                    let mut last = event.parent.and_then(|p| maps.contents.get(&(event.worker, p)).copied());
                    for (id, local) in ids.iter().zip(locals) {
                        let content = tandem_kvindex::chain::next(last, *local);
                        maps.contents.insert((event.worker, *id), content);
                        maps.holders.entry(content).or_default().insert(event.worker);
                        last = Some(content);
                    }
                }
                None => {
                    for id in &event.words {
                        let Some(content) = maps.contents.remove(&(event.worker, *id)) else { continue };
                        let Some(holders) = maps.holders.get_mut(&content) else { continue };
                        holders.remove(&event.worker);
                        if holders.is_empty() {
                            maps.holders.remove(&content);
                        }
                    }
                }
            }
        }
    }

    fn find(&self, query: &Vec<u64>, (): &mut ()) -> u32 {
        let maps = self.0.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut depths: HashMap<u32, u32> = HashMap::new();
        for (depth, content) in (0..).zip(query) {
            let Some(holders) = maps.holders.get(content) else { break };
            let mut any = false;
            for worker in holders {
                let at = depths.entry(*worker).or_insert(0);
                if *at == depth {
                    *at += 1;
                    any = true;
                }
            }
            if !any {
                break;
            }
        }
        depths.into_values().max().unwrap_or(0)
    }
}
