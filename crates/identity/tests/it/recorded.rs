//! What thirteen harnesses really sent, request by request. The expectations restate what was observed of
//! each harness when it was recorded (who spawned whom, which call made the title), not what this crate
//! makes of it.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use serde_json::{Value, json};
use tandem_identity::Identity;
use tandem_types::IdentitySource::{
    self, BodyField, ClaudeCode, Codex, GenericHeader, OpenCode, TraceParent,
};
use tandem_types::RequestClass::{self, Compaction, CountTokens, Probe, Title, Turn};
use tandem_types::{Dialect, Harness, RetryKey};

use crate::support::{Recorded, Request, load};

/// Session, agent, parent; the parent as `(session, agent)`.
type Id = (String, Option<String>, Option<(String, Option<String>)>);

struct Row {
    requests: RangeInclusive<usize>,
    class: RequestClass,
    identity: Option<(IdentitySource, Id)>,
}

fn none(requests: RangeInclusive<usize>, class: RequestClass) -> Row {
    Row { requests, class, identity: None }
}

fn root(requests: RangeInclusive<usize>, class: RequestClass, source: IdentitySource, session: &str) -> Row {
    Row { requests, class, identity: Some((source, (session.to_owned(), None, None))) }
}

/// An agent of a session; its parent is another agent, or the root when there is none.
fn agent(
    requests: RangeInclusive<usize>,
    source: IdentitySource,
    session: &str,
    id: &str,
    parent: Option<&str>,
) -> Row {
    let parent = (session.to_owned(), parent.map(str::to_owned));
    let id = (session.to_owned(), Some(id.to_owned()), Some(parent));
    Row { requests, class: Turn, identity: Some((source, id)) }
}

/// A child with a session of its own.
fn child(requests: RangeInclusive<usize>, source: IdentitySource, session: &str, parent: &str) -> Row {
    let id = (session.to_owned(), None, Some((parent.to_owned(), None)));
    Row { requests, class: Turn, identity: Some((source, id)) }
}

fn uuid(version: u8, n: u8) -> String {
    format!("00000000-0000-{version}000-8000-{n:012}")
}

fn ses(n: u8) -> String {
    format!("ses_{n:026}")
}

fn a(n: u8) -> String {
    format!("a{n:016}")
}

fn identities(name: &str) -> Vec<Identity> {
    load(name).iter().map(|r| Request::recorded(r).identify()).collect()
}

#[track_caller]
fn check(name: &str, harness: Harness, rows: &[Row]) {
    let found = identities(name);
    let rows: BTreeMap<usize, &Row> =
        rows.iter().flat_map(|row| row.requests.clone().map(move |n| (n, row))).collect();
    assert_eq!(rows.len(), found.len(), "{name}: every request has one expectation");
    for (n, identity) in found.iter().enumerate() {
        let row = rows[&n];
        let got = identity.context.as_ref().map(|c| {
            let key = |k: &tandem_types::ProgramKey| {
                (k.session.to_string(), k.agent.as_ref().map(ToString::to_string))
            };
            let (session, agent) = key(&c.program);
            (c.source, (session, agent, c.parent.as_ref().map(key)))
        });
        assert_eq!(got, row.identity, "{name}[{n}]: identity");
        assert_eq!(identity.class, row.class, "{name}[{n}]: class");
        assert_eq!(identity.harness, harness, "{name}[{n}]: harness");
        assert_eq!(identity.warnings, [], "{name}[{n}]: warnings");
    }
}

