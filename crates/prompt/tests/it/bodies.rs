//! What cannot be reproduced is refused with a reason; hostile bodies are errors.

use std::sync::LazyLock;

use proptest::prelude::*;
use tandem_prompt::{LoadError, LoadOptions, Prompt, PromptModel, RenderError};
use tandem_types::{Dialect, EngineKind};

use crate::{fixtures, model};

const USER: &str = r#"{"role":"user","content":"x"}"#;

/// I-PRM-4: media, templates and ids in the request, truncation, stored responses.
#[test]
fn what_is_not_reproduced_is_unsupported() {
    let model = model();
    let unsupported = |dialect, kind, body: &str| {
        let got = model.render(dialect, kind, body.as_bytes());
        assert!(matches!(got, Err(RenderError::Unsupported { .. })), "{body}: {got:?}");
    };
    for body in [
        r#"{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://x"}}]}]}"#
            .to_owned(),
        r#"{"messages":[{"role":"user","content":["text"]}]}"#.to_owned(),
        r#"{"messages":[{"role":"user","content":[{"type":"text","text":"a","uuid":"b"}]}]}"#.to_owned(),
        r#"{"messages":[{"role":"developer","content":"x","tools":[1]}]}"#.to_owned(),
        format!(r#"{{"messages":[{USER}],"chat_template":"x"}}"#),
        format!(r#"{{"messages":[{USER}],"chat_template_kwargs":{{"messages":[]}}}}"#),
        format!(r#"{{"messages":[{USER}],"truncate_prompt_tokens":5}}"#),
        format!(r#"{{"messages":[{USER}],"kv_transfer_params":{{"prompt_token_ids":[1]}}}}"#),
        format!(r#"{{"messages":[{USER}],"chat_template_kwargs":{{"x":1e300}}}}"#),
    ] {
        unsupported(Dialect::Chat, EngineKind::Vllm, &body);
        unsupported(Dialect::Chat, EngineKind::OpenAi, &body);
    }
    for body in [
        r#"{"input":"x","previous_response_id":"r"}"#,
        r#"{"input":[{"type":"item_reference","id":"x"}]}"#,
        r#"{"input":[{"role":"user","content":[{"type":"input_image","image_url":"x"}]}]}"#,
    ] {
        unsupported(Dialect::Responses, EngineKind::Vllm, body);
        unsupported(Dialect::Responses, EngineKind::Sglang, body);
    }
    // vLLM cuts such a prompt, SGLang takes no notice.
    unsupported(Dialect::Responses, EngineKind::Vllm, r#"{"input":"x","truncation":"auto"}"#);
    for body in [
        r#"{"input":[{"type":"reasoning","summary":[],"encrypted_content":"sglang-reasoning-v1.eJw"}]}"#,
        r#"{"input":[{"role":"developer","content":[]}]}"#,
    ] {
        unsupported(Dialect::Responses, EngineKind::Sglang, body);
    }
    for body in [
        r#"{"messages":[{"role":"user","content":[{"type":"image","source":{}}]}]}"#,
        r#"{"messages":[{"role":"user","content":[{"type":"tool_result","content":[{"type":"image"}]}]}]}"#,
        r#"{"messages":[{"role":"assistant","content":[{"type":"tool_use","name":"x","input":{}}]}]}"#,
    ] {
        unsupported(Dialect::Messages, EngineKind::Vllm, body);
        unsupported(Dialect::Messages, EngineKind::Sglang, body);
    }
    // The engine's reasoning parser, of which nothing is known here, writes it.
    let thought = r#"{"messages":[{"role":"assistant","content":[{"type":"thinking","thinking":"hm"}]}]}"#;
    unsupported(Dialect::Messages, EngineKind::Sglang, thought);
    for body in [r#"{"prompt":["a","b"]}"#, r#"{"prompt":"a","suffix":"b"}"#] {
        unsupported(Dialect::Completions, EngineKind::Vllm, body);
    }
}

/// What else the blocks depend on rides along.
#[test]
fn model_and_salt_ride_along() {
    let body = br#"{"prompt":[3,4],"model":"lora-7","cache_salt":"s"}"#;
    let got = model().render(Dialect::Completions, EngineKind::Vllm, body).unwrap();
    assert_eq!((got.model.as_deref(), got.cache_salt.as_deref()), (Some("lora-7"), Some("s")));
    assert_eq!(got.prompt, Prompt::Tokens([3, 4].into()));
}

/// Start-up settings of the engine that change prompts.
#[test]
fn options_change_prompts_as_the_engines_flags_do() {
    let text = |options: LoadOptions, body: &str| {
        let model = PromptModel::load(&fixtures().join("model"), options).unwrap();
        match model.render(Dialect::Chat, EngineKind::Vllm, body.as_bytes()).unwrap().prompt {
            Prompt::Text(text) => text.to_string(),
            Prompt::Tokens(_) => panic!("tokens"),
        }
    };
    let body =
        format!(r#"{{"messages":[{USER}],"tool_choice":"none","tools":[{{"function":{{"name":"f"}}}}]}}"#);
    let defaults = LoadOptions::default();
    assert!(text(defaults.clone(), &body).contains("Functions:"));
    let without = LoadOptions { exclude_tools_when_tool_choice_none: true, ..defaults.clone() };
    assert!(!text(without, &body).contains("Functions:"));
    let quiet = Some(r#"{"enable_thinking": false}"#.to_owned());
    let quiet = LoadOptions { default_chat_template_kwargs: quiet, ..defaults.clone() };
    assert!(text(quiet.clone(), &body).ends_with("<think>\n\n</think>\n\n"));
    let loud = format!(r#"{{"messages":[{USER}],"chat_template_kwargs":{{"enable_thinking":true}}}}"#);
    assert!(text(quiet, &loud).ends_with("assistant\n"));
    let own = LoadOptions { chat_template: Some("{{ messages[0].content }}!".into()), ..defaults };
    assert_eq!(text(own, &body), "x!");
}

/// Files that are missing, broken or huge give errors that name them.
#[test]
fn files_that_do_not_fit_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let load = || PromptModel::load(dir.path(), LoadOptions::default());
    assert!(matches!(load(), Err(LoadError::Read { path, .. }) if path.ends_with("tokenizer.json")));
    std::fs::write(dir.path().join("tokenizer.json"), "{}").unwrap();
    assert!(matches!(load(), Err(LoadError::Invalid { path, .. }) if path.ends_with("tokenizer.json")));
    std::fs::copy(fixtures().join("model/tokenizer.json"), dir.path().join("tokenizer.json")).unwrap();
    let model = load().unwrap();
    assert_eq!(model.chat_unsupported().as_deref(), Some("the model has no chat template"));
    std::fs::write(dir.path().join("tokenizer_config.json"), r#"{"eos_token":"<nowhere>"}"#).unwrap();
    assert!(load().unwrap_err().to_string().contains("<nowhere>"));
    std::fs::write(dir.path().join("tokenizer_config.json"), "{").unwrap();
    assert!(
        matches!(load(), Err(LoadError::Invalid { path, .. }) if path.ends_with("tokenizer_config.json"))
    );
    std::fs::write(dir.path().join("tokenizer_config.json"), "{}").unwrap();
    let big = std::fs::File::create(dir.path().join("chat_template.jinja")).unwrap();
    big.set_len(2 << 20).unwrap();
    assert!(matches!(load(), Err(LoadError::TooLarge { .. })));
    std::fs::write(dir.path().join("chat_template.jinja"), "x").unwrap();
    std::fs::write(dir.path().join("config.json"), r#"{"model_type":"gpt_oss"}"#).unwrap();
    assert!(load().unwrap().chat_unsupported().unwrap().contains("program of its own"));
}

/// Values that a body may hold anywhere.
fn value() -> impl Strategy<Value = serde_json::Value> {
    let word = prop::sample::select(vec![
        "role",
        "content",
        "user",
        "assistant",
        "tool",
        "system",
        "developer",
        "type",
        "text",
        "function",
        "tool_calls",
        "messages",
        "input",
        "tools",
        "name",
        "arguments",
        "{}",
        "parameters",
        "chat_template_kwargs",
        "x",
        "tool_use",
        "id",
        "output",
        "function_call",
        "reasoning",
        "summary",
        "message",
    ]);
    let leaf = prop_oneof![
        word.prop_map(serde_json::Value::from),
        any::<i64>().prop_map(serde_json::Value::from),
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(serde_json::Value::from),
    ];
    leaf.prop_recursive(5, 40, 6, |inner| {
        let key = prop::sample::select(vec![
            "role",
            "content",
            "type",
            "text",
            "function",
            "tool_calls",
            "name",
            "arguments",
            "messages",
            "input",
            "tools",
            "prompt",
            "id",
            "system",
            "tool_choice",
            "reasoning",
            "call_id",
        ]);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(serde_json::Value::from),
            prop::collection::vec((key, inner), 0..6).prop_map(|members| members
                .into_iter()
                .map(|(k, v)| (k.to_owned(), v))
                .collect::<serde_json::Map<_, _>>()
                .into()),
        ]
    })
}

static MODEL: LazyLock<PromptModel> = LazyLock::new(model);

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    /// I-PRM-1: shapes that no client sends are errors or prompts, never panics.
    #[test]
    fn no_body_panics(messages in prop::collection::vec(value(), 0..5), tools in value(), bytes in any::<Vec<u8>>()) {
        let model = &*MODEL;
        let body = serde_json::json!({"messages": messages, "input": messages, "prompt": messages, "tools": tools}).to_string();
        for dialect in [Dialect::Chat, Dialect::Completions, Dialect::Responses, Dialect::Messages] {
            for kind in [EngineKind::Vllm, EngineKind::Sglang] {
                for body in [body.as_bytes(), &bytes] {
                    if let Ok(rendered) = model.render(dialect, kind, body) {
                        model.tokens(&rendered, None).unwrap();
                    }
                }
            }
        }
    }
}
