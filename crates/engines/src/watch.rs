//! The task that watches one engine.
//!
//! States: starting -> ready <-> down, each drained or not. A worker's phase (what the scheduler was last told)
//! follows from (ready, drained): up when ready and not drained; draining when ready, drained and told of
//! before; down when not ready and told of before.
//!
//! Invariants:
//! - I-WAT-1 a phase is told only when it, or the worker's info, changed; `Removed` is told once for each worker
//!   ever told of.
//! - I-WAT-2 a new engine needs one good survey, one that was down `ok_threshold`; a ready one goes down after
//!   `fail_threshold` consecutive bad health probes, or at once when it says itself that it sleeps (vLLM's sleep
//!   mode, whose `/health` stays good). Nothing else takes an engine down: a failing `/metrics` or `/v1/models`
//!   is noted and asked again.
//! - I-WAT-3 load is told only for a worker that is up or draining, and is dropped when the receiver is behind.
//! - I-WAT-4 ranks are added by any poll but taken away only by a survey, so that one poor answer of a metrics
//!   endpoint does not make workers vanish.
//! - I-WAT-5 probes wait for nothing but the engine, each at most `probe_timeout`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tandem_types::{LoadReport, WorkerId, WorkerInfo};
use tokio::sync::mpsc::error::SendError;
use tokio::time::{Instant, sleep_until};

use crate::config::EnginesConfig;
use crate::control::Control;
use crate::engine::Engine;
use crate::lora;
use crate::registry::Engines;
use crate::state::{EngineEvent, LoadSource};
use crate::survey::{self, ASLEEP, Loads, Survey};

/// What the scheduler was last told of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Up,
    Draining,
    Down,
}

struct Watch<'a> {
    engines: &'a Engines,
    engine: &'a Engine,
    config: &'a EnginesConfig,
    /// The last good survey.
    survey: Option<Survey>,
    /// Consecutive good surveys while not ready.
    good: u32,
    backoff: Duration,
    next_survey: Instant,
    next_health: Instant,
    next_load: Instant,
    last_probe: Option<Instant>,
    told: BTreeMap<u32, (Phase, WorkerInfo)>,
    loads_to_tell: Vec<(u32, LoadReport)>,
    random: u64,
}

/// Watches `engine` until it is removed or the registry shuts down.
pub(crate) async fn run(engines: Engines, engine: Arc<Engine>) {
    let mut watch = Watch::new(&engines, &engine);
    loop {
        tokio::select! {
            biased;
            () = engine.stop.cancelled() => break,
            // A drain is told at once, even while a probe hangs; the probe is begun again.
            () = engine.drain_changed.notified() => {}
            () = watch.round() => {}
        }
        let told = tokio::select! {
            biased;
            () = engine.stop.cancelled() => break,
            told = watch.tell() => told,
        };
        if told.is_err() {
            // Nobody listens any more.
            break;
        }
    }
    if engine.is_removed() {
        tokio::select! {
            biased;
            () = engines.shared.stop.cancelled() => {}
            _ = watch.tell_removed() => {}
        }
    }
    drop(watch);
    engines.forget(engine.id);
}

impl<'a> Watch<'a> {
    fn new(engines: &'a Engines, engine: &'a Engine) -> Self {
        let now = Instant::now();
        let config = &engines.shared.config;
        Self {
            engines,
            engine,
            config,
            survey: None,
            good: 0,
            backoff: config.retry_initial,
            next_survey: now,
            next_health: now,
            next_load: now,
            last_probe: None,
            told: BTreeMap::new(),
            loads_to_tell: Vec::new(),
            random: (u64::from(engine.id.0) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15),
        }
    }

    fn control(&self) -> Control {
        Control {
            client: self.engines.shared.client.clone(),
            target: self.engine.control_target(),
            timeout: self.config.probe_timeout,
        }
    }

