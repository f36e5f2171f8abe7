//! How a user names an engine.
//!
//! - Purpose: turn `http://gpu-1:8000@kind=vllm,max_running=64` into an [`EngineSpec`], with errors that say
//!   what to write instead.
//! - Grammar: `ADDRESS[@KEY=VALUE[,KEY=VALUE]...]`. `ADDRESS` is one of
//!   - `http://HOST[:PORT][/PREFIX]`, `https://...`: one engine; a name is resolved at each new connection;
//!   - `HOST:PORT`: the same as `http://HOST:PORT`;
//!   - `dns://NAME:PORT`, `dns+https://NAME:PORT`: every address of the name is an engine, and the set follows
//!     the records.
//!
//!   Keys: `kind` (`auto`, `vllm`, `sglang`, `openai`), `api_key`, `max_running`, `kv_events` (`off` or rank 0's
//!   publisher as the engine is configured with it, `tcp://*:5557`), `kv_replay` (rank 0's replay socket), `role`
//!   (`auto`, `both`, `prefill`, `decode`), `bootstrap_port` (where an SGLang prefill engine is met), `lora` (`loaded`,
//!   or `any`: the engine loads adapters when asked), `priority` (`on`: the engine schedules by priority), `kv_resident`
//!   (KV tokens that it holds with its own host memory and disks), `labels` and `taints` (`a|b`), `label.NAME`.
//! - Invariants: I-SPEC-1 a base URL never ends in `/` nor in `/v1` (users paste the OpenAI base URL);
//!   I-SPEC-2 neither `Display` nor `Debug` shows an API key.
//! - Deliberately absent: user names and passwords in URLs, `%` decoding, reading of files or environment.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use http::{HeaderValue, Uri};
use serde::{Deserialize, Serialize};
use tandem_types::WorkerRole;

use crate::kv_events::ZmqEndpoint;

/// Longest accepted engine text, in bytes.
pub const SPEC_BYTES_MAX: usize = 4096;
/// Most labels of one engine.
pub const LABELS_MAX: usize = 32;

/// Why a text does not name an engine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// Nothing there.
    #[error("empty engine address: write something like http://127.0.0.1:8000")]
    Empty,
    /// Too long.
    #[error("engine address longer than {SPEC_BYTES_MAX} bytes")]
    TooLong,
    /// Unknown scheme.
    #[error("scheme {0:?} is not supported: use http://, https://, dns:// or dns+https://")]
    Scheme(String),
    /// Credentials before the host.
    #[error("credentials in the url are not supported: write {0}@api_key=KEY instead")]
    Credentials(String),
    /// No host.
    #[error("{0:?} has no host: write something like http://127.0.0.1:8000")]
    NoHost(String),
    /// The URL does not parse.
    #[error("{text:?} is not a url ({reason}): write something like http://127.0.0.1:8000")]
    Url {
        /// What was given.
        text: String,
        /// What the parser said.
        reason: String,
    },
    /// A query or fragment, which a base URL cannot have.
    #[error("{0:?} has a query or a fragment: an engine address is only scheme, host, port and path prefix")]
    Query(String),
    /// Discovery by name needs a port.
    #[error("{0:?} needs a port: write dns://NAME:8000")]
    DnsPort(String),
    /// Discovery of an address that is no name.
    #[error("{0:?} is an address, not a name: write http://{0} instead")]
    DnsAddress(String),
    /// An option without `=`.
    #[error("option {0:?} has no value: options are KEY=VALUE, separated by commas")]
    OptionForm(String),
    /// An unknown option.
    #[error(
        "unknown option {0:?}: the options are kind, api_key, max_running, kv_events, kv_replay, role, \
         bootstrap_port, lora, priority, kv_resident, labels, taints and label.NAME"
    )]
    OptionUnknown(String),
    /// The same option twice.
    #[error("option {0:?} is given twice")]
    OptionTwice(String),
    /// An option with an unusable value.
    #[error("option {key}: {value:?} is not usable, expected {expected}")]
    OptionValue {
        /// Which.
        key: String,
        /// What was given (never a key).
        value: String,
        /// What would do.
        expected: &'static str,
    },
    /// More labels, or more taints, than [`LABELS_MAX`].
    #[error("more than {LABELS_MAX} labels or taints")]
    LabelsMax,
}

