//! Choosing a worker for a turn: the policies and their registry.
//!
//! - Purpose: given the workers that may take a turn now, pick one and say why.
//! - Input: [`RouteTurn`] (what is known of the turn), [`Fleet`] (the workers that may take it), a seeded
//!   [`Rng`]. Output: a [`Choice`].
//! - I-ROU-1 a choice is always a worker of the fleet handed in.
//! - I-ROU-2 there is a choice whenever the fleet is not empty.
//! - I-ROU-3 a choice is a function of the arguments and of the policy's own state; no clock, no other
//!   randomness.
//! - I-ROU-4 what was dispatched and is not finished counts at once ([`load`]).
//! - Deliberately absent: which workers are eligible (model, health, breaker, capacity). The scheduler filters;
//!   a policy only prefers.
//!
//! A new policy is one file here and one line in [`registry`].

pub mod columns;
pub mod kv;
pub mod least_load;
pub mod load;
pub mod power_of_two;
pub mod random;
pub mod registry;
pub mod rng;
pub mod round_robin;
pub mod session_affinity;

use std::fmt;

use tandem_types::{PrefixMatch, RouteWishes, WorkerId};

pub use columns::Columns;
pub use kv::{CostTerms, KvConfig, KvConfigError};
pub use load::LoadMeter;
pub use registry::{DEFAULT_POLICY, POLICIES, PolicyEntry, UnknownPolicy, by_name};
pub use rng::Rng;

/// Most scores that a [`Choice`] keeps: a decision record must not grow with the fleet.
pub const SCORES_MAX: usize = 16;

/// A worker that may take the turn now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Which.
    pub worker: WorkerId,
    /// Its load in requests ([`load`] has the formula).
    pub load: u64,
    /// Prompt tokens that it has been sent to compute and has not: of turns without a first token.
    pub queued_prefill: u64,
    /// Context tokens of the programs that ran here last.
    pub home_tokens: u64,
    /// Its KV pool in tokens, where the engine tells.
    pub kv_capacity_tokens: Option<u64>,
    /// The turn asks for a LoRA adapter that it would have to load first.
    pub cold: bool,
}

/// Requests that loading an adapter counts as, for policies that compare loads: about a second of a busy worker.
pub const COLD_REQUESTS: u64 = 4;

impl Candidate {
    /// Its load, and what loading an adapter adds to it.
    #[must_use]
    pub const fn burden(&self) -> u64 {
        self.load.saturating_add(if self.cold { COLD_REQUESTS } else { 0 })
    }
}

/// The part of a turn that a worker is chosen for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Leg {
    /// All of it.
    #[default]
    Whole,
    /// Its prompt; another worker answers.
    Prefill,
    /// Its answer; the KV of its prompt comes from another worker, but for what is here already.
    Decode,
}

/// What a policy may know of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RouteTurn<'a> {
    /// The part that a worker is chosen for. Homes are those of workers for that part.
    pub leg: Leg,
    /// Where the turn's program ran last.
    pub home: Option<WorkerId>,
    /// Where the program's parent ran last.
    pub parent_home: Option<WorkerId>,
    /// Expected prompt length in tokens.
    pub input_tokens: u64,
    /// Context tokens of the turn's program after its last answer, 0 when it has had none; `None` = the turn
    /// belongs to no program.
    pub program_tokens: Option<u64>,
    /// Where the prompt's KV lies.
    pub prefix: Option<&'a PrefixMatch>,
    /// What the request asks of routing.
    pub wishes: Option<&'a RouteWishes>,
}

