//! What the mock saw of each request, so that a test can compare a trace with the wire.

use serde::{Deserialize, Serialize};

/// Head of one request, as it came in. Written when its body is complete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Number of the request at this engine, from 0.
    pub index: u64,
    /// Microseconds since the engine started.
    pub at_us: u64,
    /// HTTP method.
    pub method: String,
    /// Path with query.
    pub path: String,
    /// Headers in the order of arrival, names in lower case; values that are not text are shown with
    /// replacement characters.
    pub headers: Vec<(String, String)>,
    /// Size of the body.
    pub body_bytes: usize,
    /// 64-bit XXH3 of the body, as 16 hex digits.
    pub body_xxh3: String,
    /// The body, when bodies are kept and it is text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// Top-level `model` of a JSON body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Top-level `stream` of a JSON body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
    /// Length of `tools`, where there is such an array.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<usize>,
    /// Length of `messages` or `input`, where there is such an array.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub messages: Option<usize>,
}
