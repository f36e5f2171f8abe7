//! `kv`: the worker where the turn costs the least, counting what lies in its caches.
//!
//! - Purpose: send a turn where most of its prompt is cached already, unless the wait there costs more.
//! - Inputs: [`RouteTurn`] with the index's match, its program's home and the request's wishes; candidates with
//!   load, queued prefill and the tokens of the programs at home there. Output: a [`Choice`] whose terms say what
//!   each part of the cost was. Everything is in prompt tokens, lower is better. [`cost`] has the formula.
//! - I-KV-1 more of the prompt on a worker, in any of its own tiers, all else equal, never makes it less
//!   preferred.
//! - I-KV-2 of workers with equal lowest cost one is drawn at random (temperature 0).
//! - I-KV-3 a program whose KV is at home leaves only when the wait it is spared outweighs the prefill that it
//!   causes plus the KV that it leaves behind. A cost that counts the prefill alone makes sessions bounce: one
//!   other session's queue outweighs one session's overlap, and each move also fills a second pool with a copy.
//! - I-KV-4 with nothing known of the prompt's blocks, a program's home is taken to hold what the program had
//!   computed there: the policy is then session affinity with a load valve, and for turns without a program
//!   least load.
//! - I-KV-5 what was dispatched counts at once: queued prefill until the first token, load until the end.
//! - I-KV-6 nothing in a request's wishes makes a cost that is not a number or breaks I-KV-1.
//! - I-KV-7 in a fleet where programs find their KV lost when they come home, homes are kept and new programs are
//!   placed by room, whatever the queues say ([`KvConfig::lost`]). What one turn finds counts for later ones only.
//! - I-KV-8 a worker whose programs have outgrown its KV pool costs more, so that programs leave it for workers with
//!   room; where all are overfull nobody moves for that.
//! - I-KV-9 in a fleet whose programs need more than all its pools, newcomers are gathered at the fullest workers, up
//!   to a limit: spread evenly they would make every worker lose all of its KV, least recently used first, while
//!   gathered they leave the other workers what they hold. Who is gathered waits longer.
//! - New programs are placed for their life (crowding counts in full), known ones for their turn (crowding is
//!   bounded by one prompt, so that it decides only once their KV is gone from home).
//! - Deliberately absent: prediction of what a dispatch is about to put in a cache. The index does that (it alone
//!   has the prompt's hashes), and its match arrives here as any other. Which workers have a LoRA adapter, and which
//!   are there for prompts or answers alone: candidates are filtered before. Time: queued prefill is not aged, so a call that does not stream counts as queued until its answer is there.
//! - Sources: the credits (1, 3/4, 1/4, 1/2) are the defaults of Dynamo 1.6.1's router; the rest is our own.
//!   The weights of queues, home, crowding, overfull workers and losses come from simulated agent sessions on eight
//!   modelled engines, at working sets of 0.5 to 2 times the pools.

mod config;
mod cost;
mod heads;
mod loss;

use tandem_types::WorkerId;

use crate::{Candidate, Choice, Fleet, Reason, Rng, RoutePolicy, RouteTurn, SCORES_MAX};

pub use config::{KvConfig, KvConfigError};
pub use cost::{CostTerms, expected_prefill};

use config::Weights;
use cost::Costs;
use heads::Heads;
use loss::Loss;

/// The policy.
#[derive(Debug)]
pub struct Kv {
    config: KvConfig,
    loss: Loss,
    heads: Heads,
}

impl Kv {
    /// With these weights.
    #[must_use]
    pub const fn new(config: KvConfig) -> Self {
        Self { config, loss: Loss::new(), heads: Heads::new() }
    }
}

/// A candidate with what it costs.
#[derive(Debug, Clone, Copy)]
struct Priced {
    candidate: Candidate,
    terms: CostTerms,
    cost: f64,
}

