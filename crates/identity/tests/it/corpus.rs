//! The fuzz target's corpus, replayed on stable.

#[path = "../../../../fuzz/src/headers.rs"]
#[expect(unreachable_pub, reason = "the fuzz package uses it from outside")]
mod headers;

use std::path::Path;

#[test]
fn headers_corpus() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/headers");
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.expect("entry").path())
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    for file in files {
        // The name of the file at hand is the only hint at what failed.
        eprintln!("{}", file.display());
        headers::check(&std::fs::read(&file).expect("corpus file"));
    }
}
