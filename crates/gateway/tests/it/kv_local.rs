//! Prompts tokenized by the gateway itself.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Map, Value, json};
use tandem_gateway::config::PromptSource;
use tandem_mock_engine::{MockConfig, MockEngine, MockKind, ReplyItem, Script, When};

use crate::sessions::{BLOCK, Session, config, gateway};

/// The answer of every turn.
const ANSWER: &str = "Noted: the tests pass, the change is small, and nothing else has to be done.";

/// How the modelled engine cuts ASCII: four characters to a token, from the start of each text.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    (0..text.len().div_ceil(4)).filter_map(|n| text.get(n * 4..text.len().min(n * 4 + 4)))
}

/// And how it numbers them: the length above bit 28, then seven bits for each character.
fn id(piece: &str) -> u32 {
    let packed = piece.bytes().fold(0, |packed, byte| (packed << 7) | u32::from(byte));
    (u32::try_from(piece.len()).expect("short") << 28) | packed
}

/// A model's folder whose tokenizer and template do what the modelled engine does, for prompts of these texts.
fn model_folder(folder: &Path, texts: &[&str]) {
    let roles = ["system", "user", "assistant", "\n"];
    let known: BTreeSet<&str> = texts.iter().chain(&roles).flat_map(|text| pieces(text)).collect();
    let mut vocabulary: Map<String, Value> =
        known.into_iter().map(|piece| (piece.to_owned(), json!(id(piece)))).collect();
    for (id, word) in ["<unknown>", "<|im_start|>", "<|im_end|>"].iter().enumerate() {
        vocabulary.insert((*word).to_owned(), json!(id));
    }
    let special = |id: u32, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true})
    };
    let split = |regex: &str| json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
    // The role, the line's end behind it, and the content are each cut from their own start.
    let cuts = [split("^(?:system|user|assistant)(?=\\n)"), split("^\\n"), split("[\\s\\S]{1,4}")];
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [special(1, "<|im_start|>"), special(2, "<|im_end|>")],
        "normalizer": null, "pre_tokenizer": {"type": "Sequence", "pretokenizers": cuts},
        "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unknown>"},
    });
    let template = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n\
                    {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    let settings = json!({"chat_template": template, "eos_token": "<|im_end|>"});
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).expect("written");
    std::fs::write(folder.join("tokenizer_config.json"), settings.to_string()).expect("written");
}

async fn scripted(kind: MockKind) -> MockEngine {
    let script = Script::default().rule(When::default(), vec![ReplyItem::Text(ANSWER.to_owned())]);
    MockEngine::start(MockConfig { script, ..config(kind) }).await.expect("starts")
}

/// No engine is asked for tokens, and each turn's cached tokens are known before it is sent.
async fn predicted(kind: MockKind) {
    let questions: Vec<String> =
        (0..5).map(|n| format!("question {n} {}", "and more ".repeat(n * 9))).collect();
    let mut session = Session::new("s");
    let system = session.history[0]["content"].as_str().expect("text").to_owned();
    let folder = tempfile::tempdir().expect("a folder");
    let mut texts: Vec<&str> = questions.iter().map(String::as_str).collect();
    texts.extend([system.as_str(), ANSWER]);
    model_folder(folder.path(), &texts);
    let (a, b) = (scripted(kind).await, scripted(kind).await);
    let setup = gateway(&[&a, &b], &[PromptSource::Local], |config| {
        let folder = folder.path().to_string_lossy().into_owned();
        config.kv.tokenizers = [("tiny".to_owned(), folder)].into();
        // A busy machine is no reason to go without tokens here.
        config.kv.tokenizer_timeout = tandem_gateway::config::Span::secs(60);
    })
    .await;
    setup.exact().await;
    for (turn, question) in questions.iter().enumerate() {
        let said = session.turn(&setup, question).await;
        assert_eq!((said.source.as_str(), said.ours), ("local", Some(said.prompt)), "turn {turn}: {said:?}");
        assert_eq!(said.predicted, Some(said.cached), "turn {turn}: {said:?}");
        assert_eq!(said.cached > 0, turn > 0, "turn {turn}: {said:?}");
        session.known(&setup, &said).await;
    }
    let metrics = setup.metrics().await;
    for line in [
        "tandem_kv_prompt_tokens_checked_total{source=\"local\",outcome=\"equal\"} 5",
        "tandem_kv_predictions_total{source=\"local\",outcome=\"equal\",claim=\"exact\"} 5",
        "tandem_kv_tokenizer_used{tokenizer=\"tiny\"} 1",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    a.stop().await;
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_local_tokenizer_predicts_to_the_token_on_vllm() {
    Box::pin(predicted(MockKind::Vllm)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_local_tokenizer_predicts_to_the_token_on_sglang() {
    Box::pin(predicted(MockKind::Sglang)).await;
}

/// A tokenizer of another model counts otherwise: after so many differences the next source has its place.
#[tokio::test(flavor = "multi_thread")]
async fn a_tokenizer_that_is_wrong_is_found_out() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../prompt/tests/fixtures/model");
    let engine = scripted(MockKind::Vllm).await;
    let setup = gateway(&[&engine], &[PromptSource::Local, PromptSource::Engine], |config| {
        config.kv.tokenizers = [("tiny".to_owned(), folder.to_string_lossy().into_owned())].into();
        config.kv.tokenizer_timeout = tandem_gateway::config::Span::secs(60);
        config.kv.tokenizer_faults = 2;
    })
    .await;
    setup.exact().await;
    let mut session = Session::new("s");
    for _ in 0..2 {
        let said = session.turn(&setup, "question").await;
        assert_eq!(said.source, "local");
        assert_ne!(said.ours, Some(said.prompt), "{said:?}");
    }
    let used = "tandem_kv_tokenizer_used{tokenizer=\"tiny\"} 0";
    assert!(setup.metrics().await.contains(used));
    let third = session.turn(&setup, "question").await;
    assert_eq!((third.source.as_str(), third.ours), ("engine", Some(third.prompt)));
    session.known(&setup, &third).await;
    let fourth = session.turn(&setup, "question").await;
    assert_eq!(fourth.predicted, Some(fourth.cached), "{fourth:?}");
    assert!(fourth.cached >= third.prompt / BLOCK * BLOCK, "{fourth:?}");
    engine.stop().await;
}
