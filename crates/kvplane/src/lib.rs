//! One picture of where the KV lies.

mod config;
mod events;
mod find;
mod knowledge;
mod lane;
mod pages;
mod plane;
mod predict;
mod prompt;
mod reader;
mod recent;
mod stats;
mod store;
mod view;

pub use config::{
    GROUPS_MAX, NAMES_MAX, PREDICTIONS_MAX, PlaneConfig, SALTED_MAX, SHAPES_MAX, StoreUse, TEXTS_MAX,
    TRANSITIONS_MAX, VllmHashing, WORKERS_MAX, WorkerSpec,
};
pub use knowledge::{Knowledge, Transition};
pub use plane::Plane;
pub use prompt::{Prompt, PromptChain};
pub use reader::{Dispatched, PlaneReader, SessionView, Sessions, WorkingSet};
pub use stats::{EventCounts, PlaneStats, SessionStats, StoreStats, WorkerStats};
pub use store::{StoreChange, StoreDoubt};
pub use tandem_kvindex::session::Relation;
pub use tandem_kvindex::worker::{Copies, Keep};
pub use tandem_kvwire::hash::block::Media;
