//! A fleet for tests.

use tandem_types::{EngineId, WorkerId};

use crate::{Candidate, Fleet, Rng, RoutePolicy, RouteTurn};

pub(crate) const fn worker(engine: u32) -> WorkerId {
    WorkerId { engine: EngineId(engine), rank: 0 }
}

/// A worker of which nothing but its load is known.
pub(crate) const fn candidate(engine: u32, load: u64) -> Candidate {
    Candidate {
        worker: worker(engine),
        load,
        queued_prefill: 0,
        home_tokens: 0,
        kv_capacity_tokens: None,
        cold: false,
    }
}

/// Of two workers the idle one lacks the turn's adapter, which counts as four requests.
pub(crate) fn assert_an_adapter_counts_as_load(policy: &mut dyn RoutePolicy) {
    for (busy, chosen) in [(3, 1), (5, 0)] {
        let cold = Candidate { cold: true, ..candidate(0, 0) };
        let fleet = Workers::of(vec![cold, candidate(1, busy)]);
        let choice = policy.choose(&RouteTurn::default(), &fleet, &mut Rng::new(1)).expect("not empty");
        assert_eq!(choice.worker, worker(chosen), "{busy} requests");
    }
}

/// Workers with fixed loads.
#[derive(Debug)]
pub(crate) struct Workers {
    by_id: Vec<Candidate>,
    scan_allowed: bool,
    labels: Vec<(WorkerId, Vec<String>)>,
}

impl Workers {
    pub(crate) fn new(loads: &[(u32, u64)]) -> Self {
        let mut by_id: Vec<Candidate> = loads.iter().map(|&(engine, load)| candidate(engine, load)).collect();
        by_id.sort_by_key(|c| c.worker);
        Self { by_id, scan_allowed: true, labels: Vec::new() }
    }

    /// These workers.
    pub(crate) const fn of(by_id: Vec<Candidate>) -> Self {
        Self { by_id, scan_allowed: true, labels: Vec::new() }
    }

    /// With labels at one worker.
    pub(crate) fn labelled(mut self, engine: u32, labels: &[&str]) -> Self {
        self.labels.push((worker(engine), labels.iter().map(|&label| label.to_owned()).collect()));
        self
    }

    /// The same fleet, failing the test when a policy looks at all of it.
    pub(crate) fn without_scan(self) -> Self {
        Self { scan_allowed: false, ..self }
    }
}

impl Fleet for Workers {
    fn get(&self, worker: WorkerId) -> Option<Candidate> {
        self.by_id.iter().find(|c| c.worker == worker).copied()
    }

    fn lightest(&self) -> Option<Candidate> {
        self.by_id.iter().min_by_key(|c| (c.load, c.worker)).copied()
    }

    fn all(&self, out: &mut Vec<Candidate>) {
        assert!(self.scan_allowed, "the whole fleet was scanned");
        out.extend(&self.by_id);
    }

    fn labels(&self, worker: WorkerId) -> &[String] {
        self.labels.iter().find(|(id, _)| *id == worker).map_or(&[], |(_, labels)| labels)
    }
}
