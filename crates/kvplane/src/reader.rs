//! Questions, asked by many threads beside the writer.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use tandem_kvindex::pool::PoolReader;
use tandem_kvindex::session::{SessionIndex, SessionReader};
use tandem_kvindex::worker::{Matches, RoutedIndex, WorkerIndex};
use tandem_kvwire::hash::block::Shape;
use tandem_types::{PrefixMatch, ProgramKey, SessionId, TenantId, Time, WorkerId};

use crate::find::{Finding, Reach};
use crate::pages::Names;
use crate::predict::{Pending, Routed};
use crate::view::{View, lane_id};
use crate::{Knowledge, Prompt, PromptChain};

/// What writer and readers share. Locks are held for one small step each, and never two at once.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) view: RwLock<Arc<View>>,
    /// What workers hold, lane by lane.
    pub(crate) index: WorkerIndex,
    /// Dispatches whose events are still to come.
    pub(crate) predicted: RoutedIndex,
    /// What was sent to workers lately.
    pub(crate) believed: Option<RoutedIndex>,
    pub(crate) pending: Mutex<Pending>,
    pub(crate) sessions: RwLock<SessionIndex>,
    pub(crate) published: SessionReader,
    pub(crate) pool: PoolReader,
    pub(crate) names: Names,
    pub(crate) version: AtomicU64,
    pub(crate) predict: Duration,
    pub(crate) store_trust: Duration,
}

impl Shared {
    pub(crate) fn view(&self) -> Arc<View> {
        Arc::clone(&self.view.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A handle for readers. Questions wait for the writer no longer than one lock of the index that they ask.
#[derive(Debug, Clone)]
pub struct PlaneReader(pub(crate) Arc<Shared>);

/// A dispatch whose prompt counts as cached. Dropping it changes nothing; [`PlaneReader::withdrawn`] takes it back.
#[derive(Debug)]
pub struct Dispatched {
    worker: WorkerId,
    predicted: Option<Routed>,
    believed: Option<Routed>,
}

/// What sessions keep, for readers.
#[derive(Debug, Clone)]
pub struct Sessions(Arc<Shared>);

/// A session's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionView {
    /// Different blocks on the session's paths.
    pub blocks: u64,
    /// Its branches.
    pub branches: u64,
    /// Home of the branch used last.
    pub home: Option<WorkerId>,
}

/// What a worker's sessions need it to keep, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WorkingSet {
    /// Different blocks on the paths of sessions at home there.
    pub tokens: u64,
    /// Those of any session's paths that lie in its device memory, host memory, disk.
    pub resident: [u64; 3],
}

impl Sessions {
    /// A session's numbers.
    #[must_use]
    pub fn session(&self, key: &ProgramKey) -> Option<SessionView> {
        let found = self.0.published.session(key)?;
        Some(SessionView { blocks: found.blocks, branches: found.branches, home: found.home })
    }

    /// A worker's numbers; `None` while nothing is known of it.
    #[must_use]
    pub fn worker(&self, worker: WorkerId) -> Option<WorkingSet> {
        let found = self.0.published.worker(worker)?;
        let size = u64::from(self.0.view().worker(worker)?.shape.block_size);
        Some(WorkingSet { tokens: found.working_set * size, resident: found.resident.map(|n| n * size) })
    }
}

impl PlaneReader {
    /// A prompt's chain. `before` = the chain of a prompt that it may continue, whose work is used again.
    #[must_use]
    pub fn chain(
        &self,
        tokens: &[u32],
        lora: Option<&str>,
        salt: Option<&str>,
        before: Option<&PromptChain>,
    ) -> PromptChain {
        self.chain_of(&Prompt { tokens, lora, salt, media: &[] }, before)
    }

    /// The same for a prompt with media.
    #[must_use]
    pub fn chain_of(&self, prompt: &Prompt<'_>, before: Option<&PromptChain>) -> PromptChain {
        PromptChain::new(&self.0.view(), prompt, before)
    }

    /// The chain of a prompt of which only hashes are known that name each block with all before it. Where they are
    /// not content hashes, only what was dispatched with hashes of the same kind matches.
    #[must_use]
    pub fn chain_of_blocks(&self, block_size: u32, hashes: &[u64]) -> PromptChain {
        PromptChain::of_blocks(Shape { block_size, lookahead: 0 }, hashes.to_vec())
    }

    /// What each worker could reuse of a prompt. The last token of a prompt is always computed: of a prompt that
    /// is cached whole, the last block is not counted.
    #[must_use]
    pub fn find(&self, chain: &PromptChain, now: Time) -> PrefixMatch {
        Finding::new(&self.0, chain, Reach::Usable).run(now)
    }

