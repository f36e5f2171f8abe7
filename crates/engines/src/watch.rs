//! The task that watches one engine.

use std::sync::Arc;

use crate::engine::Engine;
use crate::registry::Engines;

pub(crate) async fn run(engines: Engines, engine: Arc<Engine>) {
    engine.stop.cancelled().await;
    engines.forget(engine.id);
}
