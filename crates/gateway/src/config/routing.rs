//! The section `[routing]`: weights of the policy `kv`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tandem_routing::KvConfig;

use super::resolved::{ConfigError, value};

/// What routing policies go by.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Routing {
    /// Weights of the policy `kv`.
    pub kv: RoutingKv,
}

/// Weights of the policy `kv`. Costs are in prompt tokens; the cheapest worker gets the turn. A request can ask for
/// others of some of them in `x-tandem-route`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RoutingKv {
    /// Part of its prefill that a block in device memory saves, 0 to 1.
    pub device: f64,
    /// The same in host memory; not above `device`.
    pub host: f64,
    /// The same on disk; not above `host`.
    pub disk: f64,
    /// The same in a shared store, 0 to 1.
    pub shared: f64,
    /// Weight of a token of prefill queued before the turn. Higher values shorten queues and make sessions leave their
    /// KV behind more often.
    pub queued: f64,
    /// Tokens that a running request counts as.
    pub decode: f64,
    /// Weight of the KV that a session would leave behind at its last worker.
    pub left_behind: f64,
    /// Weight of a worker's share of the sessions' tokens beyond the mean.
    pub crowding: f64,
    /// What a worker costs more whose sessions have outgrown its KV pool, in parts of the session's context.
    pub overfull: f64,
    /// When sessions need more than all KV pools together: new ones go to the fullest worker with at most this many
    /// times the mean, so that the other workers keep what they hold. 0 = always where less than
    /// the mean lies.
    pub gather: f64,
    /// What any worker but the session's last one costs more, in parts of the prompt.
    pub stay: f64,
    /// How much more `stay` counts, and how much less load does for new sessions, in a fleet whose sessions find their
    /// KV lost.
    pub lost: f64,
    /// Tokens that any worker but the parent's costs a new subagent more.
    pub parent_tokens: f64,
    /// Where prompts and answers have workers of their own: what fetching a token's KV costs, in parts of computing
    /// it, 0 to 1.
    pub transfer: f64,
    /// Tokens that loading a LoRA adapter counts as.
    pub adapter_tokens: f64,
    /// 0 = always the cheapest worker; above, others are drawn too, the dearer the less often.
    pub temperature: f64,
}

impl Default for RoutingKv {
    fn default() -> Self {
        let kv = KvConfig::default();
        Self {
            device: kv.device,
            host: kv.host,
            disk: kv.disk,
            shared: kv.shared,
            queued: kv.queued,
            decode: kv.decode,
            left_behind: kv.left_behind,
            crowding: kv.crowding,
            overfull: kv.overfull,
            gather: kv.gather,
            stay: kv.stay,
            lost: kv.lost,
            parent_tokens: kv.parent_tokens,
            transfer: kv.transfer,
            adapter_tokens: kv.adapter_tokens,
            temperature: kv.temperature,
        }
    }
}

pub(super) fn resolve(routing: &Routing) -> Result<KvConfig, ConfigError> {
    let kv = &routing.kv;
    let weights = KvConfig {
        device: kv.device,
        host: kv.host,
        disk: kv.disk,
        shared: kv.shared,
        queued: kv.queued,
        decode: kv.decode,
        left_behind: kv.left_behind,
        crowding: kv.crowding,
        overfull: kv.overfull,
        gather: kv.gather,
        stay: kv.stay,
        lost: kv.lost,
        parent_tokens: kv.parent_tokens,
        transfer: kv.transfer,
        adapter_tokens: kv.adapter_tokens,
        temperature: kv.temperature,
    };
    weights.check().map_err(|error| value("routing.kv", error.to_string()))?;
    Ok(weights)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<KvConfig, String> {
        let routing: Routing = serde_json::from_str(text).map_err(|error| error.to_string())?;
        resolve(&routing).map_err(|error| error.to_string())
    }

    #[test]
    fn weights_that_are_not_given_are_those_of_the_policy() {
        assert_eq!(read("{}"), Ok(KvConfig::default()));
        let weights = read(r#"{"kv": {"queued": 0.7, "gather": 0}}"#).expect("valid");
        assert_eq!(weights, KvConfig { queued: 0.7, gather: 0.0, ..KvConfig::default() });
        // Every weight reaches its own place.
        let all = serde_json::to_value(KvConfig::default()).expect("writes");
        for name in all.as_object().expect("an object").keys() {
            let mut kv = serde_json::json!({"host": 0.375, "disk": 0.0});
            kv[name] = serde_json::json!(0.375);
            let weights = read(&serde_json::json!({ "kv": kv }).to_string()).expect(name);
            assert_eq!(serde_json::to_value(weights).expect("writes")[name], 0.375, "{name}");
        }
    }

    #[test]
    fn weights_that_make_no_sense_are_refused_by_name() {
        for (text, says) in [
            (r#"{"kv": {"queued": -1}}"#, "routing.kv: queued must be a number from 0 to 1000000"),
            (r#"{"kv": {"shared": 1.5}}"#, "routing.kv: shared must be a number from 0 to 1"),
            (r#"{"kv": {"disk": 0.9}}"#, "routing.kv: disk must not be above host"),
            (r#"{"kv": {"queue": 1}}"#, "unknown field `queue`, expected one of `device`"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