/// What the user says about an engine's make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineKindHint {
    /// Find out.
    #[default]
    Auto,
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// Any other OpenAI-compatible engine.
    OpenAi,
}

impl FromStr for EngineKindHint {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "auto" => Ok(Self::Auto),
            "vllm" => Ok(Self::Vllm),
            "sglang" => Ok(Self::Sglang),
            "openai" => Ok(Self::OpenAi),
            _ => Err(()),
        }
    }
}

/// An engine's API key. Its text is shown to nobody but the engine.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey {
    header: HeaderValue,
}

impl ApiKey {
    /// Checks that `text` can travel in a header: 1 or more bytes of visible ASCII.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        if text.is_empty() || !text.bytes().all(|b| b.is_ascii_graphic()) {
            return None;
        }
        let mut header = HeaderValue::from_str(&format!("Bearer {text}")).ok()?;
        header.set_sensitive(true);
        Some(Self { header })
    }

    /// The value of the `authorization` header.
    #[must_use]
    pub const fn header(&self) -> &HeaderValue {
        &self.header
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(..)")
    }
}

/// The part of an engine's URL that all its routes share.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BaseUrl {
    https: bool,
    /// Host and port as they stand in the URL.
    authority: String,
    /// Empty or `/prefix` without a slash at its end.
    prefix: String,
}

impl BaseUrl {
    /// Parses `http://HOST[:PORT][/PREFIX]` or `https://...`; a `/v1` at the end is dropped.
    ///
    /// # Errors
    /// [`SpecError`] says what to write instead.
    pub fn parse(text: &str) -> Result<Self, SpecError> {
        let (https, rest) = match text.split_once("://") {
            Some((s, rest)) if s.eq_ignore_ascii_case("http") => (false, rest),
            Some((s, rest)) if s.eq_ignore_ascii_case("https") => (true, rest),
            Some((s, _)) => return Err(SpecError::Scheme(s.to_owned())),
            None => (false, text),
        };
        if rest.contains(['?', '#']) {
            return Err(SpecError::Query(text.to_owned()));
        }
        let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        if let Some((_, host)) = authority.rsplit_once('@') {
            return Err(SpecError::Credentials(format!("{}://{host}", if https { "https" } else { "http" })));
        }
        Self::new(https, authority, path).map_err(|reason| match reason {
            None => SpecError::NoHost(text.to_owned()),
            Some(reason) => SpecError::Url { text: text.to_owned(), reason },
        })
    }

    /// `Err(None)`: no host.
    fn new(https: bool, authority: &str, path: &str) -> Result<Self, Option<String>> {
        if authority.is_empty() || authority.starts_with(':') {
            return Err(None);
        }
        let mut prefix = path.trim_end_matches('/');
        if let Some(before) = prefix.strip_suffix("/v1") {
            prefix = before.trim_end_matches('/');
        }
        let parsed: http::uri::Authority =
            authority.parse().map_err(|e: http::uri::InvalidUri| Some(e.to_string()))?;
        // `port_u16` is also `None` for a port that is no number.
        if authority.len() > parsed.host().len() && parsed.port_u16().is_none_or(|port| port == 0) {
            return Err(Some("the port is not a number from 1 to 65535".to_owned()));
        }
        if parsed.host().is_empty() || parsed.host() == "[]" {
            return Err(None);
        }
        let base = Self { https, authority: authority.to_ascii_lowercase(), prefix: prefix.to_owned() };
        base.uri("/").map_err(|e| Some(e.to_string()))?;
        Ok(base)
    }

    /// Whether the connection is encrypted.
    #[must_use]
    pub const fn is_https(&self) -> bool {
        self.https
    }

    /// Host and port as they stand in the URL.
    #[must_use]
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// The host alone; an IPv6 address keeps its brackets.
    pub(crate) fn host(&self) -> String {
        let authority: Option<http::uri::Authority> = self.authority.parse().ok();
        authority.map_or_else(|| self.authority.clone(), |authority| authority.host().to_owned())
    }

