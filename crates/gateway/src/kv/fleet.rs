//! What finding a prompt's blocks needs to know of the engines: who serves what, and their make.
//!
//! Decided: a snapshot, taken twice a second and when the last one knew nobody. Requests read it without a lock.

use std::collections::BTreeSet;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tandem_engines::{EngineState, Engines};
use tandem_types::{EngineKind, WorkerId};

/// The snapshot.
#[derive(Default)]
pub(crate) struct Fleet(ArcSwap<Vec<Seen>>);

/// An engine that takes turns.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) worker: WorkerId,
    pub(crate) kind: EngineKind,
    models: BTreeSet<String>,
}

impl Fleet {
    /// Looks at the engines.
    pub(crate) fn refresh(&self, engines: &Engines) {
        let ready = engines.list().into_iter().filter(|engine| engine.state == EngineState::Ready);
        let seen = ready
            .map(|engine| Seen {
                worker: WorkerId {
                    engine: engine.id,
                    rank: engine.workers.keys().next().copied().unwrap_or(0),
                },
                kind: engine.kind.unwrap_or(EngineKind::OpenAi),
                models: engine.models.into_iter().map(|model| model.id).collect(),
            })
            .collect();
        self.0.store(Arc::new(seen));
    }

    /// The engines that serve a model, or an adapter by that name, or that take any name.
    pub(crate) fn serving(&self, model: Option<&str>, engines: &Engines) -> Vec<Seen> {
        if self.0.load().is_empty() {
            // Nobody was ready at the last look.
            self.refresh(engines);
        }
        let takes = |seen: &Seen, model: &str| {
            seen.models.contains(model) || engines.adapter_at(seen.worker, model).is_some()
        };
        let serves = |seen: &&Seen| seen.models.is_empty() || model.is_none_or(|model| takes(seen, model));
        self.0.load().iter().filter(serves).cloned().collect()
    }
}