    /// `duration`, give or take the configured part of it (xorshift, seeded by the engine's number).
    fn jittered(&mut self, duration: Duration) -> Duration {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let unit = f64::from(u32::try_from(self.random >> 32).unwrap_or(0)) / f64::from(u32::MAX);
        duration.mul_f64(1.0 + self.config.jitter * (2.0 * unit - 1.0))
    }

    /// Waits until something is due, or somebody wants a probe, and does it.
    async fn round(&mut self) {
        let ready = self.engine.facts().ready;
        let due =
            if ready { self.next_health.min(self.next_load).min(self.next_survey) } else { self.next_survey };
        tokio::select! {
            () = sleep_until(due) => {}
            () = self.engine.woken.notified() => {
                // Many calls may fail at once; one probe serves them all.
                if let Some(last) = self.last_probe {
                    sleep_until(last + self.config.retry_initial).await;
                }
                let now = Instant::now();
                if ready { self.next_health = now } else { self.next_survey = now }
            }
        }
        self.last_probe = Some(Instant::now());
        if ready {
            self.poll().await;
        } else {
            self.survey_anew().await;
        }
    }

    /// Of an engine that is not ready: is it now?
    async fn survey_anew(&mut self) {
        match survey::survey(&self.control(), self.engine.spec.kind).await {
            Ok(survey) => {
                self.good += 1;
                let needed = if self.engine.facts().ever_ready { self.config.ok_threshold } else { 1 };
                if self.good < needed {
                    self.next_survey = Instant::now() + self.config.retry_initial;
                    return;
                }
                tracing::info!(
                    engine = %self.engine.base, kind = ?survey.kind, version = survey.version.as_deref(),
                    models = survey.models.len(), workers = survey.workers.len(), "engine ready"
                );
                self.take_survey(survey);
                self.schedule_all();
                self.engine.render_unsupported.store(false, Ordering::Release);
                {
                    let mut facts = self.engine.facts();
                    facts.ready = true;
                    facts.ever_ready = true;
                    facts.failures = 0;
                    facts.since = Instant::now();
                }
                self.engines.note_change();
            }
            Err(error) => {
                self.good = 0;
                let first = self.note_error(&error, true) == 1;
                if first && self.survey.is_none() {
                    tracing::warn!(engine = %self.engine.base, error, "engine not ready, trying again");
                }
                let wait = self.jittered(self.backoff);
                self.next_survey = Instant::now() + wait;
                self.backoff = self.backoff.saturating_mul(2).min(self.config.health_interval);
            }
        }
    }

    /// Of a ready engine: whatever is due, side by side.
    async fn poll(&mut self) {
        let now = Instant::now();
        let Some(survey) = self.survey.clone() else { return };
        let control = self.control();
        let health = async {
            if self.next_health > now {
                return None;
            }
            let mut path = survey.health_path;
            Some(survey::health(&control, survey.kind, &mut path).await.map(|()| path))
        };
        let load = async {
            if self.next_load > now
                || matches!(survey.load_source, LoadSource::Nothing | LoadSource::ServerInfo)
            {
                return None;
            }
            Some(survey::loads(&control, survey.kind, survey.load_source, survey.llamacpp).await)
        };
        let anew = async {
            if self.next_survey > now {
                return None;
            }
            Some(survey::survey(&control, self.engine.spec.kind).await)
        };
        let (health, load, anew) = tokio::join!(health, load, anew);
        if self.next_load <= now {
            let wait = self.jittered(self.config.load_interval);
            self.next_load = Instant::now() + wait;
        }
        match load {
            Some(Ok(loads)) if loads.asleep => {
                // No need to ask three times: the engine says itself that it takes no turns.
                self.go_down(ASLEEP);
                return;
            }
            Some(Ok(loads)) => self.take_loads(loads),
            Some(Err(error)) => {
                self.note_error(&error, false);
            }
            None => {}
        }
        match anew {
            Some(Ok(survey)) => {
                self.take_survey(survey);
                self.schedule_survey();
            }
            Some(Err(error)) => {
                self.note_error(&error, false);
                self.schedule_survey();
            }
            None => {}
        }
        if let Some(health) = health {
            self.take_health(health);
        }
    }

