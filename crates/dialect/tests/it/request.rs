use serde_json::{Value, json};
use tandem_dialect::{
    BodyError, BodyField, ParsedRequest, apply_edits, count_tokens_body, estimate_tokens, parse_request,
};
use tandem_types::{BodyEdit, BodyIds, Dialect, InputTrigger, TurnFacts};

use Dialect::{Chat, Completions, Messages, Responses};

macro_rules! fixture {
    ($name:literal) => {
        include_bytes!(concat!("../fixtures/requests/", $name, ".json")).as_slice()
    };
}

fn parsed(dialect: Dialect, body: &[u8]) -> ParsedRequest {
    parse_request(dialect, body).unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(body)))
}

fn facts(dialect: Dialect, body: &Value) -> TurnFacts {
    parsed(dialect, body.to_string().as_bytes()).facts
}

#[test]
fn a_turn_of_claude_code() {
    let body = fixture!("claude-code-turn");
    let facts = parsed(Messages, body).facts;
    assert_eq!(facts.model.as_deref(), Some("claude-sonnet-4-5"));
    assert!(facts.stream && !facts.include_usage && !facts.multimodal);
    assert_eq!((facts.choices, facts.max_output_tokens), (1, Some(32_000)));
    assert_eq!(facts.input_trigger, InputTrigger::ToolResult);
    let user = facts.ids.metadata_user_id.expect("metadata.user_id");
    assert!(
        user.starts_with("{\"device_id\":\"0000")
            && user.ends_with("\"00000000-0000-4000-8000-000000000001\"}")
    );
    assert_eq!((facts.shape.tools, facts.shape.messages), (Some(3), 3));
    assert!(!facts.shape.json_schema_output && !facts.shape.thinking_disabled);
    assert_eq!(facts.shape.body_bytes, body.len());
}

#[test]
fn claude_codes_title_call_is_known_by_its_form() {
    let facts = parsed(Messages, fixture!("claude-code-title")).facts;
    assert_eq!((facts.shape.tools, facts.shape.messages), (Some(0), 1));
    assert!(facts.shape.json_schema_output && facts.shape.thinking_disabled);
    assert_eq!(facts.input_trigger, InputTrigger::UserMessage);
}

#[test]
fn turns_of_codex() {
    let first = parsed(Responses, fixture!("codex-first")).facts;
    assert_eq!((first.shape.messages, first.shape.tools), (4, Some(3)));
    assert_eq!(first.input_trigger, InputTrigger::UserMessage);
    let key = Some("00000000-0000-7000-8000-000000000001".to_owned());
    assert_eq!(first.ids, BodyIds { prompt_cache_key: key, ..BodyIds::default() });
    assert_eq!((first.stream, first.max_output_tokens), (true, None));
    let turn = parsed(Responses, fixture!("codex-turn")).facts;
    assert_eq!((turn.shape.messages, turn.input_trigger), (7, InputTrigger::ToolResult));
    let compaction = parsed(Responses, fixture!("codex-compaction")).facts;
    assert_eq!((compaction.shape.tools, compaction.input_trigger), (Some(0), InputTrigger::UserMessage));
}

#[test]
fn turns_of_chat_harnesses() {
    let kimi = parsed(Chat, fixture!("kimi-code-turn")).facts;
    assert!(kimi.stream && kimi.include_usage && !kimi.shape.thinking_disabled);
    assert_eq!((kimi.max_output_tokens, kimi.input_trigger), (Some(126_980), InputTrigger::ToolResult));
    assert_eq!(kimi.ids.prompt_cache_key.as_deref(), Some("session_00000000-0000-4000-8000-000000000002"));
    // `role` comes after `content` here, and the call is not streamed.
    let openhands = parsed(Chat, fixture!("openhands-turn")).facts;
    assert_eq!((openhands.stream, openhands.input_trigger), (false, InputTrigger::ToolResult));
    let openclaw = parsed(Chat, fixture!("openclaw-turn")).facts;
    assert_eq!((openclaw.shape.messages, openclaw.input_trigger), (5, InputTrigger::UserMessage));
    let aider = parsed(Chat, fixture!("aider")).facts;
    assert_eq!((aider.shape.tools, aider.shape.messages, aider.include_usage), (None, 8, false));
    let opencode = parsed(Responses, fixture!("opencode-responses")).facts;
    assert_eq!((opencode.max_output_tokens, opencode.input_trigger), (Some(8192), InputTrigger::UserMessage));
}

