//! What a turn costs at each worker of a large fleet, one column after the other.
//!
//! - Purpose: a comparison of a thousand workers takes microseconds only where the same few steps are made for all of them,
//!   without a branch between.
//! - I-PRI-1 each price is the one that the formula gives for the worker alone ([`Costs::price_of`]).

use tandem_types::WorkerId;

use super::cost::{Costs, Depths, NO_FRACTION, rounded};
use crate::Fleet;
use crate::columns::{Columns, most};

/// Prices by place among the candidates, and memory for making them.
#[derive(Debug, Default)]
pub(super) struct Prices {
    pub(super) all: Vec<f64>,
    /// What follows from where the prompt lies, and from home.
    fixed: Vec<f64>,
    /// Each worker's programs by what it holds, the turn's own there too.
    shares: Vec<f64>,
}

impl Prices {
    /// Prices all candidates.
    pub(super) fn fill(&mut self, costs: &Costs<'_>, candidates: &Columns<'_>, fleet: &dyn Fleet) {
        self.fix(costs, &candidates.workers);
        self.load(costs, candidates);
        costs.crowd(candidates, &mut self.shares, &mut self.all);
        let mut again = |place: usize| {
            if let (Some(price), Some(row)) = (self.all.get_mut(place), candidates.row(place)) {
                *price = costs.price_of(row, fleet);
            }
        };
        costs
            .special()
            .into_iter()
            .flatten()
            .filter_map(|worker| candidates.find(worker))
            .for_each(&mut again);
        if costs.asks_each() {
            (0..candidates.len()).for_each(&mut again);
        } else if candidates.cold.contains(&true) {
            let cold = candidates.cold.iter().enumerate().filter(|(_, cold)| **cold);
            cold.for_each(|(place, _)| again(place));
        }
        // The sums of larger numbers depend on their order, and they are rounded otherwise.
        if most(&self.all) >= NO_FRACTION {
            self.all.clear();
            self.all.extend(candidates.rows().map(|row| costs.price_of(row, fleet)));
        }
    }

    /// What follows from what is queued and runs at each, and what was fixed.
    fn load(&mut self, costs: &Costs<'_>, candidates: &Columns<'_>) {
        let (per_queued, per_request) = costs.per_load();
        let counts = candidates.queued.iter().zip(candidates.load.iter()).zip(&self.fixed);
        self.all.clear();
        if per_request.fract() > 0.0 {
            let price =
                |((queued, load), fixed)| rounded(per_queued * queued) + rounded(per_request * load) + fixed;
            self.all.extend(counts.map(price));
        } else {
            // Whole numbers stay what they are.
            let price = |((queued, load), fixed)| rounded(per_queued * queued) + per_request * load + fixed;
            self.all.extend(counts.map(price));
        }
    }

    /// What follows for each worker but home from what lies there.
    fn fix(&mut self, costs: &Costs<'_>, workers: &[WorkerId]) {
        let fixed = |held: Option<Depths>| costs.fixed_at(held);
        self.fixed.clear();
        let Some(found) = costs.found() else { return self.fixed.resize(workers.len(), fixed(None)) };
        self.fixed.resize(workers.len(), fixed(Some([0; 3])));
        for alike in found.workers.alike() {
            alike.note(workers, &mut self.fixed, fixed(Some(alike.value.depths())));
        }
        for alike in found.blind.alike() {
            alike.note(workers, &mut self.fixed, fixed(None));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tandem_types::{
        LabelWish, MatchSource, PrefixMatch, RouteWishes, SharedPrefix, WeightOverrides, WorkerPrefix,
    };

    use super::super::config::{KvConfig, Weights};
    use super::*;
    use crate::testing::{Workers, candidate, worker};
    use crate::{Candidate, Leg, RouteTurn};

    /// Fleets in which many are alike: few depths, loads and sizes.
    fn any_fleet() -> impl Strategy<Value = (PrefixMatch, Vec<Candidate>)> {
        let one = (0_u32..4, 0_u32..3, 0_u64..3, 0_u64..4, 0_u64..5, 0_u64..4, 0_u32..12);
        let fleet = prop::collection::vec(one, 1..70);
        (fleet, 0_u32..4, any::<bool>(), any::<bool>()).prop_map(|(fleet, spread, stored, listed)| {
            let mut found = PrefixMatch { block_size: 100, blocks: 30, ..PrefixMatch::unknown() };
            let mut candidates = Vec::new();
            let mut loadable = Vec::new();
            for (id, (depth, below, load, queued, home, capacity, rare)) in (0..).zip(fleet) {
                let device = if rare == 0 { 25 } else { depth * spread };
                let (host, disk) = (device + below, device + 2 * below);
                match rare {
                    1 => found.blind.push(worker(id)),
                    2 => {}
                    _ => found.workers.push(WorkerPrefix {
                        worker: worker(id),
                        device,
                        host,
                        disk,
                        source: MatchSource::Exact,
                    }),
                }
                loadable.push(SharedPrefix { worker: worker(id), blocks: 4 * below });
                candidates.push(Candidate {
                    queued_prefill: queued * 2_000,
                    home_tokens: home * 5_000,
                    kv_capacity_tokens: (capacity > 0).then_some(capacity * 7_000),
                    cold: rare == 3,
                    ..candidate(id, load)
                });
            }
            found.shared = if stored { vec![2..9, 12..20] } else { Vec::new() };
            found.loadable = (stored && listed).then_some(loadable);
            (found, candidates)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

        /// I-PRI-1.
        #[test]
        fn each_price_is_that_of_the_formula(
            (found, candidates) in any_fleet(),
            (home, parent) in (prop::option::of(0_u32..70), prop::option::of(0_u32..70)),
            (program_tokens, known) in (prop::option::of(0_u64..6_000), any::<bool>()),
            weights in prop::collection::vec(prop::option::of(-0.5_f64..1.5), 5),
            leg in prop::sample::select(vec![Leg::Whole, Leg::Prefill, Leg::Decode]),
            (label, loss, common) in (prop::option::of(-0.3_f64..0.3), 0.0_f64..0.02, 0.0_f64..0.9),
        ) {
            let wishes = RouteWishes {
                weights: WeightOverrides {
                    device: weights[0], host: weights[1], shared: weights[2], queued: weights[3],
                    decode: weights[4].map(|weight| weight * 600.0),
                    ..WeightOverrides::none()
                },
                prefer: label.map(|weight| LabelWish { label: "fast".to_owned(), weight }).into_iter().collect(),
                ..RouteWishes::none()
            };
            let turn = RouteTurn {
                leg,
                home: home.map(worker),
                parent_home: parent.map(worker),
                input_tokens: 3_050,
                program_tokens,
                prefix: known.then_some(&found),
                wishes: Some(&wishes),
            };
            let fleet = Workers::of(candidates).labelled(5, &["fast"]);
            let (columns, config) = (fleet.columns(), KvConfig::default());
            let weights = Weights::of(&config, turn.wishes);
            let costs = Costs::new(&weights, &turn, &columns, loss, common);
            let mut prices = Prices::default();
            prices.fill(&costs, &columns, &fleet);
            let alone: Vec<f64> = columns.rows().map(|row| costs.price_of(row, &fleet)).collect();
            prop_assert_eq!(prices.all, alone);
        }
    }
}
