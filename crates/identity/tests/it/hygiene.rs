//! Prefix hygiene: what is edited, and that nothing else is.

use proptest::prelude::*;
use serde_json::{Value, json};
use tandem_dialect::apply_edits;
use tandem_identity::hygiene::{Found, plan};
use tandem_identity::{Handling, HygieneConfig, HygienePlan, VolatileKind};
use tandem_types::{Dialect, Harness};

use crate::support::{Request, load};

const LINE: &str = "x-anthropic-billing-header: cc_version=2.1.332.1a9; cc_entrypoint=sdk-cli;";

fn all(handling: Handling) -> HygieneConfig {
    HygieneConfig { billing_line: handling, token_budget: handling, date_time: handling }
}

/// The body after hygiene, as text.
fn cleaned(dialect: Dialect, harness: Harness, body: &str, config: &HygieneConfig) -> (String, HygienePlan) {
    let plan = plan(dialect, harness, body.as_bytes(), config);
    let mut edits = plan.edits.clone();
    let mut end = 0;
    for edit in &edits {
        assert!(edit.range.start >= end, "I-HYG-3: disjoint and in order");
        end = edit.range.end;
    }
    let out = apply_edits(body.as_bytes(), &mut edits);
    (String::from_utf8(out.to_vec()).expect("still utf-8"), plan)
}

fn messages(system: &Value) -> Value {
    json!({"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": LINE}], "system": system})
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

/// What removing makes of a `system` field.
#[track_caller]
fn assert_system(system: &Value, expected: &Value) {
    let (out, _) = cleaned(
        Dialect::Messages,
        Harness::Unknown,
        &messages(system).to_string(),
        &HygieneConfig::default(),
    );
    let out: Value = serde_json::from_str(&out).expect("valid json");
    assert_eq!(out, messages(expected));
}

#[test]
fn every_recorded_billing_line_goes_with_its_block_and_nothing_else_does() {
    let mut seen = 0;
    for name in ["claude-code", "claude-code-hints", "claude-code-interactive", "claude-code-resume"] {
        for recorded in load(name).iter().filter(|r| r.body.get("system").is_some()) {
            let (dialect, body) = Request::recorded(recorded).body.expect("body");
            let body = String::from_utf8(body).expect("utf-8");
            let (out, plan) = cleaned(dialect, Harness::ClaudeCode, &body, &HygieneConfig::default());
            let mut expected = recorded.body.clone();
            let system = expected["system"].as_array_mut().expect("blocks");
            let line = system.remove(0)["text"].as_str().expect("text").to_owned();
            assert!(line.starts_with("x-anthropic-billing-header:"), "the recording has the line");
            assert_eq!(serde_json::from_str::<Value>(&out).expect("valid json"), expected);
            let found =
                Found { kind: VolatileKind::BillingLine, bytes: line.len(), handling: Handling::Remove };
            assert_eq!(plan.found, [found]);
            seen += 1;
        }
    }
    assert_eq!(seen, 17 + 12 + 6 + 9, "every call of the four recordings but probes and token counts");
}

#[test]
fn no_other_recording_is_touched() {
    for name in [
        "aider",
        "cline",
        "codex",
        "hermes",
        "kimi-code",
        "mini-swe-agent",
        "openclaw",
        "opencode-anthropic",
        "opencode-chat",
        "opencode-responses",
        "openhands",
        "pi",
        "qwen-code",
    ] {
        for recorded in &load(name) {
            let request = Request::recorded(recorded);
            let Some((dialect, body)) = &request.body else { continue };
            let found = plan(*dialect, request.identify().harness, body, &all(Handling::Remove));
            assert_eq!(found, HygienePlan::default(), "{name}");
        }
    }
}

