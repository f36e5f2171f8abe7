use bytes::Bytes;
use proptest::prelude::*;
use tandem_dialect::{AnswerError, AnswerFacts, ChoiceEnd, ErrorKind, StreamObserver, UsageFilter};
use tandem_types::{Dialect, FinishReason, ToolCall, Usage};

use Dialect::{Chat, Completions, Messages, Responses};
use UsageFilter::{DropChunk, DropChunkAndNulls, Keep};

const VLLM_CHAT: &[u8] = include_bytes!("../fixtures/vllm/chat-4-stream.sse");
const VLLM_MESSAGES: &[u8] = include_bytes!("../fixtures/vllm/messages-3-stream.sse");
const VLLM_RESPONSES: &[u8] = include_bytes!("../fixtures/vllm/responses-2-stream.sse");
const UTF8: &[u8] = include_bytes!("../fixtures/streams/utf8-split.sse");
const ERROR: &[u8] = include_bytes!("../fixtures/streams/error-event-mid-stream.sse");
const TOOLS_PARALLEL: &[u8] = include_bytes!("../fixtures/streams/tool-call-deltas-parallel.sse");
const TOOLS_SAME_INDEX: &[u8] = include_bytes!("../fixtures/streams/tool-call-deltas-same-index.sse");
const TOOLS_TWO_CHOICES: &[u8] = include_bytes!("../fixtures/streams/tool-call-deltas-two-choices.sse");
const REASONING: &[u8] = include_bytes!("../fixtures/streams/reasoning-fields.sse");

fn observe_pieces<'a>(
    mut observer: StreamObserver,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> (Vec<u8>, AnswerFacts) {
    let mut out = Vec::new();
    for piece in pieces {
        observer.push(Bytes::copy_from_slice(piece), &mut out);
    }
    observer.finish(&mut out);
    (out.concat(), observer.into_facts())
}

/// Facts of a stream that passes unchanged.
fn facts(dialect: Dialect, stream: &[u8]) -> AnswerFacts {
    let (bytes, facts) = observe_pieces(StreamObserver::new(dialect, Keep), [stream]);
    assert!(bytes == stream, "bytes changed");
    facts
}

fn filtered(filter: UsageFilter, stream: &[u8]) -> String {
    String::from_utf8(observe_pieces(StreamObserver::new(Chat, filter), [stream]).0).expect("utf-8")
}

fn call(choice: u32, place: u32, id: &str, name: &str) -> ToolCall {
    ToolCall {
        choice_index: choice,
        tool_call_index: place,
        id: Some(id.to_owned()),
        name: Some(name.to_owned()),
    }
}

fn ended(index: u32, reason: FinishReason, word: &str) -> ChoiceEnd {
    ChoiceEnd {
        index,
        finish_reason: Some(reason),
        backend_finish_reason: Some(word.to_owned()),
        stop_reason: None,
    }
}

#[test]
fn a_chat_stream_of_vllm() {
    let facts = facts(Chat, VLLM_CHAT);
    let want = AnswerFacts {
        usage: Some(Usage {
            input_tokens: 449,
            output_tokens: 4,
            cached_tokens: Some(448),
            reasoning_tokens: None,
        }),
        choices: vec![ended(0, FinishReason::Length, "length")],
        response_id: Some("chatcmpl-ab2cf75ba97dcbec".to_owned()),
        model: Some("tiny".to_owned()),
        complete: true,
        first_content: true,
        text_start: b"\n\n\n\n".to_vec(),
        ..AnswerFacts::default()
    };
    assert_eq!(facts, want);
    assert!(facts.succeeded());
}

#[test]
fn a_messages_stream_of_vllm_counts_each_input_token_once() {
    let facts = facts(Messages, VLLM_MESSAGES);
    // 299 at the start; 11 new + 288 written + 0 read at the end.
    let usage = Usage { input_tokens: 299, output_tokens: 4, cached_tokens: Some(0), reasoning_tokens: None };
    assert_eq!(facts.usage, Some(usage));
    assert_eq!(facts.choices, [ended(0, FinishReason::Length, "max_tokens")]);
    assert_eq!(facts.response_id.as_deref(), Some("chatcmpl-aa10ad45de70f33f"));
    assert!(facts.complete && facts.first_content);
}

