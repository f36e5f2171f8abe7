//! Clients for vLLM and SGLang: discovery, health, load, and the HTTP hop.
//!
//! - [`EngineSpec`] is how a user names an engine; [`Engines`] watches a set of them and reports changes as
//!   [`EngineEvent`]s, which map one to one to the scheduler's inputs; [`Target`] says how to reach a worker.
//! - [`HttpClient`] carries the calls; [`request_headers`] and [`response_headers`] say which headers cross.
//! - [`probe`] looks at one engine for `tandem doctor` and names the flags that it lacks.
//! - [`KvEvents`] follows what the engines' caches gain and lose, [`StoreEvents`] a shared Mooncake store.
//!
//! Deliberately absent: choosing a worker, retries, circuit breaking (the scheduler decides), the KV index.

mod client;
mod config;
mod connect;
mod control;
mod discovery;
mod engine;
mod headers;
mod kv_events;
mod lora;
mod metrics;
mod pool;
mod probe;
mod registry;
mod render;
mod spec;
mod state;
mod survey;
mod tls;
mod watch;
mod wire;

pub use client::{
    Body, BoxError, HttpClient, HttpConfig, ReadError, SendError, SendErrorKind, empty, full, read_body,
};
pub use config::{CONTROL_BODY_BYTES_MAX, ENGINES_MAX, EnginesConfig, MODELS_MAX, RANKS_MAX};
pub use connect::{Dial, Dialing, Io};
pub use discovery::{Resolve, Resolving, SystemResolver};
pub use headers::{request_headers, response_headers};
pub use kv_events::{
    EndpointError, KvClear, KvEvents, KvEventsConfig, KvState, KvStatus, KvUpdate, KvUpdateKind, StoreDoubt,
    StoreEvents, StoreEventsConfig, StoreSpec, StoreStatus, StoreUpdate, ZmqEndpoint,
};
pub use pool::AnswerBody;
pub use probe::{Capability, CapabilityKind, Presence, ProbeOptions, ProbeReport, probe};
pub use registry::{AddError, Added, Engines};
pub use render::RenderError;
pub use spec::{
    ApiKey, BaseUrl, EngineAddress, EngineKindHint, EngineSpec, KvEventsSpec, LABELS_MAX, SPEC_BYTES_MAX,
    SpecError,
};
pub use state::{
    Bootstrap, EngineEvent, EngineState, EngineStatus, LastError, LoadSource, ModelInfo, Target, WorkerStatus,
};
pub use tls::{ClientIdentity, TlsConfig, TlsError};
