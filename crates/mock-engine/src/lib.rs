//! HTTP and ZeroMQ face on the modelled engine: speaks vLLM's and SGLang's wire.
//!
//! - Purpose: be the engine where there is no GPU: the embedded back end of a demo, and the opponent of the
//!   gateway's tests. A client must not be able to tell it from vLLM 0.32 or SGLang 0.5.23, except by what it
//!   says.
//! - Below the device there can be host memory, a disk, and a store shared by several engines
//!   ([`MockStore`], a Mooncake master by its outside).
//! - Inputs: a [`MockConfig`]; HTTP requests; time. Outputs: answers whose text is made up or scripted
//!   ([`Script`]) and whose timing, caching and batching are the engine model's; cache events over ZeroMQ;
//!   [`Record`]s of what came in; [`Fault`]s on request.
//! - Use: [`MockEngine::start`], then [`MockEngine::url`] and [`MockEngine::events_endpoint`]. Any number of
//!   engines live in one process; with port 0 everywhere none meets another.
//! - Invariants: I-MCK-1 equal configuration and equal requests give equal texts and tokens; ids differ
//!   between engines; I-MCK-2 the prompt of a conversation's next turn extends this turn's prompt and answer;
//!   I-MCK-3 a client that goes away has its sequences aborted; I-MCK-4 every queue and body is bounded.
//! - Deliberately absent: TLS, gRPC, embeddings, logprobs, guided decoding, reasoning, keep-alive events (the
//!   engines send none).
//! - Sources: captures of vLLM 0.32.0 and SGLang 0.5.23; their HTTP entry points.

mod agent;
mod answer;
mod asked;
mod body;
pub mod config;
mod conversation;
mod driver;
pub mod engine;
mod error;
mod exposition;
pub mod fault;
mod generate;
mod hashes;
mod http;
mod info;
mod json;
mod kv;
mod metrics_sglang;
mod metrics_vllm;
mod observe;
mod out;
mod parse;
pub mod pd;
pub mod record;
mod routes;
pub mod script;
mod server;
mod store;
mod tokenizer;
mod utility;
mod words;

pub use config::{
    AnswerLength, EngineFlags, KvEventsConfig, MockConfig, MockKind, MockModel, MockTiers, RecordConfig,
    Speed, StoreUse,
};
pub use engine::{KvEndpoints, MockEngine, MockStats, StartError};
pub use fault::{Fault, FaultRule};
pub use pd::{MockRole, MockSplit};
pub use record::Record;
pub use script::{AgentScript, Fallback, ReplyItem, Rule, Script, When};
pub use store::{MockStore, StoreConfig};
