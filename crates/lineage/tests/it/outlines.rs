//! What an outline tells apart, and what it does not.

use proptest::prelude::*;
use serde_json::{Value, json};
use tandem_lineage::{Outline, OutlineError, SegmentKind, limits, outline, text_blocks};
use tandem_types::{Dialect, EngineKind};

use crate::support::{assistant, chat, read, recorded, user};

fn kinds(dialect: Dialect, body: &Value) -> Vec<(SegmentKind, u32)> {
    read(dialect, body).segments().iter().map(|segment| (segment.kind, segment.bytes)).collect()
}

use SegmentKind as Kind;

#[test]
fn chat_in_rendered_order() {
    let body = json!({
        "messages": [
            {"content": "be good", "role": "system"},
            {"role": "developer", "content": [{"type": "text", "text": "and quick"}]},
            {"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "image_url", "image_url": {"url": "u"}}]},
            {"role": "assistant", "reasoning_content": "hm", "content": null,
             "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "result"},
            {"role": "system", "content": "hurry"},
            {"role": "assistant", "content": ""},
        ],
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "model": "m",
    });
    let expected = [
        (Kind::Parameter, 1),
        (Kind::System, 7),
        (Kind::System, 9),
        // "type", "function", "function", "name", "f"
        (Kind::Tool, 25),
        (Kind::User, 2),
        // "type", "image_url", "image_url", "url", "u"
        (Kind::Media, 26),
        (Kind::Reasoning, 2),
        // "id", "c1", "type", "function", "function", "name", "f", "arguments", "{}"
        (Kind::ToolCall, 40),
        (Kind::ToolResult, 6),
        (Kind::Note, 5),
        (Kind::Assistant, 0),
    ];
    assert_eq!(kinds(Dialect::Chat, &body), expected);
}

#[test]
fn messages_in_rendered_order() {
    let body = json!({
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "sig"},
                {"type": "text", "text": "ok"},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "res"}]},
                {"type": "text", "text": "next"},
            ]},
        ],
        "system": [{"type": "text", "text": "be good"}],
        "tools": [{"name": "f"}],
        "thinking": {"type": "enabled", "budget_tokens": 5},
    });
    let found: Vec<_> = kinds(Dialect::Messages, &body).into_iter().map(|(kind, _)| kind).collect();
    let expected = [
        Kind::Parameter,
        Kind::System,
        Kind::Tool,
        Kind::User,
        Kind::Reasoning,
        Kind::Assistant,
        Kind::ToolCall,
        Kind::ToolResult,
        Kind::User,
    ];
    assert_eq!(found, expected);
}

#[test]
fn responses_in_rendered_order() {
    let body = json!({
        "instructions": "be good",
        "input": [
            {"role": "developer", "content": "quick"},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "x"},
            {"type": "function_call", "id": "fc", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "res"},
            {"type": "compaction", "encrypted_content": "y"},
        ],
        "tools": [{"type": "function", "name": "f"}],
        "reasoning": {"effort": "high", "summary": "auto"},
    });
    let found: Vec<_> = kinds(Dialect::Responses, &body).into_iter().map(|(kind, _)| kind).collect();
    let expected = [
        Kind::Parameter,
        Kind::System,
        Kind::System,
        Kind::Tool,
        Kind::User,
        Kind::Reasoning,
        Kind::ToolCall,
        Kind::ToolResult,
        Kind::Other,
    ];
    assert_eq!(found, expected);
    let text = json!({"input": "hi"});
    assert_eq!(kinds(Dialect::Responses, &text), [(Kind::User, 2)]);
}

#[test]
fn raw_prompts_are_cut_into_pieces() {
    let found = kinds(Dialect::Completions, &json!({"prompt": "x".repeat(600)}));
    assert_eq!(found, [(Kind::Raw, 256), (Kind::Raw, 256), (Kind::RawTail, 88)]);
    let ids: Vec<u32> = (0..130).collect();
    let found = kinds(Dialect::Completions, &json!({"prompt": ids}));
    assert_eq!(found, [(Kind::Raw, 512), (Kind::Raw, 512), (Kind::RawTail, 16)]);
}

