//! The policies by name.

use crate::{
    AdmissionConfig, AdmissionError, AdmissionPolicy, idle_lease::IdleLease, none::NoGate, tandem::Tandem,
    thunderagent::ThunderAgent,
};

/// A policy that can be asked for.
#[derive(Debug, Clone, Copy)]
pub struct PolicyEntry {
    /// Its name in configuration.
    pub name: &'static str,
    /// What it does and when to use it, in one sentence.
    pub summary: &'static str,
    /// Makes one.
    pub make: fn(&AdmissionConfig) -> Box<dyn AdmissionPolicy>,
}

/// The policy that holds nothing: what a scheduler without settings has.
pub const NONE: &str = "none";

/// Every policy, by name.
pub static POLICIES: [PolicyEntry; 4] = [
    PolicyEntry {
        name: "idle_lease",
        summary: "A session keeps its place for a lease after each turn; whoever idles longest gives way on demand; \
                  for comparison.",
        make: |config| Box::new(IdleLease::new(config)),
    },
    PolicyEntry {
        name: "none",
        summary: "Everything is admitted at once and routing decides where; right while all sessions fit.",
        make: |_| Box::new(NoGate::default()),
    },
    PolicyEntry {
        name: "tandem",
        summary: "Sessions are admitted while their working sets fit, idle ones counted by how likely they return in \
                  time; whoever will not return gives way.",
        make: |config| Box::new(Tandem::new(config)),
    },
    PolicyEntry {
        name: "thunderagent",
        summary: "The published scheduler: pause above a threshold, smallest first, resume below another; for \
                  comparison.",
        make: |config| Box::new(ThunderAgent::new(config)),
    },
];

/// Makes the policy that the settings name.
///
/// # Errors
/// [`AdmissionError`] when there is none of that name, or a setting makes no sense.
pub fn by_name(config: &AdmissionConfig) -> Result<Box<dyn AdmissionPolicy>, AdmissionError> {
    config.check()?;
    let entry = POLICIES.iter().find(|entry| entry.name == config.policy);
    entry.map(|entry| (entry.make)(config)).ok_or_else(|| AdmissionError::Unknown {
        name: config.policy.clone(),
        known: POLICIES.map(|entry| entry.name).join(", "),
    })
}
