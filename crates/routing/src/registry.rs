//! The policies by name.

use crate::{
    KvConfig, RoutePolicy, kv::Kv, least_load::LeastLoad, power_of_two::PowerOfTwo, random::Random,
    round_robin::RoundRobin, session_affinity::SessionAffinity,
};

/// A policy that can be asked for.
#[derive(Debug, Clone, Copy)]
pub struct PolicyEntry {
    /// Its name in configuration.
    pub name: &'static str,
    /// What it does and when to use it, in one sentence.
    pub summary: &'static str,
    /// Makes one. Policies without settings leave these alone.
    pub make: fn(&KvConfig) -> Box<dyn RoutePolicy>,
}

/// The policy used when none is asked for: agents come back with a longer prompt each time, and the worker that
/// computed it last still has its beginning cached.
pub const DEFAULT_POLICY: &str = "session_affinity";

/// Every policy, by name.
pub static POLICIES: [PolicyEntry; 6] = [
    PolicyEntry {
        name: "kv",
        summary: "The worker where the turn costs the least: prompt tokens that it does not have cached, prefill \
                  queued there, running requests, and what a program leaves behind when it moves.",
        make: |config| Box::new(Kv::new(config.clone())),
    },
    PolicyEntry {
        name: "least_load",
        summary: "The worker with the fewest requests; equals are drawn at random.",
        make: |_| Box::new(LeastLoad),
    },
    PolicyEntry {
        name: "power_of_two",
        summary: "The lighter of two workers drawn at random: nearly as even as least_load, and several \
                  routers in front of one fleet do not all pick the same worker.",
        make: |_| Box::new(PowerOfTwo),
    },
    PolicyEntry {
        name: "random",
        summary: "Any worker, drawn evenly; for comparison.",
        make: |_| Box::new(Random),
    },
    PolicyEntry {
        name: "round_robin",
        summary: "Each worker in turn, by id; for comparison and for engines that report no load.",
        make: |_| Box::new(RoundRobin::default()),
    },
    PolicyEntry {
        name: "session_affinity",
        summary: "A program goes where it ran last, a new subagent where its parent ran, unless that worker is \
                  much more loaded than the lightest; everything else as power_of_two.",
        make: |_| Box::new(SessionAffinity),
    },
];

/// No policy has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no routing policy named {name:?}; there are: {}", names())]
pub struct UnknownPolicy {
    /// The name asked for.
    pub name: String,
}

fn names() -> String {
    POLICIES.map(|p| p.name).join(", ")
}

/// Makes the policy `name`; `kv` has the weights of the policy of that name.
///
/// # Errors
/// [`UnknownPolicy`] lists the names that exist.
pub fn by_name(name: &str, kv: &KvConfig) -> Result<Box<dyn RoutePolicy>, UnknownPolicy> {
    POLICIES
        .iter()
        .find(|p| p.name == name)
        .map(|p| (p.make)(kv))
        .ok_or_else(|| UnknownPolicy { name: name.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_unique_and_agree_with_the_policies() {
        for pair in POLICIES.windows(2) {
            assert!(pair[0].name < pair[1].name);
        }
        for entry in &POLICIES {
            assert_eq!(by_name(entry.name, &KvConfig::default()).expect("registered").name(), entry.name);
        }
        assert!(by_name(DEFAULT_POLICY, &KvConfig::default()).is_ok());
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        let error = by_name("cache_aware", &KvConfig::default()).expect_err("no such policy").to_string();
        assert_eq!(
            error,
            "no routing policy named \"cache_aware\"; there are: kv, least_load, power_of_two, \
             random, round_robin, session_affinity"
        );
    }
}