#[test]
fn claude_code_agents_share_the_session_and_are_marked() {
    let (s1, s3, s6) = (uuid(4, 1), uuid(4, 3), uuid(4, 6));
    check(
        "claude-code",
        Harness::ClaudeCode,
        &[
            none(0..=0, Probe),
            root(1..=3, Turn, ClaudeCode, &s1),
            none(4..=4, Probe),
            root(5..=6, Turn, ClaudeCode, &s3),
            agent(7..=7, ClaudeCode, &s3, &a(4), None),
            agent(8..=8, ClaudeCode, &s3, &a(5), None),
            agent(9..=9, ClaudeCode, &s3, &a(4), None),
            agent(10..=10, ClaudeCode, &s3, &a(5), None),
            root(11..=11, Turn, ClaudeCode, &s3),
            none(12..=12, Probe),
            root(13..=14, Turn, ClaudeCode, &s6),
            agent(15..=15, ClaudeCode, &s6, &a(7), None),
            agent(16..=17, ClaudeCode, &s6, &a(8), Some(&a(7))),
            agent(18..=18, ClaudeCode, &s6, &a(7), None),
            root(19..=19, Turn, ClaudeCode, &s6),
        ],
    );
}

#[test]
fn claude_code_with_hint_headers() {
    let (s1, s6) = (uuid(4, 1), uuid(4, 6));
    check(
        "claude-code-hints",
        Harness::ClaudeCode,
        &[
            none(0..=0, Probe),
            root(1..=2, Turn, ClaudeCode, &s1),
            agent(3..=4, ClaudeCode, &s1, &a(4), None),
            root(5..=5, Turn, ClaudeCode, &s1),
            none(6..=6, Probe),
            root(7..=8, Turn, ClaudeCode, &s6),
            agent(9..=9, ClaudeCode, &s6, &a(8), None),
            agent(10..=11, ClaudeCode, &s6, &a(9), Some(&a(8))),
            agent(12..=12, ClaudeCode, &s6, &a(8), None),
            root(13..=13, Turn, ClaudeCode, &s6),
        ],
    );
}

#[test]
fn claude_code_tells_tool_times_agents_and_prompts() {
    let found = identities("claude-code-hints");
    let durations = |n: usize| {
        let list = &found[n].facts.prev_tool_durations;
        list.iter().map(|d| (d.tool.as_str(), d.duration.as_millis())).collect::<Vec<_>>()
    };
    assert_eq!(durations(1), []);
    assert_eq!(durations(2), [("Agent", 31)]);
    assert_eq!(durations(4), [("Bash", 62)]);
    assert_eq!(durations(11), [("Bash", 1196)]);
    assert_eq!(durations(12), [("Agent", 3320)]);
    for n in [3, 4, 9, 10, 11, 12] {
        assert_eq!(found[n].facts.agent_type.as_deref(), Some("general-purpose"));
        assert_eq!(found[n].facts.blocking_subagent, Some(true));
    }
    assert_eq!(found[1].facts.blocking_subagent, None, "a root blocks nobody");
    // One prompt covers its turns and those of its subagents.
    for turn in &found[1..=4] {
        assert_eq!(turn.facts.prompt_id, Some(uuid(4, 2)));
    }
    assert_eq!(found[5].facts.prompt_id, Some(uuid(4, 5)));
}

#[test]
fn claude_code_interactive_has_side_calls() {
    let s1 = uuid(4, 1);
    check(
        "claude-code-interactive",
        Harness::ClaudeCode,
        &[
            root(0..=0, Title, ClaudeCode, &s1),
            root(1..=2, Turn, ClaudeCode, &s1),
            root(3..=4, CountTokens, ClaudeCode, &s1),
            root(5..=5, Compaction, ClaudeCode, &s1),
            root(6..=6, Title, ClaudeCode, &s1),
            root(7..=7, Turn, ClaudeCode, &s1),
        ],
    );
    let found = identities("claude-code-interactive");
    assert_eq!(found[5].facts.compaction.as_deref(), Some("manual"));
    assert_eq!(found[7].facts.context_compacted.as_deref(), Some("manual"));
    assert_eq!(found[2].facts.context_compacted, None);
}

#[test]
fn a_title_is_known_by_its_form_when_no_header_says_so() {
    for n in [0, 6] {
        let mut request = Request::recorded(&load("claude-code-interactive")[n]);
        request.headers.remove("x-claude-code-request-class");
        request.headers.remove("x-claude-1p-request-class");
        assert_eq!(request.identify().class, Title);
    }
}

