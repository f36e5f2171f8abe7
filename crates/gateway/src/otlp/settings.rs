//! The way to the collector: the configuration's key and the variables of the OpenTelemetry specification.
//!
//! Of each setting the variable for logs counts before the general one, and a variable before the key, as
//! everywhere. Only what is asked for and cannot be done is an error: another protocol, an address that is none.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use percent_encoding::percent_decode_str;

use crate::config::ConfigError;

const LOGS_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT";
const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const PROTOCOL: Names = &["OTEL_EXPORTER_OTLP_LOGS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"];
const HEADERS: Names = &["OTEL_EXPORTER_OTLP_LOGS_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"];
const TIMEOUT: Names = &["OTEL_EXPORTER_OTLP_LOGS_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"];
const CERTIFICATE: Names = &["OTEL_EXPORTER_OTLP_LOGS_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE"];
const SERVICE_NAME: Names = &["OTEL_SERVICE_NAME"];
const RESOURCE: Names = &["OTEL_RESOURCE_ATTRIBUTES"];

/// Every variable that is read.
const ALL: &[Names] =
    &[&[LOGS_ENDPOINT, ENDPOINT], PROTOCOL, HEADERS, TIMEOUT, CERTIFICATE, SERVICE_NAME, RESOURCE];

/// The path of logs under a collector's address.
const LOGS_PATH: &str = "/v1/logs";
const DEFAULT_ENDPOINT: &str = "http://localhost:4318/v1/logs";
const DEFAULT_SERVICE: &str = "tandem";
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// Before the second try; it doubles.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// As long as the reference system drains its sinks.
const CLOSE_PATIENCE: Duration = Duration::from_secs(10);

type Names = &'static [&'static str];

/// The OpenTelemetry variables that were set when the configuration was read.
#[derive(Clone, Default)]
pub struct OtelEnvironment {
    found: BTreeMap<&'static str, String>,
}

impl fmt::Debug for OtelEnvironment {
    /// Names only: headers are mostly credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.found.keys()).finish()
    }
}

impl OtelEnvironment {
    /// Reads the variables; a blank one counts as not set.
    pub(crate) fn read(lookup: impl Fn(&str) -> Option<String>) -> Self {
        let value = |name: &&'static str| {
            let value = lookup(name)?.trim().to_owned();
            (!value.is_empty()).then_some((*name, value))
        };
        Self { found: ALL.iter().copied().flatten().filter_map(value).collect() }
    }

    /// The first of `names` that is set, with its name.
    fn first(&self, names: Names) -> Option<(&'static str, &str)> {
        names.iter().find_map(|name| Some((*name, self.found.get(name)?.as_str())))
    }
}

/// How rows get to a collector.
#[derive(Debug, Clone)]
pub struct OtlpConfig {
    /// Where logs are taken, with the path.
    pub endpoint: Uri,
    /// Headers of each call; values are marked as sensitive.
    pub headers: HeaderMap,
    /// Longest time of one try.
    pub timeout: Duration,
    /// Certificates to trust beside the system's, PEM.
    pub ca_pem: Option<Vec<u8>>,
    /// Attributes of the resource; `service.name` is always there.
    pub resource: BTreeMap<String, String>,
    /// Pause before the second try; it doubles, unless the collector says how long to wait.
    pub retry_pause: Duration,
    /// Longest time that closing takes.
    pub close_patience: Duration,
}

/// Settles how rows get to a collector. `key` is the configuration's `trace.otel_endpoint`.
pub(crate) fn resolve(key: Option<&str>, environment: &OtelEnvironment) -> Result<OtlpConfig, ConfigError> {
    protocol(environment)?;
    Ok(OtlpConfig {
        endpoint: endpoint(key, environment)?,
        headers: headers(environment)?,
        timeout: timeout(environment)?,
        ca_pem: certificate(environment)?,
        resource: resource(environment)?,
        retry_pause: RETRY_PAUSE,
        close_patience: CLOSE_PATIENCE,
    })
}

fn refused(key: &'static str, reason: impl Into<String>) -> ConfigError {
    ConfigError::Value { key, reason: reason.into() }
}

fn protocol(environment: &OtelEnvironment) -> Result<(), ConfigError> {
    match environment.first(PROTOCOL) {
        None | Some((_, "http/protobuf")) => Ok(()),
        Some((key, other)) => Err(refused(
            key,
            format!(
                "{other:?} is not spoken here: the otel sink sends http/protobuf; set \
                 OTEL_EXPORTER_OTLP_LOGS_PROTOCOL=http/protobuf and the collector's http address (port 4318)"
            ),
        )),
    }
}

