//! The fuzz target's corpus, replayed on stable.

#[path = "../../../../fuzz/src/outline.rs"]
#[expect(unreachable_pub, reason = "the fuzz package uses it from outside")]
mod outline;

use std::path::Path;

use proptest::prelude::*;

#[test]
fn outline_corpus() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/outline");
    let mut files: Vec<_> =
        std::fs::read_dir(&folder).expect("folder").map(|e| e.expect("entry").path()).collect();
    files.sort();
    assert!(!files.is_empty());
    for file in files {
        // The name of the file at hand is the only hint at what failed.
        eprintln!("{}", file.display());
        outline::check(&std::fs::read(&file).expect("corpus file"));
    }
}

const WORDS: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"messages\":",
    "\"input\":",
    "\"content\":",
    "\"role\":\"user\"",
    "\"type\":\"text\"",
    "\"text\":",
    "\"x\"",
    "\"\\ud83d\"",
    "\"a\":",
    "null",
    "true",
    "-1",
    "1e9",
    " ",
    "\n",
];

proptest! {
    #[test]
    fn any_words(pick in any::<u8>(), words in prop::collection::vec(prop::sample::select(WORDS), 0..40)) {
        outline::check(&[&[pick], words.concat().as_bytes()].concat());
    }
}
