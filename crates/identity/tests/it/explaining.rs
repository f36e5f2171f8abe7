//! What a person is told about a request.

use serde_json::json;
use tandem_identity::hygiene::plan;
use tandem_identity::{Explanation, Handling, HygieneConfig, explain};
use tandem_types::{Harness, IdentitySource, RequestClass};

use crate::support::{Request, load, plain};

fn told(request: &Request, hygiene: &HygieneConfig) -> Explanation {
    let (facts, identity) = (request.facts(), request.identify());
    let plan = request.body.as_ref().map(|(d, body)| plan(*d, identity.harness, body, hygiene));
    explain(&request.head(), facts.as_ref(), &identity, plan.as_ref())
}

fn recorded(name: &str, n: usize) -> Explanation {
    told(&Request::recorded(&load(name)[n]), &HygieneConfig::default())
}

#[track_caller]
fn assert_says(list: &[String], words: &str) {
    assert!(list.iter().any(|line| line.contains(words)), "{words:?} in {list:#?}");
}

/// I-EXP-2
#[test]
fn a_claude_code_child() {
    let told = recorded("claude-code", 16);
    let session = "default/00000000-0000-4000-8000-000000000006";
    assert_eq!(told.harness, Harness::ClaudeCode);
    assert_eq!(told.source, Some(IdentitySource::ClaudeCode));
    assert_eq!(told.found_in, Some("x-claude-code-session-id"));
    assert_eq!(told.program, Some(format!("{session}/a0000000000000008")));
    assert_eq!(told.parent, Some(format!("{session}/a0000000000000007")));
    assert_says(&told.findings, "the billing line in the system prompt (95 bytes) is removed");
    assert_says(&told.findings, "silently for 353 s, and for 420 s with keep-alive events from second 55 on");
    assert_says(&told.advice, "CLAUDE_CODE_GATEWAY_HINT_HEADERS=1");
}

#[test]
fn nothing_is_advised_where_all_is_well() {
    assert_eq!(recorded("claude-code-hints", 2).advice, [""; 0]);
    assert_eq!(recorded("codex", 5).advice, [""; 0]);
    assert_eq!(recorded("opencode-chat", 6).advice, [""; 0]);
}

#[test]
fn advice_names_the_setting() {
    assert_says(&recorded("pi", 0).advice, "compat.sendSessionAffinityHeaders");
    assert_says(&recorded("pi", 3).advice, "underscores_in_headers");
    assert_says(&recorded("mini-swe-agent", 0).advice, "extra_headers");
    assert_says(&recorded("qwen-code", 0).advice, "followed by their prompts alone");
    assert_says(&told(&Request::chat(&plain()), &HygieneConfig::default()).advice, "x-tandem-session-id");
    let kept = HygieneConfig { billing_line: Handling::Keep, ..HygieneConfig::default() };
    assert_says(
        &told(&Request::recorded(&load("claude-code")[1]), &kept).advice,
        "CLAUDE_CODE_ATTRIBUTION_HEADER=0",
    );
    let fixed = Request::recorded(&load("claude-code")[7]).with("x-dynamo-session-id", "d");
    assert_says(&told(&fixed, &HygieneConfig::default()).advice, "a fixed header merges them");
}

#[test]
fn findings_name_what_was_not_used() {
    let told = recorded("pi", 3);
    assert_says(&told.findings, "session_id gives the program");
    assert_says(&told.findings, "not used for the session: x-session-affinity");
    let codex = recorded("codex", 5);
    assert_says(&codex.findings, "agent and parent are told by thread-id");
    assert!(!codex.findings.iter().any(|line| line.contains("not used")), "{:#?}", codex.findings);
    let child = recorded("claude-code", 16);
    assert_says(&child.findings, "told by x-claude-code-agent-id, x-claude-code-parent-agent-id");
    let kimi = recorded("kimi-code", 4);
    assert_says(&kimi.findings, "several agents may share this id");
    let title = recorded("claude-code-interactive", 0);
    assert_eq!(title.class, RequestClass::Title);
    assert_says(&title.findings, "no turn");
    let long = "x".repeat(300);
    let odd = Request::chat(&plain()).with("x-session-id", &long);
    let told = self::told(&odd, &HygieneConfig::default());
    assert_says(&told.findings, "x-session-id is longer than allowed and was skipped");
    assert_says(&told.findings, "no header or body field carries a session id");
}

/// I-EXP-1
#[test]
fn reports_hold_no_content_and_no_credentials() {
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "private words"}]});
    let request = Request::chat(&body)
        .with("authorization", "Bearer secret-key")
        .with("x-session-id", "s")
        .with("x-claude-code-extra", "private header");
    let report = serde_json::to_string(&told(&request, &HygieneConfig::default())).expect("json");
    for word in ["private", "secret"] {
        assert!(!report.contains(word), "{report}");
    }
    assert!(report.contains("default/s"));
}
