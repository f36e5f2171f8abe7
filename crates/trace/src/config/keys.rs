//! Names of settings and how their values are read.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use super::{
    ConfigError, ConfigWarning, DEFAULT_TOOL_TOPIC, FileFormat, Records, Resolved, SinkKind, ToolZmq,
    TraceConfig,
};
use crate::record::Rows;

type Names = &'static [&'static str];

const SWITCH: Names = &["TANDEM_TRACE", "DYN_REQUEST_TRACE"];
const RECORDS: Names = &["TANDEM_TRACE_RECORDS", "DYN_REQUEST_TRACE_RECORDS"];
const FORCE_PAYLOAD: Names = &["DYN_AUDIT_FORCE_LOGGING"];
const SINKS: Names = &["TANDEM_TRACE_SINKS", "DYN_REQUEST_TRACE_SINKS", "DYN_AUDIT_SINKS"];
const PATH: Names = &[
    "TANDEM_TRACE_PATH",
    "DYN_REQUEST_TRACE_FILE_PATH",
    "DYN_REQUEST_TRACE_OUTPUT_PATH",
    "DYN_AUDIT_OUTPUT_PATH",
];
const FORMAT: Names = &["TANDEM_TRACE_FORMAT", "DYN_REQUEST_TRACE_FILE_FORMAT"];
const ROWS: Names = &["TANDEM_TRACE_ROWS"];
const CAPACITY: Names = &["TANDEM_TRACE_CAPACITY", "DYN_REQUEST_TRACE_CAPACITY", "DYN_AUDIT_CAPACITY"];
const BUFFER_BYTES: Names = &[
    "TANDEM_TRACE_BUFFER_BYTES",
    "DYN_REQUEST_TRACE_FILE_BUFFER_BYTES",
    "DYN_REQUEST_TRACE_JSONL_BUFFER_BYTES",
    "DYN_AUDIT_JSONL_BUFFER_BYTES",
];
const FLUSH_INTERVAL_MS: Names = &[
    "TANDEM_TRACE_FLUSH_INTERVAL_MS",
    "DYN_REQUEST_TRACE_FILE_FLUSH_INTERVAL_MS",
    "DYN_REQUEST_TRACE_JSONL_FLUSH_INTERVAL_MS",
    "DYN_AUDIT_JSONL_FLUSH_INTERVAL_MS",
];
const ROLL_BYTES: Names = &[
    "TANDEM_TRACE_ROLL_BYTES",
    "DYN_REQUEST_TRACE_FILE_ROLL_BYTES",
    "DYN_REQUEST_TRACE_JSONL_GZ_ROLL_BYTES",
    "DYN_AUDIT_JSONL_GZ_ROLL_BYTES",
];
const ROLL_LINES: Names = &[
    "TANDEM_TRACE_ROLL_LINES",
    "DYN_REQUEST_TRACE_FILE_ROLL_LINES",
    "DYN_REQUEST_TRACE_JSONL_GZ_ROLL_LINES",
    "DYN_AUDIT_JSONL_GZ_ROLL_LINES",
];
const OUTPUT_HASHES: Names = &["TANDEM_TRACE_OUTPUT_HASHES", "DYN_REQUEST_TRACE_OUTPUT_SEQUENCE_HASHES"];
const PAYLOAD_HEADERS: Names =
    &["TANDEM_TRACE_HTTP_HEADER_CAPTURE_LIST", "DYN_REQUEST_TRACE_HTTP_HEADER_CAPTURE_LIST"];
const TOOL_ENDPOINT: Names =
    &["TANDEM_TRACE_TOOL_EVENTS_ZMQ_ENDPOINT", "DYN_REQUEST_TRACE_TOOL_EVENTS_ZMQ_ENDPOINT"];
const TOOL_TOPIC: Names = &["TANDEM_TRACE_TOOL_EVENTS_ZMQ_TOPIC", "DYN_REQUEST_TRACE_TOOL_EVENTS_ZMQ_TOPIC"];
const OTEL_PAYLOAD_BYTES: Names = &[
    "TANDEM_TRACE_OTEL_MAX_PAYLOAD_BYTES",
    "DYN_REQUEST_TRACE_OTEL_MAX_PAYLOAD_BYTES",
    "DYN_AUDIT_OTEL_MAX_PAYLOAD_BYTES",
];

/// Settings of sinks that we do not have: known, so that they are not called unknown, and without effect.
const WITHOUT_EFFECT: Names = &[
    "DYN_REQUEST_TRACE_NATS_SUBJECT",
    "DYN_REQUEST_TRACE_S3_BUCKET",
    "DYN_REQUEST_TRACE_S3_REGION",
    "DYN_REQUEST_TRACE_S3_PREFIX",
    "DYN_REQUEST_TRACE_S3_ROLL_UNCOMPRESSED_BYTES",
    "DYN_REQUEST_TRACE_S3_FLUSH_INTERVAL_MS",
    "DYN_AUDIT_NATS_SUBJECT",
];

