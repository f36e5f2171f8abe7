//! `probe`: what an engine lacks and the flag that brings it.

use std::collections::BTreeMap;

use tandem_engines::{CapabilityKind as C, Presence as P, ProbeOptions, ProbeReport, probe};
use tandem_types::EngineKind;

use crate::net::{Mode, Net, SGLANG_INFO, Script, spec};

const SOURCES: &str = include_str!("../fixtures/vllm-0.32.0-kv-event-sources.json");

async fn look(script: &std::sync::Arc<Script>, active: bool) -> ProbeReport {
    let net = Net::new();
    net.serve("a:1", script);
    probe(&net.client(), &spec("a:1"), ProbeOptions { active, ..ProbeOptions::default() }).await
}

fn table(report: &ProbeReport) -> BTreeMap<C, (P, Option<&str>)> {
    report.capabilities.iter().map(|c| (c.kind, (c.presence, c.fix.as_deref()))).collect()
}

#[tokio::test(start_paused = true)]
async fn a_well_started_vllm() {
    let script = Script::vllm();
    script.set("/kv_event_sources", 200, SOURCES);
    script.set("/v1/chat/completions/render", 200, "{\"token_ids\":[1]}");
    let usage = r#"{"usage":{"prompt_tokens":700,"prompt_tokens_details":{"cached_tokens":688}}}"#;
    script.set("/v1/chat/completions", 200, usage);
    let report = look(&script, true).await;
    assert_eq!((report.error.as_deref(), report.kind), (None, Some(EngineKind::Vllm)));
    assert_eq!((report.version.as_deref(), report.kv_capacity_tokens), (Some("0.32.0"), Some(2_097_152)));
    assert_eq!(report.ranks, [0]);
    let all = [
        C::KvEvents,
        C::CachedTokens,
        C::Metrics,
        C::Load,
        C::Capacity,
        C::Priority,
        C::Render,
        C::SessionIds,
    ];
    assert_eq!(table(&report), all.into_iter().map(|kind| (kind, (P::Present, None))).collect());
}

#[tokio::test(start_paused = true)]
async fn a_bare_vllm_and_its_flags() {
    let script = Script::vllm();
    script.set("/version", 200, "{\"version\":\"0.14.1\"}");
    script.set("/kv_event_sources", 200, "{\"0\":{\"enable_kv_cache_events\":false}}");
    script.set("/v1/chat/completions/render", 403, "{}");
    script.set(
        "/v1/chat/completions",
        200,
        r#"{"usage":{"prompt_tokens":700,"prompt_tokens_details":null}}"#,
    );
    script.set("/metrics", 200, "python_info 1\n");
    let report = look(&script, true).await;
    let table = table(&report);
    let fix = |kind| {
        let (presence, fix) = table.get(&kind).expect("reported");
        assert_eq!(*presence, P::Missing, "{kind:?}");
        fix.unwrap_or_default()
    };
    assert!(fix(C::KvEvents).starts_with("--kv-events-config '{\"enable_kv_cache_events\":true,"));
    assert_eq!(fix(C::CachedTokens), "--enable-prompt-tokens-details");
    assert_eq!(fix(C::Render), "--enable-scale-out");
    assert_eq!(fix(C::Metrics), "remove --disable-log-stats");
    assert_eq!(fix(C::SessionIds), "upgrade vllm to 0.32.0 or newer");

    script.set("/v1/chat/completions", 400, "{}");
    let report = look(&script, true).await;
    let priority = report.capabilities.iter().find(|c| c.kind == C::Priority).expect("reported");
    assert_eq!(
        (priority.presence, priority.fix.as_deref()),
        (P::Missing, Some("--scheduling-policy priority"))
    );
}

#[tokio::test(start_paused = true)]
async fn nothing_is_generated_unless_asked() {
    let script = Script::vllm();
    let report = look(&script, false).await;
    assert_eq!(script.seen("/v1/chat/completions").len(), 0);
    let table = table(&report);
    assert_eq!(table.get(&C::CachedTokens), Some(&(P::Unknown, Some("--enable-prompt-tokens-details"))));
    assert_eq!(table.get(&C::Priority).map(|(p, _)| *p), Some(P::Unknown));
}

#[tokio::test(start_paused = true)]
async fn sglang_tells_its_flags() {
    let script = Script::sglang();
    script.set("/tokenize", 200, "{\"tokens\":[1]}");
    let report = look(&script, false).await;
    assert_eq!(report.version.as_deref(), Some("0.5.23"));
    let got = table(&report);
    assert_eq!(got.get(&C::CachedTokens), Some(&(P::Present, None)));
    assert_eq!(got.get(&C::KvEvents), Some(&(P::Present, None)));
    assert_eq!(got.get(&C::Priority), Some(&(P::Missing, Some("--enable-priority-scheduling"))));
    assert_eq!(got.get(&C::SessionIds), Some(&(P::Present, None)));

    let mut info: serde_json::Value = serde_json::from_str(SGLANG_INFO).expect("json");
    info["kv_events_config"] = serde_json::Value::Null;
    info["enable_cache_report"] = false.into();
    info["enable_metrics"] = false.into();
    script.set("/server_info", 200, &info.to_string());
    let report = look(&script, false).await;
    let got = table(&report);
    assert_eq!(got.get(&C::CachedTokens), Some(&(P::Missing, Some("--enable-cache-report"))));
    assert_eq!(got.get(&C::Metrics), Some(&(P::Missing, Some("--enable-metrics"))));
    let events = got.get(&C::KvEvents).and_then(|(_, fix)| *fix).unwrap_or_default();
    assert!(events.starts_with("--kv-events-config"), "{events}");
}

#[tokio::test(start_paused = true)]
async fn llamacpp_and_strangers() {
    let models = include_str!("../fixtures/llamacpp-models.json");
    let script = Script::new(&[("/health", 200, ""), ("/v1/models", 200, models)]);
    let report = look(&script, false).await;
    assert_eq!(report.kind, Some(EngineKind::OpenAi));
    assert_eq!(table(&report).get(&C::Load), Some(&(P::Missing, Some("--metrics"))));

    let script = Script::new(&[("/v1/models", 200, r#"{"data":[{"id":"m"}]}"#)]);
    let report = look(&script, false).await;
    let events = report.capabilities.iter().find(|c| c.kind == C::KvEvents).expect("reported");
    assert!(events.detail.contains("kind=vllm"), "{}", events.detail);
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_is_not_there() {
    let net = Net::new();
    net.set("a:1", Mode::Refuse);
    let report = probe(&net.client(), &spec("a:1"), ProbeOptions::default()).await;
    assert!(report.error.as_deref().is_some_and(|e| e.contains("connection refused")), "{report:?}");
    assert_eq!(report.capabilities, []);
}