    fn schedule_survey(&mut self) {
        let wait = self.jittered(self.config.models_interval);
        self.next_survey = Instant::now() + wait;
    }

    fn schedule_health(&mut self) {
        let wait = self.jittered(self.config.health_interval);
        self.next_health = Instant::now() + wait;
    }

    fn schedule_all(&mut self) {
        self.schedule_survey();
        self.schedule_health();
        let wait = self.jittered(self.config.load_interval);
        self.next_load = Instant::now() + wait;
    }

    fn take_health(&mut self, health: Result<usize, String>) {
        let error = match health {
            Ok(path) => {
                if let Some(survey) = &mut self.survey {
                    survey.health_path = path;
                }
                self.engine.facts().failures = 0;
                self.schedule_health();
                return;
            }
            Err(error) => error,
        };
        let failures = self.note_error(&error, true);
        if failures < self.config.fail_threshold {
            // Confirm sooner than at the next interval.
            let wait = self.config.retry_initial.saturating_mul(1 << failures.min(8));
            self.next_health = Instant::now() + wait.min(self.config.health_interval);
            return;
        }
        self.go_down(&error);
    }

    fn go_down(&mut self, reason: &str) {
        tracing::warn!(engine = %self.engine.base, reason, "engine down");
        {
            let mut facts = self.engine.facts();
            facts.ready = false;
            facts.downs += 1;
            facts.since = Instant::now();
            facts.last_error = Some((reason.to_owned(), Instant::now()));
        }
        self.good = 0;
        self.backoff = self.config.retry_initial;
        self.next_survey = Instant::now() + self.backoff;
    }

    /// Returns the consecutive failures, this one included if it counts.
    fn note_error(&self, error: &str, counts: bool) -> u32 {
        tracing::debug!(engine = %self.engine.base, error, "probe failed");
        let mut facts = self.engine.facts();
        facts.last_error = Some((error.to_owned(), Instant::now()));
        facts.failures = facts.failures.saturating_add(u32::from(counts));
        facts.failures
    }

    fn take_survey(&mut self, survey: Survey) {
        self.loads_to_tell = loads_of(&survey.workers);
        let ranks_changed = {
            let mut facts = self.engine.facts();
            let changed = !facts.workers.keys().eq(survey.workers.keys());
            facts.kind = Some(survey.kind);
            facts.version.clone_from(&survey.version);
            facts.models.clone_from(&survey.models);
            facts.workers.clone_from(&survey.workers);
            facts.load_source = survey.load_source;
            facts.split = survey.split;
            changed
        };
        if ranks_changed {
            self.engines.note_change();
        }
        self.backoff = self.config.retry_initial;
        self.survey = Some(survey);
    }

    fn take_loads(&mut self, loads: Loads) {
        let Some(survey) = &mut self.survey else { return };
        survey.load_source = loads.source;
        let mut workers = loads.workers;
        if survey.workers.len() <= 1 {
            survey::normalise(&mut workers);
        }
        self.loads_to_tell = loads_of(&workers);
        for (rank, status) in workers {
            let known = survey.workers.entry(rank).or_default();
            known.load = status.load.or(known.load);
            known.kv_capacity_tokens = status.kv_capacity_tokens.or(known.kv_capacity_tokens);
        }
        let ranks_changed = {
            let mut facts = self.engine.facts();
            let changed = !facts.workers.keys().eq(survey.workers.keys());
            facts.load_source = survey.load_source;
            facts.workers.clone_from(&survey.workers);
            changed
        };
        if ranks_changed {
            self.engines.note_change();
        }
    }