    /// The whole URL of a route; `path_and_query` starts with `/`.
    ///
    /// # Errors
    /// When `path_and_query` has bytes that no URL may have.
    pub fn uri(&self, path_and_query: &str) -> Result<Uri, http::Error> {
        let path = if self.prefix.is_empty() {
            http::uri::PathAndQuery::try_from(path_and_query)?
        } else {
            http::uri::PathAndQuery::try_from(format!("{}{path_and_query}", self.prefix))?
        };
        Uri::builder()
            .scheme(if self.https { http::uri::Scheme::HTTPS } else { http::uri::Scheme::HTTP })
            .authority(self.authority.as_str())
            .path_and_query(path)
            .build()
    }
}

impl fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", if self.https { "https" } else { "http" }, self.authority, self.prefix)
    }
}

/// Where an engine, or a set of engines, is found.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EngineAddress {
    /// One engine.
    Url(BaseUrl),
    /// Every address that a name resolves to is an engine.
    Dns {
        /// Whether the connections are encrypted; certificates are checked against `name`.
        https: bool,
        /// The name.
        name: String,
        /// The port of all engines.
        port: u16,
    },
}

impl fmt::Display for EngineAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(base) => base.fmt(f),
            Self::Dns { https, name, port } => {
                write!(f, "{}://{name}:{port}", if *https { "dns+https" } else { "dns" })
            }
        }
    }
}

/// Where an engine's cache events are published, as far as the user says; the rest is asked of the engine.
/// Ports count upwards with the data-parallel rank; a host of `*` is the engine's.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KvEventsSpec {
    /// They are not to be followed.
    pub off: bool,
    /// Rank 0's publisher.
    pub events: Option<ZmqEndpoint>,
    /// Rank 0's replay socket.
    pub replay: Option<ZmqEndpoint>,
}

impl KvEventsSpec {
    /// All is asked of the engine.
    pub const DISCOVER: Self = Self { off: false, events: None, replay: None };
}

/// An engine (or a set found by name) as the user describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineSpec {
    /// Where.
    pub address: EngineAddress,
    /// Its make, if the user says.
    pub kind: EngineKindHint,
    /// The key to show to it. Where it is set, a client's own key is not passed on.
    pub api_key: Option<ApiKey>,
    /// Most turns that may run at once on each of its data-parallel ranks.
    pub max_running: Option<u32>,
    /// Where its cache events are published.
    pub kv_events: KvEventsSpec,
    /// The part of the work that it does, if the user says.
    pub role: Option<WorkerRole>,
    /// Port at which its prefill workers are met (SGLang), if the user says.
    pub bootstrap_port: Option<u16>,
    /// It loads LoRA adapters when a call asks for them.
    pub loads_adapters: bool,
    /// It schedules by the priority of calls: only then does it get any.
    pub priority: bool,
    /// KV tokens that each of its data-parallel ranks holds with its own tiers below the device, if the user says.
    pub kv_resident_tokens: Option<u64>,
    /// Labels without a value.
    pub tags: Vec<String>,
    /// What keeps calls away that do not say that they put up with it.
    pub taints: Vec<String>,
    /// Labels with a value, for the admin API and for policies.
    pub labels: BTreeMap<String, String>,
}

impl EngineSpec {
    /// An engine of which only the address is known.
    #[must_use]
    pub const fn new(address: EngineAddress) -> Self {
        Self {
            address,
            kind: EngineKindHint::Auto,
            api_key: None,
            max_running: None,
            kv_events: KvEventsSpec::DISCOVER,
            role: None,
            bootstrap_port: None,
            loads_adapters: false,
            priority: false,
            kv_resident_tokens: None,
            tags: Vec::new(),
            taints: Vec::new(),
            labels: BTreeMap::new(),
        }
    }

    /// The labels as requests name them: `big`, `zone=a`.
    pub(crate) fn all_labels(&self) -> Vec<String> {
        let valued = self.labels.iter().map(|(name, value)| format!("{name}={value}"));
        self.tags.iter().cloned().chain(valued).collect()
    }
}

impl fmt::Display for EngineSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

