//! The HTTP gateway: request path, scheduler owner task, admin API, metrics.
//!
//! - Purpose: carry out what the scheduler decides. A request passes through named phases, each in a module of
//!   its own: sockets and limits ([`server`], [`body`]) -> route ([`http_service`]) -> keys ([`auth`]) ->
//!   identity and edits, where the prompt's KV lies ([`kv`]), hold and dispatch, the answer as it comes ([`turn`])
//!   -> trace ([`trace_log`]).
//! - State: one task owns the scheduler ([`owner`]); everything else is shared read-only or by channel.
//! - Invariants: I-GW-1 every accepted turn ends exactly once and gives one trace row; I-GW-2 no client waits
//!   longer than its bound without an answer; I-GW-3 bytes of requests and answers pass unchanged but for named
//!   edits; I-GW-4 every queue, body and map has a bound; I-GW-5 nothing from outside panics.
//! - Deliberately absent: policies (scheduler and routing), the command line and the environment (cli),
//!   translation between dialects.

mod admin;
mod admission;
mod app;
mod auth;
mod body;
mod clock;
pub mod config;
mod cors;
mod explain;
mod http_service;
mod kv;
mod metrics;
mod models;
mod otlp;
mod owner;
mod patience;
mod respond;
mod routing_rows;
mod server;
mod small_calls;
mod start;
mod state;
mod tee;
mod tool_events;
mod trace_log;
mod turn;

pub use config::{Config, ConfigError, Resolved};
pub use kv::TokenizerError;
pub use metrics::reference_page as metrics_reference_page;
pub use otlp::{OtelEnvironment, OtlpConfig};
pub use server::TlsKeysError;
pub use start::{Gateway, StartError};
pub use state::StateError;
pub use trace_log::OpenError as TraceOpenError;