#[test]
fn a_messages_stream_that_tells_the_input_only_at_the_start() {
    let stream = b"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_1\",\"model\":\"m\",\"usage\":{\"input_tokens\":10,\"cache_creation_input_tokens\":20,\"cache_read_input_tokens\":300,\"output_tokens\":1}}}\n\nevent: ping\ndata: {\"type\":\"ping\"}\n\nevent: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"tool_use\",\"id\":\"toolu_1\",\"name\":\"Bash\",\"input\":{}}}\n\nevent: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":1,\"content_block\":{\"type\":\"tool_use\",\"id\":\"toolu_2\",\"name\":\"Read\"}}\n\nevent: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"tool_use\",\"stop_sequence\":null},\"usage\":{\"output_tokens\":42}}\n\n";
    let facts = facts(Messages, stream);
    let usage =
        Usage { input_tokens: 330, output_tokens: 42, cached_tokens: Some(300), reasoning_tokens: None };
    assert_eq!(facts.usage, Some(usage));
    assert_eq!(facts.tool_calls, [call(0, 0, "toolu_1", "Bash"), call(0, 1, "toolu_2", "Read")]);
    assert_eq!(facts.finish_reason(), Some(FinishReason::ToolCalls));
    assert!(!facts.complete, "no message_stop came");
}

#[test]
fn a_responses_stream_of_vllm() {
    let facts = facts(Responses, VLLM_RESPONSES);
    let usage =
        Usage { input_tokens: 14, output_tokens: 4, cached_tokens: Some(0), reasoning_tokens: Some(0) };
    assert_eq!(facts.usage, Some(usage));
    // The event is `response.completed`, the status in it `incomplete`.
    assert_eq!(facts.choices, [ended(0, FinishReason::Length, "max_output_tokens")]);
    assert_eq!(facts.response_id.as_deref(), Some("resp_9f8194b4eaa01809"));
    assert!(facts.complete && facts.first_content && facts.tool_calls.is_empty());
}

fn response_event(kind: &str, rest: &str) -> String {
    format!("event: {kind}\ndata: {{{rest},\"type\":\"{kind}\"}}\n\n")
}

#[test]
fn function_calls_of_a_responses_stream_count_once() {
    let item = |id: &str, call_id: &str| {
        format!(
            "{{\"id\":\"{id}\",\"type\":\"function_call\",\"call_id\":\"{call_id}\",\"name\":\"f\",\"arguments\":\"{{}}\"}}"
        )
    };
    let stream = [
        response_event(
            "response.created",
            "\"response\":{\"id\":\"resp_1\",\"status\":\"in_progress\",\"error\":null}",
        ),
        response_event(
            "response.output_item.added",
            &format!("\"output_index\":1,\"item\":{}", item("fc_1", "call_1")),
        ),
        response_event(
            "response.output_item.done",
            &format!("\"output_index\":1,\"item\":{}", item("fc_1", "call_1")),
        ),
        response_event(
            "response.output_item.added",
            &format!("\"output_index\":2,\"item\":{}", item("fc_2", "call_x")),
        ),
        response_event(
            "response.output_item.done",
            &format!("\"output_index\":2,\"item\":{}", item("fc_2", "call_2")),
        ),
        response_event(
            "response.output_item.done",
            "\"output_index\":3,\"item\":{\"type\":\"web_search_call\",\"id\":\"ws\"}",
        ),
        response_event(
            "response.completed",
            &format!(
                "\"response\":{{\"status\":\"completed\",\"output\":[{},{}]}}",
                item("fc_3", "call_3"),
                item("fc_4", "call_4")
            ),
        ),
    ]
    .concat();
    let facts = facts(Responses, stream.as_bytes());
    assert_eq!(facts.tool_calls, [call(0, 0, "call_1", "f"), call(0, 1, "call_2", "f")]);
    assert_eq!((facts.tool_call_count, facts.finish_reason()), (2, Some(FinishReason::ToolCalls)));
    // An engine that sends no item events tells at the end.
    let last = response_event(
        "response.completed",
        &format!("\"response\":{{\"status\":\"completed\",\"output\":[{}]}}", item("a", "b")),
    );
    assert_eq!(self::facts(Responses, last.as_bytes()).tool_calls, [call(0, 0, "b", "f")]);
}

