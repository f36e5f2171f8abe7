//! The fuzz targets' corpora, replayed on stable.

#[path = "../../../../fuzz/src/answer_body.rs"]
#[expect(unreachable_pub, reason = "the fuzz package uses it from outside")]
mod answer_body;
#[path = "../../../../fuzz/src/request_body.rs"]
#[expect(unreachable_pub, reason = "the fuzz package uses it from outside")]
mod request_body;
#[path = "../../../../fuzz/src/sse.rs"]
#[expect(unreachable_pub, reason = "the fuzz package uses it from outside")]
mod sse;

use std::path::Path;

use proptest::prelude::*;

fn replay(target: &str, check: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.expect("entry").path())
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    for file in files {
        // The name of the file at hand is the only hint at what failed.
        eprintln!("{}", file.display());
        check(&std::fs::read(&file).expect("corpus file"));
    }
}

#[test]
fn sse_corpus() {
    replay("sse", sse::check);
}

#[test]
fn request_body_corpus() {
    replay("request_body", request_body::check);
}

#[test]
fn answer_body_corpus() {
    replay("answer_body", answer_body::check);
}

/// Text made of the words of a format, so that random cases get beyond the first byte.
fn words(words: &'static [&'static str]) -> impl Strategy<Value = Vec<u8>> {
    let text = prop::collection::vec(prop::sample::select(words), 0..40).prop_map(|words| words.concat());
    (any::<u8>(), text).prop_map(|(first, text)| [&[first], text.as_bytes()].concat())
}

const SSE: &[&str] = &[
    "data: ",
    "data",
    "event: x",
    "id: 7",
    "retry: 15",
    ":",
    "\n",
    "\r",
    "\r\n",
    "\n\n",
    "{\"a\":1}",
    "é",
    " ",
    "\u{feff}",
    "[DONE]",
];

const JSON: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"model\"",
    "\"stream\"",
    "true",
    "false",
    "null",
    "1",
    "-0",
    "1.50",
    "\"\\u00e9\"",
    "\"stream_options\"",
    "\"include_usage\"",
    "{\"stream\":true,",
    "\"messages\":[{\"role\":\"user\"}]",
    " ",
    "\"m\"",
    "{}",
];

const CHUNKS: &[&str] = &[
    "data: ",
    "\n\n",
    "\r\n\r\n",
    "\n",
    "\r",
    "{\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":1}}",
    "{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"é\"}}],\"usage\":null}",
    ": x\n",
    "data: [DONE]\n\n",
    "{\"choices\":[{\"finish_reason\":\"stop\"}]}",
    "event: error\n",
    "{\"type\":\"message_stop\"}",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn any_stream_can_be_cut_anywhere(data in words(SSE)) {
        sse::check(&data);
    }

    /// I-DIA-JSON-1.
    #[test]
    fn any_body_is_read_as_the_oracle_reads_it(data in words(JSON)) {
        request_body::check(&data);
    }

    #[test]
    fn any_answer_passes_however_it_is_cut(data in words(CHUNKS)) {
        answer_body::check(&data);
    }
}
