//! Candidates in columns, for policies that compare the whole fleet: each step of a comparison reads little else than what
//! it asks of a worker.

use std::borrow::Cow;

use tandem_types::WorkerId;

use crate::Candidate;

/// Candidates by id. Counts are floats, as costs are made of them: far below 2^52, where these are exact. A fleet that
/// keeps columns lends them: copies of a thousand workers would push out of the cache what the decision asks next.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Columns<'a> {
    /// Which.
    pub workers: Cow<'a, [WorkerId]>,
    /// [`Candidate::load`], in requests.
    pub load: Cow<'a, [f64]>,
    /// [`Candidate::queued_prefill`], in tokens.
    pub queued: Cow<'a, [f64]>,
    /// [`Candidate::home_tokens`].
    pub home: Cow<'a, [f64]>,
    /// [`Candidate::kv_capacity_tokens`]; 0 = the engine does not tell.
    pub capacity: Cow<'a, [f64]>,
    /// [`Candidate::cold`], up to the last one that is.
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

impl Columns<'_> {
    /// These candidates, by id.
    #[must_use]
    pub fn of(candidates: &[Candidate]) -> Self {
        let counts = |of: fn(&Candidate) -> u64| candidates.iter().map(|it| float(of(it))).collect();
        Self {
            workers: candidates.iter().map(|it| it.worker).collect(),
            load: counts(|it| it.load),
            queued: counts(|it| it.queued_prefill),
            home: counts(|it| it.home_tokens),
            capacity: counts(|it| it.kv_capacity_tokens.unwrap_or(0)),
            cold: candidates.iter().map(|it| it.cold).collect(),
        }
    }

    /// How many they are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.workers.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
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
            cold: self.cold.get(at).copied().unwrap_or_default(),
        })
    }

    /// All of them, by id.
    pub(crate) fn rows(&self) -> impl Iterator<Item = Row> {
        (0..self.len()).filter_map(|at| self.row(at))
    }
}

/// The least of some numbers, infinite where there is none.
pub(crate) fn least(numbers: &[f64]) -> f64 {
    fold(numbers, f64::INFINITY, |a, b| if b < a { b } else { a })
}

/// The most of them, infinitely little where there is none.
pub(crate) fn most(numbers: &[f64]) -> f64 {
    fold(numbers, f64::NEG_INFINITY, |a, b| if b > a { b } else { a })
}

/// Four at once: each step waits for the one before.
fn fold(numbers: &[f64], start: f64, step: impl Fn(f64, f64) -> f64) -> f64 {
    let (fours, rest) = numbers.as_chunks::<4>();
    let mut lanes = [start; 4];
    for four in fours {
        lanes = std::array::from_fn(|at| step(lanes[at], four[at]));
    }
    rest.iter().copied().chain(lanes).fold(start, step)
}

/// Token and request counts are far below 2^52, where the conversion stays exact.
#[expect(clippy::cast_precision_loss, reason = "token counts are far below 2^52")]
pub(crate) const fn float(count: u64) -> f64 {
    count as f64
}
