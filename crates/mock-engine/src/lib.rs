//! HTTP and ZeroMQ face on the modelled engine: speaks vLLM's and SGLang's wire.

pub mod config;
pub mod engine;
pub mod fault;
pub mod record;
pub mod script;

pub use config::{
    AnswerLength, EngineFlags, KvEventsConfig, MockConfig, MockKind, MockModel, RecordConfig, Speed,
};
pub use engine::{KvEndpoints, MockEngine, MockStats, StartError};
pub use fault::{Fault, FaultRule};
pub use record::Record;
pub use script::{AgentScript, Fallback, ReplyItem, Rule, Script, When};
