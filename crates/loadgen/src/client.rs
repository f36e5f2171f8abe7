//! One call: sent, tried again where it was refused for the moment, read to its end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Deserialize;
use tandem_dialect::SseParser;
use tokio::sync::Semaphore;

/// Longest that a refused call waits before it is tried again, whatever the server says.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// Bytes of an error's body that are kept.
const ERROR_BYTES: usize = 512;

/// Most bytes of an error's body that are read.
const ERROR_BYTES_MAX: usize = 64 << 10;

/// Where requests go, and how.
#[derive(Debug, Clone)]
pub struct Target {
    /// `http://host:port`.
    pub base: String,
    /// The model that requests name.
    pub model: String,
    /// The header that carries the session's name.
    pub session_header: HeaderName,
    /// The header that carries the name of the session's parent.
    pub parent_header: HeaderName,
    /// Headers that every request carries.
    pub headers: HeaderMap,
    /// The response header that names who served, where there is one.
    pub worker_header: HeaderName,
    /// The response header that tells for how many milliseconds the call was held before an engine got it, where there
    /// is one.
    pub held_header: HeaderName,
    /// Longest time for one try.
    pub timeout: Duration,
    /// Most tries of a request that is refused with 429 or 503.
    pub tries: u32,
    /// Most calls under way at once.
    pub connections: usize,
}

impl Target {
    /// Tandem, or an engine, at that address.
    #[must_use]
    pub fn new(base: &str, model: &str) -> Self {
        Self {
            base: base.trim_end_matches('/').to_owned(),
            model: model.to_owned(),
            session_header: HeaderName::from_static("x-tandem-session-id"),
            parent_header: HeaderName::from_static("x-tandem-parent-session-id"),
            headers: HeaderMap::new(),
            worker_header: HeaderName::from_static("x-tandem-worker"),
            held_header: HeaderName::from_static("x-tandem-held-ms"),
            timeout: Duration::from_secs(600),
            tries: 20,
            connections: 1024,
        }
    }
}

/// What a call came to.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Called {
    /// Until the first token, from when the call was first sent.
    pub(crate) first: Option<Duration>,
    pub(crate) whole: Duration,
    pub(crate) tries: u32,
    pub(crate) cached: u32,
    pub(crate) output: u32,
    pub(crate) worker: Option<String>,
    /// Until an engine got it, from when the call was first sent; earlier tries count.
    pub(crate) held: Duration,
    pub(crate) error: Option<String>,
}

/// Who a call is for.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) session: String,
    pub(crate) parent: Option<String>,
}

/// Calls a target.
#[derive(Debug)]
pub(crate) struct Client {
    target: Target,
    pool: Pool<HttpConnector, Full<Bytes>>,
    permits: Semaphore,
}

#[derive(Debug, Default, Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<serde::de::IgnoredAny>,
    usage: Option<Usage>,
    error: Option<serde_json::Value>,
}

#[derive(Debug, Default, Deserialize)]
struct Usage {
    #[serde(default)]
    completion_tokens: u32,
    prompt_tokens_details: Option<Details>,
}

#[derive(Debug, Default, Deserialize)]
struct Details {
    #[serde(default)]
    cached_tokens: Option<u32>,
}

/// How a try ended.
enum Tried {
    Done,
    /// Refused for the moment.
    Later(Duration, String),
    Failed(String),
}

impl Client {
    pub(crate) fn new(target: Target) -> Arc<Self> {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let pool = Pool::builder(TokioExecutor::new()).build(connector);
        let permits = Semaphore::new(target.connections.min(Semaphore::MAX_PERMITS));
        Arc::new(Self { target, pool, permits })
    }

    pub(crate) fn model(&self) -> &str {
        &self.target.model
    }

    pub(crate) async fn call(&self, caller: &Caller, body: Bytes) -> Called {
        let start = Instant::now();
        let mut called = Called::default();
        loop {
            called.tries += 1;
            let permit = self.permits.acquire().await;
            let tried =
                tokio::time::timeout(self.target.timeout, self.attempt(caller, &body, start, &mut called));
            let tried = tried.await.unwrap_or_else(|_| Tried::Failed("timed out".to_owned()));
            drop(permit);
            match tried {
                Tried::Later(pause, _) if called.tries < self.target.tries => tokio::time::sleep(pause).await,
                Tried::Done => break,
                Tried::Later(_, error) | Tried::Failed(error) => {
                    called.error = Some(error);
                    break;
                }
            }
        }
        called.whole = start.elapsed();
        called
    }

