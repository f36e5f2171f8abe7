//! Which headers cross the hop between client and engine.
//!
//! - Purpose: from a client's request headers, those that the engine gets; from an engine's response headers,
//!   those that the client gets.
//! - Invariants:
//!   - I-HDR-1 hop-by-hop headers (RFC 9110 7.6.1) and those that `connection` names never cross, in either
//!     direction. A client cannot name `authorization` or another end-to-end header away: only names that are
//!     not needed for the request's meaning are honoured.
//!   - I-HDR-2 framing (`content-length`, `transfer-encoding`) is the sender's own: the body may have been
//!     edited.
//!   - I-HDR-3 the engine is asked for `identity` encoding, because streams are read and usage chunks taken out.
//!   - I-HDR-4 an engine that has a key of its own never sees a client's credentials.
//!   - I-HDR-5 the choice of a data-parallel rank is ours: a client's pin does not pass.
//!   - I-HDR-6 every other header, session headers of all harnesses included, passes unchanged and in order.
//! - Decided: `x-forwarded-*`, `forwarded` and `via` from the client pass unchanged and none is added: engines
//!   behind us do not use them, and an address of a user has no place in engine logs. `cookie` does not pass
//!   and `set-cookie` does not come back: engines have no cookie sessions, a load balancer between us and them
//!   may, and its stickiness would fight ours. `server` and `date` come back as the engine set them.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};

/// Dropped in both directions.
const HOP_BY_HOP: [HeaderName; 7] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Hop-by-hop headers that `http` has no constant for.
const HOP_BY_HOP_NAMES: [&str; 3] = ["keep-alive", "proxy-connection", "http2-settings"];

/// Headers that a `connection` header may not take away from the engine (I-HDR-1).
const NOT_NAMEABLE: [HeaderName; 5] =
    [header::AUTHORIZATION, header::CONTENT_TYPE, header::CONTENT_ENCODING, header::ACCEPT, header::HOST];

/// A client's key in Anthropic's way.
const X_API_KEY: &str = "x-api-key";

/// Pins a call to a data-parallel rank, in vLLM and in SGLang.
pub(crate) const DATA_PARALLEL_RANK: HeaderName = HeaderName::from_static("x-data-parallel-rank");

fn is_hop_by_hop(name: &HeaderName) -> bool {
    HOP_BY_HOP.contains(name) || HOP_BY_HOP_NAMES.contains(&name.as_str())
}

/// Names that the `connection` headers list, lower case.
fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(','))
        .filter_map(|name| name.trim().parse::<HeaderName>().ok())
        .filter(|name| !NOT_NAMEABLE.contains(name))
        .collect()
}

fn copy(from: &HeaderMap, keep: impl Fn(&HeaderName) -> bool) -> HeaderMap {
    let named = named_by_connection(from);
    let mut to = HeaderMap::with_capacity(from.len() + 2);
    for (name, value) in from {
        if !is_hop_by_hop(name) && !named.contains(name) && keep(name) {
            to.append(name.clone(), value.clone());
        }
    }
    to
}

/// The headers for the engine. `host`, framing and the rank pin are set further down, by the client and by
/// [`Target::apply`](crate::Target::apply). `engine_key` is the engine's own `authorization` value, if it has
/// one: then the client's credentials stay here.
#[must_use]
pub fn request_headers(from: &HeaderMap, engine_key: Option<&HeaderValue>) -> HeaderMap {
    let mut to = copy(from, |name| {
        let own = [header::HOST, header::CONTENT_LENGTH, header::EXPECT, header::COOKIE].contains(name)
            || *name == header::ACCEPT_ENCODING
            || *name == DATA_PARALLEL_RANK;
        let credentials = *name == header::AUTHORIZATION || name.as_str() == X_API_KEY;
        !own && (engine_key.is_none() || !credentials)
    });
    to.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    if let Some(key) = engine_key {
        to.insert(header::AUTHORIZATION, key.clone());
    }
    to
}

