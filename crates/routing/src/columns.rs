//! Candidates in columns, for policies that compare the whole fleet: each step of a comparison reads little else than what
//! it asks of a worker.

use tandem_types::WorkerId;

use crate::Candidate;

/// Candidates by id. Counts are floats, as costs are made of them: far below 2^52, where these are exact.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Columns {
    /// Which.
    pub workers: Vec<WorkerId>,
    /// [`Candidate::load`], in requests.
    pub load: Vec<f64>,
    /// [`Candidate::queued_prefill`], in tokens.
    pub queued: Vec<f64>,
    /// [`Candidate::home_tokens`].
    pub home: Vec<f64>,
    /// [`Candidate::kv_capacity_tokens`]; 0 = the engine does not tell.
    pub capacity: Vec<f64>,
    /// [`Candidate::cold`].
    pub cold: Vec<bool>,
}

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Row {
    pub(crate) worker: WorkerId,
    pub(crate) load: f64,
    pub(crate) queued: f64,
    pub(crate) home: f64,
    pub(crate) capacity: f64,
    pub(crate) cold: bool,
}

impl Columns {
    /// Adds one behind the others.
    pub fn push(&mut self, candidate: &Candidate) {
        self.workers.push(candidate.worker);
        self.load.push(float(candidate.load));
        self.queued.push(float(candidate.queued_prefill));
        self.home.push(float(candidate.home_tokens));
        self.capacity.push(float(candidate.kv_capacity_tokens.unwrap_or(0)));
        self.cold.push(candidate.cold);
    }

    /// Forgets all of them.
    pub fn clear(&mut self) {
        let Self { workers, load, queued, home, capacity, cold } = self;
        workers.clear();
        [load, queued, home, capacity].into_iter().for_each(Vec::clear);
        cold.clear();
    }

    /// How many they are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.workers.len()
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.workers.is_empty()
    }

    /// Where a worker is.
    pub(crate) fn find(&self, worker: WorkerId) -> Option<usize> {
        self.workers.binary_search(&worker).ok()
    }

    pub(crate) fn row(&self, at: usize) -> Option<Row> {
        Some(Row {
            worker: *self.workers.get(at)?,
            load: *self.load.get(at)?,
            queued: *self.queued.get(at)?,
            home: *self.home.get(at)?,
            capacity: *self.capacity.get(at)?,
            cold: *self.cold.get(at)?,
        })
    }

    /// All of them, by id.
    pub(crate) fn rows(&self) -> impl Iterator<Item = Row> {
        let Self { workers, load, queued, home, capacity, cold } = self;
        let counts = load.iter().zip(queued).zip(home.iter().zip(capacity));
        workers.iter().zip(counts).zip(cold).map(
            |((&worker, ((&load, &queued), (&home, &capacity))), &cold)| Row {
                worker,
                load,
                queued,
                home,
                capacity,
                cold,
            },
        )
    }
}

/// Token and request counts are far below 2^52, where the conversion stays exact.
#[expect(clippy::cast_precision_loss, reason = "token counts are far below 2^52")]
pub(crate) const fn float(count: u64) -> f64 {
    count as f64
}