/// The workers that may take one turn now. Lookups are cheap; only [`Fleet::all`] and [`Fleet::columns`] cost in proportion
/// to the number of workers.
pub trait Fleet {
    /// One worker, if it may take the turn.
    fn get(&self, worker: WorkerId) -> Option<Candidate>;
    /// The worker with the least load, the lowest id among equals.
    fn lightest(&self) -> Option<Candidate>;
    /// Appends every worker that may take the turn, by id.
    fn all(&self, out: &mut Vec<Candidate>);
    /// The same in columns.
    fn columns(&self) -> Columns<'_> {
        let mut all = Vec::new();
        self.all(&mut all);
        Columns::of(&all)
    }
    /// What a worker's operator says of it.
    fn labels(&self, _worker: WorkerId) -> &[String] {
        &[]
    }
}

/// Why a worker was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// Its turn in the round.
    RoundRobin,
    /// Drawn at random.
    Random,
    /// It has the least load.
    LeastLoad,
    /// The lighter of two drawn at random.
    PowerOfTwo,
    /// The program ran there last.
    Affinity,
    /// The program's parent ran there last.
    ParentAffinity,
    /// The program's (or its parent's) worker may not take the turn, so a lighter one was drawn.
    HomeUnavailable,
    /// The program's (or its parent's) worker is too loaded, so a lighter one was drawn.
    HomeOverloaded,
    /// Another worker than the program's costs less, all counted.
    CheaperThanHome,
    /// It costs the least, and holds a part of the prompt.
    Overlap,
    /// It costs the least, and nobody is known to hold a part of the prompt there.
    LowestCost,
    /// A repeated call goes to the worker that was already working on it.
    Repeated,
    /// Admission kept room for the turn there.
    Admitted,
}

impl Reason {
    /// The reason as decision records and metrics write it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RoundRobin => "round_robin",
            Self::Random => "random",
            Self::LeastLoad => "least_load",
            Self::PowerOfTwo => "power_of_two",
            Self::Affinity => "affinity",
            Self::ParentAffinity => "parent_affinity",
            Self::HomeUnavailable => "home_unavailable",
            Self::HomeOverloaded => "home_overloaded",
            Self::CheaperThanHome => "cheaper_than_home",
            Self::Overlap => "overlap",
            Self::LowestCost => "lowest_cost",
            Self::Repeated => "repeated",
            Self::Admitted => "admitted",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A policy's decision.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// The worker.
    pub worker: WorkerId,
    /// Why.
    pub reason: Reason,
    /// The workers compared with their scores, lower is better, the chosen one first; at most [`SCORES_MAX`].
    pub scores: Vec<(WorkerId, f64)>,
    /// What makes up each of these scores, in the same order; empty for policies whose score is the load.
    pub terms: Vec<CostTerms>,
    /// How many workers were compared.
    pub compared: u32,
}

impl Choice {
    /// A choice of `chosen` after comparing it with `compared`, which may contain it and no worker twice.
    #[must_use]
    pub fn among(chosen: Candidate, reason: Reason, compared: &[Candidate]) -> Self {
        let others = compared.iter().filter(|c| c.worker != chosen.worker);
        let scores = std::iter::once(&chosen).chain(others).take(SCORES_MAX);
        let itself_compared = compared.iter().any(|c| c.worker == chosen.worker);
        let count = compared.len() + usize::from(!itself_compared);
        Self {
            worker: chosen.worker,
            reason,
            scores: scores.map(|c| (c.worker, score(c.burden()))).collect(),
            terms: Vec::new(),
            compared: u32::try_from(count).unwrap_or(u32::MAX),
        }
    }
}

/// A load as a score; loads are far below 2^52, where the conversion stays exact.
#[expect(clippy::cast_precision_loss, reason = "request counts are far below 2^52")]
const fn score(load: u64) -> f64 {
    load as f64
}

/// A way to choose a worker.
pub trait RoutePolicy: fmt::Debug + Send {
    /// The policy's name in the registry.
    fn name(&self) -> &'static str;
    /// Chooses a worker; `None` only when the fleet is empty.
    fn choose(&mut self, turn: &RouteTurn<'_>, fleet: &dyn Fleet, rng: &mut Rng) -> Option<Choice>;
}

#[cfg(test)]
mod policy_tests;
#[cfg(test)]
pub(crate) mod testing;
