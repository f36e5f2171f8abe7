//! Finding out where an engine's ranks publish.
//!
//! - What the user names wins, for all ranks by the engines' own rule (rank 0's port plus the rank); else vLLM's
//!   `/kv_event_sources`, else SGLang's `kv_events` in `/server_info`. Nothing is guessed.
//! - Invariants: I-KVD-1 an engine that cannot be asked is an error, not an engine without publishers; I-KVD-2 a
//!   lone worker gets a lone publisher, whatever rank it gives itself (ranks that have URLs of their own).

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use tandem_types::EngineKind;

use super::endpoint::{ZmqEndpoint, is_loopback};
use super::subscriber::Source;
use crate::control::{Answer, Control};
use crate::spec::EngineSpec;
use crate::wire;

/// What was found out.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) sources: BTreeMap<u32, Source>,
    /// Publishers that cannot be used, and why.
    pub(super) troubles: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Told {
    events: ZmqEndpoint,
    replay: Option<ZmqEndpoint>,
}

/// The publishers of an engine's `ranks`.
pub(super) async fn discover(
    control: &Control,
    spec: &EngineSpec,
    kind: EngineKind,
    ranks: &BTreeSet<u32>,
) -> Result<Found, String> {
    let mut found = Found::default();
    if spec.kv_events.off {
        return Ok(found);
    }
    let host = control.target.base.host();
    let named = &spec.kv_events;
    let told = match (&named.events, kind) {
        (Some(events), _) => {
            let of = |rank: &u32| Some((*rank, Told { events: events.of_rank(*rank)?, replay: None }));
            ranks.iter().filter_map(of).collect()
        }
        (None, EngineKind::Vllm) => vllm(control, &host, &mut found.troubles).await?,
        (None, EngineKind::Sglang) => sglang(control, &host, &mut found.troubles).await?,
        (None, EngineKind::OpenAi) => BTreeMap::new(),
    };
    for (rank, told) in attribute(told, ranks, &mut found.troubles) {
        let replay = match &named.replay {
            Some(replay) => replay.of_rank(rank),
            None => told.replay,
        };
        let text = |endpoint: ZmqEndpoint| endpoint.on_host(&host).to_string();
        found.sources.insert(rank, Source { endpoint: text(told.events), replay: replay.map(text) });
    }
    Ok(found)
}

/// Which publisher is which worker's.
fn attribute(
    mut told: BTreeMap<u32, Told>,
    ranks: &BTreeSet<u32>,
    troubles: &mut Vec<String>,
) -> BTreeMap<u32, Told> {
    if let (1, 1, Some(rank), Some((_, lone))) =
        (told.len(), ranks.len(), ranks.first(), told.first_key_value())
    {
        return BTreeMap::from([(*rank, lone.clone())]);
    }
    told.retain(|rank, _| {
        let known = ranks.contains(rank);
        if !known {
            troubles.push(format!("publisher of rank {rank}, which is no worker of the engine"));
        }
        known
    });
    told
}

/// Refuses what an engine tells of its own machine when it is on another one.
fn reachable(endpoint: ZmqEndpoint, host: &str, troubles: &mut Vec<String>) -> Option<ZmqEndpoint> {
    if endpoint.is_local() && !is_loopback(host) {
        troubles.push(format!(
            "{endpoint} can be reached only on the engine's machine: let it publish at tcp://*:PORT, or name \
             the endpoint with kv_events= and kv_replay="
        ));
        return None;
    }
    Some(endpoint)
}

async fn vllm(
    control: &Control,
    host: &str,
    troubles: &mut Vec<String>,
) -> Result<BTreeMap<u32, Told>, String> {
    let answer = control.get("/kv_event_sources").await.map_err(|e| e.to_string())?;
    if answer.no_such_route() {
        return Ok(BTreeMap::new());
    }
    if !answer.ok() {
        return Err(format!("/kv_event_sources: status {}", answer.status.as_u16()));
    }
    let sources =
        wire::vllm_kv_event_sources(&answer.body).ok_or("/kv_event_sources: not a list of sources")?;
    let mut told = BTreeMap::new();
    for (rank, source) in sources {
        let (Ok(rank), true, Some(endpoint)) = (rank.parse(), source.enable_kv_cache_events, source.endpoint)
        else {
            continue;
        };
        let mut parse = |text: String| match text.parse::<ZmqEndpoint>() {
            Ok(endpoint) => reachable(endpoint, host, troubles),
            Err(error) => {
                troubles.push(error.to_string());
                None
            }
        };
        let Some(events) = parse(endpoint) else { continue };
        let replay = source.replay_endpoint.and_then(parse);
        told.insert(rank, Told { events, replay });
    }
    Ok(told)
}