impl FromStr for EngineSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let text = text.trim();
        if text.is_empty() {
            return Err(SpecError::Empty);
        }
        if text.len() > SPEC_BYTES_MAX {
            return Err(SpecError::TooLong);
        }
        let (address, options) = match text.split_once('@') {
            None => (text, None),
            // Options always start with KEY=; anything else before the host is a user name.
            Some((address, options)) if is_option_start(options) => (address, Some(options)),
            Some((before, host)) => {
                let scheme = before.split_once("://").map_or("http", |(s, _)| s);
                let host = host.split(['@', '/']).next().unwrap_or_default();
                return Err(SpecError::Credentials(format!("{scheme}://{host}")));
            }
        };
        let mut spec = Self::new(parse_address(address)?);
        if let Some(options) = options {
            parse_options(options, &mut spec)?;
        }
        Ok(spec)
    }
}

fn is_option_start(text: &str) -> bool {
    text.split_once('=').is_some_and(|(key, _)| {
        !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.'))
    })
}

fn parse_address(text: &str) -> Result<EngineAddress, SpecError> {
    let (https, rest) = match text.split_once("://") {
        Some((s, rest)) if s.eq_ignore_ascii_case("dns") => (false, rest),
        Some((s, rest)) if s.eq_ignore_ascii_case("dns+https") => (true, rest),
        _ => return BaseUrl::parse(text).map(EngineAddress::Url),
    };
    let rest = rest.trim_end_matches('/');
    if rest.contains(['/', '?', '#']) {
        return Err(SpecError::Query(text.to_owned()));
    }
    let Some((name, port)) = rest.rsplit_once(':') else {
        return Err(SpecError::DnsPort(text.to_owned()));
    };
    if name.is_empty() {
        return Err(SpecError::NoHost(text.to_owned()));
    }
    if name.starts_with('[') || name.parse::<std::net::IpAddr>().is_ok() {
        return Err(SpecError::DnsAddress(rest.to_owned()));
    }
    if !name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_')) {
        return Err(SpecError::Url { text: text.to_owned(), reason: "not a host name".to_owned() });
    }
    match port.parse::<u16>() {
        Ok(port) if port > 0 => Ok(EngineAddress::Dns { https, name: name.to_ascii_lowercase(), port }),
        _ => Err(SpecError::DnsPort(text.to_owned())),
    }
}

fn parse_options(text: &str, spec: &mut EngineSpec) -> Result<(), SpecError> {
    let mut seen = std::collections::BTreeSet::new();
    for option in text.split(',') {
        let Some((key, value)) = option.split_once('=') else {
            return Err(SpecError::OptionForm(option.to_owned()));
        };
        if !seen.insert(key) {
            return Err(SpecError::OptionTwice(key.to_owned()));
        }
        let bad = |value: &str, expected| SpecError::OptionValue {
            key: key.to_owned(),
            value: value.to_owned(),
            expected,
        };
        match key {
            "kind" => {
                spec.kind = value.parse().map_err(|()| bad(value, "auto, vllm, sglang or openai"))?;
            }
            "api_key" => {
                spec.api_key =
                    Some(ApiKey::new(value).ok_or_else(|| bad("...", "visible ascii without spaces"))?);
            }
            "max_running" => {
                let n = value.parse().ok().filter(|n| *n > 0);
                spec.max_running = Some(n.ok_or_else(|| bad(value, "a whole number from 1"))?);
            }
            "kv_events" if value == "off" => spec.kv_events.off = true,
            "kv_events" => {
                let expected = "off or an endpoint like tcp://*:5557";
                spec.kv_events.events = Some(value.parse().map_err(|_| bad(value, expected))?);
            }
            "kv_replay" => {
                let expected = "an endpoint like tcp://*:5558";
                spec.kv_events.replay = Some(value.parse().map_err(|_| bad(value, expected))?);
            }
            "labels" => spec.tags = words(value).ok_or_else(|| bad(value, WORDS))?,
            "taints" => spec.taints = words(value).ok_or_else(|| bad(value, WORDS))?,
            _ => match key.strip_prefix("label.") {
                Some(name) if !name.is_empty() => {
                    spec.labels.insert(name.to_owned(), value.to_owned());
                }
                _ => match serving_option(key, value, spec) {
                    Some(Ok(())) => {}
                    Some(Err(expected)) => return Err(bad(value, expected)),
                    None => return Err(SpecError::OptionUnknown(key.to_owned())),
                },
            },
        }
    }
    if spec.labels.len() + spec.tags.len() > LABELS_MAX || spec.taints.len() > LABELS_MAX {
        return Err(SpecError::LabelsMax);
    }
    Ok(())
}