#[test]
fn text_and_blocks() {
    assert_system(&json!(format!("{LINE}\nYou are")), &json!("You are"));
    assert_system(&json!(format!("{LINE}\r\nYou are")), &json!("You are"));
    assert_system(&json!(format!("{LINE}You are")), &json!("You are"));
    assert_system(&json!(LINE), &json!(""));
    assert_system(&json!([text(LINE), text("You are")]), &json!([text("You are")]));
    assert_system(
        &json!([text(&format!("{LINE}\nYou are")), text("b")]),
        &json!([text("You are"), text("b")]),
    );
    assert_system(&json!([text(LINE)]), &json!([]));
    assert_system(&json!([text(LINE), text(LINE), text("b")]), &json!([text("b")]));
    assert_system(&json!([text(&format!("{LINE}\n{LINE}\nb"))]), &json!([text("b")]));
    // A field without its semicolon, and one that came with a newer version.
    let newer = "x-anthropic-billing-header: cc_version=3.0.1.0f3; cch=a1b2c; cc_is_subagent=true";
    assert_system(&json!([text(newer), text("b")]), &json!([text("b")]));
}

/// I-HYG-1, I-PCE-1, I-PCE-2
#[test]
fn what_people_wrote_stays() {
    for system in [
        json!(format!("Explain this: {LINE}")),
        json!([text("You are"), text(LINE)]),
        json!("x-anthropic-billing-header: is a line that Claude Code sends"),
        json!("x-anthropic-billing-header:"),
        json!("x-anthropic-billing-headers: a=b;"),
        json!([{"type": "image", "source": LINE}, text(LINE)]),
        json!(null),
        json!(7),
        json!({"text": LINE}),
        json!([]),
    ] {
        assert_system(&system, &system);
    }
    // The rest of the line is a person's.
    assert_system(&json!(format!("{LINE} is what you send")), &json!(" is what you send"));
    let nested =
        json!({"model": "m", "messages": [{"role": "user", "content": [{"system": LINE}]}]}).to_string();
    let (out, found) = cleaned(Dialect::Messages, Harness::ClaudeCode, &nested, &HygieneConfig::default());
    assert_eq!((out, found), (nested, HygienePlan::default()));
}

#[test]
fn a_chat_body_that_a_translator_made() {
    let chat = |first: Value| json!({"tools": [{"x": LINE}], "messages": [first, {"role": "user", "content": LINE}], "model": "m"});
    let check = |first: Value, expected: Value| {
        let body = chat(first).to_string();
        let (out, _) = cleaned(Dialect::Chat, Harness::Unknown, &body, &HygieneConfig::default());
        assert_eq!(serde_json::from_str::<Value>(&out).expect("valid json"), chat(expected));
    };
    let system = |content: Value| json!({"role": "system", "content": content});
    check(system(json!(format!("{LINE}\nYou are"))), system(json!("You are")));
    check(system(json!([text(LINE), text("b")])), system(json!([text("b")])));
    // A message without any part is an error, so the last part is emptied.
    check(system(json!([text(LINE)])), system(json!([text("")])));
    check(json!({"content": LINE, "role": "developer"}), json!({"content": "", "role": "developer"}));
    check(json!({"role": "user", "content": LINE}), json!({"role": "user", "content": LINE}));
}

/// I-HYG-4: written in any way that JSON allows.
#[test]
fn any_spelling_is_read_alike() {
    let escaped: String = LINE.bytes().map(|b| format!("\\u{b:04X}")).collect();
    let (out, _) = cleaned(
        Dialect::Messages,
        Harness::Unknown,
        &format!("{{ \"\\u0073ystem\" :\t\"{escaped}\\u000ab\\u00e9\" }}"),
        &HygieneConfig::default(),
    );
    assert_eq!(out, "{ \"\\u0073ystem\" :\t\"b\\u00e9\" }");
    let (out, _) = cleaned(
        Dialect::Messages,
        Harness::Unknown,
        &format!("\u{feff}{{\"system\":\n[\n  {{\"text\" : \"{LINE}\"}} ,\n  {{\"text\":\"é\\\"\"}}\n]\n}}"),
        &HygieneConfig::default(),
    );
    assert_eq!(out, "\u{feff}{\"system\":\n[\n  {\"text\":\"é\\\"\"}\n]\n}");
    // Engines take the last of two fields with one name.
    let twice = format!("{{\"system\":\"{LINE}\",\"system\":\"{LINE}\\nb\"}}");
    let (out, _) = cleaned(Dialect::Messages, Harness::Unknown, &twice, &HygieneConfig::default());
    assert_eq!(out, format!("{{\"system\":\"{LINE}\",\"system\":\"b\"}}"));
}

