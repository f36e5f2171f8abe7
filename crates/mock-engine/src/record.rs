//! What the mock saw of each request, so that a test can compare a trace with the wire.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::sync::Mutex;
use std::time::Instant;

use http::{HeaderMap, Method, Uri};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::config::RecordConfig;
use crate::driver::lock;

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

/// Records kept in memory.
const KEPT: usize = 10_000;

/// Writes records down.
#[derive(Debug)]
pub(crate) struct Recorder {
    bodies: bool,
    started: Instant,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    next: u64,
    kept: VecDeque<Record>,
    file: Option<BufWriter<File>>,
}

impl Recorder {
    pub(crate) fn new(config: &RecordConfig) -> std::io::Result<Self> {
        let open = |path| OpenOptions::new().create(true).append(true).open(path).map(BufWriter::new);
        let file = config.file.as_ref().map(open).transpose()?;
        let inner = Mutex::new(Inner { next: 0, kept: VecDeque::new(), file });
        Ok(Self { bodies: config.bodies, started: Instant::now(), inner })
    }

    pub(crate) fn note(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
        body: &[u8],
        parsed: Option<&Map<String, Value>>,
    ) {
        let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let list = |key: &str| parsed.and_then(|map| map.get(key)).and_then(Value::as_array).map(Vec::len);
        let field = |key: &str| parsed.and_then(|map| map.get(key));
        let mut record = Record {
            index: 0,
            at_us: u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX),
            method: method.to_string(),
            path: uri.path_and_query().map_or_else(|| uri.path().to_owned(), ToString::to_string),
            headers: headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect(),
            body_bytes: body.len(),
            body_xxh3: format!("{:016x}", xxhash_rust::xxh3::xxh3_64(body)),
            body: self.bodies.then(|| std::str::from_utf8(body).ok().map(str::to_owned)).flatten(),
            model: field("model").and_then(Value::as_str).map(str::to_owned),
            stream: field("stream").and_then(Value::as_bool),
            tools: list("tools"),
            messages: list("messages").or_else(|| list("input")),
        };
        let mut inner = lock(&self.inner);
        record.index = inner.next;
        inner.next += 1;
        if let Some(file) = &mut inner.file {
            let written = serde_json::to_writer(&mut *file, &record)
                .map_err(std::io::Error::from)
                .and_then(|()| file.write_all(b"\n"))
                // A test reads the file while the engine runs.
                .and_then(|()| file.flush());
            if let Err(error) = written {
                tracing::warn!(%error, "cannot write record file; no more records are written to it");
                inner.file = None;
            }
        }
        if inner.kept.len() >= KEPT {
            inner.kept.pop_front();
        }
        inner.kept.push_back(record);
    }

    pub(crate) fn all(&self) -> Vec<Record> {
        lock(&self.inner).kept.iter().cloned().collect()
    }
}