/// An option on how the engine serves; what was expected where its value will not do, `None` = no such option.
fn serving_option(key: &str, value: &str, spec: &mut EngineSpec) -> Option<Result<(), &'static str>> {
    let expected = match key {
        "role" => "auto, both, prefill or decode",
        "bootstrap_port" => "a port from 1 to 65535",
        "lora" => "loaded or any",
        "priority" => "on or off",
        "kv_resident" => "a number of tokens",
        _ => return None,
    };
    match (key, value) {
        ("role", "auto") => spec.role = None,
        ("role", "both") => spec.role = Some(WorkerRole::Both),
        ("role", "prefill") => spec.role = Some(WorkerRole::Prefill),
        ("role", "decode") => spec.role = Some(WorkerRole::Decode),
        ("lora", "loaded") => spec.loads_adapters = false,
        ("lora", "any") => spec.loads_adapters = true,
        ("priority", "on") => spec.priority = true,
        ("priority", "off") => spec.priority = false,
        ("bootstrap_port", _) => match value.parse().ok().filter(|port| *port > 0) {
            Some(port) => spec.bootstrap_port = Some(port),
            None => return Some(Err(expected)),
        },
        ("kv_resident", _) => match value.parse().ok().filter(|tokens| *tokens > 0) {
            Some(tokens) => spec.kv_resident_tokens = Some(tokens),
            None => return Some(Err(expected)),
        },
        _ => return Some(Err(expected)),
    }
    Some(Ok(()))
}

const WORDS: &str = "words of visible ascii between bars, such as big|h200";

