//! Answers of our own: errors in the caller's dialect, JSON, and what every answer carries.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use serde::Serialize;
use tandem_dialect::{ErrorKind, error_body};
use tandem_types::{Dialect, RequestId};
use uuid::Uuid;

use crate::app::App;
use crate::body::Body;
use crate::clock::unix_ms;
use crate::metrics::Family;

/// The ids of one request.
#[derive(Debug, Clone)]
pub(crate) struct RequestIdentity {
    /// Ours, unique.
    pub(crate) own: RequestId,
    /// The client's, if it sent a usable one.
    pub(crate) client: Option<RequestId>,
}

impl RequestIdentity {
    /// Takes the client's id from the headers that clients use for it, and makes one of ours.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let client = ["x-request-id", "x-correlation-id", "request-id"]
            .iter()
            .filter_map(|name| headers.get(*name))
            .filter_map(|value| value.to_str().ok())
            .find_map(|text| RequestId::new(text).ok());
        Self { own: fresh_id(), client }
    }

    /// Whether this request is known by `id`.
    pub(crate) fn is(&self, id: &str) -> bool {
        self.own.as_str() == id || self.client.as_ref().is_some_and(|client| client.as_str() == id)
    }

    /// The id under which the client knows the request.
    pub(crate) fn shown(&self) -> &RequestId {
        self.client.as_ref().unwrap_or(&self.own)
    }
}

/// A version 7 UUID: the time, then bits that differ from process to process and from id to id. Randomness is
/// drawn once: drawing it for each id would cost a system call a request.
fn fresh_uuid() -> Uuid {
    static SEED: LazyLock<u128> = LazyLock::new(|| Uuid::new_v4().as_u128());
    static COUNT: AtomicU64 = AtomicU64::new(0);
    // Odd, so that different counts stay different in the 62 bits that are kept.
    const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
    let [a, b, .., c, d, e, f, g, h, i, j] = SEED.to_be_bytes();
    let count = COUNT.fetch_add(1, Ordering::Relaxed).wrapping_mul(STEP);
    let [c, d, e, f, g, h, i, j] =
        u64::from_be_bytes([c, d, e, f, g, h, i, j]).wrapping_add(count).to_be_bytes();
    uuid::Builder::from_unix_timestamp_millis(unix_ms(), &[a, b, c, d, e, f, g, h, i, j]).into_uuid()
}

/// A UUID is 36 bytes of visible ASCII, so the first one is always usable.
fn fresh_id() -> RequestId {
    loop {
        if let Ok(id) = RequestId::new(fresh_uuid().hyphenated().encode_lower(&mut Uuid::encode_buffer())) {
            return id;
        }
    }
}

/// An error in the dialect's form. Every 429 and 503 gets a whole-second `Retry-After`.
pub(crate) fn error(
    app: &App,
    dialect: Option<Dialect>,
    kind: ErrorKind,
    message: &str,
    retry_after: Option<u64>,
) -> Response<Body> {
    app.metrics.inc(Family::Errors, &[("kind", kind.name())]);
    let answer = error_body(dialect, kind, message);
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = with_json(status, answer.body);
    let needed = kind.retry_after()
        || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
    if let Some(seconds) = retry_after.or(needed.then_some(5)) {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds.clamp(5, 60)));
    }
    if kind == ErrorKind::Unauthorized {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if kind == ErrorKind::UpgradeRequired {
        response.headers_mut().insert(header::UPGRADE, HeaderValue::from_static("HTTP/1.1"));
    }
    response
}

fn with_json(status: StatusCode, body: Vec<u8>) -> Response<Body> {
    let mut response = Response::new(Body::full(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A JSON answer.
pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Response<Body> {
    match serde_json::to_vec(value) {
        Ok(body) => with_json(status, body),
        Err(_) => empty(StatusCode::INTERNAL_SERVER_ERROR),
    }
}

/// An answer without a body.
pub(crate) fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn fresh_ids_are_version_7_of_this_time_and_all_different() {
        let before = unix_ms();
        let ids: Vec<Uuid> = (0..10_000).map(|_| fresh_uuid()).collect();
        let after = unix_ms();
        for id in &ids {
            assert_eq!((id.get_version_num(), id.get_variant()), (7, uuid::Variant::RFC4122));
            let stamp = u64::try_from(id.as_u128() >> 80).expect("48 bits");
            assert!((before..=after).contains(&stamp), "{before} <= {stamp} <= {after}");
        }
        // Without the time, too: two processes' worth of ids may fall into one millisecond.
        let tails: HashSet<u64> = ids.iter().map(|id| id.as_u64_pair().1).collect();
        assert_eq!(tails.len(), ids.len());
    }
}