    /// Tells what changed.
    async fn tell(&mut self) -> Result<(), SendError<EngineEvent>> {
        let (ready, drained) = (self.engine.facts().ready, self.engine.is_drained());
        let wanted = self.survey.as_ref().map(|s| self.infos(s)).unwrap_or_default();
        let gone: Vec<u32> = self.told.keys().filter(|rank| !wanted.contains_key(*rank)).copied().collect();
        for rank in gone {
            self.send(EngineEvent::Removed { worker: self.worker(rank) }).await?;
            self.told.remove(&rank);
        }
        for (rank, info) in wanted {
            let worker = self.worker(rank);
            let told = self.told.get(&rank).map(|(phase, _)| *phase);
            let phase = match (ready, drained, told) {
                (true, false, _) => Phase::Up,
                (true, true, Some(Phase::Up | Phase::Draining)) => Phase::Draining,
                (false, _, Some(_)) | (true, true, Some(Phase::Down)) => Phase::Down,
                (false, _, None) | (true, true, None) => continue,
            };
            let event = match phase {
                Phase::Up if self.told.get(&rank) == Some(&(Phase::Up, info.clone())) => continue,
                Phase::Up => EngineEvent::Up { worker, info: info.clone() },
                _ if told == Some(phase) => continue,
                Phase::Draining => EngineEvent::Draining { worker },
                Phase::Down => EngineEvent::Down { worker, reason: self.reason() },
            };
            self.send(event).await?;
            self.told.insert(rank, (phase, info));
        }
        for (rank, load) in std::mem::take(&mut self.loads_to_tell) {
            if matches!(self.told.get(&rank), Some((Phase::Up | Phase::Draining, _))) {
                let event = EngineEvent::Load { worker: self.worker(rank), load };
                // Full: the next poll brings a fresher one. Closed: the next change will notice.
                let _ = self.engines.shared.events.try_send(event);
            }
        }
        Ok(())
    }

    async fn tell_removed(&self) -> Result<(), SendError<EngineEvent>> {
        for rank in self.told.keys() {
            self.send(EngineEvent::Removed { worker: self.worker(*rank) }).await?;
        }
        Ok(())
    }

    async fn send(&self, event: EngineEvent) -> Result<(), SendError<EngineEvent>> {
        self.engines.shared.events.send(event).await
    }

    const fn worker(&self, rank: u32) -> WorkerId {
        WorkerId { engine: self.engine.id, rank }
    }

    fn reason(&self) -> String {
        let facts = self.engine.facts();
        facts.last_error.as_ref().map_or_else(String::new, |(text, _)| text.clone())
    }

    fn infos(&self, survey: &Survey) -> BTreeMap<u32, WorkerInfo> {
        let adapters = lora::adapters(survey.kind, &survey.models);
        let mut models: Vec<String> = survey.models.iter().map(|m| m.id.clone()).collect();
        models.extend(adapters.iter().map(|adapter| adapter.name.clone()));
        models.sort_unstable();
        models.dedup();
        let spec = &self.engine.spec;
        let info = |status: &crate::state::WorkerStatus| WorkerInfo {
            role: self.engine.role(Some(survey.kind), survey.split),
            models: models.clone(),
            adapters: adapters.clone(),
            loads_adapters: spec.loads_adapters,
            kv_capacity_tokens: status.kv_capacity_tokens,
            kv_resident_tokens: spec.kv_resident_tokens,
            max_running: spec.max_running,
            labels: spec.all_labels(),
            taints: spec.taints.clone(),
            ..WorkerInfo::new(survey.kind)
        };
        survey.workers.iter().map(|(rank, status)| (*rank, info(status))).collect()
    }
}

fn loads_of(workers: &BTreeMap<u32, crate::state::WorkerStatus>) -> Vec<(u32, LoadReport)> {
    workers.iter().filter_map(|(rank, status)| Some((*rank, status.load?))).collect()
}
