//! The modelled engines and what moves between them.
//!
//! Engines compute pass by pass; the event loop says when. An engine whose requests all wait for copies from lower
//! tiers is woken when the next copy is there.

use std::sync::Arc;
use std::time::Duration;

use tandem_engine_model::{
    EngineConfig, EngineModel, MemoryStore, Namespace, NoStore, Output, Pass, Prompt, Request, RequestKey,
    SharedStore,
};
use tandem_types::{
    EngineId, HEAD_TOKENS, Holders, MatchSource, PrefixMatch, Time, WorkerId, WorkerPrefix, WorkerRole,
};
use tandem_workload::Node;

use crate::config::{SimConfig, SimError};
use crate::late::Late;
use crate::predicted::Predicted;

/// One engine.
struct Engine {
    model: EngineModel,
    pass: Pass,
    running: bool,
    /// When it is woken without a pass that ends.
    wakes_at: Option<Time>,
    turns: u64,
}

/// What an engine does next, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Its pass ends.
    PassEnds(Time),
    /// Something arrives from a lower tier.
    Wakes(Time),
}

/// A request's work for engines.
#[derive(Debug, Clone)]
pub(crate) struct Work {
    /// Blocks of its prompt and answer.
    pub(crate) ids: Arc<[u64]>,
    pub(crate) input: u32,
    pub(crate) output: u32,
    /// The client's, or else admission's: higher is sooner.
    pub(crate) priority: i32,
}

impl Work {
    pub(crate) fn new(node: &Node, ids: Arc<[u64]>) -> Self {
        Self { ids, input: node.input_tokens, output: node.output_tokens, priority: node.priority }
    }

    fn request(&self, key: u64, output: u32, arrival: Time) -> Request {
        Request {
            id: RequestKey(key),
            prompt: Prompt::Blocks { ids: Arc::clone(&self.ids), tokens: self.input },
            output: Output::Seeded { seed: key, tokens: output },
            max_output_tokens: output,
            // Engines take lower ones first.
            priority: self.priority.saturating_neg(),
            namespace: Namespace::default(),
            session: None,
            arrival,
        }
    }
}

/// All engines.
pub(crate) struct Fleet {
    engines: Vec<Engine>,
    store: Option<MemoryStore>,
    block_size: u32,
    /// So many of the engines, the first ones, compute prompts only.
    prefill: u32,
    handover_gb_s: f64,
    /// What the scheduler knows of caches, where it is not told at once.
    late: Option<Late>,
    /// Prompts under way, where they count.
    predicted: Option<Predicted>,
}

impl Fleet {
    pub(crate) fn new(config: &SimConfig) -> Result<Self, SimError> {
        let late = !config.event_delay.is_zero() || config.event_loss > 0.0;
        let late = late.then(|| Late::new(config.event_delay, config.event_loss, config.seed));
        let emit_events = late.is_some();
        let engine = || -> Result<Engine, SimError> {
            let model = EngineModel::new(EngineConfig { emit_events, ..config.engine.clone() })?;
            Ok(Engine { model, pass: Pass::default(), running: false, wakes_at: None, turns: 0 })
        };
        let block_size = config.engine.block_size;
        let blocks = config.shared_tokens / u64::from(block_size);
        let store = (blocks > 0 && config.engine.tiers.shared.is_some())
            .then(|| MemoryStore::new(u32::try_from(blocks).unwrap_or(u32::MAX - 1), config.shared_gb_s));
        Ok(Self {
            engines: (0..config.workers).map(|_| engine()).collect::<Result<_, _>>()?,
            store,
            block_size,
            prefill: config.prefill_workers,
            handover_gb_s: config.handover_gb_s,
            late,
            predicted: (!config.predict.is_zero()).then(|| Predicted::new(config.predict)),
        })
    }

    /// What a worker is there for.
    pub(crate) const fn role(&self, index: u32) -> WorkerRole {
        match self.prefill {
            0 => WorkerRole::Both,
            prefill if index < prefill => WorkerRole::Prefill,
            _ => WorkerRole::Decode,
        }
    }

    /// A request comes to an engine; false where it is too long for it.
    pub(crate) fn submit(&mut self, index: u32, key: u64, work: &Work, now: Time) -> bool {
        self.compute(index, key, work, work.output, now)
    }