impl RoutePolicy for Kv {
    fn name(&self) -> &'static str {
        "kv"
    }

    fn choose(&mut self, turn: &RouteTurn<'_>, fleet: &dyn Fleet, rng: &mut Rng) -> Option<Choice> {
        let mut all = Vec::new();
        fleet.all(&mut all);
        let weights = Weights::of(&self.config, turn.wishes);
        let costs = Costs::new(&weights, turn, &all, self.loss.excess(), self.heads.part());
        let priced: Vec<Priced> = all
            .into_iter()
            .map(|candidate| {
                let terms = costs.terms(candidate, fleet);
                Priced { candidate, terms, cost: cost::float(terms.total()) }
            })
            .collect();
        let chosen = draw(&priced, weights.temperature, rng)?;
        // After the choice: what this turn finds at home must not count against home (I-KV-1).
        self.loss.learn(turn);
        self.heads.learn(turn);
        let reason = reason(turn, fleet, &chosen);
        Some(explain(&priced, chosen, turn.home, reason))
    }
}

/// The cheapest, equals at random; or, with a temperature, any, cheap ones more often.
fn draw(priced: &[Priced], temperature: f64, rng: &mut Rng) -> Option<Priced> {
    let least = priced.iter().map(|p| p.cost).fold(f64::INFINITY, f64::min);
    let most = priced.iter().map(|p| p.cost).fold(f64::NEG_INFINITY, f64::max);
    if temperature <= 0.0 || most <= least {
        let equals = || priced.iter().filter(|p| p.cost <= least);
        let drawn = rng.index(equals().count());
        return equals().nth(drawn).copied();
    }
    // Costs go from 0 to 1 before the temperature divides them: it means the same at every prompt length.
    let weight = |p: &Priced| (-(p.cost - least) / ((most - least) * temperature)).exp();
    let mut left = rng.fraction() * priced.iter().map(weight).sum::<f64>();
    let drawn = priced.iter().find(|&p| {
        left -= weight(p);
        left < 0.0
    });
    // Rounding may leave a rest behind the last one.
    drawn.or_else(|| priced.iter().find(|p| p.cost <= least)).copied()
}

fn reason(turn: &RouteTurn<'_>, fleet: &dyn Fleet, chosen: &Priced) -> Reason {
    let worker = chosen.candidate.worker;
    match (turn.home, turn.parent_home) {
        (Some(home), _) if home == worker => Reason::Affinity,
        (Some(home), _) if fleet.get(home).is_some() => Reason::CheaperThanHome,
        (Some(_), _) => Reason::HomeUnavailable,
        (None, Some(parent)) if parent == worker => Reason::ParentAffinity,
        (None, _) if chosen.terms.holds_any() => Reason::Overlap,
        (None, _) => Reason::LowestCost,
    }
}

/// The chosen worker first, then home, then the others, cheapest first, as many as a record may keep.
fn explain(priced: &[Priced], chosen: Priced, home: Option<WorkerId>, reason: Reason) -> Choice {
    let worker = chosen.candidate.worker;
    let rank = |p: &Priced| (p.candidate.worker != worker, Some(p.candidate.worker) != home);
    let order = |a: &&Priced, b: &&Priced| {
        rank(a)
            .cmp(&rank(b))
            .then(a.cost.total_cmp(&b.cost))
            .then(a.candidate.worker.cmp(&b.candidate.worker))
    };
    let mut kept: Vec<&Priced> = priced.iter().collect();
    if kept.len() > SCORES_MAX {
        kept.select_nth_unstable_by(SCORES_MAX, order);
        kept.truncate(SCORES_MAX);
    }
    kept.sort_unstable_by(order);
    Choice {
        worker,
        reason,
        scores: kept.iter().map(|p| (p.candidate.worker, p.cost)).collect(),
        terms: kept.iter().map(|p| p.terms).collect(),
        compared: u32::try_from(priced.len()).unwrap_or(u32::MAX),
    }
}

#[cfg(test)]
mod tests;
