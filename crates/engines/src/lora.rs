//! Which names of a fleet are LoRA adapters.
//!
//! - Inputs: the engines' model lists, where an adapter names its parent; the user's word that an engine loads adapters
//!   when asked. Outputs: the names under which calls reach an adapter, and the adapter behind a name, which is the
//!   namespace of its KV.
//! - vLLM takes the adapter's name as the model. SGLang takes `MODEL:ADAPTER`; with the adapter's name alone its base
//!   model answers, so that name is not an adapter's there.
//! - Sources: vLLM 0.33 and SGLang 0.5.23 (`/v1/models`, the `model` field of requests).

use tandem_types::{Adapter, EngineKind};

use crate::state::ModelInfo;

/// The adapters of a model list, by the names that calls use, sorted.
pub(crate) fn adapters(kind: EngineKind, models: &[ModelInfo]) -> Vec<Adapter> {
    let named = models.iter().filter_map(|model| {
        let base = model.parent.clone()?;
        let name = match kind {
            EngineKind::Sglang => format!("{base}:{}", model.id),
            EngineKind::Vllm | EngineKind::OpenAi => model.id.clone(),
        };
        Some(Adapter { name, base })
    });
    let mut adapters: Vec<Adapter> = named.collect();
    adapters.sort_unstable();
    adapters
}

/// The adapter that `name` means to an engine; `None` where it is a model's, or says nothing to that engine.
pub(crate) fn adapter<'a>(
    kind: EngineKind,
    models: &[ModelInfo],
    loads_adapters: bool,
    name: &'a str,
) -> Option<&'a str> {
    let listed = |name: &str, adapter: bool| {
        models.iter().any(|model| model.id == name && model.parent.is_some() == adapter)
    };
    match (kind, name.split_once(':')) {
        (EngineKind::Sglang, Some((base, adapter))) if listed(base, false) && !listed(name, false) => {
            (loads_adapters || listed(adapter, true)).then_some(adapter)
        }
        (EngineKind::Sglang, _) => None,
        _ if listed(name, true) => Some(name),
        _ => (loads_adapters && !listed(name, false)).then_some(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(id: &str, parent: Option<&str>) -> ModelInfo {
        ModelInfo { id: id.to_owned(), parent: parent.map(str::to_owned), max_model_len: None, entry: None }
    }

    #[test]
    fn names_reach_adapters_as_each_engine_has_it() {
        let models = [model("sql", Some("tiny")), model("tiny", None)];
        let names = |kind| adapters(kind, &models).into_iter().map(|a| (a.name, a.base)).collect::<Vec<_>>();
        assert_eq!(names(EngineKind::Vllm), [("sql".to_owned(), "tiny".to_owned())]);
        assert_eq!(names(EngineKind::Sglang), [("tiny:sql".to_owned(), "tiny".to_owned())]);
        for (kind, loads, name, want) in [
            (EngineKind::Vllm, false, "sql", Some("sql")),
            (EngineKind::Vllm, false, "tiny", None),
            (EngineKind::Vllm, true, "tiny", None),
            (EngineKind::Vllm, false, "other", None),
            (EngineKind::Vllm, true, "other", Some("other")),
            (EngineKind::Sglang, false, "tiny:sql", Some("sql")),
            (EngineKind::Sglang, false, "tiny:other", None),
            (EngineKind::Sglang, true, "tiny:other", Some("other")),
            (EngineKind::Sglang, false, "sql", None),
        ] {
            assert_eq!(adapter(kind, &models, loads, name), want, "{kind:?} {loads} {name}");
        }
    }
}
