//! What every policy promises, on fleets at random.

use proptest::prelude::*;

use crate::testing::{Workers, worker};
use crate::{KvConfig, POLICIES, Rng, RouteTurn, SCORES_MAX};

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// I-ROU-1, I-ROU-2, I-ROU-3.
    #[test]
    fn every_policy_chooses_within_the_fleet_and_the_same_for_the_same_seed(
        loads in proptest::collection::btree_map(0_u32..40, 0_u64..60, 0..30),
        home in proptest::option::of(0_u32..40),
        parent in proptest::option::of(0_u32..40),
        seed: u64,
    ) {
        let loads: Vec<(u32, u64)> = loads.into_iter().collect();
        let turn = RouteTurn { home: home.map(worker), parent_home: parent.map(worker), ..RouteTurn::default() };
        for entry in &POLICIES {
            let choose = || {
                let mut rng = Rng::new(seed);
                let mut policy = (entry.make)(&KvConfig::default());
                let fleet = Workers::new(&loads);
                (0..5).map(|_| policy.choose(&turn, &fleet, &mut rng)).collect::<Vec<_>>()
            };
            let choices = choose();
            prop_assert_eq!(&choices, &choose());
            for choice in choices {
                prop_assert_eq!(choice.is_some(), !loads.is_empty(), "{}", entry.name);
                let Some(choice) = choice else { continue };
                prop_assert!(loads.iter().any(|&(id, _)| worker(id) == choice.worker));
                prop_assert_eq!(choice.scores.first().map(|s| s.0), Some(choice.worker));
                prop_assert!(choice.scores.len() <= SCORES_MAX);
                prop_assert!(choice.compared as usize <= loads.len());
                prop_assert!(choice.scores.len() <= choice.compared as usize);
            }
        }
    }
}
