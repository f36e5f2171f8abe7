//! The fuzz target's corpus, replayed on stable, as it is and mangled.

#[path = "../../../../fuzz/src/trace_reader.rs"]
#[expect(unreachable_pub, reason = "the fuzz package uses it from outside")]
mod trace_reader;

use std::path::Path;

use proptest::prelude::*;

fn corpus() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/trace_reader");
    let mut files: Vec<_> =
        std::fs::read_dir(&folder).expect("corpus").map(|entry| entry.expect("entry").path()).collect();
    files.sort();
    assert!(files.len() >= 15, "{} is incomplete", folder.display());
    files.iter().map(|file| std::fs::read(file).expect("corpus file")).collect()
}

#[test]
fn every_file_of_the_corpus_keeps_the_promises() {
    corpus().iter().for_each(|file| trace_reader::check(file));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn so_does_every_mangled_one(
        pick in any::<prop::sample::Index>(),
        other in any::<prop::sample::Index>(),
        cut in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        noise in prop::collection::vec(any::<u8>(), 0..8),
    ) {
        let files = corpus();
        let mut file = files[pick.index(files.len())].clone();
        file.truncate(cut.index(file.len()) + 1);
        let at = at.index(file.len());
        file.splice(at..at, noise);
        trace_reader::check(&file);
        file.extend_from_slice(&files[other.index(files.len())]);
        trace_reader::check(&file);
    }
}
