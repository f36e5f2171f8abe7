//! Prompts of request bodies: any bytes give a prompt or an error, never a panic, and token ids do not depend on
//! the prompt before.

use std::path::Path;
use std::sync::LazyLock;

use tandem_prompt::{LoadOptions, PromptModel};
use tandem_types::{Dialect, EngineKind};

static MODEL: LazyLock<PromptModel> = LazyLock::new(|| {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = ["../crates/prompt/tests/fixtures/model", "tests/fixtures/model"];
    let folder = folders.iter().map(|f| here.join(f)).find(|f| f.is_dir()).expect("the fixture model");
    PromptModel::load(&folder, LoadOptions::default()).expect("a valid model")
});

/// The first byte selects dialect and engine, the rest is the body.
pub fn check(data: &[u8]) {
    let Some((select, body)) = data.split_first() else { return };
    let dialects = [Dialect::Chat, Dialect::Completions, Dialect::Responses, Dialect::Messages];
    let dialect = dialects[usize::from(select % 4)];
    let kind = if select & 4 == 0 { EngineKind::Vllm } else { EngineKind::Sglang };
    let Ok(rendered) = MODEL.render(dialect, kind, body) else { return };
    assert_eq!(MODEL.render(dialect, kind, body).as_ref(), Ok(&rendered));
    let Ok(scratch) = MODEL.tokens(&rendered, None) else { return };
    let again = MODEL.tokens(&rendered, Some(&scratch.memo)).expect("tokenized before");
    assert_eq!(again.ids, scratch.ids);
}
