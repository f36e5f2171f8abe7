//! Exact prompt tokens from an engine, without generating.
//!
//! - Order: vLLM's `*/render` (needs `--enable-scale-out`), then `/tokenize`, which vLLM and SGLang have for
//!   chat and completions bodies. Fields of the body that a route does not know are ignored by both engines.
//! - Invariants: I-REN-1 never more than the configured look-ups at once per engine: one more waits, at most as
//!   long as a look-up may take; I-REN-2 an engine that has no such route is asked once until it comes up again.
//! - Sources: vLLM 0.32 and 0.33, SGLang 0.5.23.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::StatusCode;
use serde::Deserialize;
use tandem_types::{Dialect, EngineKind};

use crate::client::HttpClient;
use crate::config::EnginesConfig;
use crate::control::{Answer, Control, ControlError};
use crate::engine::Engine;

/// Why there are no tokens.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RenderError {
    /// The engine left.
    #[error("the engine left")]
    Gone,
    /// As many look-ups as allowed are under way.
    #[error("as many token look-ups as allowed are under way")]
    Busy,
    /// The engine has no route for this.
    #[error("the engine does not give token ids (vllm: start it with --enable-scale-out)")]
    Unsupported,
    /// The engine refused the body.
    #[error("the engine refused the request with status {0}")]
    Refused(u16),
    /// The answer makes no sense.
    #[error("the answer holds no token ids")]
    Garbage,
    /// No answer.
    #[error("no answer: {0}")]
    NoAnswer(String),
}

impl From<ControlError> for RenderError {
    fn from(error: ControlError) -> Self {
        Self::NoAnswer(error.to_string())
    }
}

const fn render_path(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Chat => "/v1/chat/completions/render",
        Dialect::Completions => "/v1/completions/render",
        Dialect::Responses => "/v1/responses/render",
        Dialect::Messages => "/v1/messages/render",
    }
}

#[derive(Deserialize)]
struct Tokens {
    #[serde(alias = "tokens")]
    token_ids: Vec<u32>,
}

/// One object, or (completions) a list with one object per prompt.
#[derive(Deserialize)]
#[serde(untagged)]
enum Rendered {
    One(Tokens),
    Many(Vec<Tokens>),
}

fn tokens_of(answer: &Answer) -> Result<Vec<u32>, RenderError> {
    if !answer.ok() {
        return Err(RenderError::Refused(answer.status.as_u16()));
    }
    match serde_json::from_slice(&answer.body) {
        Ok(Rendered::One(tokens)) => Ok(tokens.token_ids),
        Ok(Rendered::Many(mut list)) if list.len() == 1 => {
            list.pop().map(|t| t.token_ids).ok_or(RenderError::Garbage)
        }
        Ok(Rendered::Many(_)) | Err(_) => Err(RenderError::Garbage),
    }
}

pub(crate) async fn render(
    client: &HttpClient,
    config: &EnginesConfig,
    engine: &Engine,
    rank: u32,
    dialect: Dialect,
    body: Bytes,
) -> Result<Vec<u32>, RenderError> {
    if engine.render_unsupported.load(Ordering::Acquire) {
        return Err(RenderError::Unsupported);
    }
    let slot = tokio::time::timeout(config.render_timeout, engine.render_slots.acquire()).await;
    let Ok(Ok(_slot)) = slot else { return Err(RenderError::Busy) };
    let target = engine.target(rank);
    let kind = target.kind;
    let control = Control { client: client.clone(), target, timeout: config.render_timeout };
    if kind == EngineKind::Vllm {
        let answer = control.post(render_path(dialect), body.clone()).await?;
        // 403: the route is there but not switched on.
        if !answer.no_such_route() && answer.status != StatusCode::FORBIDDEN {
            return tokens_of(&answer);
        }
    }
    if matches!(dialect, Dialect::Chat | Dialect::Completions) && kind != EngineKind::OpenAi {
        let answer = control.post("/tokenize", body).await?;
        if !answer.no_such_route() {
            return tokens_of(&answer);
        }
        engine.render_unsupported.store(true, Ordering::Release);
    }
    Err(RenderError::Unsupported)
}