/// Resuming keeps the id, forking gets a new one. Compaction without hint headers has the form of a turn.
#[test]
fn claude_code_resumes_and_forks() {
    let (s1, s3) = (uuid(4, 1), uuid(4, 3));
    check(
        "claude-code-resume",
        Harness::ClaudeCode,
        &[
            none(0..=0, Probe),
            root(1..=2, Turn, ClaudeCode, &s1),
            none(3..=3, Probe),
            root(4..=5, Turn, ClaudeCode, &s1),
            none(6..=6, Probe),
            root(7..=8, Turn, ClaudeCode, &s3),
            none(9..=9, Probe),
            root(10..=11, Turn, ClaudeCode, &s1),
            none(12..=12, Probe),
            root(13..=13, Turn, ClaudeCode, &s1),
        ],
    );
}

#[test]
fn codex_threads_are_agents_of_the_root_session() {
    let (s1, s12, s34) = (uuid(7, 1), uuid(7, 12), uuid(7, 34));
    check(
        "codex",
        Harness::Codex,
        &[
            root(0..=2, Turn, Codex, &s1),
            root(3..=4, Turn, Codex, &s12),
            agent(5..=6, Codex, &s12, &uuid(7, 20), None),
            root(7..=10, Turn, Codex, &s12),
            root(11..=11, Turn, Codex, &s34),
            agent(12..=12, Codex, &s34, &uuid(7, 41), None),
            root(13..=13, Turn, Codex, &s34),
            agent(14..=14, Codex, &s34, &uuid(7, 50), None),
        ],
    );
    let found = identities("codex");
    assert_eq!(found[5].facts.agent_type.as_deref(), Some("collab_spawn"));
    // A child's turn belongs to the prompt of the root's turn that spawned it.
    assert_eq!(found[5].facts.prompt_id, Some(uuid(7, 13)));
    assert_eq!(found[3].facts.prompt_id, Some(uuid(7, 13)));
    // The trace knows a program by its thread, as the reference system does.
    let trace_id = |n: usize| found[n].context.as_ref().map(|c| c.program.trace_id().to_owned());
    assert_eq!(trace_id(5), Some(uuid(7, 20)));
    assert_eq!(trace_id(3), Some(s12));
}

#[test]
fn codex_compacts_and_opens_windows() {
    let s1 = uuid(7, 1);
    check(
        "codex-compact",
        Harness::Codex,
        &[
            root(0..=0, Turn, Codex, &s1),
            root(1..=1, Compaction, Codex, &s1),
            root(2..=2, Turn, Codex, &s1),
            root(3..=3, Compaction, Codex, &s1),
        ],
    );
    let found = identities("codex-compact");
    let windows: Vec<_> = found.iter().map(|i| i.facts.window).collect();
    assert_eq!(windows, [Some(0), Some(0), Some(1), Some(1)]);
    assert_eq!(found[1].facts.compaction.as_deref(), Some("auto"));
    assert_eq!(found[2].facts.compaction, None);
}

#[test]
fn codex_compaction_is_known_by_its_form_when_the_metadata_is_lost() {
    for (n, class) in [(0, Turn), (1, Compaction)] {
        let mut request = Request::recorded(&load("codex-compact")[n]);
        request.headers.remove("x-codex-turn-metadata");
        assert_eq!(request.identify().class, class);
    }
}

#[test]
fn codex_prewarms_a_socket_first() {
    let s2 = uuid(7, 2);
    check(
        "codex-websocket",
        Harness::Codex,
        &[root(0..=0, Probe, Codex, &s2), root(1..=2, Turn, Codex, &s2)],
    );
}

