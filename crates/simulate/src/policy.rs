//! Policies by one name: where a turn goes, and when.
//!
//! - `kv`, `sticky` and the other routing policies by their names: nothing is held but for want of a slot.
//! - `thunderagent` (as published in the article), `thunderagent-package` (as its package behaves), `idle_lease`,
//!   `tandem`: admission by that name, over routing by `kv`, which places what admission leaves open.
//! - `ROUTING+ADMISSION` puts any two together, such as `sticky+tandem`.

use tandem_scheduler::admission::{self, ThunderAgentConfig};
use tandem_scheduler::{AdmissionConfig, SchedulerConfig};

/// Admission policies by the names that are used here.
fn admission_named(name: &str) -> Option<AdmissionConfig> {
    let named = |policy: &str| AdmissionConfig { policy: policy.to_owned(), ..AdmissionConfig::default() };
    if name == "thunderagent-package" {
        return Some(AdmissionConfig {
            thunderagent: ThunderAgentConfig::package(),
            ..named("thunderagent")
        });
    }
    admission::POLICIES.iter().find(|entry| entry.name == name).map(|entry| named(entry.name))
}

/// The scheduler's settings for a policy's name. Of routing policies the scheduler itself says which exist.
///
/// # Errors
/// When a name has a part that stands for admission and is none.
pub fn scheduler_for(name: &str) -> Result<SchedulerConfig, String> {
    let (routing, gate) = match name.split_once('+') {
        Some((routing, gate)) => {
            let known = admission::POLICIES.map(|entry| entry.name).join(", ");
            let found = admission_named(gate);
            let gate = found.ok_or_else(|| {
                format!("no admission policy named {gate:?}; there are: {known}, thunderagent-package")
            })?;
            (routing, gate)
        }
        None => match admission_named(name).filter(|gate| gate.policy != admission::NONE) {
            Some(gate) => ("kv", gate),
            None => (name, AdmissionConfig::default()),
        },
    };
    let routing = if routing == "sticky" { "session_affinity" } else { routing };
    Ok(SchedulerConfig { policy: routing.to_owned(), admission: gate, ..SchedulerConfig::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stands_for_routing_and_admission() {
        let parts = |name| {
            let config = scheduler_for(name).expect("a policy");
            (config.policy, config.admission.policy, config.admission.thunderagent.mark_all)
        };
        let are = |routing: &str, gate: &str, package| (routing.to_owned(), gate.to_owned(), package);
        assert_eq!(parts("kv"), are("kv", "none", false));
        assert_eq!(parts("sticky"), are("session_affinity", "none", false));
        assert_eq!(parts("thunderagent"), are("kv", "thunderagent", false));
        assert_eq!(parts("thunderagent-package"), are("kv", "thunderagent", true));
        assert_eq!(parts("sticky+tandem"), are("session_affinity", "tandem", false));
        assert!(scheduler_for("kv+nothing").is_err());
    }
}
