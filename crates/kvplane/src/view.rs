//! What readers know of workers: replaced as a whole when anything of it changes.

use std::sync::Arc;

use tandem_kvindex::pool::Layout;
use tandem_kvwire::hash::block::Shape;
use tandem_types::{EngineId, EngineKind, WorkerId, WorkerSet};

use crate::Knowledge;
use crate::pages::Scheme;

#[derive(Debug, Default)]
pub(crate) struct View {
    /// How workers cut prompts, sorted.
    pub(crate) shapes: Vec<Shape>,
    pub(crate) schemes: Vec<Arc<Scheme>>,
    /// Sorted by id.
    pub(crate) workers: Vec<WorkerView>,
    /// Lane number to position in `workers`, sorted.
    pub(crate) lanes: Vec<(u32, usize)>,
    /// Workers of which nothing is known, sorted.
    pub(crate) blind: WorkerSet,
}

#[derive(Debug)]
pub(crate) struct WorkerView {
    pub(crate) id: WorkerId,
    pub(crate) kind: EngineKind,
    pub(crate) knowledge: Knowledge,
    /// Its events arrive, so that they will tell of what is sent to it now.
    pub(crate) told: bool,
    /// It holds blocks of which its events never told.
    pub(crate) hollow: bool,
    /// How it cuts prompts.
    pub(crate) shape: Shape,
    /// How many lanes it has.
    pub(crate) lanes: usize,
    /// Its first lane.
    pub(crate) lane: Option<u32>,
    /// A prefix ends at a multiple of this for all of its lanes, tokens.
    pub(crate) step: u64,
    pub(crate) store: Option<StoreView>,
}

/// How a worker uses the store.
#[derive(Debug, Clone)]
pub(crate) struct StoreView {
    pub(crate) layout: Layout,
    /// Names the layout: workers with the same one have the same number.
    pub(crate) layout_no: u32,
    pub(crate) scheme: Arc<Scheme>,
}

/// The name under which the worker index knows a lane.
pub(crate) const fn lane_id(lane: u32) -> WorkerId {
    WorkerId { engine: EngineId(lane), rank: 0 }
}

impl View {
    pub(crate) fn position(&self, id: WorkerId) -> Option<usize> {
        self.workers.binary_search_by_key(&id, |worker| worker.id).ok()
    }

    pub(crate) fn worker(&self, id: WorkerId) -> Option<&WorkerView> {
        self.workers.get(self.position(id)?)
    }

    /// Position of the worker that a lane belongs to.
    pub(crate) fn of_lane(&self, lane: u32) -> Option<usize> {
        let at = self.lanes.binary_search_by_key(&lane, |(lane, _)| *lane).ok()?;
        self.lanes.get(at).map(|(_, worker)| *worker)
    }
}