    /// A request's prompt comes to an engine that only computes it.
    pub(crate) fn submit_prefill(&mut self, index: u32, key: u64, work: &Work, now: Time) -> bool {
        self.compute(index, key, work, 1, now)
    }

    fn compute(&mut self, index: u32, key: u64, work: &Work, output: u32, now: Time) -> bool {
        let Some(engine) = self.engines.get_mut(index as usize) else { return false };
        engine.turns += 1;
        let request = work.request(key, output, now);
        let blocks = work.ids.len().min((work.input / self.block_size) as usize);
        let new = (engine.model.resident_prefix(&request)[0] as usize) < blocks;
        if engine.model.submit(request).is_err() {
            return false;
        }
        if let Some(predicted) = self.predicted.as_mut().filter(|_| new) {
            predicted.dispatched(key, worker(index), &work.ids, blocks, now);
        }
        true
    }

    /// A request's prompt is computed, or the request is gone.
    pub(crate) fn computed(&mut self, key: u64) {
        if let Some(predicted) = &mut self.predicted {
            predicted.over(key);
        }
    }

    /// A request whose prompt was computed elsewhere comes to the engine that answers it.
    pub(crate) fn submit_decode(&mut self, index: u32, key: u64, work: &Work, now: Time) -> bool {
        let gb_s = self.handover_gb_s;
        let Some(engine) = self.engines.get_mut(index as usize) else { return false };
        engine.turns += 1;
        engine.model.submit_computed(work.request(key, work.output, now), gb_s).is_ok()
    }

    /// Lets an engine that stands still go on; what is to be put into the event queue, if anything is.
    pub(crate) fn start(&mut self, index: u32, now: Time) -> Option<Next> {
        let engine = self.engines.get_mut(index as usize)?;
        if engine.running {
            return None;
        }
        let mut none = NoStore;
        let store: &mut dyn SharedStore = match &mut self.store {
            Some(store) => store,
            None => &mut none,
        };
        if engine.model.step_with(now, store, &mut engine.pass) {
            engine.running = true;
            return Some(Next::PassEnds(engine.pass.ends_at));
        }
        let wakes_at = engine.model.wakes_at()?;
        if engine.wakes_at.is_some_and(|known| known <= wakes_at) {
            return None;
        }
        engine.wakes_at = Some(wakes_at);
        Some(Next::Wakes(wakes_at))
    }

    /// A wake-up came.
    pub(crate) fn woken(&mut self, index: u32) {
        if let Some(engine) = self.engines.get_mut(index as usize) {
            engine.wakes_at = None;
        }
    }

    /// The pass that has ended; to be handed back by [`Fleet::pass_done`].
    pub(crate) fn pass(&mut self, index: u32, now: Time) -> Pass {
        let Some(engine) = self.engines.get_mut(index as usize) else { return Pass::default() };
        let mut pass = std::mem::take(&mut engine.pass);
        if let Some(late) = &mut self.late {
            late.sent(index, now, std::mem::take(&mut pass.events));
        }
        pass
    }

    /// All that a pass brought has been dealt with.
    pub(crate) fn pass_done(&mut self, index: u32, pass: Pass) {
        if let Some(engine) = self.engines.get_mut(index as usize) {
            engine.pass = pass;
            engine.running = false;
        }
    }

    /// So much time is skipped, in which no engine computes.
    pub(crate) fn skip(&mut self, time: Duration) {
        if let Some(late) = &mut self.late {
            late.skip(time);
        }
    }

    /// How many engines stand still.
    pub(crate) fn still(&self) -> u32 {
        let still = self.engines.iter().filter(|engine| !engine.running).count();
        u32::try_from(still).unwrap_or(u32::MAX)
    }

