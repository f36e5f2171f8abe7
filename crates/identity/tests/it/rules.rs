//! The rules of identity, one by one, on hand-made requests.

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};
use tandem_identity::table::{GROUP_ID, MAPPINGS, Place, SESSION_FINAL};
use tandem_identity::{IdentityConfig, IdentityWarning, RequestHead, WarningKind, identify};
use tandem_types::{Dialect, Harness, IdentitySource, RequestClass, TenantId};

use crate::support::{Request, plain};

fn with(headers: &[(&str, &str)]) -> Request {
    headers.iter().fold(Request::chat(&plain()), |r, (name, value)| r.with(name, value))
}

/// `source session[/agent] [< parent]`, or `-`.
fn found(request: &Request) -> String {
    let Some(context) = request.identify().context else { return "-".to_owned() };
    let key = |k: &tandem_types::ProgramKey| k.to_string().trim_start_matches("default/").to_owned();
    let parent = context.parent.as_ref().map(|p| format!(" < {}", key(p))).unwrap_or_default();
    format!("{:?} {}{parent}", context.source, key(&context.program))
}

#[track_caller]
fn assert_found(headers: &[(&str, &str)], expected: &str) {
    assert_eq!(found(&with(headers)), expected, "{headers:?}");
}

/// I-IDN-1, I-TAB-1
#[test]
fn canonical_headers_win_and_then_only_the_canonical_parent_counts() {
    let claude = [("x-claude-code-session-id", "s"), ("x-claude-code-agent-id", "a")];
    let all = |more: &[(&'static str, &'static str)]| [&claude, more].concat();
    assert_found(&all(&[]), "ClaudeCode s/a < s");
    assert_found(&all(&[("x-dynamo-session-id", "d")]), "Canonical d");
    assert_found(
        &all(&[("x-dynamo-session-id", "d"), ("x-dynamo-parent-session-id", "p")]),
        "Canonical d < p",
    );
    assert_found(&all(&[("x-dynamo-session-id", "  ")]), "ClaudeCode s/a < s");
    // Our own spelling is an alias; the other one goes first.
    assert_found(&[("x-tandem-session-id", "t"), ("x-tandem-parent-session-id", "p")], "Canonical t < p");
    assert_found(&[("x-tandem-session-id", "t"), ("x-dynamo-session-id", "d")], "Canonical d");
}

#[test]
fn a_fixed_canonical_header_merges_the_agents_of_a_harness_that_shares_settings() {
    let request = with(&[("x-dynamo-session-id", "d"), ("user-agent", "claude-cli/2.1.332 (external, cli)")]);
    assert!(request.identify().shared);
    assert!(!with(&[("x-dynamo-session-id", "d")]).identify().shared);
}

/// I-IDN-3, I-IDE-1
#[test]
fn parents() {
    assert_found(&[("x-dynamo-session-id", "d"), ("x-dynamo-parent-session-id", "d")], "Canonical d");
    assert_found(&[("x-session-id", "c"), ("x-parent-session-id", "c")], "OpenCode c");
    let claude =
        |more: &[(&'static str, &'static str)]| [&[("x-claude-code-session-id", "s")][..], more].concat();
    let agent = ("x-claude-code-agent-id", "a");
    assert_found(&claude(&[("x-claude-code-parent-agent-id", "p")]), "ClaudeCode s");
    assert_found(&claude(&[agent, ("x-claude-code-parent-agent-id", "p")]), "ClaudeCode s/a < s/p");
    assert_found(&claude(&[agent, ("x-claude-code-parent-agent-id", "s")]), "ClaudeCode s/a < s");
    assert_found(&claude(&[agent, ("x-claude-code-parent-agent-id", "a")]), "ClaudeCode s/a");
    assert_found(&claude(&[("x-claude-code-agent-id", "s")]), "ClaudeCode s");
    let codex = |thread: &'static str, parent: &'static str| {
        [("session-id", "s"), ("thread-id", thread), ("x-codex-parent-thread-id", parent)]
    };
    assert_found(&codex("t", "s"), "Codex s/t < s");
    assert_found(&codex("t", "u"), "Codex s/t < s/u");
    assert_found(&codex("t", ""), "Codex s/t");
    assert_found(&codex("s", "u"), "Codex s");
    assert_found(&codex("t", "t"), "Codex s/t");
    assert_found(&[("thread-id", "t"), ("x-codex-parent-thread-id", "u")], "Codex t < u");
    // A mark without a session is nothing.
    assert_found(&[agent], "-");
    assert_found(&[("x-dynamo-parent-session-id", "p"), ("x-dynamo-session-final", "1")], "-");
}

