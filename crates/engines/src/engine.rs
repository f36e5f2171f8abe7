//! One engine: what was configured and what its task has found out.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::HeaderValue;
use tandem_types::{EngineId, EngineKind, WorkerRole};
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::config::EnginesConfig;
use crate::lora;
use crate::spec::{BaseUrl, EngineAddress, EngineKindHint, EngineSpec};
use crate::state::{
    Bootstrap, EngineState, EngineStatus, LastError, LoadSource, ModelInfo, Target, WorkerStatus,
};

/// What the task has found out. Written by the task, read by everyone.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) ready: bool,
    pub(crate) ever_ready: bool,
    pub(crate) since: Instant,
    pub(crate) kind: Option<EngineKind>,
    pub(crate) version: Option<String>,
    pub(crate) models: Vec<ModelInfo>,
    pub(crate) workers: BTreeMap<u32, WorkerStatus>,
    pub(crate) load_source: LoadSource,
    /// What the engine itself says of the part of the work that it does.
    pub(crate) split: SplitInfo,
    pub(crate) last_error: Option<(String, Instant)>,
    pub(crate) failures: u32,
    pub(crate) downs: u64,
}

/// What an engine says of the part of the work that it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct SplitInfo {
    pub(crate) role: Option<WorkerRole>,
    pub(crate) bootstrap_port: Option<u16>,
}

/// An engine in the registry.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) id: EngineId,
    pub(crate) base: Arc<BaseUrl>,
    pub(crate) spec: EngineSpec,
    /// The followed name whose records hold this engine.
    pub(crate) found_by: Option<String>,
    host: Option<HeaderValue>,
    /// Removed, or the registry shuts down.
    pub(crate) stop: CancellationToken,
    removed: AtomicBool,
    drained: AtomicBool,
    /// `drained` changed.
    pub(crate) drain_changed: Notify,
    /// Someone wants a probe now.
    pub(crate) woken: Notify,
    facts: Mutex<Facts>,
    pub(crate) render_slots: Semaphore,
    /// The engine has no route that gives token ids.
    pub(crate) render_unsupported: AtomicBool,
}

impl Engine {
    pub(crate) fn new(
        id: EngineId,
        spec: EngineSpec,
        base: BaseUrl,
        found_by: Option<&str>,
        config: &EnginesConfig,
        stop: CancellationToken,
    ) -> Self {
        let host = match &spec.address {
            EngineAddress::Url(_) => None,
            EngineAddress::Dns { name, port, .. } => HeaderValue::from_str(&format!("{name}:{port}")).ok(),
        };
        Self {
            id,
            base: Arc::new(base),
            spec,
            found_by: found_by.map(str::to_owned),
            host,
            stop,
            removed: AtomicBool::new(false),
            drained: AtomicBool::new(false),
            drain_changed: Notify::new(),
            woken: Notify::new(),
            facts: Mutex::new(Facts {
                ready: false,
                ever_ready: false,
                since: Instant::now(),
                kind: None,
                version: None,
                models: Vec::new(),
                workers: BTreeMap::new(),
                load_source: LoadSource::Unknown,
                split: SplitInfo::default(),
                last_error: None,
                failures: 0,
                downs: 0,
            }),
            render_slots: Semaphore::new(config.render_concurrency),
            render_unsupported: AtomicBool::new(false),
        }
    }

    pub(crate) fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }

    pub(crate) fn is_drained(&self) -> bool {
        self.drained.load(Ordering::Acquire)
    }

    /// False when the engine is leaving already.
    pub(crate) fn set_drained(&self, drained: bool) -> bool {
        if self.drained.swap(drained, Ordering::AcqRel) != drained {
            self.facts().since = Instant::now();
            self.drain_changed.notify_one();
        }
        !self.is_removed()
    }

    /// False when it was removed before.
    pub(crate) fn remove(&self) -> bool {
        let first = !self.removed.swap(true, Ordering::AcqRel);
        self.stop.cancel();
        first
    }

    pub(crate) fn wake(&self) {
        self.woken.notify_one();
    }

    pub(crate) fn target(&self, rank: u32) -> Target {
        let facts = self.facts();
        let kind = facts.kind.unwrap_or(match self.spec.kind {
            EngineKindHint::Vllm => EngineKind::Vllm,
            EngineKindHint::Sglang => EngineKind::Sglang,
            EngineKindHint::Auto | EngineKindHint::OpenAi => EngineKind::OpenAi,
        });
        Target {
            base: Arc::clone(&self.base),
            kind,
            api_key: self.spec.api_key.clone(),
            rank: (facts.workers.len() > 1).then_some(rank),
            host: self.host.clone(),
            bootstrap: Bootstrap {
                host: self.base.host().trim_matches(['[', ']']).to_owned(),
                port: self.spec.bootstrap_port.or(facts.split.bootstrap_port),
            },
            priority: self.spec.priority,
        }
    }

    /// The part of the work that it does: as the user says, else as it says itself. Nobody knows how KV travels
    /// between engines of other makes.
    pub(crate) fn role(&self, kind: Option<EngineKind>, told: SplitInfo) -> WorkerRole {
        match kind {
            Some(EngineKind::Vllm | EngineKind::Sglang) => self.spec.role.or(told.role).unwrap_or_default(),
            Some(EngineKind::OpenAi) | None => WorkerRole::Both,
        }
    }

    /// The LoRA adapter that `model` means to it.
    pub(crate) fn adapter<'a>(&self, model: &'a str) -> Option<&'a str> {
        let facts = self.facts();
        lora::adapter(facts.kind?, &facts.models, self.spec.loads_adapters, model)
    }

    /// The engine as a whole, without a rank.
    pub(crate) fn control_target(&self) -> Target {
        Target { rank: None, ..self.target(0) }
    }

    pub(crate) fn status(&self) -> EngineStatus {
        let facts = self.facts();
        let state = if self.is_drained() {
            EngineState::Draining
        } else if facts.ready {
            EngineState::Ready
        } else if facts.ever_ready {
            EngineState::Down
        } else {
            EngineState::Starting
        };
        EngineStatus {
            id: self.id,
            url: self.base.to_string(),
            found_by: self.found_by.clone(),
            state,
            since: facts.since.elapsed(),
            kind: facts.kind,
            version: facts.version.clone(),
            models: facts.models.clone(),
            workers: facts.workers.clone(),
            load_source: facts.load_source,
            last_error: facts
                .last_error
                .as_ref()
                .map(|(text, at)| LastError { text: text.clone(), ago: at.elapsed() }),
            failures: facts.failures,
            downs: facts.downs,
            role: self.role(facts.kind, facts.split),
            loads_adapters: self.spec.loads_adapters,
            tags: self.spec.tags.clone(),
            taints: self.spec.taints.clone(),
            labels: self.spec.labels.clone(),
        }
    }
}
