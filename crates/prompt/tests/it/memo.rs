//! Token ids never depend on what was tokenized before.

use std::sync::{Arc, LazyLock};

use proptest::prelude::*;
use tandem_prompt::{LoadOptions, Prompt, PromptModel, Rendered};

use crate::{fixtures, model};

fn text(text: &str) -> Rendered {
    Rendered { prompt: Prompt::Text(text.into()), add_special_tokens: false, model: None, cache_salt: None }
}

/// A model whose `tokenizer.json` is the given one.
fn synthetic(tokenizer: &serde_json::Value) -> PromptModel {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    PromptModel::load(dir.path(), LoadOptions::default()).unwrap()
}

fn added(id: u32, content: &str, flags: &[&str]) -> serde_json::Value {
    let is = |flag: &str| flags.contains(&flag);
    serde_json::json!({"id": id, "content": content, "single_word": is("single_word"), "lstrip": is("lstrip"),
        "rstrip": is("rstrip"), "normalized": is("normalized"), "special": !is("plain")})
}

/// Words behind a lower-casing normalizer; `<A>` is looked for in the normalized text, `<B>` takes the
/// whitespace around it, and with `single` a token asks what letters stand beside it.
fn words(single: bool) -> serde_json::Value {
    let mut tokens = vec![
        added(1, "<s>", &[]),
        added(2, "<a>", &["normalized"]),
        added(3, "<B>", &["lstrip", "rstrip"]),
        added(4, "<s><s>x", &[]),
    ];
    if single {
        tokens.push(added(5, "cat", &["single_word"]));
    }
    let vocab = [
        "[UNK]", "<s>", "<a>", "<B>", "<s><s>x", "cat", "c", "##a", "##t", "##s", "a", "t", "s", "x",
        "hello", "##lo", "hel", "<", ">", "b", "é", "e", "##x",
    ];
    let vocab: serde_json::Map<_, _> =
        vocab.iter().enumerate().map(|(id, word)| ((*word).to_owned(), id.into())).collect();
    serde_json::json!({"version": "1.0", "truncation": {"direction": "Right", "max_length": 5,
            "strategy": "LongestFirst", "stride": 0},
        "padding": null, "added_tokens": tokens,
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"},
            {"type": "Strip", "strip_left": true, "strip_right": true}]},
        "pre_tokenizer": {"type": "BertPreTokenizer"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocab}})
}

/// Pieces of a vocabulary with scores, and a marker put before the first one only.
fn pieces(scheme: &str) -> serde_json::Value {
    let vocab = [
        ("<unk>", 0.0),
        ("<s>", 0.0),
        ("▁", -2.0),
        ("▁hello", -3.0),
        ("hello", -4.0),
        ("hel", -5.0),
        ("lo", -5.5),
        ("a", -6.0),
        ("b", -6.1),
        ("c", -6.2),
        ("t", -6.3),
        ("s", -6.4),
        ("x", -6.5),
        ("<", -7.0),
        (">", -7.1),
        ("é", -7.2),
        ("cat", -6.6),
        ("▁cat", -6.7),
        ("sx", -6.8),
    ];
    serde_json::json!({"version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [added(1, "<s>", &[]), added(19, "<tool>", &["plain"])],
        "normalizer": {"type": "Replace", "pattern": {"String": "  "}, "content": " "},
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": false},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": null, "model": {"type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": false}})
}

static MODELS: LazyLock<Vec<(&str, PromptModel)>> = LazyLock::new(|| {
    vec![
        ("byte-level BPE", model()),
        ("words", synthetic(&words(false))),
        ("words, one asks for its neighbours", synthetic(&words(true))),
        ("pieces, first marked", synthetic(&pieces("first"))),
        ("pieces, always marked", synthetic(&pieces("always"))),
    ]
});