#[test]
fn opencode_by_either_name_and_the_bare_session_header() {
    assert_found(&[("x-opencode-session-id", "c"), ("x-opencode-parent-session-id", "p")], "OpenCode c < p");
    assert_found(&[("x-session-id", "c"), ("x-parent-session-id", "p")], "OpenCode c < p");
    assert_found(&[("x-session-id", "c"), ("user-agent", "opencode/1.18.33")], "OpenCode c");
    assert_found(&[("X-Session-ID", "c")], "GenericHeader c");
    assert!(!with(&[("x-session-id", "c"), ("x-parent-session-id", "p")]).identify().shared);
}

/// What nobody marks may be several agents, unless the sender is known to have one per id.
#[test]
fn who_may_share_an_id() {
    let shared = |request: &Request| request.identify().shared;
    assert!(!shared(&with(&[("x-session-id", "s")])));
    assert!(shared(&with(&[("x-smg-routing-key", "k")])));
    assert!(shared(&with(&[("x-session-id", "s"), ("user-agent", "claude-cli/2.1.332 (external, cli)")])));
    assert!(!shared(&body(&json!({"session_id": "s"}))));
    // By its maker's description a key for requests with a common prefix, not for one session.
    let keyed = body(&json!({"prompt_cache_key": "k"}));
    assert!(shared(&keyed));
    assert!(!shared(&keyed.clone().with("user-agent", "opencode/1.18.33")));
    assert!(!shared(&keyed.with("user-agent", "pi/1.6.0 (linux)")));
    assert!(shared(&messages(r#"{"session_id":"s"}"#)));
}

/// I-TAB-3: both spellings of names that proxies touch.
#[test]
fn generic_headers_in_order() {
    let names = [
        "x-session-id",
        "x_session_id",
        "session_id",
        "session-id",
        "x-session-affinity",
        "x_session_affinity",
        "x-smg-routing-key",
        "x_smg_routing_key",
    ];
    for (n, name) in names.iter().enumerate() {
        assert_found(&[(name, "g")], "GenericHeader g");
        let later: Vec<_> = names[n..].iter().rev().map(|name| (*name, *name)).collect();
        assert_found(&later, &format!("GenericHeader {name}"));
    }
}

fn body(more: &Value) -> Request {
    let mut body = plain();
    body.as_object_mut().expect("object").extend(more.as_object().expect("object").clone());
    Request::chat(&body)
}

fn messages(user_id: &str) -> Request {
    let body = json!({
        "model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": "hi"}],
        "metadata": {"user_id": user_id},
    });
    Request::post("/v1/messages", Dialect::Messages, &body)
}

#[test]
fn body_fields() {
    assert_eq!(found(&body(&json!({"prompt_cache_key": "k"}))), "BodyField k");
    assert_eq!(found(&body(&json!({"session_id": "k"}))), "BodyField k");
    assert_eq!(found(&body(&json!({"prompt_cache_key": "k"})).with("session_id", "h")), "GenericHeader h");
    assert_eq!(found(&body(&json!({"prompt_cache_key": 7}))), "-");
    assert_eq!(
        found(&messages(r#"{"device_id":"d","account_uuid":"","session_id":"s-1"}"#)),
        "BodyField s-1"
    );
    assert_eq!(found(&messages("user_0a1b_account__session_5f0c")), "BodyField 5f0c");
    // A person is no session.
    for plain in ["user-42", "", "{", "{}", r#"{"session_id":5}"#, r#"["session_id"]"#] {
        assert_eq!(found(&messages(plain)), "-", "{plain}");
    }
}

#[test]
fn a_previous_response_is_a_link_and_no_id() {
    let body = json!({"model": "m", "input": "hi", "previous_response_id": "resp_1"});
    let identity = Request::post("/v1/responses", Dialect::Responses, &body).identify();
    assert_eq!(identity.context, None);
    assert_eq!(identity.retry_key, None);
    assert_eq!(identity.previous_response.as_deref(), Some("resp_1"));
}

#[test]
fn the_trace_id_counts_for_the_harness_that_keeps_one_per_run() {
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let body = json!({
        "model": "m", "stream": true, "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"type": "function", "function": {"name": "f"}}],
    });
    let openclaw = Request::chat(&body).with("user-agent", "OpenAI/JS 7.15.0");
    assert_eq!(
        found(&openclaw.clone().with("traceparent", trace)),
        "TraceParent 4bf92f3577b34da6a3ce929d0e0e4736"
    );
    let other = Request::chat(&body).with("user-agent", "my-service/1.0").with("traceparent", trace);
    assert_eq!(found(&other), "-");
    let broken = openclaw.with("traceparent", "00-xyz").identify();
    assert_eq!(broken.context, None);
    assert_eq!(broken.warnings, [IdentityWarning { field: "traceparent", kind: WarningKind::Malformed }]);
}

/// I-IDN-2, I-REA-2, I-REA-3: what cannot be used is counted and passed over.
#[test]
fn unusable_values_fall_through_to_the_next_mapping() {
    let long = "x".repeat(257);
    let just = "x".repeat(256);
    let request = with(&[("x-dynamo-session-id", &long), ("x-session-id", "g")]);
    assert_eq!(found(&request), "GenericHeader g");
    let too_long = IdentityWarning { field: "x-dynamo-session-id", kind: WarningKind::TooLong };
    assert_eq!(request.identify().warnings, [too_long]);
    assert_found(&[("x-dynamo-session-id", &just)], &format!("Canonical {just}"));
    for odd in ["a b", "é", "a\tb"] {
        let request = with(&[("x-session-id", odd), ("x-session-affinity", "g")]);
        assert_eq!(found(&request), "GenericHeader g", "{odd}");
        let warning = IdentityWarning { field: "x-session-id", kind: WarningKind::NotVisibleAscii };
        assert_eq!(request.identify().warnings, [warning], "{odd}");
    }
    for empty in ["", "   ", "\t"] {
        let request = with(&[("x-session-id", empty), ("x-session-affinity", "g")]);
        assert_eq!((found(&request).as_str(), request.identify().warnings.len()), ("GenericHeader g", 0));
    }
}

/// I-REA-1
#[test]
fn only_the_first_value_of_a_header_counts() {
    assert_found(&[("x-session-id", "one"), ("x-session-id", "two")], "GenericHeader one");
    assert_found(&[("x-session-id", ""), ("x-session-id", "two")], "-");
}

/// I-IDE-2: a child whose mark cannot be read is not taken for the root.
#[test]
fn an_unreadable_agent_mark_makes_no_root() {
    let long = "x".repeat(257);
    assert_found(&[("x-claude-code-session-id", "s"), ("x-claude-code-agent-id", &long)], "-");
    let codex = with(&[("session-id", "s"), ("thread-id", &long)]);
    assert_eq!(found(&codex), "GenericHeader s");
    assert!(codex.identify().shared, "some agent of the session");
}

/// I-IDN-4
#[test]
fn tenants_never_meet() {
    let request = with(&[("x-session-id", "s"), ("x-parent-session-id", "p")]);
    let (one, other) = (TenantId::new("one").expect("id"), TenantId::new("other").expect("id"));
    let config = IdentityConfig::default();
    let (a, b) = (request.identify_with(&one, &config), request.identify_with(&other, &config));
    let (ka, kb) = (a.context.expect("context"), b.context.expect("context"));
    assert_ne!(ka.program, kb.program);
    assert_eq!(ka.parent.expect("parent").tenant, one);
    assert_eq!(kb.parent.expect("parent").tenant, other);
    assert_ne!(a.retry_key, b.retry_key);
}

/// I-IDE-3
#[test]
fn group_and_final_marker_come_with_an_identity() {
    let marks = [("X-Tandem-Group-ID", "g"), ("x-dynamo-session-final", "TRUE")];
    assert_eq!(with(&marks).identify().context, None);
    let native = [&marks[..], &[("x-session-id", "s")]].concat();
    let context = with(&native).identify().context.expect("context");
    assert_eq!(context.group.map(String::from).as_deref(), Some("g"));
    assert_eq!(context.session_final, Some(true));
    let odd = with(&[("x-session-id", "s"), ("x-dynamo-session-final", "perhaps")]).identify();
    assert_eq!(odd.context.expect("context").session_final, None);
    let warning = IdentityWarning { field: "x-dynamo-session-final", kind: WarningKind::Malformed };
    assert_eq!(odd.warnings, [warning]);
}

#[test]
fn sources_can_be_switched_off() {
    let off = IdentityConfig { generic_headers: false, body_fields: false, ..IdentityConfig::default() };
    let request = body(&json!({"prompt_cache_key": "k"})).with("x-session-id", "g");
    assert_eq!(request.identify_with(&TenantId::default(), &off).context, None);
    let native = request.with("x-parent-session-id", "p");
    let source = native.identify_with(&TenantId::default(), &off).source();
    assert_eq!(source, Some(IdentitySource::OpenCode));
}

/// I-CLS-2: what looks unusual but comes from no known harness is a turn.
#[test]
fn a_plain_client_without_tools_is_a_turn() {
    let title_like = json!({
        "model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": "hi"}], "tools": [],
        "thinking": {"type": "disabled"},
        "output_config": {"format": {"type": "json_schema", "schema": {}}},
    });
    let plain_client = Request::post("/v1/messages", Dialect::Messages, &title_like);
    assert_eq!(plain_client.identify().class, RequestClass::Turn);
    let claude = plain_client.with("user-agent", "claude-cli/2.1.332 (external, cli)");
    assert_eq!(claude.identify().class, RequestClass::Title);
    let no_tools = json!({"model": "m", "input": "hi", "tools": []});
    let plain_client = Request::post("/v1/responses", Dialect::Responses, &no_tools);
    assert_eq!(plain_client.identify().class, RequestClass::Turn);
    let one_token = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1});
    assert_eq!(Request::chat(&one_token).identify().class, RequestClass::Turn);
}

