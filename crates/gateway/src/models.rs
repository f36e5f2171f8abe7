//! The model list, merged from the engines that are ready.
//!
//! Decided: with no engine ready the list is there and empty (200): harnesses ask for it first of all, and an
//! error there keeps them from the call that would tell them more.

use std::collections::BTreeMap;

use http::{Response, StatusCode};
use serde::Serialize;
use tandem_dialect::ErrorKind;
use tandem_engines::{EngineState, ModelInfo};

use crate::app::App;
use crate::body::Body;
use crate::respond;

#[derive(Serialize)]
struct Model {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    root: String,
    parent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_model_len: Option<u64>,
}

impl Model {
    fn new(info: ModelInfo) -> Self {
        Self {
            root: info.parent.clone().unwrap_or_else(|| info.id.clone()),
            id: info.id,
            object: "model",
            created: 0,
            owned_by: "tandem",
            parent: info.parent,
            max_model_len: info.max_model_len,
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
    for engine in app.engines.list() {
        if !matches!(engine.state, EngineState::Ready | EngineState::Draining) {
            continue;
        }
        for model in engine.models {
            match models.get_mut(&model.id) {
                Some(known) => {
                    known.max_model_len = match (known.max_model_len, model.max_model_len) {
                        (Some(a), Some(b)) => Some(a.min(b)),
                        (a, b) => a.or(b),
                    };
                }
                None => {
                    models.insert(model.id.clone(), model);
                }
            }
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