/// The headers for the client. `content-length` is left to the caller, who knows whether the body is edited:
/// it is dropped here.
#[must_use]
pub fn response_headers(from: &HeaderMap) -> HeaderMap {
    copy(from, |name| *name != header::CONTENT_LENGTH && *name != header::SET_COOKIE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(list: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in list {
            map.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        map
    }

    // I-HDR-1, I-HDR-2, I-HDR-3, I-HDR-4, I-HDR-5.
    #[test]
    fn request_headers_table() {
        let engine_key = HeaderValue::from_static("Bearer engine");
        // (header, value, what an engine without a key gets, what an engine with a key gets)
        for (name, value, open, keyed) in [
            ("host", "gateway", None, None),
            ("connection", "keep-alive", None, None),
            ("keep-alive", "timeout=5", None, None),
            ("proxy-connection", "keep-alive", None, None),
            ("proxy-authorization", "Basic x", None, None),
            ("te", "trailers", None, None),
            ("trailer", "x-sum", None, None),
            ("transfer-encoding", "chunked", None, None),
            ("upgrade", "h2c", None, None),
            ("http2-settings", "AAMAAABk", None, None),
            ("content-length", "12", None, None),
            ("expect", "100-continue", None, None),
            ("cookie", "a=b", None, None),
            ("x-data-parallel-rank", "3", None, None),
            ("accept-encoding", "gzip, br", Some("identity"), Some("identity")),
            ("authorization", "Bearer client", Some("Bearer client"), Some("Bearer engine")),
            ("x-api-key", "client", Some("client"), None),
            ("accept", "text/event-stream", Some("text/event-stream"), Some("text/event-stream")),
            ("content-type", "application/json", Some("application/json"), Some("application/json")),
            ("x-dynamo-session-id", "s1", Some("s1"), Some("s1")),
            ("x-forwarded-for", "1.2.3.4", Some("1.2.3.4"), Some("1.2.3.4")),
            ("traceparent", "00-1-2-01", Some("00-1-2-01"), Some("00-1-2-01")),
            ("anthropic-version", "2023-06-01", Some("2023-06-01"), Some("2023-06-01")),
        ] {
            let from = map(&[(name, value)]);
            let get = |to: HeaderMap| to.get(name).map(|v| v.to_str().expect("ascii").to_owned());
            assert_eq!(get(request_headers(&from, None)).as_deref(), open, "{name}");
            assert_eq!(get(request_headers(&from, Some(&engine_key))).as_deref(), keyed, "{name}");
        }
    }

    // I-HDR-1.
    #[test]
    fn connection_names_headers_away_but_not_those_that_matter() {
        let from = map(&[
            ("connection", "close, X-Internal"),
            ("connection", "authorization"),
            ("x-internal", "1"),
            ("authorization", "Bearer client"),
            ("x-other", "2"),
        ]);
        let to = request_headers(&from, None);
        assert_eq!(to.get("x-internal"), None);
        assert_eq!(to["authorization"], "Bearer client");
        assert_eq!(to["x-other"], "2");
    }

    // I-HDR-6.
    #[test]
    fn repeated_headers_stay_in_order() {
        let to = request_headers(&map(&[("x-tag", "b"), ("x-tag", "a")]), None);
        assert_eq!(to.get_all("x-tag").iter().collect::<Vec<_>>(), ["b", "a"]);
    }

    #[test]
    fn response_headers_table() {
        let to = response_headers(&map(&[
            ("content-type", "text/event-stream"),
            ("content-length", "5"),
            ("transfer-encoding", "chunked"),
            ("connection", "close, x-hop"),
            ("x-hop", "1"),
            ("set-cookie", "lb=1"),
            ("x-request-id", "req-1"),
            ("retry-after", "7"),
            ("content-encoding", "gzip"),
        ]));
        let mut names: Vec<_> = to.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["content-encoding", "content-type", "retry-after", "x-request-id"]);
    }
}
