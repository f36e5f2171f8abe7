//! Browser access (CORS). Off unless origins are configured.

use http::{HeaderMap, HeaderValue, Response, StatusCode, header};

use crate::body::Body;
use crate::respond;

fn allowed(origins: &[HeaderValue], origin: &HeaderValue) -> bool {
    origins.iter().any(|allowed| allowed == "*" || allowed == origin)
}

/// Tells the browser that this origin may read the answer.
pub(crate) fn allow(origins: &[HeaderValue], origin: Option<&HeaderValue>, headers: &mut HeaderMap) {
    if origins.is_empty() {
        return;
    }
    headers.append(header::VARY, HeaderValue::from_static("origin"));
    if let Some(origin) = origin.filter(|origin| allowed(origins, origin)) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        headers.insert(
            header::ACCESS_CONTROL_EXPOSE_HEADERS,
            HeaderValue::from_static("x-request-id, x-tandem-worker, retry-after"),
        );
    }
}

/// Answers a browser's question before its call. [`allow`] adds whether the origin is welcome.
pub(crate) fn preflight(origins: &[HeaderValue], request: &HeaderMap) -> Response<Body> {
    let mut response = respond::empty(StatusCode::NO_CONTENT);
    let welcome = request.get(header::ORIGIN).is_some_and(|origin| allowed(origins, origin));
    if welcome {
        let headers = response.headers_mut();
        headers.insert(
            header::ACCESS_CONTROL_ALLOW_METHODS,
            HeaderValue::from_static("GET, HEAD, POST, OPTIONS"),
        );
        if let Some(wanted) = request.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
            headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
        }
        headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    }
    response
}
