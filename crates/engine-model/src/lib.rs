//! A modelled inference engine: batching step, paged KV pool, timing; a pure step function.

mod config;
mod engine;
mod pass;
mod profile;
mod request;
mod timing;

pub use config::{ConfigError, EngineConfig, Flavor, PreemptionOrder, SchedulingPolicy};
pub use engine::EngineModel;
pub use pass::{Admission, Finish, Load, Pass, TokenOutput};
pub use profile::{Profile, UnknownProfile};
pub use request::{Namespace, Output, Prompt, Refusal, Request, RequestKey, SEEDED_VOCABULARY};
pub use timing::{TimingError, TimingModel};