    /// Where a prompt's KV lies: exactly and at once, or as far as late events tell. The shared store answers by itself.
    pub(crate) fn prefix(&mut self, work: &Work, now: Time) -> PrefixMatch {
        let request = work.request(0, work.output, now);
        let block_size = self.block_size;
        // Never the block with the last token: that one is computed in any case.
        let most = (work.input.saturating_sub(1) / block_size) as usize;
        let useful = work.ids.get(..work.ids.len().min(most)).unwrap_or_default();
        let mut workers = Holders::new();
        for (index, engine) in (0u32..).zip(&self.engines) {
            let [device, host, disk] = match &mut self.late {
                Some(late) => late.leading(index, useful, now),
                None => engine.model.resident_prefix(&request),
            };
            if disk > 0 {
                let source = MatchSource::Exact;
                workers.push(WorkerPrefix { worker: worker(index), device, host, disk, source });
            }
        }
        if let Some(predicted) = &mut self.predicted {
            predicted.raise(useful, now, &mut workers);
        }
        let blocks = work.input / block_size;
        let known = work.ids.get(..work.ids.len().min(blocks as usize)).unwrap_or_default();
        let stored = self.store.as_ref().map_or(0, |store| store.leading(known));
        let stored = u32::try_from(stored).unwrap_or(blocks);
        let shared = if stored > 0 { std::iter::once(0..stored).collect() } else { Vec::new() };
        let head = known.get((HEAD_TOKENS / block_size).saturating_sub(1) as usize).copied();
        PrefixMatch { block_size, blocks, head, workers, shared, ..PrefixMatch::unknown() }
    }

    /// An engine evicts first what it has cached of this alone.
    pub(crate) fn demote(&mut self, index: u32, work: &Work, now: Time) {
        if let Some(engine) = self.engines.get_mut(index as usize) {
            engine.model.demote(&work.request(0, work.output, now));
        }
    }

    /// Preemptions of all engines.
    pub(crate) fn preemptions(&self) -> u64 {
        self.engines.iter().map(|engine| engine.model.load().preemptions).sum()
    }

    /// Tokens computed in prefill by all engines, recomputation included.
    pub(crate) fn prefill_tokens(&self) -> u64 {
        self.engines.iter().map(|engine| engine.model.load().prefill_tokens).sum()
    }

    /// Requests sent to each engine.
    pub(crate) fn turns(&self) -> Vec<u64> {
        self.engines.iter().map(|engine| engine.turns).collect()
    }
}

pub(crate) const fn worker(index: u32) -> WorkerId {
    WorkerId { engine: EngineId(index), rank: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The last token is computed in any case, and its block of 64 with it.
    #[test]
    fn the_block_of_the_last_token_is_not_said_to_be_there() {
        for (input, found, late) in [(128, 1, 0), (129, 2, 0), (128, 1, 5), (129, 2, 5)] {
            let event_delay = Duration::from_millis(late);
            let mut fleet = Fleet::new(&SimConfig { event_delay, ..SimConfig::default() }).expect("usable");
            let work = Work { ids: [1, 2, 3].into(), input, output: 1, priority: 0 };
            assert!(fleet.submit(0, 1, &work, Time::ZERO));
            let Some(Next::PassEnds(end)) = fleet.start(0, Time::ZERO) else { panic!("it computes") };
            let pass = fleet.pass(0, end);
            fleet.pass_done(0, pass);
            let held = fleet.prefix(&work, end + event_delay).of(worker(0)).map(|held| held.device);
            assert_eq!(held, Some(found), "{input} {late}");
        }
    }

    /// All of a prompt that is under way counts, the answer does not; what was computed counts as the engine has it.
    #[test]
    fn a_prompt_counts_where_it_was_sent() {
        let mut fleet = Fleet::new(&SimConfig { workers: 2, ..SimConfig::default() }).expect("usable");
        let sent = Work { ids: [1, 2, 3].into(), input: 128, output: 40, priority: 0 };
        let asked = Work { ids: [1, 2, 3, 4].into(), input: 256, output: 1, priority: 0 };
        let held = |fleet: &mut Fleet| {
            let found = fleet.prefix(&asked, Time::ZERO);
            [0, 1].map(|index| found.of(worker(index)).map(|held| held.device))
        };
        assert!(fleet.submit(1, 1, &sent, Time::ZERO));
        assert_eq!(held(&mut fleet), [Some(0), Some(2)]);
        fleet.computed(1);
        assert_eq!(held(&mut fleet), [Some(0), Some(0)]);
    }
}
