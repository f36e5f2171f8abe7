use serde_json::{Value, json};
use tandem_dialect::{
    AnswerFacts, ErrorKind, SseParser, StreamObserver, StreamPosition, UsageFilter, error_body, keep_alive,
    stream_error,
};
use tandem_types::Dialect;

use Dialect::{Chat, Completions, Messages, Responses};

const ALL: [ErrorKind; 18] = [
    ErrorKind::BadRequest,
    ErrorKind::Unauthorized,
    ErrorKind::Forbidden,
    ErrorKind::NotFound,
    ErrorKind::ModelNotFound,
    ErrorKind::MethodNotAllowed,
    ErrorKind::TooLarge,
    ErrorKind::UnsupportedMedia,
    ErrorKind::UpgradeRequired,
    ErrorKind::RateLimited,
    ErrorKind::QueueFull,
    ErrorKind::HoldExpired,
    ErrorKind::NoWorker,
    ErrorKind::ShuttingDown,
    ErrorKind::NotImplemented,
    ErrorKind::UpstreamFailed,
    ErrorKind::UpstreamTimeout,
    ErrorKind::Internal,
];

fn json_of(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(bytes)))
}

/// (event, data) of each event.
fn events(bytes: &[u8]) -> Vec<(String, String)> {
    let mut parser = SseParser::default();
    let mut events = Vec::new();
    parser.push(bytes, |event| {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("utf-8");
        events.push((text(event.event), text(event.data)));
    });
    let before = events.len();
    parser.finish(|_| panic!("unfinished event"));
    assert_eq!(events.len(), before);
    events
}

#[test]
fn bodies_in_each_dialects_form() {
    let nasty = "model \"a\\b\"\n\u{1}é";
    let answer = error_body(Some(Chat), ErrorKind::ModelNotFound, nasty);
    assert_eq!(answer.status, 404);
    let want = json!({"error": {"message": nasty, "type": "invalid_request_error", "param": "model", "code": "model_not_found"}});
    assert_eq!(json_of(&answer.body), want);
    for dialect in [Some(Completions), Some(Responses), None] {
        assert_eq!(error_body(dialect, ErrorKind::ModelNotFound, nasty), answer);
    }
    let answer = error_body(Some(Messages), ErrorKind::HoldExpired, nasty);
    assert_eq!(answer.status, 503);
    assert_eq!(
        json_of(&answer.body),
        json!({"type": "error", "error": {"type": "overloaded_error", "message": nasty}})
    );
}

/// I-DIA-ERR-1, I-DIA-ERR-2.
#[test]
fn statuses_are_those_that_harnesses_act_on() {
    let statuses = ALL.map(ErrorKind::status);
    assert_eq!(
        statuses,
        [400, 401, 403, 404, 404, 405, 413, 415, 426, 429, 503, 503, 503, 503, 501, 502, 504, 500]
    );
    for kind in ALL {
        assert_eq!(kind.retry_after(), matches!(kind.status(), 429 | 503), "{kind:?}");
        for dialect in [None, Some(Chat), Some(Completions), Some(Responses), Some(Messages)] {
            let body = String::from_utf8(error_body(dialect, kind, "x").body).expect("utf-8");
            // Codex gives up on these.
            assert!(!body.contains("server_is_overloaded") && !body.contains("slow_down"), "{body}");
        }
    }
    let names: std::collections::BTreeSet<_> = ALL.map(ErrorKind::name).into();
    assert_eq!(names.len(), ALL.len());
}

/// I-DIA-EVT-2.
#[test]
fn errors_in_a_stream_make_the_harness_try_again() {
    let position = StreamPosition { created_unix_s: 1_700_000_000, ..StreamPosition::default() };
    let error =
        |dialect| events(&stream_error(dialect, ErrorKind::HoldExpired, "no room", Some(3), &position));

    let [(event, data)] = &error(Messages)[..] else { panic!("one event") };
    assert_eq!(event, "error");
    assert_eq!(json_of(data.as_bytes())["error"]["type"], "overloaded_error");

    let [(event, data)] = &error(Responses)[..] else { panic!("one event") };
    let data = json_of(data.as_bytes());
    assert_eq!((event.as_str(), &data["type"]), ("response.failed", &json!("response.failed")));
    assert_eq!(data["response"]["status"], "failed");
    assert_eq!(data["response"]["error"]["code"], "rate_limit_exceeded");
    let message = data["response"]["error"]["message"].as_str().expect("message");
    assert!(message.contains("try again in 3s"), "{message}");

    for dialect in [Chat, Completions] {
        let [(_, data), (_, done)] = &error(dialect)[..] else { panic!("two events") };
        let message = json_of(data.as_bytes())["error"]["message"].as_str().expect("message").to_owned();
        assert!(message.contains("overloaded") && message.contains("no room"), "{message}");
        assert_eq!(done, "[DONE]");
    }
}

#[test]
fn a_cut_stream_is_a_server_error_that_says_nothing_of_waiting() {
    let position = StreamPosition { inside_event: true, next_sequence: 9, ..StreamPosition::default() };
    for dialect in [Chat, Completions, Messages, Responses] {
        let bytes = stream_error(dialect, ErrorKind::UpstreamFailed, "engine gone", Some(3), &position);
        assert!(bytes.starts_with(b"\n\n"), "the torn event is closed first");
        let text = String::from_utf8(bytes).expect("utf-8");
        assert!(text.contains("server error: engine gone") && !text.contains("try again"), "{text}");
        assert!(!text.contains("rate_limit"), "{text}");
    }
}

#[test]
fn our_own_events_are_read_as_what_they_are() {
    let position = StreamPosition { model: Some("m\"".to_owned()), ..StreamPosition::default() };
    for dialect in [Chat, Completions, Responses, Messages] {
        let observed = |bytes: Vec<u8>| -> AnswerFacts {
            let mut observer = StreamObserver::new(dialect, UsageFilter::Keep);
            observer.push(bytes.into(), &mut Vec::new());
            observer.into_facts()
        };
        let error = observed(stream_error(dialect, ErrorKind::NoWorker, "x", None, &position));
        assert!(error.complete && error.error.is_some(), "{dialect:?}");
        let alive = observed(keep_alive(dialect, &position));
        assert!(!alive.complete && !alive.first_content && alive.error.is_none(), "{dialect:?}");
    }
}

/// I-DIA-EVT-1.
#[test]
fn keep_alives_are_protocol_events() {
    let position =
        StreamPosition { model: Some("m".to_owned()), created_unix_s: 7, ..StreamPosition::default() };
    assert_eq!(
        events(&keep_alive(Messages, &position)),
        [("ping".to_owned(), "{\"type\":\"ping\"}".to_owned())]
    );
    let [(_, data)] = &events(&keep_alive(Chat, &position))[..] else { panic!("one event") };
    let want = json!({"id": "chatcmpl-wait", "object": "chat.completion.chunk", "created": 7, "model": "m",
        "choices": [{"index": 0, "delta": {}, "finish_reason": null}]});
    assert_eq!(json_of(data.as_bytes()), want);
    let [(event, data)] = &events(&keep_alive(Responses, &position))[..] else { panic!("one event") };
    assert_eq!(event, "response.in_progress");
    let data = json_of(data.as_bytes());
    assert_eq!(
        (&data["type"], &data["response"]["status"]),
        (&json!("response.in_progress"), &json!("in_progress"))
    );
}