/// Every name that is read, by setting; the first of each that is set counts.
pub const KNOWN_KEYS: &[&[&str]] = &[
    SWITCH,
    RECORDS,
    FORCE_PAYLOAD,
    SINKS,
    PATH,
    FORMAT,
    ROWS,
    CAPACITY,
    BUFFER_BYTES,
    FLUSH_INTERVAL_MS,
    ROLL_BYTES,
    ROLL_LINES,
    OUTPUT_HASHES,
    PAYLOAD_HEADERS,
    TOOL_ENDPOINT,
    TOOL_TOPIC,
    OTEL_PAYLOAD_BYTES,
];

/// Names among `keys` that look like settings of a trace and are none: most likely misspelt.
pub fn unknown_keys<'a>(keys: impl IntoIterator<Item = &'a str>) -> Vec<ConfigWarning> {
    keys.into_iter()
        .filter(|key| {
            ["TANDEM_TRACE", "DYN_REQUEST_TRACE", "DYN_AUDIT"].iter().any(|start| key.starts_with(start))
        })
        .filter(|key| !WITHOUT_EFFECT.contains(key) && !KNOWN_KEYS.iter().any(|names| names.contains(key)))
        .map(|key| ConfigWarning::UnknownKey { key: key.to_owned() })
        .collect()
}

/// A value and the name that gave it.
struct Found {
    key: &'static str,
    value: String,
}

pub(super) struct Settings<'a> {
    lookup: &'a dyn Fn(&str) -> Option<String>,
    warnings: Vec<ConfigWarning>,
}

impl<'a> Settings<'a> {
    pub(super) fn new(lookup: &'a dyn Fn(&str) -> Option<String>) -> Self {
        Self { lookup, warnings: Vec::new() }
    }

    pub(super) fn resolve(mut self) -> Result<Resolved, ConfigError> {
        let Some(records) = self.records()? else {
            return Ok(Resolved { trace: None, warnings: self.warnings });
        };
        let default = TraceConfig::default();
        let (sinks, format_of_sinks) = self.sinks()?;
        let format = self.format().or(format_of_sinks).unwrap_or_default();
        let trace = TraceConfig {
            records,
            sinks,
            path: self.first(PATH).map_or(default.path, |found| PathBuf::from(found.value)),
            format,
            rows: self.rows(),
            capacity: self.number(CAPACITY, 1).unwrap_or(default.capacity),
            buffer_bytes: self.number(BUFFER_BYTES, 0).unwrap_or(default.buffer_bytes),
            flush_interval: self
                .number(FLUSH_INTERVAL_MS, 1)
                .map_or(default.flush_interval, Duration::from_millis),
            roll_bytes: self.number(ROLL_BYTES, 1).unwrap_or(default.roll_bytes),
            roll_lines: self.number(ROLL_LINES, 1),
            output_hashes: self.flag(OUTPUT_HASHES).unwrap_or(default.output_hashes),
            payload_headers: self.headers(),
            tool_zmq: self.tool_zmq(),
            otel_payload_bytes_max: self
                .number(OTEL_PAYLOAD_BYTES, 1)
                .unwrap_or(default.otel_payload_bytes_max),
        };
        Ok(Resolved { trace: Some(trace), warnings: self.warnings })
    }

    /// The trimmed value of `key`; blank counts as not set.
    fn get(&self, key: &'static str) -> Option<Found> {
        let value = (self.lookup)(key)?.trim().to_owned();
        (!value.is_empty()).then_some(Found { key, value })
    }

    /// The first of `names` that is set. Says so when one of ours takes the place of another's.
    fn first(&mut self, names: Names) -> Option<Found> {
        let mut set = names.iter().filter_map(|key| self.get(key));
        let first = set.next()?;
        let overridden: Vec<_> = set.filter(|later| later.value != first.value).map(|f| f.key).collect();
        self.warnings.extend(
            overridden
                .into_iter()
                .map(|key| ConfigWarning::Overridden { by: first.key.to_owned(), key: key.to_owned() }),
        );
        Some(first)
    }

    /// The first of `names` that holds a number of at least `least`.
    fn number<N: FromStr + PartialOrd + From<u8>>(&mut self, names: Names, least: u8) -> Option<N> {
        for found in names.iter().filter_map(|key| self.get(key)).collect::<Vec<_>>() {
            match found.value.parse::<N>() {
                Ok(number) if number >= N::from(least) => return Some(number),
                _ => self
                    .warnings
                    .push(ConfigWarning::BadNumber { key: found.key.to_owned(), value: found.value }),
            }
        }
        None
    }

    fn flag(&mut self, names: Names) -> Option<bool> {
        let found = self.first(names)?;
        match found.value.to_ascii_lowercase().as_str() {
            "1" | "true" | "yes" | "on" => Some(true),
            "0" | "false" | "no" | "off" => Some(false),
            _ => {
                self.warnings.push(ConfigWarning::BadFlag { key: found.key.to_owned(), value: found.value });
                None
            }
        }
    }

