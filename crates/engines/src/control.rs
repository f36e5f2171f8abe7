//! Small questions to an engine's control endpoints, each bounded in time and size.

use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{Method, Request, StatusCode};

use crate::client::{Body, HttpClient, ReadError, SendError, empty, full, read_body};
use crate::config::CONTROL_BODY_BYTES_MAX;
use crate::state::Target;

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ControlError {
    #[error("{path}: {source}")]
    Send { path: String, source: SendError },
    #[error("{path}: {source}")]
    Read { path: String, source: ReadError },
    #[error("{path}: no answer within {after:?}")]
    Timeout { path: String, after: Duration },
    #[error("{path}: {source}")]
    Request { path: String, source: http::Error },
}

/// An answer, whatever its status.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn ok(&self) -> bool {
        self.status.is_success()
    }

    /// The engine does not have this route.
    pub(crate) fn no_such_route(&self) -> bool {
        matches!(
            self.status,
            StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED
        )
    }
}

/// Asks one engine.
#[derive(Debug, Clone)]
pub(crate) struct Control {
    pub(crate) client: HttpClient,
    pub(crate) target: Target,
    pub(crate) timeout: Duration,
}

impl Control {
    pub(crate) async fn get(&self, path: &str) -> Result<Answer, ControlError> {
        self.ask(Method::GET, path, empty()).await
    }

    pub(crate) async fn post(&self, path: &str, body: Bytes) -> Result<Answer, ControlError> {
        self.ask(Method::POST, path, full(body)).await
    }

    async fn ask(&self, method: Method, path: &str, body: Body) -> Result<Answer, ControlError> {
        let bad = |source| ControlError::Request { path: path.to_owned(), source };
        let posts = method == Method::POST;
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = self.target.base.uri(path).map_err(bad)?;
        let headers = request.headers_mut();
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        headers.insert(header::USER_AGENT, HeaderValue::from_static("tandem"));
        if posts {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        self.target.apply(headers);
        let whole = async {
            let response = self
                .client
                .send(request)
                .await
                .map_err(|source| ControlError::Send { path: path.to_owned(), source })?;
            let status = response.status();
            let body = read_body(response.into_body(), CONTROL_BODY_BYTES_MAX)
                .await
                .map_err(|source| ControlError::Read { path: path.to_owned(), source })?;
            Ok(Answer { status, body })
        };
        match tokio::time::timeout(self.timeout, whole).await {
            Ok(result) => result,
            Err(_) => Err(ControlError::Timeout { path: path.to_owned(), after: self.timeout }),
        }
    }
}