    async fn attempt(&self, caller: &Caller, body: &Bytes, start: Instant, called: &mut Called) -> Tried {
        let request = match self.request(caller, body) {
            Ok(request) => request,
            Err(error) => return Tried::Failed(error.to_string()),
        };
        let sent = start.elapsed();
        let response = match self.pool.request(request).await {
            Ok(response) => response,
            Err(error) => return Tried::Failed(error.to_string()),
        };
        let worker = response.headers().get(&self.target.worker_header);
        called.worker = worker.and_then(|value| value.to_str().ok()).map(str::to_owned);
        let held = response.headers().get(&self.target.held_header);
        let held: Option<u64> = held.and_then(|value| value.to_str().ok()?.parse().ok());
        called.held = sent + Duration::from_millis(held.unwrap_or_default());
        if !response.status().is_success() {
            return refused(response).await;
        }
        match read(response.into_body(), start, called).await {
            Ok(()) => Tried::Done,
            Err(error) => Tried::Failed(error),
        }
    }

    fn request(&self, caller: &Caller, body: &Bytes) -> Result<Request<Full<Bytes>>, http::Error> {
        let target = &self.target;
        let mut request = Request::post(format!("{}/v1/completions", target.base))
            .header(header::CONTENT_TYPE, "application/json")
            .header(&target.session_header, &caller.session);
        if let Some(parent) = &caller.parent {
            request = request.header(&target.parent_header, parent);
        }
        let mut request = request.body(Full::new(body.clone()))?;
        request.headers_mut().extend(target.headers.clone());
        Ok(request)
    }
}

/// Whether to come back, and when.
async fn refused(response: Response<Incoming>) -> Tried {
    let status = response.status();
    let pause = retry_after(response.headers());
    let body = Limited::new(response.into_body(), ERROR_BYTES_MAX).collect().await;
    let body = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let said = String::from_utf8_lossy(body.get(..ERROR_BYTES).unwrap_or(&body)).into_owned();
    let error = format!("{status}: {said}");
    match status {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => Tried::Later(pause, error),
        _ => Tried::Failed(error),
    }
}

fn retry_after(headers: &HeaderMap) -> Duration {
    let value = headers.get(header::RETRY_AFTER).map(HeaderValue::to_str);
    let seconds = value.and_then(|text| text.ok()?.trim().parse().ok()).unwrap_or(1);
    Duration::from_secs(seconds).min(RETRY_AFTER_MAX)
}

/// Reads a stream to its end mark.
async fn read(mut body: Incoming, start: Instant, called: &mut Called) -> Result<(), String> {
    let mut parser = SseParser::default();
    let (mut ended, mut fault) = (false, None);
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|error| error.to_string())?.into_data() else { continue };
        parser.push(&data, |event| {
            if event.data == b"[DONE]" {
                ended = true;
                return;
            }
            match serde_json::from_slice::<Chunk>(event.data) {
                Ok(chunk) => take(chunk, start, called, &mut fault),
                Err(error) => fault = Some(format!("not a chunk: {error}")),
            }
        });
    }
    match fault {
        Some(fault) => Err(fault),
        None if ended => Ok(()),
        None => Err("the stream ended without its end mark".to_owned()),
    }
}

fn take(chunk: Chunk, start: Instant, called: &mut Called, fault: &mut Option<String>) {
    if let Some(error) = chunk.error {
        *fault = Some(error.to_string());
    }
    if !chunk.choices.is_empty() {
        called.first.get_or_insert_with(|| start.elapsed());
    }
    if let Some(usage) = chunk.usage {
        called.output = usage.completion_tokens;
        called.cached = usage.prompt_tokens_details.and_then(|details| details.cached_tokens).unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_says_when_to_come_back_within_reason() {
        let after = |text: &'static str| {
            retry_after(&HeaderMap::from_iter([(header::RETRY_AFTER, HeaderValue::from_static(text))]))
        };
        assert_eq!(retry_after(&HeaderMap::new()), Duration::from_secs(1));
        assert_eq!(after("7"), Duration::from_secs(7));
        assert_eq!(after("86400"), RETRY_AFTER_MAX);
        assert_eq!(after("soon"), Duration::from_secs(1));
    }
}