#[test]
fn opencode_children_name_their_parent() {
    let title_then_turns =
        |last| [root(0..=0, Title, OpenCode, &ses(1)), root(1..=last, Turn, OpenCode, &ses(1))];
    check("opencode-responses", Harness::OpenCode, &title_then_turns(2));
    check("opencode-anthropic", Harness::OpenCode, &title_then_turns(2));
    let [title, turns] = title_then_turns(3);
    check(
        "opencode-chat",
        Harness::OpenCode,
        &[
            title,
            turns,
            root(4..=4, Title, OpenCode, &ses(2)),
            root(5..=5, Turn, OpenCode, &ses(2)),
            child(6..=6, OpenCode, &ses(3), &ses(2)),
            child(7..=7, OpenCode, &ses(4), &ses(2)),
            child(8..=8, OpenCode, &ses(3), &ses(2)),
            child(9..=9, OpenCode, &ses(4), &ses(2)),
            root(10..=10, Turn, OpenCode, &ses(2)),
        ],
    );
    assert!(identities("opencode-chat").iter().all(|i| !i.shared));
}

#[test]
fn pi_sends_an_id_only_when_told_to_or_in_responses() {
    check(
        "pi",
        Harness::Pi,
        &[
            none(0..=2, Turn),
            root(3..=4, Turn, GenericHeader, &uuid(7, 1)),
            root(5..=6, Turn, GenericHeader, &uuid(7, 2)),
            root(7..=8, Turn, GenericHeader, &uuid(7, 3)),
        ],
    );
    let found = identities("pi");
    let fields: Vec<_> = found.iter().map(|i| i.found_in).collect();
    assert_eq!(
        fields[2..],
        [
            None,
            Some("session_id"),
            Some("session_id"),
            Some("session-id"),
            Some("session-id"),
            Some("x-session-affinity"),
            Some("x-session-affinity"),
        ]
    );
    assert!(found.iter().all(|i| !i.shared), "Pi has no subagents");
}

/// Parent and subagents send one key and no mark.
#[test]
fn kimi_and_openhands_agents_share_a_key() {
    let kimi = |n| format!("session_{}", uuid(4, n));
    check(
        "kimi-code",
        Harness::KimiCode,
        &[root(0..=2, Turn, BodyField, &kimi(2)), root(3..=8, Turn, BodyField, &kimi(3))],
    );
    check(
        "openhands",
        Harness::OpenHands,
        &[root(0..=2, Turn, BodyField, &uuid(4, 1)), root(3..=6, Turn, BodyField, &uuid(4, 2))],
    );
    for name in ["kimi-code", "openhands"] {
        assert!(
            identities(name).iter().all(|i| i.shared && i.found_in == Some("prompt_cache_key")),
            "{name}"
        );
    }
}

#[test]
fn openclaw_has_only_its_trace() {
    check("openclaw", Harness::OpenClaw, &[root(0..=2, Turn, TraceParent, &format!("{:032}", 1))]);
}

#[test]
fn the_others_send_nothing() {
    check("qwen-code", Harness::QwenCode, &[none(0..=9, Turn)]);
    check("cline", Harness::Cline, &[none(0..=8, Turn)]);
    check("mini-swe-agent", Harness::MiniSweAgent, &[none(0..=2, Turn)]);
    check("aider", Harness::Aider, &[none(0..=0, Turn)]);
    check("gemini-cli", Harness::GeminiCli, &[none(0..=7, Turn)]);
}

/// Hermes asks its HTTP library, not its SDK, for models; those probes carry no sign of it.
#[test]
fn hermes_probes_and_turns() {
    let classes: Vec<_> = identities("hermes").iter().map(|i| i.class).collect();
    let mut expected = vec![Probe; 6];
    expected.extend([Turn; 3]);
    expected.extend([Probe; 6]);
    expected.push(Turn);
    expected.extend([Probe; 4]);
    expected.extend([Turn; 2]);
    assert_eq!(classes, expected);
    for (n, identity) in identities("hermes").iter().enumerate() {
        let harness = if expected[n] == Turn { Harness::Hermes } else { Harness::Unknown };
        assert_eq!((n, identity.harness), (n, harness));
        assert_eq!(identity.context, None);
    }
}

