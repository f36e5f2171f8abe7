//! The fuzz target's corpus, replayed on stable.

use std::path::Path;

#[path = "../../../../fuzz/src/prompt_render.rs"]
#[expect(unreachable_pub, reason = "the fuzz package uses it from outside")]
mod prompt_render;

#[test]
fn prompt_render_corpus() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/prompt_render");
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        prompt_render::check(&std::fs::read(entry.unwrap().path()).unwrap());
        seen += 1;
    }
    assert!(seen >= 15, "{seen}");
}