#[test]
fn the_last_item_decides_the_trigger() {
    use InputTrigger::{Other, ToolResult, UserMessage};
    let chat = [
        (json!([{"role": "user", "content": "x"}]), UserMessage),
        (json!([{"role": "user", "content": "x"}, {"role": "tool", "content": "x"}]), ToolResult),
        (json!([{"role": "function", "content": "x"}]), ToolResult),
        (json!([{"role": "tool"}, {"role": "assistant"}]), Other),
        (json!([{"role": "user"}, {"role": "developer"}]), Other),
        (json!([]), Other),
        (json!("x"), Other),
    ];
    for (messages, trigger) in chat {
        assert_eq!(facts(Chat, &json!({"messages": messages})).input_trigger, trigger, "{messages}");
    }
    let text = json!({"type": "text", "text": "x"});
    let result = json!({"type": "tool_result", "tool_use_id": "t", "content": [text]});
    let anthropic = [
        (json!([{"role": "user", "content": "x"}]), UserMessage),
        (json!([{"role": "user", "content": [text]}]), UserMessage),
        (json!([{"role": "user", "content": [result, text]}]), ToolResult),
        (json!([{"content": [text, result], "role": "user"}]), ToolResult),
        (json!([{"role": "user", "content": [result]}, {"role": "assistant", "content": "{"}]), Other),
    ];
    for (messages, trigger) in anthropic {
        assert_eq!(facts(Messages, &json!({"messages": messages})).input_trigger, trigger, "{messages}");
    }
    let responses = [
        (json!("x"), UserMessage),
        (json!([{"role": "user", "content": "x"}]), UserMessage),
        (json!([{"type": "message", "role": "user", "content": "x"}]), UserMessage),
        (json!([{"type": "message", "role": "assistant", "content": "x"}]), Other),
        (json!([{"type": "function_call_output", "output": "x"}]), ToolResult),
        (json!([{"type": "custom_tool_call_output"}]), ToolResult),
        (json!([{"type": "computer_call_output"}]), ToolResult),
        (json!([{"type": "local_shell_call_output"}]), ToolResult),
        (json!([{"type": "shell_call_output"}]), ToolResult),
        (json!([{"type": "apply_patch_call_output"}]), ToolResult),
        (json!([{"type": "tool_search_output", "execution": "client"}]), ToolResult),
        (json!([{"type": "tool_search_output", "execution": "server"}]), Other),
        (json!([{"type": "function_call_output"}, {"type": "reasoning"}]), Other),
        (json!([{"type": "function_call", "role": "user"}]), Other),
        (json!([{"type": "mcp_approval_response"}]), Other),
        (json!([]), Other),
    ];
    for (input, trigger) in responses {
        assert_eq!(facts(Responses, &json!({"input": input})).input_trigger, trigger, "{input}");
    }
    assert_eq!(facts(Completions, &json!({"prompt": "x"})).input_trigger, Other);
}