fn endpoint(key: Option<&str>, environment: &OtelEnvironment) -> Result<Uri, ConfigError> {
    if let Some(text) = environment.found.get(LOGS_ENDPOINT) {
        return address(LOGS_ENDPOINT, text);
    }
    if let Some(text) = environment.found.get(ENDPOINT) {
        address(ENDPOINT, text)?;
        return address(ENDPOINT, &format!("{}{LOGS_PATH}", text.trim_end_matches('/')));
    }
    let Some(text) = key else { return Ok(Uri::from_static(DEFAULT_ENDPOINT)) };
    let given = address("trace.otel_endpoint", text)?;
    // A bare address means the collector, not its root path.
    if given.path() == "/" && given.query().is_none() {
        return address("trace.otel_endpoint", &format!("{}{LOGS_PATH}", text.trim_end_matches('/')));
    }
    Ok(given)
}

fn address(key: &'static str, text: &str) -> Result<Uri, ConfigError> {
    let uri: Uri = text
        .parse()
        .map_err(|_| refused(key, "not a url, write http://collector:4318 or the like".to_owned()))?;
    let schemed = matches!(uri.scheme_str(), Some("http" | "https"));
    match uri.authority() {
        Some(authority) if authority.as_str().contains('@') => Err(refused(
            key,
            "credentials do not belong into the url; use OTEL_EXPORTER_OTLP_LOGS_HEADERS".to_owned(),
        )),
        Some(_) if schemed => Ok(uri),
        _ => Err(refused(key, format!("{text:?} is not an http or https url"))),
    }
}

/// `name=value` pairs between commas, values percent-encoded, as the specification has them.
fn pairs(key: &'static str, text: &str) -> impl Iterator<Item = Result<(String, String), ConfigError>> {
    text.split(',').map(str::trim).filter(|pair| !pair.is_empty()).map(move |pair| {
        let (name, value) = pair
            .split_once('=')
            .filter(|(name, _)| !name.trim().is_empty())
            .ok_or_else(|| refused(key, "expected name=value pairs between commas"))?;
        let decoded = |part: &str| percent_decode_str(part.trim()).decode_utf8_lossy().into_owned();
        Ok((decoded(name), decoded(value)))
    })
}