/// Text with much of what tokenizers treat specially: tokens whole, cut and run together, whitespace, letters
/// that normalization joins.
fn stretch() -> impl Strategy<Value = String> {
    let scrap = prop_oneof![
        4 => prop::sample::select(vec!["<|im_start|>", "<|im_end|>\n", "<think>", "</tool_call>", "<s>", "<s><s>",
            "<s><s>x", "<a>", "<A>", "<B>", " <B> ", "<tool>", "cat", "cats", " cat ", "hello", " ", "  ", "\n",
            "e\u{301}", "\u{301}", "<", ">", "<|im_", "start|>", "x", "a", "fn main() {", "0123456789", "日本語"]),
        1 => "[a-c <>|_\\n]{0,6}".prop_map(|s| Box::leak(s.into_boxed_str()) as &str),
    ];
    prop::collection::vec(scrap, 0..40).prop_map(|scraps| scraps.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// I-PRM-5: whatever the edits from one prompt to the next, with every kind of tokenizer.
    #[test]
    fn ids_are_those_of_tokenizing_from_scratch(
        start in stretch(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0usize..12, stretch(), any::<bool>()), 1..4),
    ) {
        for (name, model) in MODELS.iter() {
            let mut now = start.repeat(3);
            let mut memo = None;
            for (at, cut, put, special) in &edits {
                let mut rendered = text(&now);
                rendered.add_special_tokens = *special;
                let scratch = model.tokens(&rendered, None).unwrap();
                let got = model.tokens(&rendered, memo.as_ref()).unwrap();
                prop_assert_eq!(&got.ids, &scratch.ids, "{} {:?}", name, now);
                // Two memos of one text serve alike.
                memo = Some(if cut % 2 == 0 { got.memo } else { scratch.memo });
                let bounds: Vec<usize> = now.char_indices().map(|(i, _)| i).chain([now.len()]).collect();
                let (from, to) = (at.index(bounds.len()), at.index(bounds.len()) + cut);
                let (from, to) = (bounds[from], bounds[to.min(bounds.len() - 1)]);
                now.replace_range(from..to, put);
            }
        }
    }
}

/// An appended turn takes over nearly all of what the turns before it had.
#[test]
fn appended_text_costs_its_own_length() {
    let model = model();
    let turn = "<|im_start|>user\nread the file and say what it does, line by line\n<|im_end|>\n";
    let before = turn.repeat(200);
    let first = model.tokens(&text(&before), None).unwrap();
    assert_eq!(first.reused, 0);
    let after = before.clone() + turn;
    let second = model.tokens(&text(&after), Some(&first.memo)).unwrap();
    assert!(second.reused + 200 > first.ids.len(), "{} of {}", second.reused, first.ids.len());
    assert_eq!(second.ids, model.tokens(&text(&after), None).unwrap().ids);
    assert!(second.memo.bytes() < after.len() * 3 + 4 * second.ids.len());
    // A tokenizer that asks for a token's neighbours takes nothing over.
    let (_, words) = &MODELS[2];
    let first = words.tokens(&text(&"hello <s>".repeat(200)), None).unwrap();
    assert_eq!(words.tokens(&text(&"hello <s>".repeat(201)), Some(&first.memo)).unwrap().reused, 0);
}

/// I-PRM-5: what follows a place to cut may show that no token began there: `<s>`, `<s>` and then `x` are one.
#[test]
fn a_longer_token_takes_back_a_cut() {
    let (_, words) = &MODELS[1];
    let before = format!("<s>{}<s><s>", "a".repeat(252));
    let memo = words.tokens(&text(&before), None).unwrap().memo;
    let after = text(&(before + "x"));
    let scratch = words.tokens(&after, None).unwrap().ids;
    assert_eq!(words.tokens(&after, Some(&memo)).unwrap().ids, scratch);
    assert_eq!(scratch.last(), Some(&4));
}

/// The tokenizer's own special tokens go around a text where the engine adds them, and only there.
#[test]
fn special_tokens_go_around_a_text() {
    let (_, pieces) = &MODELS[3];
    let mut rendered = text("hello");
    let bare = pieces.tokens(&rendered, None).unwrap().ids;
    rendered.add_special_tokens = true;
    let full = pieces.tokens(&rendered, None).unwrap().ids;
    assert_eq!((&*full)[1..], *bare);
    assert_eq!(full[0], 1);
    // Truncation that a file asks for is the engine's business.
    let (_, words) = &MODELS[1];
    assert_eq!(words.tokens(&text(&"cat ".repeat(9)), None).unwrap().ids.len(), 9);
    let ids: Arc<[u32]> = [5, 6].into();
    let sent = Rendered { prompt: Prompt::Tokens(Arc::clone(&ids)), ..text("") };
    assert_eq!(words.tokens(&sent, None).unwrap().ids, ids);
    assert!(fixtures().is_dir());
}
