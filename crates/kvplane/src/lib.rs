//! One picture of where the KV lies.

mod config;
mod knowledge;
mod plane;
mod prompt;
mod reader;
mod stats;
mod store;

pub use config::{
    GROUPS_MAX, NAMES_MAX, PREDICTIONS_MAX, PlaneConfig, SALTED_MAX, SHAPES_MAX, StoreUse, TEXTS_MAX,
    TRANSITIONS_MAX, VllmHashing, WORKERS_MAX, WorkerSpec,
};
pub use knowledge::{Knowledge, Transition};
pub use plane::Plane;
pub use prompt::{Prompt, PromptChain};
pub use reader::{Dispatched, PlaneReader, SessionView, Sessions, WorkingSet};
pub use stats::{PlaneStats, WorkerStats};
pub use store::{StoreChange, StoreDoubt};
pub use tandem_kvindex::session::Relation;
pub use tandem_kvindex::worker::{Copies, Keep};
pub use tandem_kvwire::hash::block::Media;
