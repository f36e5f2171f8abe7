//! Error answers in each dialect's own form.
//!
//! - Inputs: the dialect, what went wrong, a text for people. Output: status and JSON body.
//! - Invariants: I-DIA-ERR-1 a kind has one status in all dialects. I-DIA-ERR-2 no code is used that a harness
//!   is known to take as fatal although a retry would help (Codex: `server_is_overloaded`, `slow_down`).
//! - Deliberately absent: `Retry-After` (a header: the gateway sets it wherever [`ErrorKind::retry_after`]),
//!   and errors of engines, which pass unchanged.
//! - Sources: error bodies of vLLM 0.32.0; Claude Code 2.1.332, Codex 0.171.0 and Pi 1.6.0 as measured under
//!   injected faults.

use tandem_types::Dialect;

use crate::json::write_text;

/// What went wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ErrorKind {
    /// The body cannot be read or routed.
    BadRequest,
    /// No or a wrong key.
    Unauthorized,
    /// The key does not allow this.
    Forbidden,
    /// No such path.
    NotFound,
    /// No engine serves the model.
    ModelNotFound,
    /// The path has no such method.
    MethodNotAllowed,
    /// The body is larger than the limit.
    TooLarge,
    /// The body comes in a form (content type, content encoding) that is not read here.
    UnsupportedMedia,
    /// Plain HTTP must be used instead of a WebSocket.
    UpgradeRequired,
    /// The client's own rate or concurrency limit.
    RateLimited,
    /// Too many turns wait already.
    QueueFull,
    /// A held turn reached the end of its bounded wait.
    HoldExpired,
    /// No worker is ready.
    NoWorker,
    /// The server is shutting down.
    ShuttingDown,
    /// The route or feature is known but the engine lacks it.
    NotImplemented,
    /// The engine failed, closed the connection or answered with garbage.
    UpstreamFailed,
    /// The engine took too long.
    UpstreamTimeout,
    /// A fault of our own.
    Internal,
}

/// An HTTP answer that says no.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorAnswer {
    /// HTTP status.
    pub status: u16,
    /// JSON body (`content-type: application/json`).
    pub body: Vec<u8>,
}

/// The words of one kind: status, Anthropic type, OpenAI type, OpenAI code.
struct Words {
    status: u16,
    anthropic: &'static str,
    openai: &'static str,
    code: Option<&'static str>,
}

impl ErrorKind {
    /// HTTP status.
    #[must_use]
    pub const fn status(self) -> u16 {
        self.words().status
    }

    /// Whether the answer must carry a whole-second `Retry-After`: without one Codex does not try again after a
    /// 429.
    #[must_use]
    pub const fn retry_after(self) -> bool {
        matches!(
            self,
            Self::RateLimited | Self::QueueFull | Self::HoldExpired | Self::NoWorker | Self::ShuttingDown
        )
    }

    /// A short fixed name for metrics and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::BadRequest => "bad_request",
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::NotFound => "not_found",
            Self::ModelNotFound => "model_not_found",
            Self::MethodNotAllowed => "method_not_allowed",
            Self::TooLarge => "too_large",
            Self::UnsupportedMedia => "unsupported_media",
            Self::UpgradeRequired => "upgrade_required",
            Self::RateLimited => "rate_limited",
            Self::QueueFull => "queue_full",
            Self::HoldExpired => "hold_expired",
            Self::NoWorker => "no_worker",
            Self::ShuttingDown => "shutting_down",
            Self::NotImplemented => "not_implemented",
            Self::UpstreamFailed => "upstream_failed",
            Self::UpstreamTimeout => "upstream_timeout",
            Self::Internal => "internal",
        }
    }

    const fn words(self) -> Words {
        let (status, anthropic, openai, code) = match self {
            Self::BadRequest => (400, "invalid_request_error", "invalid_request_error", None),
            Self::Unauthorized => {
                (401, "authentication_error", "authentication_error", Some("invalid_api_key"))
            }
            Self::Forbidden => (403, "permission_error", "permission_error", None),
            Self::NotFound => (404, "not_found_error", "invalid_request_error", Some("unknown_url")),
            Self::ModelNotFound => (404, "not_found_error", "invalid_request_error", Some("model_not_found")),
            Self::MethodNotAllowed => {
                (405, "invalid_request_error", "invalid_request_error", Some("method_not_allowed"))
            }
            Self::TooLarge => (413, "request_too_large", "invalid_request_error", Some("request_too_large")),
            Self::UnsupportedMedia => {
                (415, "invalid_request_error", "invalid_request_error", Some("unsupported_media_type"))
            }
            Self::UpgradeRequired => {
                (426, "invalid_request_error", "invalid_request_error", Some("upgrade_required"))
            }
            Self::RateLimited => (429, "rate_limit_error", "rate_limit_error", Some("rate_limit_exceeded")),
            Self::QueueFull => (503, "overloaded_error", "server_error", Some("queue_full")),
            Self::HoldExpired => (503, "overloaded_error", "server_error", Some("hold_expired")),
            Self::NoWorker => (503, "overloaded_error", "server_error", Some("no_worker")),
            Self::ShuttingDown => (503, "overloaded_error", "server_error", Some("shutting_down")),
            Self::NotImplemented => {
                (501, "invalid_request_error", "invalid_request_error", Some("not_implemented"))
            }
            Self::UpstreamFailed => (502, "api_error", "server_error", Some("upstream_failed")),
            Self::UpstreamTimeout => (504, "timeout_error", "server_error", Some("upstream_timeout")),
            Self::Internal => (500, "api_error", "server_error", Some("internal_error")),
        };
        Words { status, anthropic, openai, code }
    }
}

/// The error object of OpenAI's dialects: `{"message":..,"type":..,"param":..,"code":..}`.
pub(crate) fn openai_object(kind: ErrorKind, message: &str) -> Vec<u8> {
    let words = kind.words();
    let mut out = b"{\"message\":".to_vec();
    write_text(&mut out, message);
    out.extend_from_slice(b",\"type\":");
    write_text(&mut out, words.openai);
    out.extend_from_slice(b",\"param\":");
    match kind {
        ErrorKind::ModelNotFound => out.extend_from_slice(b"\"model\""),
        _ => out.extend_from_slice(b"null"),
    }
    out.extend_from_slice(b",\"code\":");
    match words.code {
        Some(code) => write_text(&mut out, code),
        None => out.extend_from_slice(b"null"),
    }
    out.push(b'}');
    out
}

/// Anthropic's error body: `{"type":"error","error":{"type":..,"message":..}}`.
pub(crate) fn anthropic_body(kind: ErrorKind, message: &str) -> Vec<u8> {
    let mut out = b"{\"type\":\"error\",\"error\":{\"type\":".to_vec();
    write_text(&mut out, kind.words().anthropic);
    out.extend_from_slice(b",\"message\":");
    write_text(&mut out, message);
    out.extend_from_slice(b"}}");
    out
}

/// The answer for `kind` in the form of `dialect`; routes that belong to none get OpenAI's form.
#[must_use]
pub fn error_body(dialect: Option<Dialect>, kind: ErrorKind, message: &str) -> ErrorAnswer {
    let body = match dialect {
        Some(Dialect::Messages) => anthropic_body(kind, message),
        Some(Dialect::Chat | Dialect::Completions | Dialect::Responses) | None => {
            let mut out = b"{\"error\":".to_vec();
            out.extend_from_slice(&openai_object(kind, message));
            out.push(b'}');
            out
        }
    };
    ErrorAnswer { status: kind.status(), body }
}