#[test]
fn media_are_seen_in_every_dialect() {
    let chat =
        |part: Value| json!({"messages": [{"role": "user", "content": [part]}, {"role": "assistant"}]});
    let item = |item: Value| json!({"input": [item]});
    let message = |part: Value| json!({"messages": [{"role": "user", "content": [part]}]});
    let with = [
        (Chat, chat(json!({"type": "image_url", "image_url": {"url": "data:,"}}))),
        (Chat, chat(json!({"image_url": "http://x/"}))),
        (Chat, chat(json!({"type": "input_audio", "input_audio": {}}))),
        (Chat, chat(json!({"type": "file", "file": {}}))),
        (Chat, chat(json!({"type": "video_url", "video_url": {}}))),
        (Responses, item(json!({"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}))),
        (Responses, item(json!({"role": "user", "content": [{"type": "input_file"}]}))),
        (Responses, item(json!({"type": "computer_call_output", "output": {"type": "computer_screenshot"}}))),
        (Responses, item(json!({"type": "function_call_output", "output": [{"type": "input_image"}]}))),
        (Messages, message(json!({"type": "image", "source": {"type": "base64"}}))),
        (Messages, message(json!({"type": "document", "source": {"type": "base64"}}))),
        (Messages, message(json!({"type": "tool_result", "content": [{"type": "image", "source": {}}]}))),
        (Completions, json!({"prompt_embeds": "AAAA"})),
    ];
    for (dialect, body) in with {
        assert!(facts(dialect, &body).multimodal, "{body}");
    }
    let without = [
        (Chat, chat(json!({"type": "text", "text": "image_url", "image_url": null}))),
        (Messages, message(json!({"type": "document", "source": {"type": "text", "data": "x"}}))),
        (Responses, item(json!({"type": "function_call_output", "output": "input_image"}))),
        (Completions, json!({"prompt": "x", "prompt_embeds": null})),
    ];
    for (dialect, body) in without {
        assert!(!facts(dialect, &body).multimodal, "{body}");
    }
}

#[test]
fn bounds_and_choices_by_dialect() {
    let limit = |dialect, body: Value| facts(dialect, &body).max_output_tokens;
    assert_eq!(limit(Chat, json!({"max_tokens": 9, "max_completion_tokens": 7})), Some(7));
    assert_eq!(limit(Chat, json!({"max_tokens": 9, "max_completion_tokens": null})), Some(9));
    assert_eq!(limit(Chat, json!({"max_output_tokens": 9})), None);
    assert_eq!(limit(Responses, json!({"max_output_tokens": 9, "max_tokens": 8})), Some(9));
    assert_eq!(limit(Messages, json!({"max_tokens": 9})), Some(9));
    assert_eq!(limit(Completions, json!({"max_tokens": 16.0})), Some(16));
    assert_eq!(limit(Completions, json!({"max_tokens": -1})), None);
    assert_eq!(limit(Completions, json!({"max_tokens": "many"})), None);
    let choices = |dialect, body: Value| facts(dialect, &body).choices;
    assert_eq!(choices(Chat, json!({"n": 3})), 3);
    assert_eq!(choices(Chat, json!({"n": null})), 1);
    assert_eq!(choices(Completions, json!({"n": 2, "best_of": 5})), 5);
    assert_eq!(choices(Completions, json!({"n": 0})), 1);
    assert_eq!(choices(Messages, json!({"n": 4})), 1);
    let answer = |body: &[u8]| parsed(Completions, body).answer_choices();
    assert_eq!(answer(br#"{"prompt":["a","b"],"n":2,"best_of":5}"#), 4);
}

#[test]
fn prompts_of_token_ids_are_taken() {
    let prompt = |prompt: Value| facts(Completions, &json!({"prompt": prompt}));
    assert_eq!(prompt(json!([1, 2, 4_294_967_295_u32])).prompt_tokens, Some(vec![1, 2, u32::MAX]));
    assert_eq!(prompt(json!([[1, 2]])).prompt_tokens, Some(vec![1, 2]));
    let two = prompt(json!([[1, 2], [3]]));
    assert_eq!((two.prompt_tokens, two.shape.messages), (None, 2));
    for odd in
        [json!([1, "a"]), json!([1, -2]), json!([1.5]), json!([]), json!("x"), json!(["x"]), json!([1, [2]])]
    {
        assert_eq!(prompt(odd.clone()).prompt_tokens, None, "{odd}");
    }
    assert_eq!(facts(Chat, &json!({"input_ids": [5, 6]})).prompt_tokens, Some(vec![5, 6]));
}

#[test]
fn thinking_off_and_schemas() {
    let off = [
        (Chat, json!({"chat_template_kwargs": {"enable_thinking": false}})),
        (Chat, json!({"thinking": {"type": "disabled"}})),
        (Chat, json!({"reasoning_effort": "none"})),
        (Responses, json!({"reasoning": {"effort": "none"}})),
    ];
    for (dialect, body) in off {
        assert!(facts(dialect, &body).shape.thinking_disabled, "{body}");
    }
    assert!(
        !facts(Chat, &json!({"chat_template_kwargs": {"enable_thinking": true}})).shape.thinking_disabled
    );
    let schema = [
        (Chat, json!({"response_format": {"type": "json_schema"}})),
        (Chat, json!({"structured_outputs": {"json": {}}})),
        (Responses, json!({"text": {"format": {"type": "json_schema"}}})),
    ];
    for (dialect, body) in schema {
        assert!(facts(dialect, &body).shape.json_schema_output, "{body}");
    }
    assert!(!facts(Chat, &json!({"response_format": {"type": "json_object"}})).shape.json_schema_output);
}

/// I-DIA-4, I-DIA-REQ-1 (a megabyte of brackets needs no stack), I-DIA-REQ-2.
#[test]
fn only_what_cannot_be_routed_is_refused() {
    let refused = |body: &[u8]| parse_request(Chat, body).expect_err("refused");
    assert_eq!(refused(b"{\"model\":\"\xff\"}"), BodyError::NotUtf8 { at: 10 });
    for (body, at) in [
        ("", 0),
        ("{", 1),
        ("{\"a\":1,}", 7),
        ("{\"a\" 1}", 5),
        ("{} x", 3),
        ("{\"a\":01}", 6),
        ("{\"a\":\"x", 7),
    ] {
        assert_eq!(refused(body.as_bytes()), BodyError::NotJson { at }, "{body}");
    }
    assert_eq!(refused(b"[{}]"), BodyError::NotAnObject);
    assert_eq!(refused(b" null"), BodyError::NotAnObject);
    let nested = |levels: usize| format!("{{\"a\":{}{}}}", "[".repeat(levels - 1), "]".repeat(levels - 1));
    assert_eq!(refused(nested(257).as_bytes()), BodyError::TooDeep);
    assert!(parse_request(Chat, nested(256).as_bytes()).is_ok());
    assert_eq!(refused(&[b'['; 1 << 20]), BodyError::TooDeep);
    let wrong = refused(b"{\"model\":[]}");
    assert_eq!(wrong.to_string(), "field `model` must be a string");
    // Everything else is the engine's business, or no fault at all.
    for body in [
        "{\"stream\":{}}",
        "{\"messages\":5,\"tools\":\"x\",\"n\":[]}",
        "\u{feff}{}",
        "{\"model\":null}",
        "{\"t\":NaN}",
        "{\"cut\":\"\\ud83d\"}",
        "{\"raw\":\"a\nb\"}",
    ] {
        assert!(parse_request(Chat, body.as_bytes()).is_ok(), "{body}");
    }
}

/// I-DIA-REQ-3.
#[test]
fn truth_is_read_as_the_engines_read_it() {
    let stream = |value: &str| parsed(Chat, format!("{{\"stream\":{value}}}").as_bytes()).facts.stream;
    for yes in ["true", "1", "1.0", "\"true\"", "\"Yes\"", "\"on\""] {
        assert!(stream(yes), "{yes}");
    }
    for no in ["false", "null", "0", "\"no\"", "2", "\"maybe\"", "[]", "{}"] {
        assert!(!stream(no), "{no}");
    }
    assert!(!parsed(Chat, b"{\"stream\":true,\"stream\":null}").facts.stream);
}

/// I-DIA-REQ-4.
#[test]
fn the_last_of_several_equal_names_counts() {
    let body = br#"{"model":"a","messages":[{"role":"tool"},{"role":"tool"}],"model":"b","messages":[{"role":"user"}]}"#;
    let facts = parsed(Chat, body).facts;
    assert_eq!((facts.model.as_deref(), facts.shape.messages), (Some("b"), 1));
    assert_eq!(facts.input_trigger, InputTrigger::UserMessage);
}

#[test]
fn long_ids_are_cut_so_that_they_are_seen_to_be_too_long() {
    let long = "é".repeat(5000);
    let facts = facts(Chat, &json!({"session_id": long, "prompt_cache_key": 7}));
    assert_eq!(facts.ids.session_id, Some("é".repeat(2048)));
    assert_eq!(facts.ids.prompt_cache_key, None);
}

fn asked(dialect: Dialect, body: &str) -> Option<String> {
    let edit = parsed(dialect, body.as_bytes()).ask_for_usage()?;
    Some(String::from_utf8(apply_edits(body.as_bytes(), &mut [edit])).expect("utf-8"))
}

/// I-DIA-REQ-5.
#[test]
fn usage_is_asked_for_by_a_splice() {
    let edits = [
        (r#"{"stream":true}"#, r#"{"stream_options":{"include_usage":true},"stream":true}"#),
        (r#" { "stream" : true }"#, r#" {"stream_options":{"include_usage":true}, "stream" : true }"#),
        (
            r#"{"stream_options":null,"stream":true}"#,
            r#"{"stream_options":{"include_usage":true},"stream":true}"#,
        ),
        (
            r#"{"stream":true,"stream_options":{}}"#,
            r#"{"stream":true,"stream_options":{"include_usage":true}}"#,
        ),
        (
            r#"{"stream":true,"stream_options":{ }}"#,
            r#"{"stream":true,"stream_options":{"include_usage":true }}"#,
        ),
        (
            r#"{"stream_options":{"x":1,"include_usage": false},"stream":true}"#,
            r#"{"stream_options":{"x":1,"include_usage": true},"stream":true}"#,
        ),
        (
            r#"{"stream_options":{"include_usage":null },"stream":true}"#,
            r#"{"stream_options":{"include_usage":true },"stream":true}"#,
        ),
        (
            r#"{"stream_options":{"x":{"include_usage":true}},"stream":true}"#,
            r#"{"stream_options":{"include_usage":true,"x":{"include_usage":true}},"stream":true}"#,
        ),
        (
            r#"{"stre\u0061m_options":{"include_us\u0061ge":0},"stream":true}"#,
            r#"{"stre\u0061m_options":{"include_us\u0061ge":true},"stream":true}"#,
        ),
        (
            r#"{"stream_options":{"include_usage":true},"stream":true,"stream_options":{"include_usage":false}}"#,
            r#"{"stream_options":{"include_usage":true},"stream":true,"stream_options":{"include_usage":true}}"#,
        ),
    ];
    for (body, want) in edits {
        for dialect in [Chat, Completions] {
            assert_eq!(asked(dialect, body).as_deref(), Some(want), "{body}");
            assert_eq!(asked(dialect, want), None, "asked twice: {want}");
        }
    }
}

#[test]
fn usage_is_not_asked_for_without_need_or_where_it_would_show() {
    for body in [
        r#"{"messages":[]}"#,
        r#"{"stream":false,"stream_options":{}}"#,
        r#"{"stream":true,"stream_options":{"include_usage":true}}"#,
        r#"{"stream":true,"stream_options":"x"}"#,
        r#"{"stream":true,"stream_options":{"continuous_usage_stats":true}}"#,
        r#"{"stream_options":{"include_usage":false},"stream":true,"stream_options":{"include_usage":true}}"#,
    ] {
        assert_eq!(asked(Chat, body), None, "{body}");
    }
    assert_eq!(asked(Messages, r#"{"stream":true}"#), None);
    assert_eq!(asked(Responses, r#"{"stream":true}"#), None);
}

#[test]
fn fields_are_set_in_place_or_put_first() {
    let body = br#"{"priority" : 3 ,"model":"m","cache_salt":"a","cache_salt":"b"}"#;
    let request = parsed(Chat, body);
    assert_eq!(request.field(BodyField::Priority), Some(14..15));
    let mut edits = [
        request.set_field(BodyField::CacheSalt, b"\"t\"").expect("edit"),
        request.set_field(BodyField::SessionId, b"\"s\"").expect("edit"),
        request.set_field(BodyField::Priority, b"-1").expect("edit"),
        request.set_field(BodyField::ReturnTokenIds, b"true").expect("edit"),
    ];
    let edited = apply_edits(body, &mut edits);
    let want = br#"{"session_id":"s","return_token_ids":true,"priority" : -1 ,"model":"m","cache_salt":"a","cache_salt":"t"}"#;
    assert_eq!(String::from_utf8_lossy(&edited), String::from_utf8_lossy(want));
    assert_eq!(parsed(Chat, b" { } ").set_field(BodyField::Priority, b"1"), None);
}

#[test]
fn a_wrong_edit_is_left_out() {
    let edit = |range, with: &str| BodyEdit { range, with: with.into() };
    let mut edits =
        [edit(4..6, "-"), edit(0..1, "A"), edit(0..0, ">"), edit(5..7, "overlaps"), edit(9..12, "outside")];
    assert_eq!(apply_edits(b"abcdefgh", &mut edits), b">Abcd-gh");
}

#[test]
fn token_estimates_are_of_the_right_size() {
    let words = json!({"model": "tiny", "messages": [{"role": "user", "content": "word ".repeat(4000)}]});
    let count = estimate_tokens(words.to_string().as_bytes());
    // A tokenizer with one token per word and space says about 4,000.
    assert!((4000..=6000).contains(&count), "{count}");
    let image = json!({"messages": [{"role": "user", "content": [
        {"type": "image", "source": {"type": "base64", "data": "A".repeat(2_000_000)}}]}]});
    let count = estimate_tokens(image.to_string().as_bytes());
    assert!((1600..1700).contains(&count), "{count}");
    let chinese = json!({"system": "北京今天多云".repeat(100), "messages": []});
    assert_eq!(estimate_tokens(chinese.to_string().as_bytes()), 600);
    let tool = json!({"messages": [], "tools": [{"name": "abcd", "input_schema": {"type": "object"}}]});
    // name + abcd + input_schema + type + object = 30 bytes, and one tool.
    assert_eq!(estimate_tokens(tool.to_string().as_bytes()), 8 + 4);
    assert_eq!(estimate_tokens(b"not json"), 2);
    assert_eq!(count_tokens_body(12), b"{\"input_tokens\":12}");
}