/// I-PCE-3
#[test]
fn frozen_lines_are_equal_across_sessions() {
    let freeze = |line: &str| {
        let body = messages(&json!([text(line), text("b")])).to_string();
        cleaned(Dialect::Messages, Harness::ClaudeCode, &body, &all(Handling::Freeze)).0
    };
    let one = freeze(LINE);
    assert_eq!(one, freeze(&LINE.replace("1a9", "e24")));
    assert_eq!(one, messages(&json!([text(&LINE.replace("1a9", "000")), text("b")])).to_string());
    let summed = "x-anthropic-billing-header: cc_version=2.1.332.1a9; cch=0a9f3;";
    assert!(freeze(summed).contains("cc_version=2.1.332.000; cch=00000;"));
}

#[test]
fn kept_lines_are_counted_only() {
    let body = messages(&json!([text(LINE), text("b")])).to_string();
    let (out, plan) = cleaned(Dialect::Messages, Harness::ClaudeCode, &body, &all(Handling::Keep));
    assert_eq!(out, body);
    let found = Found { kind: VolatileKind::BillingLine, bytes: LINE.len(), handling: Handling::Keep };
    assert_eq!(plan.found, [found]);
}

/// I-HYG-2: the last block goes with the comma before it when blocks before it stay.
#[test]
fn a_last_block_goes_while_those_before_it_stay() {
    let budget = "<budget:token_budget>200000</budget:token_budget>";
    let config = HygieneConfig { billing_line: Handling::Keep, ..HygieneConfig::default() };
    for (before, after) in [
        (json!([text(LINE), text(budget)]), json!([text(LINE)])),
        (json!([text(LINE), text(budget), text(budget)]), json!([text(LINE)])),
        (json!([text(budget), text(LINE), text(budget)]), json!([text(LINE)])),
        (json!([text(budget), text(LINE), text(budget), text("x")]), json!([text(LINE), text("x")])),
        // Only the first 64 blocks are looked at, and the 64th is not the last.
        (json!([vec![text(LINE)], vec![text(budget); 64]].concat()), json!([text(LINE), text(budget)])),
    ] {
        for pretty in [false, true] {
            let body = written(&messages(&before), pretty, false);
            let (out, _) = cleaned(Dialect::Messages, Harness::Unknown, &body, &config);
            assert_eq!(serde_json::from_str::<Value>(&out).expect(&out), messages(&after));
            let chat = |blocks: &Value| json!({"messages": [{"role": "system", "content": blocks}]});
            let body = written(&chat(&before), pretty, false);
            let (out, _) = cleaned(Dialect::Chat, Harness::Unknown, &body, &config);
            assert_eq!(serde_json::from_str::<Value>(&out).expect(&out), chat(&after));
        }
    }
}

#[test]
fn token_budget_markers() {
    let budget = "<budget:token_budget>187655</budget:token_budget>";
    let usage = "<system_warning>Token usage: 35000/200000; 165000 remaining</system_warning>";
    assert_system(&json!(format!("{budget}\nYou are")), &json!("You are"));
    assert_system(&json!([text(LINE), text(budget), text("b")]), &json!([text("b")]));
    assert_system(&json!(format!("{LINE}\n{usage}\n\nb")), &json!("\nb"));
    let other = json!("<system_warning>Do not delete files</system_warning>");
    assert_system(&other, &other);
    let later = json!(format!("You are\n{budget}"));
    assert_system(&later, &later);
    let body = messages(&json!(format!("{budget}{usage}b"))).to_string();
    let (out, plan) = cleaned(Dialect::Messages, Harness::Unknown, &body, &all(Handling::Freeze));
    let frozen = "<budget:token_budget>100000</budget:token_budget>\
                  <system_warning>Token usage: 30000/200000; 100000 remaining</system_warning>b";
    assert_eq!(out, messages(&json!(frozen)).to_string());
    assert_eq!(plan.found.iter().map(|f| f.kind).collect::<Vec<_>>(), [VolatileKind::TokenBudget; 2]);
}

