//! Which API route a request line names.
//!
//! - Inputs: method and request target. Output: [`Route`].
//! - Invariants: I-DIA-ROUTE-1 query, fragment and one trailing slash never matter. I-DIA-ROUTE-2 the method
//!   matters: a known path with another method is [`Route::MethodNotAllowed`], never a silent 404.
//! - Deliberately absent: Gemini's `:streamGenerateContent` and Ollama's routes (engines do not speak the
//!   first; the second carry no usage that the scheduler could use).
//! - Sources: vLLM 0.33 and SGLang 0.5.23 route lists; Claude Code 2.1.332 (`HEAD /api/hello`), Codex 0.171.0
//!   (`GET /v1/responses` with `Upgrade`).

use tandem_types::Dialect;

/// What a request line asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// A generation call.
    Turn(Dialect),
    /// `POST /v1/messages/count_tokens`.
    CountTokens,
    /// `GET /v1/models`.
    Models,
    /// `GET /v1/models/{id}`; the id is percent-decoded and may contain slashes.
    Model(String),
    /// `POST /tokenize` or `/v1/tokenize`.
    Tokenize,
    /// `POST /detokenize` or `/v1/detokenize`.
    Detokenize,
    /// `POST /v1/embeddings`.
    Embeddings,
    /// `POST /rerank`, `/v1/rerank` or `/v2/rerank`.
    Rerank,
    /// `POST /score` or `/v1/score`.
    Score,
    /// `HEAD` or `GET /api/hello`: a harness looks whether anybody is there.
    Hello,
    /// `GET /v1/responses`: a harness tries to open a WebSocket; the answer is 426.
    ResponsesSocket,
    /// A known path with a method that it does not have; the text is an `Allow` header's value.
    MethodNotAllowed(&'static str),
    /// Nothing that is known here.
    Other,
}

impl Route {
    /// The route of `method` (case as sent; methods are case-sensitive) and `target`, a path with or without a
    /// query.
    #[must_use]
    pub fn of(method: &str, target: &str) -> Self {
        let path = target.split(['?', '#']).next().unwrap_or_default();
        let path = path.strip_suffix('/').unwrap_or(path);
        let read = matches!(method, "GET" | "HEAD");
        if path == "/v1/responses" && method == "GET" {
            return Self::ResponsesSocket;
        }
        if let Some(route) = posted(path) {
            return if method == "POST" { route } else { Self::MethodNotAllowed("POST") };
        }
        match path {
            "/v1/models" if read => Self::Models,
            "/api/hello" if read => Self::Hello,
            "/v1/models" | "/api/hello" => Self::MethodNotAllowed("GET, HEAD"),
            _ => match path.strip_prefix("/v1/models/") {
                Some(id) if !id.is_empty() => match percent_decoded(id) {
                    Some(id) if read => Self::Model(id),
                    Some(_) => Self::MethodNotAllowed("GET, HEAD"),
                    None => Self::Other,
                },
                _ => Self::Other,
            },
        }
    }

    /// The dialect in which an error on this route is to be written; `None` where there is no convention, which
    /// [`crate::error_body`] answers in OpenAI's form.
    #[must_use]
    pub const fn dialect(&self) -> Option<Dialect> {
        match self {
            Self::Turn(dialect) => Some(*dialect),
            Self::CountTokens => Some(Dialect::Messages),
            Self::ResponsesSocket => Some(Dialect::Responses),
            _ => None,
        }
    }

    /// A short fixed name for metrics and logs.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Turn(Dialect::Chat) => "chat",
            Self::Turn(Dialect::Completions) => "completions",
            Self::Turn(Dialect::Responses) => "responses",
            Self::Turn(Dialect::Messages) => "messages",
            Self::CountTokens => "count_tokens",
            Self::Models => "models",
            Self::Model(_) => "model",
            Self::Tokenize => "tokenize",
            Self::Detokenize => "detokenize",
            Self::Embeddings => "embeddings",
            Self::Rerank => "rerank",
            Self::Score => "score",
            Self::Hello => "hello",
            Self::ResponsesSocket => "responses_socket",
            Self::MethodNotAllowed(_) => "method_not_allowed",
            Self::Other => "other",
        }
    }
}

fn posted(path: &str) -> Option<Route> {
    Some(match path {
        "/v1/chat/completions" => Route::Turn(Dialect::Chat),
        "/v1/completions" => Route::Turn(Dialect::Completions),
        "/v1/responses" => Route::Turn(Dialect::Responses),
        "/v1/messages" => Route::Turn(Dialect::Messages),
        "/v1/messages/count_tokens" => Route::CountTokens,
        "/tokenize" | "/v1/tokenize" => Route::Tokenize,
        "/detokenize" | "/v1/detokenize" => Route::Detokenize,
        "/v1/embeddings" => Route::Embeddings,
        "/rerank" | "/v1/rerank" | "/v2/rerank" => Route::Rerank,
        "/score" | "/v1/score" => Route::Score,
        _ => return None,
    })
}

/// `text` with `%XX` decoded; `None` when an escape is broken or the result is not UTF-8.
fn percent_decoded(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let high = char::from(bytes.next()?).to_digit(16)?;
        let low = char::from(bytes.next()?).to_digit(16)?;
        out.push(u8::try_from(high * 16 + low).ok()?);
    }
    String::from_utf8(out).ok()
}
