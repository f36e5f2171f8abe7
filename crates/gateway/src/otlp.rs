//! Trace rows as OTLP logs.
//!
//! - Purpose: a sink of the trace that sends each row to an OpenTelemetry collector, as one log record, over
//!   OTLP/HTTP with protobuf.
//! - Inputs: encoded rows from the trace's thread, the way to the collector ([`settings`]). Outputs: calls to
//!   `/v1/logs`, and the sink's report.
//! - Division of work: the trace's thread makes records and batches ([`sink`], [`message`]) and never waits but
//!   when it closes; one task of the gateway's runtime sends the batches one after the other ([`exporter`]).
//! - Invariants:
//!   - I-OTL-1 a collector that is slow or gone holds up nothing: what waits for it is bounded in bytes, and
//!     rows beyond are refused.
//!   - I-OTL-2 a row taken is accepted by the collector or counted as lost, never both. It is sent a second time
//!     only where no answer came or the answer asked for it, so only then can a collector hold it twice.
//!   - I-OTL-3 rows lost are told on the next row that is sent (`tandem_loss`).
//!   - I-OTL-4 closing sends what is held and ends within a bound; what is left then is lost and counted.
//!   - I-OTL-5 a row of content above its size limit goes without its content; any other row above it is lost.
//! - Deliberately absent: gRPC, JSON, compression, spans and metrics.
//! - Sources: OTLP 1.x (retries, partial success, environment variables); dynamo-llm 1.6.1 (scope, names of
//!   attributes, the rule for large payloads).

#[cfg(feature = "otlp")]
mod exporter;
#[cfg(feature = "otlp")]
mod message;
mod settings;
#[cfg(feature = "otlp")]
mod sink;

use tandem_engines::TlsError;
use tandem_trace::writer::Sink;

use crate::config::Resolved;

pub(crate) use settings::resolve;
pub use settings::{OtelEnvironment, OtlpConfig};

/// The sink, where the configuration asks for it. Must be called inside a tokio runtime.
#[cfg(feature = "otlp")]
pub(crate) fn sinks(config: &Resolved) -> Result<Vec<Box<dyn Sink + Send>>, TlsError> {
    let (Some(otlp), Some(trace)) = (&config.otlp, &config.trace) else { return Ok(Vec::new()) };
    Ok(vec![Box::new(sink::OtlpSink::open(otlp, trace)?)])
}

/// No sinks: this build has none.
#[cfg(not(feature = "otlp"))]
pub(crate) const fn sinks(_: &Resolved) -> Result<Vec<Box<dyn Sink + Send>>, TlsError> {
    Ok(Vec::new())
}