    /// What each worker holds of a prompt, whether or not its engine would use all of it.
    #[must_use]
    pub fn held(&self, chain: &PromptChain, now: Time) -> PrefixMatch {
        Finding::new(&self.0, chain, Reach::Held).run(now)
    }

    /// A prompt goes to a worker: it counts as cached there at once. `None` = the worker is not known, or there is
    /// nothing to note.
    pub fn dispatched(&self, worker: WorkerId, chain: &PromptChain, now: Time) -> Option<Dispatched> {
        let view = self.0.view();
        let known = view.worker(worker)?;
        let own = chain.parts().iter().position(|part| part.shape == known.shape);
        // Hashes of another kind than the worker's own blocks still say what was sent where.
        let part = own.unwrap_or_default();
        let hashes = &chain.parts().get(part).filter(|part| !part.hashes.is_empty())?.hashes;
        let route = |index: &RoutedIndex| {
            let route = index.routed(worker, hashes, now)?;
            Some(Routed { chain: chain.clone(), part, route })
        };
        let believed = self.0.believed.as_ref().and_then(route);
        let confirmed = known.told && own.is_some();
        // Where all of it is there already, no event will come.
        let predicted =
            if confirmed && !self.holds(known.lane, hashes) { route(&self.0.predicted) } else { None };
        if let Some(routed) = predicted.clone() {
            self.0.pending().add(worker, routed, now + self.0.predict);
        }
        (predicted.is_some() || believed.is_some()).then_some(Dispatched { worker, predicted, believed })
    }

    /// Whether a worker's device memory holds all of these blocks.
    fn holds(&self, lane: Option<u32>, hashes: &[u64]) -> bool {
        let mut found = Matches::default();
        self.0.index.find(hashes, &mut found);
        let of_lane = lane.and_then(|lane| found.of(lane_id(lane)));
        of_lane.is_some_and(|found| found.device as usize >= hashes.len())
    }

    /// A dispatch failed or was cancelled before its prompt was computed.
    pub fn withdrawn(&self, dispatched: Dispatched) {
        let Dispatched { worker, predicted, believed } = dispatched;
        if let Some(routed) = predicted {
            self.0.predicted.withdraw(worker, routed.hashes(), routed.route);
            self.0.pending().withdraw(worker, &routed);
        }
        if let (Some(index), Some(routed)) = (&self.0.believed, believed) {
            index.withdraw(worker, routed.hashes(), routed.route);
        }
    }

    /// What is known of a worker.
    #[must_use]
    pub fn knowledge(&self, worker: WorkerId) -> Knowledge {
        self.0.view().worker(worker).map_or(Knowledge::Blind, |worker| worker.knowledge)
    }

    /// What sessions keep.
    #[must_use]
    pub fn sessions(&self) -> Sessions {
        Sessions(Arc::clone(&self.0))
    }

    /// The blocks that a session's next prompt builds on, as it was told or as engines echoed it. `None` where its
    /// beginning is not known. Waits for one event of the session forest at most.
    #[must_use]
    pub fn session_path(&self, key: &ProgramKey) -> Option<PromptChain> {
        let (home, hashes) = {
            let sessions = self.0.sessions.read().unwrap_or_else(PoisonError::into_inner);
            let names = std::iter::once(key.clone()).chain(echoed_names(key));
            let branch = names.flat_map(|name| sessions.branches(&name).into_iter().take(1)).next()?;
            (branch.home, sessions.path(branch.last, None).filter(|_| branch.rooted)?)
        };
        let view = self.0.view();
        let shape = match home.and_then(|home| view.worker(home)) {
            Some(worker) => worker.shape,
            // A session without a home has blocks of the one size that there is, or of one that nobody knows.
            None if view.shapes.len() == 1 => *view.shapes.first()?,
            None => return None,
        };
        Some(PromptChain::of_blocks(shape, hashes))
    }

    /// Changes with everything that the plane takes in.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.0.version.load(Ordering::Relaxed)
    }
}

/// Names under which a program is kept that engines told of before we did: see [`heard_of`].
pub(crate) fn echoed_names(key: &ProgramKey) -> impl Iterator<Item = ProgramKey> {
    let whole = heard_of(&key.to_string());
    // Without a tenant in the text, it is believed of the default one only.
    let bare = (key.tenant == TenantId::default()).then(|| heard_of(key.trace_id())).flatten();
    whole.into_iter().chain(bare).filter({
        let key = key.clone();
        move |name| *name != key
    })
}

/// The program that a session's text stands for when nobody told of it.
pub(crate) fn heard_of(text: &str) -> Option<ProgramKey> {
    Some(ProgramKey::root(TenantId::default(), SessionId::new(text).ok()?))
}