#[test]
fn a_long_opencode_chain_without_tools_is_no_title() {
    let chat = |messages: Value| {
        Request::chat(&json!({"model": "m", "messages": messages}))
            .with("user-agent", "opencode/1.18.33")
            .identify()
            .class
    };
    let (system, user) = (json!({"role": "system", "content": "s"}), json!({"role": "user", "content": "u"}));
    let answer = json!({"role": "assistant", "content": "a"});
    assert_eq!(chat(json!([system, user, user])), RequestClass::Title);
    assert_eq!(chat(json!([system, user, answer, user])), RequestClass::Turn);
    let result = json!({"role": "tool", "tool_call_id": "c", "content": "r"});
    assert_eq!(chat(json!([user, answer, result])), RequestClass::Turn);
}

/// I-CLS-1: an unknown word says nothing.
#[test]
fn class_headers() {
    let class = |name: &str, value: &str| with(&[(name, value)]).identify().class;
    for (value, expected) in [
        ("main", RequestClass::Turn),
        ("subagent", RequestClass::Turn),
        ("auxiliary", RequestClass::Auxiliary),
        ("compaction", RequestClass::Compaction),
        ("something-new", RequestClass::Turn),
    ] {
        assert_eq!(class("x-claude-code-request-class", value), expected, "{value}");
    }
    for (value, expected) in [
        (r#"{"request_kind":"turn"}"#, RequestClass::Turn),
        (r#"{"request_kind":"compaction"}"#, RequestClass::Compaction),
        (r#"{"request_kind":"prewarm"}"#, RequestClass::Probe),
        (r#"{"request_kind":"something-new"}"#, RequestClass::Turn),
        ("not json", RequestClass::Turn),
    ] {
        assert_eq!(class("x-codex-turn-metadata", value), expected, "{value}");
    }
    assert_eq!(class("x-openai-subagent", "collab_spawn"), RequestClass::Turn);
    assert_eq!(class("x-openai-subagent", "compact"), RequestClass::Compaction);
    assert_eq!(class("x-openai-memgen-request", "true"), RequestClass::Auxiliary);
    assert_eq!(class("x-openai-memgen-request", "false"), RequestClass::Turn);
}

#[test]
fn paths_and_methods() {
    let class = |method: Method, path: &str| {
        let headers = HeaderMap::new();
        let head = RequestHead { method: &method, path, headers: &headers };
        identify(&head, None, &TenantId::default(), &IdentityConfig::default()).class
    };
    assert_eq!(class(Method::POST, "/v1/messages/count_tokens?beta=true"), RequestClass::CountTokens);
    assert_eq!(class(Method::POST, "/tokenize"), RequestClass::CountTokens);
    assert_eq!(class(Method::GET, "/v1/models"), RequestClass::Probe);
    assert_eq!(class(Method::POST, "/api/show"), RequestClass::Probe);
    assert_eq!(class(Method::POST, "/v1/chat/completions?x=/count_tokens"), RequestClass::Turn);
}

/// I-RTY-2: equal token counts come in bursts and are all answered.
#[test]
fn calls_that_may_run_side_by_side_have_no_retry_key() {
    let mut count = messages("").with("x-session-id", "s");
    assert!(count.identify().retry_key.is_some());
    count.path = "/v1/messages/count_tokens".to_owned();
    assert_eq!(count.identify().retry_key, None);
    let auxiliary = messages("").with("x-session-id", "s").with("x-claude-code-request-class", "auxiliary");
    assert_eq!(auxiliary.identify().retry_key, None);
}

#[test]
fn the_retry_key_depends_on_each_part_of_the_program() {
    let key = |session: &str, agent: &str, content: &str| {
        let body = json!({"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": content}]});
        let request = Request::post("/v1/messages", Dialect::Messages, &body)
            .with("x-claude-code-session-id", session)
            .with("x-claude-code-agent-id", agent);
        request.identify().retry_key.expect("key")
    };
    let keys =
        [key("s", "", "x"), key("s", "a", "x"), key("sa", "", "x"), key("s", "a", "y"), key("s", "b", "x")];
    for (n, one) in keys.iter().enumerate() {
        assert!(!keys[..n].contains(one), "{n}");
    }
    assert_eq!(key("s", "a", "x"), keys[1]);
}

/// I-FAC-1, I-FAC-2
#[test]
fn tool_durations_are_read_part_by_part() {
    let read = |value: &str| {
        let identity = with(&[("x-claude-code-prev-tool-durations", value)]).identify();
        let list = identity.facts.prev_tool_durations;
        let list: Vec<_> = list.into_iter().map(|d| (d.tool, d.duration.as_micros())).collect();
        (list, identity.warnings.iter().map(|w| w.kind).collect::<Vec<_>>())
    };
    let tools = |list: &[(&str, u128)]| list.iter().map(|(t, us)| ((*t).to_owned(), *us)).collect::<Vec<_>>();
    assert_eq!(read("Bash=1196;Read=12"), (tools(&[("Bash", 1_196_000), ("Read", 12_000)]), vec![]));
    assert_eq!(read("Bash=742; Bash=9;"), (tools(&[("Bash", 742_000), ("Bash", 9_000)]), vec![]));
    assert_eq!(read("mcp__a=b=5"), (tools(&[("mcp__a=b", 5_000)]), vec![]));
    assert_eq!(read("Bash=1.5"), (tools(&[("Bash", 1_500)]), vec![]));
    let malformed = vec![WarningKind::Malformed];
    assert_eq!(read("Bash;Read=12;=4;Edit=-1;X=nan"), (tools(&[("Read", 12_000)]), malformed));
    let (many, warnings) = read(&"T=1;".repeat(300));
    assert_eq!((many.len(), warnings), (256, vec![WarningKind::TooMany]));
}

#[test]
fn windows_subagents_and_timeouts() {
    let window = |id: &str| with(&[("x-codex-window-id", id)]).identify().facts.window;
    assert_eq!(window("00000000-0000-7000-8000-000000000001:3"), Some(3));
    assert_eq!(window("no number"), None);
    let background = with(&[
        ("x-claude-code-session-id", "s"),
        ("x-claude-code-agent-id", "a"),
        ("x-claude-1p-request-class", "background-task"),
    ]);
    assert_eq!(background.identify().facts.blocking_subagent, Some(false));
    let timeout = |name: &str, value: &str| with(&[(name, value)]).identify().client_timeout_ms;
    assert_eq!(timeout("x-stainless-read-timeout", "300.0"), Some(300_000));
    assert_eq!(timeout("x-stainless-timeout", "600"), Some(600_000));
    for none in ["None", "NaN", "-1", "inf", "0"] {
        assert_eq!(timeout("x-stainless-read-timeout", none), None, "{none}");
    }
    let own = |value: &str| {
        let identity = with(&[("x-tandem-hold-max", value)]).identify();
        (identity.hold_max_ms, identity.warnings.len())
    };
    assert_eq!([own("1800"), own("2.5"), own("")], [(Some(1_800_000), 0), (Some(2500), 0), (None, 0)]);
    for wrong in ["1800s", "NaN", "-1", "inf", "0"] {
        assert_eq!(own(wrong), (None, 1), "{wrong}");
    }
}

/// I-FAC-3, I-FAC-4
#[test]
fn harness_headers_are_captured_verbatim_within_bounds_and_nothing_else() {
    let request = with(&[
        ("x-claude-code-prompt-id", " p "),
        ("x-claude-code-extra", "one"),
        ("x-claude-code-extra", "two"),
        ("x-codex-window-id", "t:0"),
        ("x-codex-turn-metadata", "{}"),
        ("session-id", "lonely"),
        ("authorization", "Bearer secret"),
        ("x-api-key", "secret"),
        ("cookie", "secret"),
    ]);
    let captured = request.identify().facts.agent_headers;
    let names: Vec<_> = captured.keys().map(String::as_str).collect();
    assert_eq!(names, ["x-claude-code-extra", "x-claude-code-prompt-id", "x-codex-window-id"]);
    assert_eq!(captured["x-claude-code-extra"], ["one", "two"]);
    assert_eq!(captured["x-claude-code-prompt-id"], [" p "], "not trimmed");
    let private = IdentityConfig { capture_private_headers: true, ..IdentityConfig::default() };
    let identity = request.identify_with(&TenantId::default(), &private);
    assert!(identity.facts.agent_headers.contains_key("x-codex-turn-metadata"));
    let off = IdentityConfig { capture_headers: false, ..IdentityConfig::default() };
    assert!(request.identify_with(&TenantId::default(), &off).facts.agent_headers.is_empty());
    let both = request.with("thread-id", "t").identify().facts.agent_headers;
    assert_eq!(both["session-id"], ["lonely"]);

    let mut secret = HeaderValue::from_static("s");
    secret.set_sensitive(true);
    let mut request = with(&[("x-session-id", "g")]);
    request.headers.insert("x-claude-code-secret", secret);
    assert!(!request.identify().facts.agent_headers.contains_key("x-claude-code-secret"));
}

#[test]
fn captured_headers_are_bounded() {
    let of_size = |bytes: usize| "v".repeat(bytes);
    let kept =
        |request: &Request| -> usize { request.identify().facts.agent_headers.values().map(Vec::len).sum() };
    let many = (0..70).fold(with(&[]), |r, n| r.with("x-codex-n", &n.to_string()));
    assert_eq!(kept(&many), 64);
    let long = with(&[("x-codex-a", &of_size(16 * 1024 + 1)), ("x-codex-b", "short")]);
    assert_eq!(kept(&long), 1);
    let total =
        |last: usize| kept(&with(&[("x-codex-a", &of_size(16 * 1024)), ("x-codex-b", &of_size(last))]));
    let room = 32 * 1024 - (16 * 1024 + 2 * "x-codex-a".len());
    assert_eq!((total(room), total(room + 1)), (2, 1));
}

#[test]
fn a_known_user_agent_goes_before_everything_else() {
    for (agent, harness) in [
        ("claude-cli/2.1.332 (external, sdk-cli)", Harness::ClaudeCode),
        ("codex_cli_rs/0.171.0 (Debian 12.0.0; x86_64)", Harness::Codex),
        ("opencode/1.18.33 ai-sdk/provider-utils/4.0.23", Harness::OpenCode),
        ("pi/1.6.0 (linux; node/v24.19.0; x64)", Harness::Pi),
        ("pip/24.0", Harness::Unknown),
        ("curl/8.5.0", Harness::Unknown),
        ("OpenAI/Python 2.54.0", Harness::Unknown),
    ] {
        assert_eq!(with(&[("user-agent", agent)]).identify().harness, harness, "{agent}");
    }
}

fn header_names() -> impl Strategy<Value = String> {
    let mut known: Vec<String> = MAPPINGS
        .iter()
        .flat_map(|m| match m.session {
            Place::Headers(names) => names,
            _ => &[],
        })
        .chain(SESSION_FINAL)
        .chain(GROUP_ID)
        .map(|n| (*n).to_owned())
        .collect();
    known.extend(
        [
            "x-claude-code-agent-id",
            "x-claude-code-parent-agent-id",
            "x-claude-code-prev-tool-durations",
            "x-claude-code-request-class",
            "x-claude-1p-request-class",
            "x-codex-parent-thread-id",
            "x-codex-turn-metadata",
            "x-codex-window-id",
            "x-openai-subagent",
            "x-openai-memgen-request",
            "x-parent-session-id",
            "x-dynamo-parent-session-id",
            "x-stainless-read-timeout",
            "traceparent",
            "user-agent",
        ]
        .map(str::to_owned),
    );
    prop_oneof![4 => proptest::sample::select(known), 1 => "[a-z_-]{1,20}"]
}

fn header_values() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        "[ -~]{0,40}".prop_map(String::into_bytes),
        "[a-c]{1,2}".prop_map(String::into_bytes),
        vec(any::<u8>().prop_filter("no control", |b| *b >= 32 && *b != 127), 0..300),
        Just(b"OpenAI/JS 7.15.0".to_vec()),
        Just(br#"{"request_kind":"turn","window_number":-1,"compaction":[]}"#.to_vec()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// I-IDN-5, I-IDN-6: any soup of headers gives an identity or none.
    #[test]
    fn any_headers_give_an_identity_or_none(
        soup in vec((header_names(), header_values()), 0..16),
        path in "[ -~]{0,40}",
        post in any::<bool>(),
        with_body in any::<bool>(),
    ) {
        let mut headers = HeaderMap::new();
        for (name, value) in &soup {
            if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::from_bytes(value)) {
                headers.append(name, value);
            }
        }
        let method = if post { Method::POST } else { Method::GET };
        let head = RequestHead { method: &method, path: &path, headers: &headers };
        let facts = with_body.then(|| Request::chat(&plain()).facts().expect("facts"));
        let (tenant, config) = (TenantId::default(), IdentityConfig::default());
        let identity = identify(&head, facts.as_ref(), &tenant, &config);
        prop_assert_eq!(&identity, &identify(&head, facts.as_ref(), &tenant, &config));
        prop_assert_eq!(identity.context.is_some(), identity.found_in.is_some());
        if let Some(context) = &identity.context {
            prop_assert_ne!(Some(&context.program), context.parent.as_ref());
            prop_assert!(context.program.session.as_str().len() <= 256);
            prop_assert_eq!(&context.program.tenant, &tenant);
        } else {
            prop_assert_eq!(identity.retry_key, None);
            prop_assert!(!identity.shared);
        }
        let kept: usize = identity.facts.agent_headers.values().map(Vec::len).sum();
        prop_assert!(kept <= 64);
        prop_assert!(identity.facts.prev_tool_durations.len() <= 256);
    }
}
