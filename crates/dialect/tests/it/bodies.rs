use tandem_dialect::{AnswerError, AnswerFacts, ChoiceEnd, observe_body};
use tandem_types::{Dialect, FinishReason, ToolCall, Usage};

use Dialect::{Chat, Completions, Messages, Responses};

fn length(word: &str) -> Vec<ChoiceEnd> {
    vec![ChoiceEnd {
        index: 0,
        finish_reason: Some(FinishReason::Length),
        backend_finish_reason: Some(word.to_owned()),
        stop_reason: None,
    }]
}

fn usage(input: u64, output: u64, cached: Option<u64>, reasoning: Option<u64>) -> Option<Usage> {
    Some(Usage {
        input_tokens: input,
        output_tokens: output,
        cached_tokens: cached,
        reasoning_tokens: reasoning,
    })
}

#[test]
fn answers_of_three_engines() {
    let chat = |body: &[u8]| {
        let facts = observe_body(Chat, body);
        assert_eq!(facts.choices, length("length"));
        assert!(facts.succeeded() && facts.first_content);
        facts.usage
    };
    let vllm = include_bytes!("../fixtures/vllm/chat-2-repeat-other-session.json");
    assert_eq!(chat(vllm), usage(449, 8, Some(448), None));
    assert_eq!(chat(include_bytes!("../fixtures/sglang/chat-2.json")), usage(449, 8, Some(448), Some(0)));
    assert_eq!(chat(include_bytes!("../fixtures/llamacpp/chat-2.json")), usage(721, 16, Some(720), None));

    let messages = |body: &[u8]| {
        let facts = observe_body(Messages, body);
        assert_eq!(facts.choices, length("max_tokens"));
        assert!(facts.succeeded());
        facts.usage
    };
    assert_eq!(
        messages(include_bytes!("../fixtures/vllm/messages-2.json")),
        usage(18 + 288, 6, Some(0), None)
    );
    assert_eq!(messages(include_bytes!("../fixtures/sglang/messages-1.json")), usage(14, 4, None, None));
    assert_eq!(messages(include_bytes!("../fixtures/llamacpp/messages-1.json")), usage(29, 8, Some(1), None));

    let responses = |body: &[u8]| {
        let facts = observe_body(Responses, body);
        assert!(facts.succeeded() && facts.first_content);
        (facts.choices, facts.usage)
    };
    let vllm = include_bytes!("../fixtures/vllm/responses-1.json");
    assert_eq!(responses(vllm), (length("max_output_tokens"), usage(14, 16, Some(0), Some(0))));
    let sglang = include_bytes!("../fixtures/sglang/responses-1.json");
    assert_eq!(responses(sglang), (length("max_output_tokens"), usage(14, 2, Some(0), Some(0))));
    let (choices, tokens) = responses(include_bytes!("../fixtures/llamacpp/responses-1.json"));
    assert_eq!(choices[0].finish_reason, Some(FinishReason::Stop));
    assert_eq!(tokens, usage(29, 8, Some(24), None));
}

#[test]
fn a_completion_with_token_ids() {
    let facts = observe_body(Completions, include_bytes!("../fixtures/vllm/completions-1.json"));
    assert_eq!(facts.prompt_token_ids, Some((10..=50).collect()));
    assert_eq!(facts.output_token_ids, vec![50; 30]);
    assert_eq!(facts.usage, usage(41, 30, Some(0), None));
    assert_eq!(facts.response_id.as_deref(), Some("cmpl-850cc6b9639f170c"));
}

/// I-DIA-ANS-4.
#[test]
fn tool_calls_by_name_without_arguments() {
    let named = |name: &str, id: &str, place| ToolCall {
        choice_index: 0,
        tool_call_index: place,
        id: Some(id.to_owned()),
        name: Some(name.to_owned()),
    };
    // A forced call: some engines say `stop`, yet the client must act.
    let body = br#"{"choices":[{"index":0,"finish_reason":"stop","message":{"content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{\"secret\":1}"}},{"id":"b","type":"function","function":{"name":"g","arguments":"{}"}}]}}]}"#;
    let facts = observe_body(Chat, body);
    assert_eq!(facts.tool_calls, [named("f", "a", 0), named("g", "b", 1)]);
    assert_eq!(facts.finish_reason(), Some(FinishReason::ToolCalls));
    assert_eq!(facts.choices[0].backend_finish_reason.as_deref(), Some("stop"));
    assert!(!format!("{facts:?}").contains("secret"));

    let body = br#"{"type":"message","content":[{"type":"text","text":"x"},{"type":"tool_use","id":"t1","name":"Bash","input":{"command":"secret","name":"no","id":"no"}},{"type":"server_tool_use","id":"s","name":"web_search"}],"stop_reason":"tool_use"}"#;
    let facts = observe_body(Messages, body);
    assert_eq!(facts.tool_calls, [named("Bash", "t1", 0)]);
    assert!(!format!("{facts:?}").contains("secret"));

    let body = br#"{"object":"response","status":"completed","output":[{"type":"reasoning"},{"type":"function_call","id":"fc","call_id":"c1","name":"f","arguments":"secret"},{"type":"custom_tool_call","call_id":"c2","name":"g","input":"secret"},{"type":"mcp_call","name":"h"}]}"#;
    let facts = observe_body(Responses, body);
    assert_eq!(facts.tool_calls, [named("f", "c1", 0), named("g", "c2", 1)]);
    assert_eq!(facts.finish_reason(), Some(FinishReason::ToolCalls));

    let body = br#"{"choices":[{"index":0,"finish_reason":"function_call","message":{"function_call":{"name":"f","arguments":"{}"}}}]}"#;
    let facts = observe_body(Chat, body);
    assert_eq!((facts.tool_call_count, facts.finish_reason()), (1, Some(FinishReason::ToolCalls)));
}