#[derive(Debug, Deserialize)]
struct SglangAnswer {
    #[serde(default)]
    kv_events: Option<SglangEvents>,
}

#[derive(Debug, Deserialize)]
struct SglangEvents {
    #[serde(default)]
    endpoint_host: String,
    endpoint_port_base: u16,
    #[serde(default)]
    replay_endpoint_port_base: Option<u16>,
    #[serde(default)]
    dp_size: Option<u32>,
}

async fn sglang(
    control: &Control,
    host: &str,
    troubles: &mut Vec<String>,
) -> Result<BTreeMap<u32, Told>, String> {
    let mut answer = control.get("/server_info").await.map_err(|e| e.to_string())?;
    if !answer.ok() {
        answer = control.get("/get_server_info").await.map_err(|e| e.to_string())?;
    }
    if !answer.ok() {
        return Err(format!("/server_info: status {}", answer.status.as_u16()));
    }
    Ok(sglang_told(&answer, host, troubles))
}

fn sglang_told(answer: &Answer, host: &str, troubles: &mut Vec<String>) -> BTreeMap<u32, Told> {
    let parsed: Option<SglangAnswer> = serde_json::from_slice(&answer.body).ok();
    let Some(events) = parsed.and_then(|parsed| parsed.kv_events) else { return BTreeMap::new() };
    let at = |port: u16, troubles: &mut Vec<String>| {
        let bare = events.endpoint_host.trim_start_matches('[').trim_end_matches(']');
        reachable(ZmqEndpoint::tcp(bare, port)?, host, troubles)
    };
    let Some(base) = at(events.endpoint_port_base, troubles) else { return BTreeMap::new() };
    let replay = events.replay_endpoint_port_base.and_then(|port| at(port, troubles));
    let ranks = events.dp_size.unwrap_or(1).clamp(1, u32::try_from(crate::RANKS_MAX).unwrap_or(u32::MAX));
    let of = |rank| {
        let replay = replay.as_ref().and_then(|replay| replay.of_rank(rank));
        Some((rank, Told { events: base.of_rank(rank)?, replay }))
    };
    (0..ranks).filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// I-KVD-2.
    #[test]
    fn a_lone_publisher_is_the_lone_workers_and_others_have_their_ranks() {
        let told = |ranks: &[u32]| -> BTreeMap<u32, Told> {
            let one = |rank: &u32| {
                let events = format!("tcp://engine:{}", 5557 + rank).parse().expect("an endpoint");
                (*rank, Told { events, replay: None })
            };
            ranks.iter().map(one).collect()
        };
        let of = |publishers: &[u32], workers: &[u32]| {
            let mut troubles = Vec::new();
            let found = attribute(told(publishers), &workers.iter().copied().collect(), &mut troubles);
            let ports = found.into_iter().map(|(rank, told)| (rank, told.events.to_string()));
            (ports.collect::<Vec<_>>(), troubles.len())
        };
        let at = |rank: u32, port: u32| (rank, format!("tcp://engine:{port}"));
        assert_eq!(of(&[3], &[0]), (vec![at(0, 5560)], 0), "its engine runs rank 3 under a URL of its own");
        assert_eq!(of(&[0, 1], &[1, 0]), (vec![at(0, 5557), at(1, 5558)], 0));
        assert_eq!(of(&[0, 1], &[0]), (vec![at(0, 5557)], 1), "of a rank that is no worker nothing is taken");
        assert_eq!(of(&[3], &[0, 1]), (vec![], 1), "whose it is, nobody can say");
    }
}
