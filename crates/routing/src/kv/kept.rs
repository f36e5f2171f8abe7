//! Which candidates a decision record keeps.

use crate::SCORES_MAX;
use crate::columns::least;

/// So many costs are passed over at once where none of them is cheap.
const PASSED_OVER: usize = 16;

/// The places of those that a record keeps: the chosen one first, then home, then the others, cheapest first, the lower
/// id first among equals.
pub(super) fn kept(costs: &[f64], chosen: usize, at_home: Option<usize>) -> Vec<usize> {
    let mut kept = Vec::with_capacity(SCORES_MAX);
    kept.push(chosen);
    kept.extend(at_home.filter(|at| *at != chosen));
    let others = SCORES_MAX - kept.len();
    // Of each part the cheapest: where that is dearer than those of enough other parts, nobody is among the cheapest.
    let cheapest: Vec<f64> = costs.chunks(PASSED_OVER).map(least).collect();
    let bound = bound(&cheapest);
    let mut cheap: Vec<(f64, usize)> = Vec::with_capacity(4 * SCORES_MAX);
    for (part, (costs, cheapest)) in costs.chunks(PASSED_OVER).zip(cheapest).enumerate() {
        if cheapest > bound {
            continue;
        }
        let places = (part * PASSED_OVER..).zip(costs);
        let others = places.filter(|(at, cost)| **cost <= bound && *at != chosen && Some(*at) != at_home);
        cheap.extend(others.map(|(at, cost)| (*cost, at)));
    }
    cheap.sort_by(|a, b| a.0.total_cmp(&b.0));
    kept.extend(cheap.into_iter().take(others).map(|(_, at)| at));
    kept
}

/// A cost that as many do not exceed as a record keeps, by the cheapest of each part: the chosen one and home may be the
/// cheapest of theirs.
fn bound(cheapest: &[f64]) -> f64 {
    if cheapest.len() <= SCORES_MAX {
        return f64::INFINITY;
    }
    let mut cheapest = cheapest.to_vec();
    let (_, bound, _) = cheapest.select_nth_unstable_by(SCORES_MAX, f64::total_cmp);
    *bound
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// As by sorting all of them, also where many cost the same.
        #[test]
        fn the_cheapest_are_kept(
            costs in prop::collection::vec(0_u32..60, 1..700),
            (chosen, home) in (any::<prop::sample::Index>(), prop::option::of(any::<prop::sample::Index>())),
        ) {
            let costs: Vec<f64> = costs.into_iter().map(f64::from).collect();
            let (chosen, home) = (chosen.index(costs.len()), home.map(|home| home.index(costs.len())));
            let mut sorted: Vec<usize> = (0..costs.len()).collect();
            sorted.sort_by(|a, b| costs[*a].total_cmp(&costs[*b]));
            sorted.retain(|at| *at != chosen && Some(*at) != home);
            let first = std::iter::once(chosen).chain(home.filter(|home| *home != chosen));
            let expected: Vec<usize> = first.chain(sorted).take(SCORES_MAX).collect();
            prop_assert_eq!(kept(&costs, chosen, home), expected);
        }
    }
}