#[test]
fn openhands_start_time() {
    let body = |time: &str| {
        json!({
            "messages": [
                {"content": [text("long"), text(&format!("The current date and time is: {time}\nend"))], "role": "system"},
                {"content": format!("date and time: {time}"), "role": "user"},
            ],
            "model": "m",
        })
    };
    let (one, other) = (body("2026-11-29T16:20:31.123456"), body("2026-11-29T09:01:02.654321"));
    let run =
        |harness, body: &Value, handling| cleaned(Dialect::Chat, harness, &body.to_string(), &all(handling));
    let (kept, plan) = run(Harness::OpenHands, &one, Handling::Keep);
    assert_eq!(kept, one.to_string());
    assert_eq!(plan.found, [Found { kind: VolatileKind::DateTime, bytes: 26, handling: Handling::Keep }]);
    let mut expected = one.clone();
    expected["messages"][0]["content"][1]["text"] =
        json!("The current date and time is: 2026-11-29T00:00:00.000000\nend");
    assert_eq!(
        serde_json::from_str::<Value>(&run(Harness::OpenHands, &one, Handling::Freeze).0).expect("json"),
        expected
    );
    let system = |text: &str| serde_json::from_str::<Value>(text).expect("json")["messages"][0].clone();
    assert_eq!(
        system(&run(Harness::OpenHands, &one, Handling::Freeze).0),
        system(&run(Harness::OpenHands, &other, Handling::Freeze).0)
    );
    assert_eq!(run(Harness::Unknown, &one, Handling::Remove).1, HygienePlan::default());
    assert_eq!(HygieneConfig::default().date_time, Handling::Keep);
    // Two mentions of one time are one piece.
    let twice = json!({"messages": [{"role": "system", "content": "date and time (date and time) 2026-11-29 16:20:31 x"}]});
    let (out, plan) = run(Harness::OpenHands, &twice, Handling::Remove);
    assert_eq!(plan.found.len(), 1);
    assert!(out.contains("date and time (date and time)  x"), "{out}");
}

/// I-SCN-1, I-SCN-2, I-IDN-5: broken bodies give no edits outside of them, deep ones no overflow.
#[test]
fn broken_bodies() {
    let whole = messages(&json!([text(LINE), text("b")])).to_string();
    for end in 0..whole.len() {
        for dialect in [Dialect::Messages, Dialect::Chat, Dialect::Responses, Dialect::Completions] {
            let plan = plan(dialect, Harness::OpenHands, &whole.as_bytes()[..end], &all(Handling::Remove));
            assert!(plan.edits.iter().all(|e| e.range.end <= end && e.range.start <= e.range.end));
        }
    }
    let deep = format!("{{\"messages\":{}\"system\":\"{LINE}\"}}", "[".repeat(1_000_000));
    assert_eq!(
        plan(Dialect::Messages, Harness::ClaudeCode, deep.as_bytes(), &HygieneConfig::default()),
        HygienePlan::default()
    );
    for odd in
        ["\"", "{\"system\":]", "{\"system\" \"a\"}", "}{", "{\"system\":\"\\u00", "{\"system\":\"\\u0\\"]
    {
        let body = format!("{odd}\\u00{LINE}");
        let plan = plan(Dialect::Messages, Harness::ClaudeCode, body.as_bytes(), &HygieneConfig::default());
        assert_eq!(plan.edits, [], "{odd}");
    }
}