/// I-OLN-2.
#[test]
fn forms_that_mean_the_same_prompt_are_equal() {
    let one = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5});
    let same = [
        json!({"messages": [{"content": [{"text": "hi", "type": "text"}], "role": "user"}], "model": "m"}),
        json!({"model": "m", "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]},
        ]}),
    ];
    for other in same {
        assert_eq!(read(Dialect::Chat, &one), read(Dialect::Chat, &other));
        let blocks = |body: &Value| {
            text_blocks(Dialect::Chat, EngineKind::Vllm, body.to_string().as_bytes(), 4).expect("blocks")
        };
        assert_eq!(blocks(&one), blocks(&other));
    }
    let item = |id: &str| json!({"input": [{"type": "function_call", "id": id, "status": "completed", "call_id": "c", "name": "f"}]});
    assert_eq!(read(Dialect::Responses, &item("a")), read(Dialect::Responses, &item("b")));
}

/// I-OLN-3.
#[test]
fn whatever_reaches_the_prompt_counts() {
    let base = chat(&[user("hi"), assistant("ho"), user("ha")]);
    let plain = read(Dialect::Chat, &base);
    let edits: [fn(&mut Value); 8] = [
        |body| body["messages"][1]["content"] = json!("hi "),
        |body| body["messages"][1]["role"] = json!("assistant"),
        |body| body["messages"][1]["name"] = json!("bob"),
        |body| {
            body["messages"][1]["content"] =
                json!([{"type": "text", "text": "h"}, {"type": "text", "text": "i"}])
        },
        |body| body["tools"][0]["function"]["description"] = json!("does thing"),
        |body| body["chat_template_kwargs"] = json!({"enable_thinking": true}),
        |body| body["model"] = json!("n"),
        |body| drop(body["messages"].as_array_mut().expect("list").pop()),
    ];
    for (number, edit) in edits.iter().enumerate() {
        let mut other = base.clone();
        edit(&mut other);
        assert_ne!(plain.segments(), read(Dialect::Chat, &other).segments(), "edit {number}");
    }
    // Two parts of one message are not two messages.
    let parts = json!({"messages": [{"role": "user", "content": ["a", "b"]}]});
    let messages = json!({"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]});
    assert_ne!(read(Dialect::Chat, &parts).segments(), read(Dialect::Chat, &messages).segments());
}

/// I-OLN-4.
#[test]
fn what_does_not_fit_is_folded_into_the_last_segment() {
    let body = |parts: usize, last: &str| {
        let mut parts: Vec<Value> = (0..parts).map(|number| json!(number.to_string())).collect();
        parts.push(json!(last));
        json!({"messages": [{"role": "user", "content": parts}]})
    };
    let full = read(Dialect::Chat, &body(limits::SEGMENTS_MAX - 1, "a"));
    assert_eq!((full.segments().len(), full.folded()), (limits::SEGMENTS_MAX, false));
    let (one, two) = (read(Dialect::Chat, &body(200_000, "a")), read(Dialect::Chat, &body(200_000, "b")));
    assert_eq!((one.segments().len(), one.folded()), (limits::SEGMENTS_MAX, true));
    let before = limits::SEGMENTS_MAX - 1;
    assert_eq!(one.segments()[..before], two.segments()[..before]);
    assert_ne!(one.segments()[before], two.segments()[before]);
}

/// I-LIN-2.
#[test]
fn what_is_no_body_is_refused_and_odd_fields_are_not() {
    let refused = |body: &[u8]| outline(Dialect::Chat, EngineKind::Vllm, body).expect_err("no outline");
    assert_eq!(refused(b"\xff"), OutlineError::NotUtf8 { at: 0 });
    assert_eq!(refused(b"{\"a\": }"), OutlineError::NotJson { line: 1, column: 7 });
    assert_eq!(refused(b"{} {}"), OutlineError::NotJson { line: 1, column: 4 });
    assert_eq!(refused(b"[]"), OutlineError::NotAnObject);
    assert!(matches!(refused("{\"a\":".repeat(200).as_bytes()), OutlineError::NotJson { .. }));
    for body in [
        json!({}),
        json!({"messages": 5, "tools": "x", "model": [], "system": 7, "input": {}, "prompt": {"a": 1}}),
        json!({"messages": [1, null, "x", [], {"role": 5, "content": {"type": []}, "tool_calls": {}}]}),
        json!({"input": [1, null, {"type": "x_call_output", "output": 5}], "reasoning": 1, "tool_choice": []}),
    ] {
        for dialect in [Dialect::Chat, Dialect::Completions, Dialect::Responses, Dialect::Messages] {
            read(dialect, &body);
        }
    }
}

#[test]
fn lone_surrogates_are_read() {
    let text = br#"{"messages":[{"role":"user","content":"cut \ud83d"}]}"#;
    let found = outline(Dialect::Chat, EngineKind::Vllm, text).expect("an outline");
    assert_eq!(found.segments().len(), 1);
}

/// I-TXT-2. A recorded conversation's blocks: each turn's are the next one's first ones.
#[test]
fn blocks_of_a_growing_prompt_stay() {
    for harness in ["claude-code", "codex", "pi"] {
        let turns = recorded(harness);
        let (one, two) = (&turns[0], &turns[1]);
        let blocks = |body: &Value| {
            text_blocks(one.dialect, EngineKind::Vllm, body.to_string().as_bytes(), 64).expect("blocks")
        };
        let (one, two) = (blocks(&one.body), blocks(&two.body));
        assert!(one.len() > 20 && two.len() >= one.len(), "{harness}");
        assert_eq!(two[..one.len()], one, "{harness}");
    }
}

/// I-TXT-1; I-TXT-4: the text ends eight bytes behind a whole block.
#[test]
fn a_change_leaves_the_blocks_before_it_and_none_behind() {
    let long = "0123456789abcdef".repeat(64);
    let mut edited = long.clone();
    edited.replace_range(500..501, "X");
    let blocks = |text: &str| {
        let body = json!({"messages": [{"role": "user", "content": text}]});
        text_blocks(Dialect::Chat, EngineKind::Vllm, body.to_string().as_bytes(), 64).expect("blocks")
    };
    let (one, two) = (blocks(&long), blocks(&edited));
    // Eight bytes stand before the text: byte 500 of it is in block (8 + 500) / 64 = 7.
    let same: Vec<bool> = one.iter().zip(&two).map(|(one, two)| one == two).collect();
    assert_eq!(same, (0..16).map(|block| block < 7).collect::<Vec<_>>());
    assert_eq!(text_blocks(Dialect::Chat, EngineKind::Vllm, b"{}", 0), Ok(Vec::new()));
}

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "[a-z0-9 \"\\\\\n\u{e9}]{0,12}".prop_map(Value::from),
        prop::sample::select(vec!["user", "assistant", "text", "tool", "function_call"])
            .prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 48, 6, |inner| {
        let name = prop::sample::select(vec![
            "messages",
            "content",
            "role",
            "type",
            "text",
            "tools",
            "input",
            "system",
            "prompt",
            "output",
            "id",
            "tool_calls",
            "model",
            "x",
        ]);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map(name.prop_map(str::to_owned), inner, 0..6)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// The value with the members of all objects in reverse order, written with white space.
fn reversed(value: &Value, out: &mut String) {
    match value {
        Value::Object(members) => {
            out.push_str("{ ");
            for (number, (name, value)) in members.iter().rev().enumerate() {
                out.push_str(if number > 0 { " ,\n" } else { "" });
                out.push_str(&format!("{} : ", Value::from(name.as_str())));
                reversed(value, out);
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for (number, item) in items.iter().enumerate() {
                out.push_str(if number > 0 { " , " } else { "" });
                reversed(item, out);
            }
            out.push(']');
        }
        other => out.push_str(&other.to_string()),
    }
}

proptest! {
    /// I-OLN-2, I-TXT-3, I-LIN-2: for any body whatever.
    #[test]
    fn order_and_white_space_never_count(value in json_value()) {
        let value = json!({"messages": value, "input": 1});
        let mut again = String::new();
        reversed(&value, &mut again);
        for dialect in [Dialect::Chat, Dialect::Completions, Dialect::Responses, Dialect::Messages] {
            let one: Outline = read(dialect, &value);
            let two = outline(dialect, EngineKind::Vllm, again.as_bytes()).expect("an outline");
            prop_assert_eq!(one, two);
            prop_assert_eq!(
                text_blocks(dialect, EngineKind::Vllm, value.to_string().as_bytes(), 16),
                text_blocks(dialect, EngineKind::Vllm, again.as_bytes(), 16)
            );
        }
    }
}