#[test]
fn reasons_in_openais_words() {
    let chat = |word: &str| {
        let body = format!("{{\"choices\":[{{\"finish_reason\":\"{word}\",\"message\":{{}}}}]}}");
        observe_body(Chat, body.as_bytes()).finish_reason()
    };
    assert_eq!(chat("stop"), Some(FinishReason::Stop));
    assert_eq!(chat("content_filter"), Some(FinishReason::ContentFilter));
    assert_eq!(chat("abort"), Some(FinishReason::Error));
    assert_eq!(chat("repetition"), Some(FinishReason::Other("repetition".to_owned())));
    let messages = |word: &str| {
        let body = format!("{{\"type\":\"message\",\"stop_reason\":\"{word}\",\"stop_sequence\":\"\\n\"}}");
        let facts = observe_body(Messages, body.as_bytes());
        assert_eq!(facts.choices[0].stop_reason.as_deref(), Some("\n"));
        facts.finish_reason()
    };
    assert_eq!(messages("end_turn"), Some(FinishReason::Stop));
    assert_eq!(messages("stop_sequence"), Some(FinishReason::Stop));
    assert_eq!(messages("refusal"), Some(FinishReason::ContentFilter));
    assert_eq!(messages("pause_turn"), Some(FinishReason::Other("pause_turn".to_owned())));
}

#[test]
fn errors_of_engines() {
    let error = |kind: &str, code: Option<&str>| {
        Some(AnswerError { kind: Some(kind.to_owned()), code: code.map(str::to_owned) })
    };
    let facts = observe_body(Chat, include_bytes!("../fixtures/vllm/err-model.json"));
    assert_eq!(facts.error, error("NotFoundError", Some("404")));
    assert!(facts.complete && !facts.succeeded());
    let facts = observe_body(Messages, include_bytes!("../fixtures/vllm/err-anthropic.json"));
    assert_eq!(facts.error, error("NotFoundError", None));
}

/// I-DIA-ANS-2.
#[test]
fn what_cannot_be_read_gives_no_complete_answer() {
    for body in [
        "",
        "not json",
        "[]",
        "{}",
        "{\"detail\":\"Not Found\"}",
        "{\"choices\":[{}]} x",
        "{\"choices\":[{\"index\":0",
    ] {
        for dialect in [Chat, Completions, Responses, Messages] {
            assert!(!observe_body(dialect, body.as_bytes()).complete, "{dialect:?} {body}");
        }
    }
    assert_eq!(observe_body(Chat, b"\xff\xfe"), AnswerFacts::default());
}

/// How captured answers begin, which kinds of them reason, and of which choice it is.
#[test]
fn the_beginning_of_the_text_is_kept() {
    let start = |dialect, body: &[u8]| {
        let facts = observe_body(dialect, body);
        (String::from_utf8(facts.text_start).expect("utf-8"), facts.reasoned)
    };
    let said = |text: &str| (text.to_owned(), false);
    let chat = include_bytes!("../fixtures/vllm/chat-2-repeat-other-session.json");
    assert_eq!(start(Chat, chat), said(&"\n".repeat(8)));
    let messages = include_bytes!("../fixtures/vllm/messages-2.json");
    assert_eq!(start(Messages, messages), said("             \u{1e}Deleageirabel"));
    let responses = include_bytes!("../fixtures/vllm/responses-1.json");
    let first = "uchareturnALDelegustusinguldTable filenames representationiseigm";
    assert_eq!(start(Responses, responses), said(first));
    let thought =
        br#"{"type":"message","content":[{"type":"thinking","thinking":"hm"},{"type":"text","text":"so"}]}"#;
    assert_eq!(start(Messages, thought), ("so".to_owned(), true));
    let thought = br#"{"status":"completed","output":[{"type":"reasoning","content":[{"text":"hm"}]},{"type":"message","content":[{"text":"so"}]}]}"#;
    assert!(start(Responses, thought).1);
    let two = br#"{"choices":[{"index":1,"message":{"content":"two"}},{"index":0,"message":{"content":"one","reasoning":null}}]}"#;
    assert_eq!(start(Chat, two), said("one"));
}