/// Writes JSON in one of several ways: indented, and with characters as escapes.
fn written(value: &Value, pretty: bool, escape: bool) -> String {
    let text = if pretty { serde_json::to_string_pretty(value) } else { serde_json::to_string(value) };
    let text = text.expect("json");
    if !escape {
        return text;
    }
    // Every letter inside of a string that is not part of an escape.
    let (mut out, mut inside, mut chars) = (String::new(), false, text.chars());
    while let Some(c) = chars.next() {
        match c {
            '"' => {
                inside = !inside;
                out.push(c);
            }
            '\\' => {
                out.push(c);
                out.extend(chars.next());
            }
            c if inside => {
                let mut units = [0; 2];
                out.extend(c.encode_utf16(&mut units).iter().map(|u| format!("\\u{u:04x}")));
            }
            c => out.push(c),
        }
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// I-HYG-2: an edited body parses, and equals the original but for the line.
    #[test]
    fn only_the_line_goes(
        words in "(\\PC|\n|\"|\\\\){0,60}",
        user in "(\\PC|\n|\"|\\\\){0,60}",
        hex in "[0-9a-f]{3}",
        as_text in any::<bool>(),
        after in any::<bool>(),
        subagent in any::<bool>(),
        pretty in any::<bool>(),
        escape in any::<bool>(),
        chat in any::<bool>(),
    ) {
        // A text that goes on with white space or a field would be read on; that is not what is tested.
        let words = format!("You {words}");
        let more = if subagent { " cc_is_subagent=true;" } else { "" };
        let line = format!("x-anthropic-billing-header: cc_version=2.1.332.{hex}; cc_entrypoint=cli;{more}");
        let system = |line: Option<&str>| match (as_text, line) {
            (true, line) => json!(format!("{}{words}", line.map(|l| format!("{l}\n")).unwrap_or_default())),
            (false, Some(line)) => json!([text(line), text(&words)]),
            (false, None) => json!([text(&words)]),
        };
        let body = |line: Option<&str>| {
            let user = json!({"role": "user", "content": [text(&user), text(LINE)]});
            let system = system(line);
            if chat {
                json!({"messages": [{"role": "system", "content": system}, user], "model": "m", "x": LINE})
            } else if after {
                json!({"model": "m", "messages": [user], "x": LINE, "zystem": 1, "system": system})
            } else {
                json!({"a": LINE, "system": system, "z": [user]})
            }
        };
        let dialect = if chat { Dialect::Chat } else { Dialect::Messages };
        let before = written(&body(Some(&line)), pretty, escape);
        let (out, plan) = cleaned(dialect, Harness::ClaudeCode, &before, &HygieneConfig::default());
        prop_assert_eq!(serde_json::from_str::<Value>(&out).expect("valid json"), body(None));
        prop_assert_eq!(plan.edits.len(), 1);
        // All other bytes are the client's own.
        let edit = &plan.edits[0];
        prop_assert_eq!(out, [&before[..edit.range.start], &before[edit.range.end..]].concat());
    }

    #[test]
    fn any_bytes_are_survived(
        head in prop_oneof![Just("{\"system\":"), Just("{\"messages\":[{\"role\":\"system\",\"content\":"), Just("")],
        tail in "[\\[\\]{}\",:\\\\ uax0-9<>/-]{0,60}",
    ) {
        let body = format!("{head}{tail}{LINE}");
        for dialect in [Dialect::Messages, Dialect::Chat] {
            let plan = plan(dialect, Harness::OpenHands, body.as_bytes(), &all(Handling::Remove));
            for edit in &plan.edits {
                prop_assert!(edit.range.start <= edit.range.end && edit.range.end <= body.len());
            }
        }
    }
}

/// I-HYG-5
#[test]
fn big_bodies_without_the_words_pass() {
    let big = messages(&json!("You are ".repeat(50_000))).to_string().replace(LINE, "hello");
    assert!(big.len() > 400_000);
    let found = plan(Dialect::Messages, Harness::ClaudeCode, big.as_bytes(), &all(Handling::Remove));
    assert_eq!(found, HygienePlan::default());
}
