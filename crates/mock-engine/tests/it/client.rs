//! A small HTTP client for the tests.

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use tandem_mock_engine::MockEngine;

pub(crate) struct Client {
    pool: Pool<HttpConnector, Full<Bytes>>,
    base: String,
}

pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("text")
    }

    /// Payloads of the events of a stream.
    pub(crate) fn events(&self) -> Vec<Value> {
        self.data()
            .iter()
            .filter(|d| *d != "[DONE]")
            .map(|d| serde_json::from_str(d).expect("json"))
            .collect()
    }

    pub(crate) fn data(&self) -> Vec<String> {
        self.text().lines().filter_map(|l| l.strip_prefix("data: ")).map(str::to_owned).collect()
    }

    pub(crate) fn names(&self) -> Vec<&str> {
        self.text().lines().filter_map(|l| l.strip_prefix("event: ")).collect()
    }
}

impl Client {
    pub(crate) fn new(engine: &MockEngine) -> Self {
        Self::at(engine.url())
    }

    pub(crate) fn at(base: String) -> Self {
        Self { pool: Pool::builder(TokioExecutor::new()).build_http(), base }
    }

    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Vec<u8>,
    ) -> Result<http::Response<Incoming>, hyper_util::client::legacy::Error> {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        if !body.is_empty() {
            request = request.header("content-type", "application/json");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.pool.request(request.body(Full::from(body)).expect("request")).await
    }

    pub(crate) async fn call(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Vec<u8>,
    ) -> Reply {
        let response = self.send(method, path, headers, body).await.expect("an answer");
        let (head, body) = response.into_parts();
        let body = body.collect().await.expect("a whole body").to_bytes();
        Reply { status: head.status, headers: head.headers, body }
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.call(Method::GET, path, &[], Vec::new()).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Reply {
        self.call(Method::POST, path, &[], body.to_string().into_bytes()).await
    }

    pub(crate) async fn post_with(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> Reply {
        self.call(Method::POST, path, headers, body.to_string().into_bytes()).await
    }
}
