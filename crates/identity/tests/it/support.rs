//! Recorded requests and hand-made ones.

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde::Deserialize;
use serde_json::Value;
use tandem_dialect::parse_request;
use tandem_identity::{Identity, IdentityConfig, RequestHead, identify};
use tandem_types::{Dialect, TenantId, TurnFacts};

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Recorded {
    pub(crate) scenario: String,
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    pub(crate) body: Value,
}

#[derive(Deserialize)]
struct File {
    requests: Vec<Recorded>,
}

/// The requests of one recording.
pub(crate) fn load(name: &str) -> Vec<Recorded> {
    let path = format!("{}/tests/fixtures/{name}.json", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    serde_json::from_str::<File>(&text).unwrap_or_else(|e| panic!("{path}: {e}")).requests
}

/// A request as a server gets it.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Option<(Dialect, Vec<u8>)>,
}

impl Request {
    pub(crate) fn recorded(from: &Recorded) -> Self {
        let mut request = Self {
            method: from.method.parse().expect("method"),
            path: from.path.clone(),
            headers: HeaderMap::new(),
            body: None,
        };
        for (name, value) in &from.headers {
            request = request.with(name, value);
        }
        if let Some(dialect) = dialect_of(&from.path)
            && from.body.is_object()
        {
            request.body = Some((dialect, from.body.to_string().into_bytes()));
        }
        request
    }

    pub(crate) fn chat(body: &Value) -> Self {
        Self::post("/v1/chat/completions", Dialect::Chat, body)
    }

    pub(crate) fn post(path: &str, dialect: Dialect, body: &Value) -> Self {
        Self {
            method: Method::POST,
            path: path.to_owned(),
            headers: HeaderMap::new(),
            body: Some((dialect, body.to_string().into_bytes())),
        }
    }

    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.append(
            name.parse::<HeaderName>().expect("header name"),
            HeaderValue::from_bytes(value.as_bytes()).expect("header value"),
        );
        self
    }

    pub(crate) fn facts(&self) -> Option<TurnFacts> {
        let (dialect, body) = self.body.as_ref()?;
        Some(parse_request(*dialect, body).expect("a readable body").facts)
    }

    pub(crate) fn head(&self) -> RequestHead<'_> {
        RequestHead { method: &self.method, path: &self.path, headers: &self.headers }
    }

    pub(crate) fn identify_with(&self, tenant: &TenantId, config: &IdentityConfig) -> Identity {
        identify(&self.head(), self.facts().as_ref(), tenant, config)
    }

    pub(crate) fn identify(&self) -> Identity {
        self.identify_with(&TenantId::default(), &IdentityConfig::default())
    }
}

fn dialect_of(path: &str) -> Option<Dialect> {
    let path = path.split('?').next().unwrap_or_default();
    match path {
        "/v1/chat/completions" => Some(Dialect::Chat),
        "/v1/responses" => Some(Dialect::Responses),
        "/v1/messages" | "/v1/messages/count_tokens" => Some(Dialect::Messages),
        _ => None,
    }
}

/// The harmless chat turn of a plain client.
pub(crate) fn plain() -> Value {
    serde_json::json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]})
}
