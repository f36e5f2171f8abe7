//! Events that the gateway itself puts into a stream: keep-alives of a held turn, and errors after an early 200
//! or after an engine cut its stream.
//!
//! - Inputs: the dialect, the kind of error, where the stream stands. Output: bytes of one event (with `[DONE]`
//!   after it on chat and completions, as vLLM ends a failed stream).
//! - Invariants: I-DIA-EVT-1 keep-alives are protocol events, not comments: Codex, Qwen Code and OpenClaw do
//!   not count comments as signs of life. I-DIA-EVT-2 an error that a retry may cure is written in the form on
//!   which that dialect's harnesses were seen to try again: Messages `overloaded_error`; Responses
//!   `response.failed` with code `rate_limit_exceeded` and "try again in Ns" in the text (Codex; its
//!   `server_is_overloaded` ends the run); chat an `error` chunk whose text says "overloaded" (Pi and others
//!   match on the text). I-DIA-EVT-3 an event that follows a cut one starts with an empty line, so that the
//!   torn event ends before it.
//! - Sources: Claude Code 2.1.332, Codex 0.171.0, OpenCode 1.18.33, Kimi Code 2.1.0, Qwen Code 0.24.4 and Pi
//!   1.6.0 as measured under early 200s and injected errors.

use tandem_types::Dialect;

use crate::errors::{ErrorKind, anthropic_body, openai_object};
use crate::json::write_text;

/// Where a stream stands: what an event of ours must fit to. The default is a stream that has sent nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StreamPosition {
    /// Id of the answer so far (the engine's), absent before its first event.
    pub response_id: Option<String>,
    /// Model named in the answer (before its first event: the one asked for).
    pub model: Option<String>,
    /// Unix seconds for `created`.
    pub created_unix_s: u64,
    /// Responses: the `sequence_number` that comes next.
    pub next_sequence: u64,
    /// The last bytes sent are not the end of an event.
    pub inside_event: bool,
}

/// The event that ends a stream with an error. `retry_after_s` is told where the dialect has a way to say so and
/// matters for kinds with [`ErrorKind::retry_after`].
#[must_use]
pub fn stream_error(
    dialect: Dialect,
    kind: ErrorKind,
    message: &str,
    retry_after_s: Option<u32>,
    position: &StreamPosition,
) -> Vec<u8> {
    let mut out = if position.inside_event { b"\n\n".to_vec() } else { Vec::new() };
    let message = spoken(kind, message, retry_after_s);
    match dialect {
        Dialect::Messages => {
            out.extend_from_slice(b"event: error\ndata: ");
            out.extend_from_slice(&anthropic_body(kind, &message));
            out.extend_from_slice(b"\n\n");
        }
        Dialect::Chat | Dialect::Completions => {
            out.extend_from_slice(b"data: {\"error\":");
            out.extend_from_slice(&openai_object(kind, &message));
            out.extend_from_slice(b"}\n\ndata: [DONE]\n\n");
        }
        Dialect::Responses => {
            let code = if retryable(kind) { "rate_limit_exceeded" } else { "server_error" };
            out.extend_from_slice(
                b"event: response.failed\ndata: {\"type\":\"response.failed\",\"sequence_number\":",
            );
            out.extend_from_slice(position.next_sequence.to_string().as_bytes());
            out.extend_from_slice(b",\"response\":");
            response_object(&mut out, position, "failed", Some((code, &message)));
            out.extend_from_slice(b"}\n\n");
        }
    }
    out
}

/// A protocol event without meaning that keeps a held turn's connection alive after an early 200.
#[must_use]
pub fn keep_alive(dialect: Dialect, position: &StreamPosition) -> Vec<u8> {
    let mut out = Vec::with_capacity(192);
    match dialect {
        Dialect::Messages => out.extend_from_slice(b"event: ping\ndata: {\"type\":\"ping\"}\n\n"),
        Dialect::Chat | Dialect::Completions => {
            let chat = dialect == Dialect::Chat;
            out.extend_from_slice(b"data: {\"id\":");
            let fresh = if chat { "chatcmpl-wait" } else { "cmpl-wait" };
            write_text(&mut out, position.response_id.as_deref().unwrap_or(fresh));
            out.extend_from_slice(b",\"object\":");
            write_text(&mut out, if chat { "chat.completion.chunk" } else { "text_completion" });
            out.extend_from_slice(b",\"created\":");
            out.extend_from_slice(position.created_unix_s.to_string().as_bytes());
            out.extend_from_slice(b",\"model\":");
            write_text(&mut out, position.model.as_deref().unwrap_or_default());
            out.extend_from_slice(b",\"choices\":[{\"index\":0,");
            out.extend_from_slice(if chat { b"\"delta\":{}".as_slice() } else { b"\"text\":\"\"" });
            out.extend_from_slice(b",\"finish_reason\":null}]}\n\n");
        }
        Dialect::Responses => {
            out.extend_from_slice(
                b"event: response.in_progress\ndata: {\"type\":\"response.in_progress\",\"sequence_number\":",
            );
            out.extend_from_slice(position.next_sequence.to_string().as_bytes());
            out.extend_from_slice(b",\"response\":");
            response_object(&mut out, position, "in_progress", None);
            out.extend_from_slice(b"}\n\n");
        }
    }
    out
}

const fn retryable(kind: ErrorKind) -> bool {
    kind.retry_after()
}

/// The message with the words on which harnesses that read the text decide to try again.
fn spoken(kind: ErrorKind, message: &str, retry_after_s: Option<u32>) -> String {
    let class = match kind {
        ErrorKind::RateLimited => "rate limit: ",
        ErrorKind::QueueFull | ErrorKind::HoldExpired | ErrorKind::NoWorker | ErrorKind::ShuttingDown => {
            "overloaded: "
        }
        ErrorKind::UpstreamFailed | ErrorKind::UpstreamTimeout | ErrorKind::Internal => "server error: ",
        _ => "",
    };
    match retry_after_s {
        Some(seconds) if retryable(kind) => format!("{class}{message}; try again in {seconds}s"),
        _ => format!("{class}{message}"),
    }
}

fn response_object(out: &mut Vec<u8>, position: &StreamPosition, status: &str, error: Option<(&str, &str)>) {
    out.extend_from_slice(b"{\"id\":");
    write_text(out, position.response_id.as_deref().unwrap_or("resp_wait"));
    out.extend_from_slice(b",\"object\":\"response\",\"created_at\":");
    out.extend_from_slice(position.created_unix_s.to_string().as_bytes());
    out.extend_from_slice(b",\"status\":");
    write_text(out, status);
    out.extend_from_slice(b",\"error\":");
    match error {
        Some((code, message)) => {
            out.extend_from_slice(b"{\"code\":");
            write_text(out, code);
            out.extend_from_slice(b",\"message\":");
            write_text(out, message);
            out.push(b'}');
        }
        None => out.extend_from_slice(b"null"),
    }
    out.extend_from_slice(b",\"incomplete_details\":null,\"model\":");
    write_text(out, position.model.as_deref().unwrap_or_default());
    out.extend_from_slice(b",\"output\":[],\"usage\":null}");
}