/// `a|b`: words of visible ASCII, each once.
fn words(text: &str) -> Option<Vec<String>> {
    let mut words: Vec<String> = text.split('|').map(str::to_owned).collect();
    let usable = |word: &String| !word.is_empty() && word.bytes().all(|b| b.is_ascii_graphic());
    if !words.iter().all(usable) {
        return None;
    }
    words.sort();
    words.dedup();
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base(text: &str) -> String {
        BaseUrl::parse(text).map_or_else(|e| format!("error: {e}"), |b| b.to_string())
    }

    // I-SPEC-1.
    #[test]
    fn base_urls_are_normalised() {
        assert_eq!(base("http://A:8000/"), "http://a:8000");
        assert_eq!(base("gpu-1:8000"), "http://gpu-1:8000");
        assert_eq!(base("http://a:8000/v1"), "http://a:8000");
        assert_eq!(base("https://a.example/llm/v1/"), "https://a.example/llm");
        assert_eq!(base("http://[::1]:8000"), "http://[::1]:8000");
        let url = BaseUrl::parse("https://a/llm").expect("valid");
        assert_eq!(url.uri("/v1/models?x=1").expect("valid").to_string(), "https://a/llm/v1/models?x=1");
        assert!(url.uri("/a b").is_err());
    }

    // I-SPEC-2.
    #[test]
    fn options_are_read() {
        let spec: EngineSpec =
            "http://a:8000@kind=vllm,max_running=64,label.zone=a,api_key=k=1".parse().expect("valid");
        assert_eq!(spec.to_string(), "http://a:8000");
        assert_eq!((spec.kind, spec.max_running), (EngineKindHint::Vllm, Some(64)));
        assert_eq!(spec.labels, BTreeMap::from([("zone".to_owned(), "a".to_owned())]));
        let key = spec.api_key.clone().expect("set");
        assert_eq!(key.header(), "Bearer k=1");
        assert!(!format!("{spec:?}").contains("k=1"), "the key must not be shown");
    }

    #[test]
    fn event_endpoints_are_read() {
        let spec: EngineSpec =
            "http://a:8000@kv_events=tcp://*:5557,kv_replay=tcp://gpu-1:5657".parse().expect("valid");
        let shown = |endpoint: Option<ZmqEndpoint>| endpoint.map(|e| e.to_string());
        assert_eq!(shown(spec.kv_events.events).as_deref(), Some("tcp://*:5557"));
        assert_eq!(shown(spec.kv_events.replay).as_deref(), Some("tcp://gpu-1:5657"));
        let off: EngineSpec = "http://a:8000@kv_events=off".parse().expect("valid");
        assert_eq!(off.kv_events, KvEventsSpec { off: true, ..KvEventsSpec::DISCOVER });
    }

    #[test]
    fn roles_labels_and_taints_are_read() {
        let spec: EngineSpec =
            "http://a:8000@role=prefill,bootstrap_port=8998,lora=any,labels=h200|big|h200,label.zone=a,taints=batch"
                .parse()
                .expect("valid");
        assert_eq!((spec.role, spec.bootstrap_port), (Some(WorkerRole::Prefill), Some(8998)));
        assert!(spec.loads_adapters);
        let spec_of_tiers: EngineSpec = "http://a@priority=on,kv_resident=4000".parse().expect("valid");
        assert_eq!((spec_of_tiers.priority, spec_of_tiers.kv_resident_tokens), (true, Some(4000)));
        assert_eq!(spec.all_labels(), ["big", "h200", "zone=a"]);
        assert_eq!(spec.taints, ["batch"]);
        let many: String = (0..=LABELS_MAX).map(|n| format!("l{n}|")).collect();
        let error = format!("http://a@labels={}", many.trim_end_matches('|')).parse::<EngineSpec>();
        assert_eq!(error, Err(SpecError::LabelsMax));
    }

    #[test]
    fn names_are_discovered() {
        let spec: EngineSpec = "dns+https://Engines.svc:8000@kind=sglang".parse().expect("valid");
        assert_eq!(
            spec.address,
            EngineAddress::Dns { https: true, name: "engines.svc".to_owned(), port: 8000 }
        );
    }

    #[test]
    fn errors_say_what_to_write() {
        let error = |text: &str| match text.parse::<EngineSpec>() {
            Ok(spec) => format!("{spec:?}"),
            Err(e) => e.to_string(),
        };
        for (text, says) in [
            ("", "empty engine address"),
            ("grpc://a:1", "use http://, https://, dns:// or dns+https://"),
            ("http://user:pw@a:8000/v1", "write http://a:8000@api_key=KEY"),
            ("http://:8000", "has no host"),
            ("http://a:port", "write something like"),
            ("http://a:99999", "write something like"),
            ("http://a:0", "the port is not a number from 1"),
            ("http://a:", "the port is not a number from 1"),
            ("http://a:8000?x=1", "query or a fragment"),
            ("dns://engines", "needs a port"),
            ("dns://10.0.0.1:8000", "write http://10.0.0.1:8000"),
            ("http://a@kind=tgi", "expected auto, vllm, sglang or openai"),
            ("http://a@max_running=0", "expected a whole number from 1"),
            ("http://a@kv_events=5557", "expected off or an endpoint like tcp://*:5557"),
            ("http://a@kv_replay=off", "expected an endpoint like tcp://*:5558"),
            ("http://a@kind=vllm,kind=vllm", "given twice"),
            ("http://a@kind=vllm,fast", "has no value"),
            (
                "http://a@weight=3",
                "the options are kind, api_key, max_running, kv_events, kv_replay, role, bootstrap_port, lora, priority, kv_resident, labels, \
                 taints and label.NAME",
            ),
            ("http://a@role=both|prefill", "expected auto, both, prefill or decode"),
            ("http://a@priority=1", "expected on or off"),
            ("http://a@kv_resident=0", "expected a number of tokens"),
            ("http://a@bootstrap_port=0", "expected a port from 1"),
            ("http://a@lora=all", "expected loaded or any"),
            ("http://a@labels=big||fast", "such as big|h200"),
            ("http://a@taints=", "such as big|h200"),
            ("http://a@api_key=se cret", "visible ascii"),
        ] {
            assert!(error(text).contains(says), "{text:?}: {}", error(text));
        }
        assert!(!error("http://a@api_key=se cret").contains("cret"), "a key must not be shown");
        assert!(!error("http://user:pw@a").contains("pw"), "a password must not be shown");
    }
}