fn headers(environment: &OtelEnvironment) -> Result<HeaderMap, ConfigError> {
    let mut headers = HeaderMap::new();
    let Some((key, text)) = environment.first(HEADERS) else { return Ok(headers) };
    for pair in pairs(key, text) {
        let (name, value) = pair?;
        let name: HeaderName =
            name.parse().map_err(|_| refused(key, format!("{name:?} cannot be the name of a header")))?;
        let mut value = HeaderValue::from_str(&value)
            .map_err(|_| refused(key, format!("the value of {name} cannot be one of a header")))?;
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    Ok(headers)
}

fn timeout(environment: &OtelEnvironment) -> Result<Duration, ConfigError> {
    let Some((key, text)) = environment.first(TIMEOUT) else { return Ok(DEFAULT_TIMEOUT) };
    match text.parse() {
        Ok(ms) if ms > 0 => Ok(Duration::from_millis(ms)),
        _ => Err(refused(key, format!("{text:?} is not a number of milliseconds above zero"))),
    }
}

fn certificate(environment: &OtelEnvironment) -> Result<Option<Vec<u8>>, ConfigError> {
    let Some((key, path)) = environment.first(CERTIFICATE) else { return Ok(None) };
    match std::fs::read(path) {
        Ok(pem) => Ok(Some(pem)),
        Err(source) => Err(ConfigError::File { key, path: path.to_owned(), source }),
    }
}

fn resource(environment: &OtelEnvironment) -> Result<BTreeMap<String, String>, ConfigError> {
    let mut resource = BTreeMap::from([
        ("service.name".to_owned(), DEFAULT_SERVICE.to_owned()),
        ("service.version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
        // Tells replicas apart that share a name.
        ("service.instance.id".to_owned(), uuid::Uuid::new_v4().to_string()),
    ]);
    if let Some((key, text)) = environment.first(RESOURCE) {
        for pair in pairs(key, text) {
            let (name, value) = pair?;
            resource.insert(name, value);
        }
    }
    if let Some((_, name)) = environment.first(SERVICE_NAME) {
        resource.insert("service.name".to_owned(), name.to_owned());
    }
    Ok(resource)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(key: Option<&str>, variables: &[(&str, &str)]) -> Result<OtlpConfig, ConfigError> {
        let lookup =
            |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
        resolve(key, &OtelEnvironment::read(lookup))
    }

    fn refusal(key: Option<&str>, variables: &[(&str, &str)]) -> String {
        with(key, variables).expect_err("refused").to_string()
    }

    #[test]
    fn the_address_comes_from_the_first_that_says_it() {
        let logs = ("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "http://logs:1/own");
        let all = ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://all:2/base/");
        let key = Some("http://key:3");
        for (key, variables, wanted) in [
            (key, &[logs, all][..], "http://logs:1/own"),
            (key, &[all], "https://all:2/base/v1/logs"),
            (key, &[], "http://key:3/v1/logs"),
            (Some("http://key:3/"), &[], "http://key:3/v1/logs"),
            (Some("http://key:3/insert/logs?x=1"), &[], "http://key:3/insert/logs?x=1"),
            (None, &[], "http://localhost:4318/v1/logs"),
            (None, &[("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", " ")], "http://localhost:4318/v1/logs"),
            // The specification: the address for logs is taken as it is.
            (None, &[("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "http://logs:1")], "http://logs:1/"),
        ] {
            let endpoint = with(key, variables).expect("valid").endpoint;
            assert_eq!(endpoint.to_string(), wanted, "{key:?} {variables:?}");
        }
    }

    #[test]
    fn what_cannot_be_done_is_refused_by_name() {
        for (variables, says) in [
            (("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"), "OTEL_EXPORTER_OTLP_PROTOCOL: \"grpc\" is not spoken"),
            (("OTEL_EXPORTER_OTLP_LOGS_PROTOCOL", "http/json"), "sends http/protobuf"),
            (("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318"), "is not an http or https url"),
            (("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "http://a b"), "not a url"),
            (("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "http://me:pw@c/"), "do not belong into the url"),
            (("OTEL_EXPORTER_OTLP_TIMEOUT", "10s"), "number of milliseconds"),
            (("OTEL_EXPORTER_OTLP_HEADERS", "token"), "name=value"),
            (("OTEL_EXPORTER_OTLP_HEADERS", "a b=c"), "cannot be the name of a header"),
            (("OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere/ca.pem"), "cannot read /nowhere/ca.pem"),
        ] {
            let error = refusal(None, &[variables]);
            assert!(error.contains(says), "{variables:?}: {error}");
            assert!(!error.contains("me:pw"), "{error}");
        }
        assert!(refusal(Some("ftp://a"), &[]).contains("trace.otel_endpoint"));
        // What is said for logs counts.
        let both =
            [("OTEL_EXPORTER_OTLP_LOGS_PROTOCOL", "http/protobuf"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")];
        with(None, &both).expect("valid");
    }

    #[test]
    fn headers_are_decoded_and_stay_secret() {
        let environment = [
            ("OTEL_EXPORTER_OTLP_HEADERS", "x-scope=no"),
            ("OTEL_EXPORTER_OTLP_LOGS_HEADERS", "Authorization=Basic%20c2VjcmV0=, x-scope = logs,"),
        ];
        let config = with(None, &environment).expect("valid");
        assert_eq!(config.headers["authorization"], "Basic c2VjcmV0=");
        assert_eq!(config.headers["x-scope"], "logs");
        assert!(!format!("{config:?}").contains("c2VjcmV0"));
        let read = OtelEnvironment::read(|name| {
            environment.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned())
        });
        assert!(!format!("{read:?}").contains("c2VjcmV0"));
    }

    #[test]
    fn the_service_is_named() {
        let plain = with(None, &[]).expect("valid").resource;
        assert_eq!(plain["service.name"], "tandem");
        let listed = ("OTEL_RESOURCE_ATTRIBUTES", "service.name=listed,deployment.environment=a%2Cb");
        let resource = with(None, &[listed]).expect("valid").resource;
        assert_eq!((&*resource["service.name"], &*resource["deployment.environment"]), ("listed", "a,b"));
        let named = with(None, &[listed, ("OTEL_SERVICE_NAME", "named")]).expect("valid").resource;
        assert_eq!(named["service.name"], "named");
    }
}
