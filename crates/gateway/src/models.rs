//! The model list, merged from the engines that are ready.
//!
//! Decided: with no engine ready the list is there and empty (200): harnesses ask for it first of all, and an
//! error there keeps them from the call that would tell them more.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::{Response, StatusCode};
use serde::Serialize;
use serde_json::value::RawValue;
use tandem_dialect::ErrorKind;
use tandem_engines::{EngineState, ModelInfo};

use crate::app::App;
use crate::body::Body;
use crate::respond;

/// An entry of the list: the engine's own where there is one, as it wrote it.
#[derive(Serialize)]
#[serde(untagged)]
enum Model {
    Own(Arc<RawValue>),
    Made { id: String, object: &'static str, created: u64, owned_by: &'static str, root: String },
}

impl Model {
    fn new(info: ModelInfo) -> Self {
        match info.entry {
            Some(entry) => Self::Own(entry),
            None => Self::Made {
                root: info.parent.unwrap_or_else(|| info.id.clone()),
                id: info.id,
                object: "model",
                created: 0,
                owned_by: "tandem",
            },
        }
    }
}

#[derive(Serialize)]
struct List {
    object: &'static str,
    data: Vec<Model>,
}

/// Every model once. Where engines differ in the context length, the shortest counts: a turn may go to any.
fn merged(app: &App) -> BTreeMap<String, ModelInfo> {
    let mut models: BTreeMap<String, ModelInfo> = BTreeMap::new();
    let listed = app.engines.list();
    let taking = listed.into_iter().filter(|e| matches!(e.state, EngineState::Ready | EngineState::Draining));
    for model in taking.flat_map(|engine| engine.models) {
        let shorter = |known: &ModelInfo| {
            model.max_model_len.is_some_and(|n| known.max_model_len.is_none_or(|k| n < k))
        };
        if models.get(&model.id).is_none_or(shorter) {
            models.insert(model.id.clone(), model);
        }
    }
    models
}

/// `GET /v1/models`.
pub(crate) fn list(app: &App) -> Response<Body> {
    let data = merged(app).into_values().map(Model::new).collect();
    respond::json(StatusCode::OK, &List { object: "list", data })
}

/// `GET /v1/models/{id}`.
pub(crate) fn one(app: &App, id: &str) -> Response<Body> {
    match merged(app).remove(id) {
        Some(model) => respond::json(StatusCode::OK, &Model::new(model)),
        None => {
            let message = "no ready engine serves this model";
            respond::error(app, None, ErrorKind::ModelNotFound, message, None)
        }
    }
}

/// Engines that take turns.
pub(crate) fn ready_engines(app: &App) -> usize {
    app.engines.list().iter().filter(|engine| engine.state == EngineState::Ready).count()
}