#[test]
fn ends_and_failures_of_a_responses_stream() {
    let end = |kind: &str, response: &str| {
        facts(Responses, response_event(kind, &format!("\"response\":{{{response}}}")).as_bytes())
    };
    let incomplete = end(
        "response.incomplete",
        "\"status\":\"incomplete\",\"incomplete_details\":{\"reason\":\"content_filter\"}",
    );
    assert_eq!(incomplete.finish_reason(), Some(FinishReason::ContentFilter));
    assert!(incomplete.succeeded());
    let failed = end(
        "response.failed",
        "\"status\":\"failed\",\"error\":{\"code\":\"server_error\",\"message\":\"secret\"}",
    );
    assert_eq!(failed.error, Some(AnswerError { kind: None, code: Some("server_error".to_owned()) }));
    assert!(failed.complete && !failed.succeeded());
    assert_eq!(failed.finish_reason(), Some(FinishReason::Error));
    let error = facts(Responses, response_event("error", "\"code\":\"x\",\"message\":\"secret\"").as_bytes());
    assert_eq!(error.error, Some(AnswerError { kind: None, code: Some("x".to_owned()) }));
    assert!(
        !facts(
            Responses,
            response_event("response.in_progress", "\"response\":{\"status\":\"in_progress\"}").as_bytes()
        )
        .complete
    );
}

/// I-DIA-ANS-3.
#[test]
fn parallel_tool_calls_are_told_apart_by_id_not_by_index() {
    let parallel = facts(Chat, TOOLS_PARALLEL);
    assert_eq!(parallel.tool_calls, [call(0, 0, "call_a", "bash"), call(0, 1, "call_b", "read")]);
    assert_eq!((parallel.tool_call_count, parallel.finish_reason()), (2, Some(FinishReason::ToolCalls)));
    let same_index = facts(Chat, TOOLS_SAME_INDEX);
    assert_eq!(same_index.tool_calls, [call(0, 0, "call_a", "add"), call(0, 1, "call_b", "now")]);
}

fn deltas(pieces: &[&str]) -> String {
    pieces
        .iter()
        .map(|calls| {
            format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"tool_calls\":[{calls}]}}}}]}}\n\n")
        })
        .collect()
}