    fn unknown(&mut self, key: &str, word: &str) {
        self.warnings.push(ConfigWarning::UnknownWord { key: key.to_owned(), word: word.to_owned() });
    }

    /// `None` = tracing is off.
    fn records(&mut self) -> Result<Option<Records>, ConfigError> {
        // Our own switch set to off wins over every other name, lists included.
        let ours = self.flag(&["TANDEM_TRACE"]);
        if ours == Some(false) {
            return Ok(None);
        }
        if let Some(found) = self.first(RECORDS) {
            return self.record_list(&found).map(Some);
        }
        let on = ours.or_else(|| self.flag(&["DYN_REQUEST_TRACE"])).unwrap_or(false);
        let payload = self.flag(FORCE_PAYLOAD).unwrap_or(false);
        let records = match (on, payload) {
            (true, request_payload) => Records { request_payload, ..Records::default() },
            (false, request_payload) => Records { request_payload, ..Records::NONE },
        };
        Ok((!records.is_empty()).then_some(records))
    }

    fn record_list(&mut self, found: &Found) -> Result<Records, ConfigError> {
        let mut records = Records::NONE;
        for word in words(&found.value) {
            match word.as_str() {
                "request_end" => records.request_end = true,
                "tool" | "tools" | "tool_start" | "tool_end" | "tool_error" => records.tool = true,
                "decision" | "decisions" => records.decision = true,
                "request_payload" => records.request_payload = true,
                _ => self.unknown(found.key, &word),
            }
        }
        if records.is_empty() {
            return Err(ConfigError::NoUsableRecord {
                key: found.key.to_owned(),
                asked: found.value.clone(),
            });
        }
        Ok(records)
    }

    fn sinks(&mut self) -> Result<(Vec<SinkKind>, Option<FileFormat>), ConfigError> {
        let Some(found) = self.first(SINKS) else { return Ok((vec![SinkKind::File], None)) };
        let mut sinks = Vec::new();
        let mut format = None;
        for word in words(&found.value) {
            let kind = match word.as_str() {
                "file" => SinkKind::File,
                "jsonl" => {
                    format.get_or_insert(FileFormat::Jsonl);
                    SinkKind::File
                }
                "jsonl_gz" => {
                    format = Some(FileFormat::JsonlGz);
                    SinkKind::File
                }
                "stderr" => SinkKind::Stderr,
                "otel" => SinkKind::Otel,
                "nats" | "s3" => {
                    self.warnings
                        .push(ConfigWarning::SinkNotOffered { key: found.key.to_owned(), sink: word });
                    continue;
                }
                _ => {
                    self.unknown(found.key, &word);
                    continue;
                }
            };
            if !sinks.contains(&kind) {
                sinks.push(kind);
            }
        }
        if sinks.is_empty() {
            return Err(ConfigError::NoUsableSink { key: found.key.to_owned(), asked: found.value });
        }
        Ok((sinks, format))
    }

    fn format(&mut self) -> Option<FileFormat> {
        let found = self.first(FORMAT)?;
        match found.value.to_ascii_lowercase().as_str() {
            "jsonl" => Some(FileFormat::Jsonl),
            "jsonl_gz" | "jsonl.gz" => Some(FileFormat::JsonlGz),
            word => {
                let word = word.to_owned();
                self.unknown(found.key, &word);
                None
            }
        }
    }

    fn rows(&mut self) -> Rows {
        let Some(found) = self.first(ROWS) else { return Rows::default() };
        match found.value.to_ascii_lowercase().as_str() {
            "loadable" => Rows::Loadable,
            "agentic" => Rows::Agentic,
            "all" => Rows::All,
            word => {
                let word = word.to_owned();
                self.unknown(found.key, &word);
                Rows::default()
            }
        }
    }

    fn headers(&mut self) -> Vec<String> {
        let mut names = Vec::new();
        if let Some(found) = self.first(PAYLOAD_HEADERS) {
            for name in found.value.split(|c: char| c == ',' || c.is_whitespace()) {
                let name = name.to_ascii_lowercase();
                if !name.is_empty() && !names.contains(&name) {
                    names.push(name);
                }
            }
        }
        names
    }

    fn tool_zmq(&mut self) -> Option<ToolZmq> {
        let endpoint = self.first(TOOL_ENDPOINT)?.value;
        let topic = self.first(TOOL_TOPIC).map_or_else(|| DEFAULT_TOOL_TOPIC.to_owned(), |f| f.value);
        Some(ToolZmq { endpoint, topic })
    }
}

/// Words of a comma list, lower case.
fn words(list: &str) -> Vec<String> {
    list.split(',').map(|word| word.trim().to_lowercase()).filter(|word| !word.is_empty()).collect()
}