/// Every recording holds each call once, so no two of its keys are equal, but for siblings that were
/// started with one prompt under one unmarked key.
#[test]
fn different_turns_have_different_retry_keys() {
    const FILES: [&str; 12] = [
        "claude-code",
        "claude-code-hints",
        "claude-code-interactive",
        "claude-code-resume",
        "codex",
        "codex-compact",
        "codex-websocket",
        "opencode-chat",
        "opencode-responses",
        "opencode-anthropic",
        "openhands",
        "openclaw",
    ];
    for name in FILES {
        let mut seen: BTreeMap<RetryKey, usize> = BTreeMap::new();
        for (n, identity) in identities(name).iter().enumerate() {
            if let Some(key) = identity.retry_key {
                assert_eq!(seen.insert(key, n), None, "{name}[{n}]");
            } else {
                assert!(identity.context.is_none() || !identity.class.is_turn(), "{name}[{n}] has no key");
            }
        }
        assert!(seen.len() > 1, "{name}");
    }
    let kimi = identities("kimi-code");
    assert_eq!(kimi[4].retry_key, kimi[5].retry_key, "first calls of two siblings with one prompt");
    assert!(kimi[4].shared, "so nobody takes siblings for a repetition without a look at the connection");
    assert_ne!(kimi[3].retry_key, kimi[4].retry_key);
    // I-RTY-1: equal siblings without identity (Qwen Code's and Cline's) have no key to meet under.
    for name in ["qwen-code", "cline", "hermes", "mini-swe-agent", "aider"] {
        assert!(identities(name).iter().all(|i| i.retry_key.is_none()), "{name}");
    }
    // Two Claude Code siblings with one prompt are told apart by their agent ids.
    let claude = identities("claude-code");
    assert_ne!(claude[7].retry_key, claude[8].retry_key);
    assert!(!claude[7].shared);
}

fn again(recorded: &Recorded, body: &Value) -> Option<RetryKey> {
    let mut recorded = recorded.clone();
    recorded.body = body.clone();
    // A repetition comes with new per-request ids, and perhaps a counter.
    let mut request = Request::recorded(&recorded);
    for (name, value) in [
        ("x-client-request-id", "another"),
        ("x-request-id", "another"),
        ("x-stainless-retry-count", "1"),
        ("tracestate", "another=1"),
    ] {
        request.headers.insert(name, value.parse().expect("value"));
    }
    request.identify().retry_key
}

#[test]
fn a_repeated_call_has_the_same_retry_key() {
    for name in ["claude-code", "opencode-chat", "pi", "kimi-code", "openhands", "codex"] {
        let recorded: Vec<_> = load(name).into_iter().filter(|r| r.body.is_object()).collect();
        for (n, one) in recorded.iter().enumerate() {
            let first = Request::recorded(one).identify();
            assert_eq!(first.retry_key, again(one, &one.body), "{name}[{n}] ({})", one.scenario);
        }
    }
}

/// Codex writes `client_metadata` in another order each time.
#[test]
fn the_order_of_keys_does_not_matter() {
    for one in &load("codex") {
        let text = text_with_reversed_keys(&one.body);
        assert_ne!(text, one.body.to_string());
        let mut request = Request::recorded(one);
        let first = request.identify().retry_key;
        request.body = Some((Dialect::Responses, text.into_bytes()));
        assert!(first.is_some());
        assert_eq!(request.identify().retry_key, first);
    }
}

/// Written by hand, because a map of the JSON library may sort its keys.
fn text_with_reversed_keys(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let members: Vec<_> = map
                .iter()
                .map(|(k, v)| format!("{} : {}", json!(k), text_with_reversed_keys(v)))
                .rev()
                .collect();
            format!("{{ {} }}", members.join(" ,\n"))
        }
        Value::Array(list) => {
            format!("[{}]", list.iter().map(text_with_reversed_keys).collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}