#[test]
fn tool_calls_of_engines_with_odd_ids() {
    let count = |pieces: &[&str]| facts(Chat, deltas(pieces).as_bytes()).tool_call_count;
    // The same id on every piece.
    assert_eq!(
        count(&[
            r#"{"index":0,"id":"a","function":{"name":"f"}}"#,
            r#"{"index":0,"id":"a","function":{"arguments":"x"}}"#
        ]),
        1
    );
    // A new id on every piece, the name only on the first.
    assert_eq!(
        count(&[
            r#"{"index":0,"id":"a","function":{"name":"f"}}"#,
            r#"{"index":0,"id":"b","function":{"name":null,"arguments":"x"}}"#
        ]),
        1
    );
    // No ids: the index decides, and within one delta the name.
    assert_eq!(
        count(&[
            r#"{"index":0,"function":{"name":"f"}}"#,
            r#"{"index":0,"function":{"name":"f"}}"#,
            r#"{"index":1,"function":{"name":"f"}}"#
        ]),
        2
    );
    assert_eq!(count(&[r#"{"index":0,"function":{"name":"f"}},{"index":0,"function":{"name":"g"}}"#]), 2);
    // Neither ids nor indices.
    assert_eq!(count(&[r#"{"function":{"name":"f"}},{"function":{"name":"g"}}"#]), 2);
    // The name comes later.
    let late = facts(
        Chat,
        deltas(&[r#"{"index":0,"id":"a"}"#, r#"{"index":0,"function":{"name":"f"}}"#]).as_bytes(),
    );
    assert_eq!(late.tool_calls, [call(0, 0, "a", "f")]);
    // More than are kept are counted.
    let many: Vec<String> = (0..300)
        .map(|n| format!("{{\"index\":{n},\"id\":\"c{n}\",\"function\":{{\"name\":\"f\"}}}}"))
        .collect();
    let many = facts(Chat, deltas(&many.iter().map(String::as_str).collect::<Vec<_>>()).as_bytes());
    assert_eq!((many.tool_call_count, many.tool_calls.len()), (300, 256));
}

#[test]
fn two_choices_end_one_by_one() {
    let facts = facts(Chat, TOOLS_TWO_CHOICES);
    let choices = [ended(0, FinishReason::ToolCalls, "tool_calls"), ended(1, FinishReason::Stop, "stop")];
    assert_eq!(facts.choices, choices);
    assert_eq!(facts.tool_calls, [call(0, 0, "call_c", "f")]);
    // Cut behind the end of choice 1, with choice 0 open or not yet seen.
    let text = std::str::from_utf8(TOOLS_TWO_CHOICES).expect("utf-8");
    let cut = text.find("call_c").and_then(|at| text[..at].rfind("data:")).expect("event");
    assert!(!self::facts(Chat, &TOOLS_TWO_CHOICES[..cut]).complete);
    let only_one = b"data: {\"choices\":[{\"index\":1,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
    let observed = |observer: StreamObserver| observe_pieces(observer, [only_one.as_slice()]).1.complete;
    assert!(!observed(StreamObserver::new(Chat, Keep).expecting(2)));
    assert!(observed(StreamObserver::new(Chat, Keep)), "`[DONE]` may be missing");
}

#[test]
fn an_error_event_of_the_engine_is_an_end_but_no_success() {
    let facts = facts(Chat, ERROR);
    let error = AnswerError { kind: Some("InternalServerError".to_owned()), code: Some("500".to_owned()) };
    assert_eq!(facts.error, Some(error));
    assert!(facts.complete && !facts.succeeded());
    assert_eq!(facts.finish_reason(), Some(FinishReason::Error));
    let messages = b"event: error\ndata: {\"type\": \"error\", \"error\": {\"type\": \"overloaded_error\", \"message\": \"busy\"}}\n\n";
    let facts = self::facts(Messages, messages);
    assert_eq!(facts.error.and_then(|error| error.kind).as_deref(), Some("overloaded_error"));
    let bare =
        b"data: {\"object\":\"error\",\"message\":\"m\",\"type\":\"BadRequestError\",\"code\":400}\n\n";
    assert_eq!(self::facts(Chat, bare).error.and_then(|error| error.code).as_deref(), Some("400"));
    assert!(self::facts(Chat, b"data: {\"error\":null,\"choices\":[]}\n\n").error.is_none());
}

#[test]
fn the_first_content_is_not_the_role() {
    let role = b"data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n";
    assert!(!facts(Chat, role).first_content);
    assert!(facts(Chat, REASONING).first_content);
    let reasoning = b"data: {\"choices\":[{\"index\":0,\"delta\":{\"reasoning\":\"t\"}}]}\n\n";
    assert!(facts(Chat, reasoning).first_content);
    assert!(facts(Completions, b"data: {\"choices\":[{\"index\":0,\"text\":\"t\"}]}\n\n").first_content);
}

#[test]
fn token_ids_are_taken_where_the_client_asked_for_them() {
    let stream = b"data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\"}}],\"prompt_token_ids\":[7,8]}\n\ndata: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"},\"token_ids\":[1,2]},{\"index\":1,\"delta\":{},\"token_ids\":[9]}]}\n\ndata: {\"choices\":[{\"index\":0,\"delta\":{},\"token_ids\":[3],\"finish_reason\":\"stop\",\"stop_reason\":151645}]}\n\n";
    let facts = facts(Chat, stream);
    assert_eq!(facts.prompt_token_ids, Some(vec![7, 8]));
    assert_eq!(facts.output_token_ids, [1, 2, 3]);
    assert_eq!(facts.choices[0].stop_reason.as_deref(), Some("151645"));
    assert_eq!(self::facts(Chat, VLLM_CHAT).prompt_token_ids, None);
}

/// I-DIA-ANS-1.
#[test]
fn only_the_usage_chunk_is_taken_out() {
    let text = std::str::from_utf8(VLLM_CHAT).expect("utf-8");
    let start = text.find("data: {\"id\":\"chatcmpl-ab2cf75ba97dcbec\",\"object\":\"chat.completion.chunk\",\"created\":1795960333,\"model\":\"tiny\",\"choices\":[],").expect("usage chunk");
    let end = text.find("data: [DONE]").expect("done");
    // Without being asked for usage this engine ends the chunk before with the fingerprint: seen live.
    let fingerprint = ",\"system_fingerprint\":\"vllm-0.32.0-d1aaad67\"}\n\n";
    let before = text[..start].strip_suffix("}\n\n").expect("the end of the last chunk");
    let want = format!("{before}{fingerprint}{}", &text[end..]);
    assert_eq!(filtered(DropChunk, VLLM_CHAT), want);
    assert_eq!(filtered(DropChunkAndNulls, VLLM_CHAT), want);
    let (_, facts) = observe_pieces(StreamObserver::new(Chat, DropChunk), [VLLM_CHAT]);
    assert_eq!(facts, self::facts(Chat, VLLM_CHAT), "the facts do not depend on the filter");
}

#[test]
fn a_fingerprint_goes_back_to_the_chunk_that_ended_the_answer() {
    let end =
        |index: u32| format!("data: {{\"choices\":[{{\"index\":{index},\"finish_reason\":\"stop\"}}]}}\n\n");
    let usage = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1},\"system_fingerprint\":\"f\"}\n\n";
    let marked = |event: String| event.replace("}\n\n", ",\"system_fingerprint\":\"f\"}\n\n");
    let done = "data: [DONE]\n\n";
    let sent = |choices: u32, stream: &str| {
        let mut observer = StreamObserver::new(Chat, DropChunk).expecting(choices);
        let mut out = Vec::new();
        for byte in stream.as_bytes() {
            observer.push(Bytes::copy_from_slice(&[*byte]), &mut out);
        }
        observer.finish(&mut out);
        String::from_utf8(out.concat()).expect("utf-8")
    };
    assert_eq!(sent(1, &[&end(0), usage, done].concat()), marked(end(0)) + done);
    // With two choices it belongs to the one that ended last.
    let two = sent(2, &[&end(1), &end(0), usage, done].concat());
    assert_eq!(two, end(1) + &marked(end(0)) + done);
    // It goes nowhere when the chunk has one, and nothing is lost when no usage chunk comes.
    let own = marked(end(0)).replace("\"f\"", "\"g\"");
    assert_eq!(sent(1, &[&own, usage, done].concat()), own.clone() + done);
    assert_eq!(sent(1, &[&end(0), done].concat()), end(0) + done);
    assert_eq!(sent(1, &end(0)), end(0));
    assert_eq!(sent(1, end(0).trim_end()), end(0).trim_end());
}

#[test]
fn usage_that_belongs_to_the_answer_stays() {
    for stream in [
        // On a chunk with choices (continuous usage; the finish chunk of some services).
        "data: {\"choices\":[{\"index\":0,\"delta\":{}}],\"usage\":{\"prompt_tokens\":1}}\n\n",
        // Empty choices without usage: Azure's filter results, SGLang's extension chunk.
        "data: {\"choices\":[],\"prompt_filter_results\":[]}\n\n",
        "data: {\"choices\":[],\"usage\":null,\"sglext\":{}}\n\n",
        // No choices at all, an error, something that is no JSON.
        "data: {\"usage\":{\"prompt_tokens\":1}}\n\n",
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1},\"error\":{}}\n\n",
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1}\n\n",
        ": comment\n\n\n\nevent: x\n\n",
    ] {
        assert_eq!(filtered(DropChunk, stream.as_bytes()), stream);
    }
    // Anthropic's and Responses' streams have no such chunk and are never filtered.
    let chunk: &[u8] = b"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1}}\n\n";
    for dialect in [Messages, Responses] {
        assert_eq!(observe_pieces(StreamObserver::new(dialect, DropChunk), [chunk]).0, chunk);
    }
}

#[test]
fn the_usage_chunk_is_taken_out_in_any_form() {
    let chunk = "{\"usage\" : {\"prompt_tokens\":1} , \"choices\" : [ ]}";
    for end in ["\n", "\r\n", "\r"] {
        let stream =
            format!("data: a{end}{end}event: x{end}data: {chunk}{end}{end}: c{end}data: [DONE]{end}{end}");
        let want = format!("data: a{end}{end}: c{end}data: [DONE]{end}{end}");
        assert_eq!(filtered(DropChunk, stream.as_bytes()), want, "{end:?}");
    }
    let unended = format!("data: [DONE]\n\ndata: {chunk}");
    assert_eq!(filtered(DropChunk, unended.as_bytes()), "data: [DONE]\n\n");
}

#[test]
fn nulls_that_asking_brought_are_taken_out_on_request_only() {
    let stream = "data: {\"id\":\"a\",\"choices\":[{\"usage\":null}],\"usage\":null}\n\ndata: {\"usage\" : null , \"choices\":[{}]}\n\ndata: {\"usage\":null}\n\nevent: e\ndata: {\"choices\":[{}],\"usage\":null,\"x\":1}\r\n\r\n";
    assert_eq!(filtered(DropChunk, stream.as_bytes()), stream);
    let want = "data: {\"id\":\"a\",\"choices\":[{\"usage\":null}]}\n\ndata: { \"choices\":[{}]}\n\ndata: {}\n\nevent: e\ndata: {\"choices\":[{}],\"x\":1}\r\n\r\n";
    assert_eq!(filtered(DropChunkAndNulls, stream.as_bytes()), want);
}

#[test]
fn an_event_passes_at_its_own_end_while_filtering_and_at_once_without() {
    let sent = |filter| {
        let mut observer = StreamObserver::new(Chat, filter);
        let mut lengths = Vec::new();
        for piece in
            ["data: {\"choices\":[{\"in", "dex\":0}]}\n\ndata: {\"ch", "oices\":[]}\n", "\n", ": alive\n"]
        {
            let mut out = Vec::new();
            observer.push(Bytes::from_static(piece.as_bytes()), &mut out);
            lengths.push(out.concat().len());
        }
        lengths
    };
    assert_eq!(sent(Keep), [22, 21, 11, 1, 8]);
    assert_eq!(sent(DropChunk), [0, 33, 0, 22, 8]);
}

/// I-DIA-2, I-DIA-SSE-4.
#[test]
fn an_event_too_large_to_read_passes_and_is_no_cut_when_it_was_the_last() {
    let limit = tandem_dialect::limits::SSE_EVENT_BYTES_MAX;
    let stream = [
        b"event: response.completed\ndata: {\"type\":\"response.completed\",\"x\":\"".as_slice(),
        &vec![b'x'; limit],
        b"\"}\n\n",
    ]
    .concat();
    let observer = StreamObserver::new(Responses, Keep);
    let (bytes, facts) = observe_pieces(observer, stream.chunks(1 << 20));
    assert!(bytes == stream, "bytes changed");
    assert_eq!((facts.oversized_events, facts.complete), (1, true));
    let chat = [b"data: a\n\ndata: ".as_slice(), &vec![b'x'; limit], b"\n\ndata: [DONE]\n\n"].concat();
    let (bytes, facts) = observe_pieces(StreamObserver::new(Chat, DropChunk), chat.chunks(1 << 20));
    assert!(bytes == chat, "bytes changed");
    assert_eq!((facts.oversized_events, facts.complete), (1, true));
}

/// I-DIA-EVT-3.
#[test]
fn the_error_event_after_a_cut_fits_to_what_was_sent() {
    let mut observer = StreamObserver::new(Responses, Keep);
    let mut out = Vec::new();
    let text = std::str::from_utf8(VLLM_RESPONSES).expect("utf-8");
    // Cut inside the event with number 5.
    let cut = text.find("44lass").expect("delta");
    observer.push(Bytes::copy_from_slice(&VLLM_RESPONSES[..cut]), &mut out);
    observer.finish(&mut out);
    assert!(!observer.facts().complete);
    let event = observer.error_event(
        ErrorKind::UpstreamFailed,
        "the engine closed the connection",
        None,
        1_700_000_000,
    );
    let event = String::from_utf8(event).expect("utf-8");
    assert!(event.starts_with(
        "\n\nevent: response.failed\ndata: {\"type\":\"response.failed\",\"sequence_number\":5,"
    ));
    assert!(event.contains("\"id\":\"resp_9f8194b4eaa01809\"") && event.contains("\"model\":\"tiny\""));
    // A cut between events needs no empty line.
    let mut observer = StreamObserver::new(Chat, Keep);
    observer.push(Bytes::from_static(b"data: {\"id\":\"c\"}\n\n"), &mut out);
    observer.finish(&mut out);
    assert!(observer.error_event(ErrorKind::UpstreamFailed, "x", None, 0).starts_with(b"data: {\"error\":"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// I-DIA-1, I-DIA-3, I-DIA-ANS-1.
    #[test]
    fn how_a_stream_is_cut_changes_neither_bytes_nor_facts(
        which in 0..8_usize,
        mut cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
    ) {
        let (dialect, stream) = [
            (Chat, VLLM_CHAT), (Messages, VLLM_MESSAGES), (Responses, VLLM_RESPONSES), (Chat, UTF8), (Chat, ERROR),
            (Chat, TOOLS_PARALLEL), (Chat, TOOLS_TWO_CHOICES), (Chat, REASONING),
        ][which];
        cuts.sort_by_key(|cut| cut.index(stream.len()));
        let mut pieces = Vec::new();
        let mut from = 0;
        for cut in cuts {
            let to = cut.index(stream.len());
            pieces.push(&stream[from..to]);
            from = to;
        }
        pieces.push(&stream[from..]);
        for filter in [Keep, DropChunk] {
            let whole = observe_pieces(StreamObserver::new(dialect, filter), [stream]);
            let cut = observe_pieces(StreamObserver::new(dialect, filter), pieces.iter().copied());
            prop_assert_eq!(&cut, &whole);
        }
    }
}

/// How an answer begins, as the captured streams have it, however they are cut.
#[test]
fn the_beginning_of_the_text_is_kept() {
    for (dialect, stream, start) in [
        (Chat, VLLM_CHAT, "\n\n\n\n"),
        (Messages, VLLM_MESSAGES, "lataitinglass"),
        (Responses, VLLM_RESPONSES, "Reser44lassAdd"),
    ] {
        let whole = facts(dialect, stream);
        assert_eq!((String::from_utf8_lossy(&whole.text_start).as_ref(), whole.reasoned), (start, false));
        let (_, pieces) = observe_pieces(StreamObserver::new(dialect, Keep), stream.chunks(7));
        assert_eq!(pieces.text_start, whole.text_start);
    }
    assert!(facts(Chat, REASONING).reasoned);
    let long = format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{}\"}}}}]}}\n\n", "ab".repeat(40));
    assert_eq!(facts(Chat, long.as_bytes()).text_start, "ab".repeat(32).as_bytes());
}
