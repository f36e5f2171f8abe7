//! Chat templates against Jinja2.
//!
//! `templates.jsonl` holds templates of our own with the features of those in the field, a chat body each, and the
//! text that vLLM 0.32's conversion with transformers 5.19 and Jinja2 3.1.6 made of the two at 07:04:05 on
//! 2026-11-03 (or its error).

use serde::Deserialize;
use serde_json::value::RawValue;
use tandem_prompt::{LoadOptions, LocalTime, Prompt, PromptModel, RenderError};
use tandem_types::{Dialect, EngineKind};

use crate::fixtures;

#[derive(Deserialize)]
struct Case<'a> {
    name: String,
    template: String,
    #[serde(borrow)]
    body: &'a RawValue,
    want: Want,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Want {
    Text(String),
    /// Jinja2's words are not ours.
    Error(#[expect(dead_code, reason = "tells the failing test's reader what Jinja2 said")] Refusal),
}

#[derive(Debug, Deserialize)]
struct Refusal {
    #[expect(dead_code, reason = "tells the failing test's reader what Jinja2 said")]
    error: String,
}

const NOW: LocalTime = LocalTime { year: 2026, month: 11, day: 3, hour: 7, minute: 4, second: 5 };

/// A model with the fixture's tokenizer, other special tokens' names, and a template of its own.
fn model(template: &str) -> PromptModel {
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = std::fs::read_to_string(fixtures().join("model/tokenizer.json")).unwrap();
    let tokenizer = tokenizer.replace("<|im_start|>", "<s>").replace("<|im_end|>", "</s>");
    std::fs::write(dir.path().join("tokenizer.json"), tokenizer).unwrap();
    let config =
        serde_json::json!({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "chat_template": template});
    std::fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    PromptModel::load(dir.path(), LoadOptions::default()).unwrap()
}

fn render(model: &PromptModel, body: &str) -> Result<String, RenderError> {
    let rendered = model.render_at(Dialect::Chat, EngineKind::Vllm, body.as_bytes(), Some(NOW))?;
    match rendered.prompt {
        Prompt::Text(text) => Ok(text.to_string()),
        Prompt::Tokens(_) => panic!("tokens"),
    }
}

/// Every template gives Jinja2's text, or fails where it fails.
#[test]
fn templates_give_the_text_that_jinja2_gives() {
    let cases = std::fs::read_to_string(fixtures().join("templates.jsonl")).unwrap();
    let mut faults = Vec::new();
    for line in cases.lines() {
        let case: Case<'_> = serde_json::from_str(line).unwrap();
        let got = render(&model(&case.template), case.body.get());
        let same = match (&case.want, &got) {
            (Want::Text(want), Ok(got)) => want == got,
            (Want::Error(_), Err(RenderError::Template(_))) => true,
            _ => false,
        };
        if !same {
            faults.push(format!("{}\n want {:?}\n got {got:?}", case.name, case.want));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// A template's own complaint reaches the caller.
#[test]
fn a_template_says_why_it_refuses() {
    let refused =
        render(&model("{{ raise_exception('Roles must alternate') }}"), r#"{"messages":[{"role":"user"}]}"#);
    assert_eq!(refused, Err(RenderError::Template("Roles must alternate".into())));
}

/// Without the time, a template that prints it is unsupported and says so beforehand.
#[test]
fn a_template_that_prints_the_date_needs_it() {
    let model = model("{{ strftime_now('%Y') }}");
    assert!(model.needs_time());
    let body = br#"{"messages":[{"role":"user","content":"x"}]}"#;
    let refused = model.render(Dialect::Chat, EngineKind::Vllm, body);
    assert_eq!(refused, Err(RenderError::Unsupported { why: "the chat template asks for the time" }));
    assert!(!crate::model().needs_time());
}

/// I-PRM-2: loops without end, deep recursion and endless output stop.
#[test]
fn a_template_cannot_run_away() {
    let body = r#"{"messages":[{"role":"user","content":"x"}]}"#;
    for template in [
        "{% for a in range(100000) %}{% for b in range(100000) %}{{ b }}{% endfor %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% set ns = namespace(s='xxxxxxxxxxxxxxxx') %}{% for i in range(40) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}",
        "{{ 'x' * 100000000000 }}",
        "{% for i in range(100000) %}{{ 'x' * 100000 }}{% endfor %}",
    ] {
        assert!(render(&model(template), body).is_err(), "{template}");
    }
}

/// I-PRM-3: what the interpreter does not know is unsupported.
#[test]
fn unknown_features_are_unsupported() {
    let body = r#"{"messages":[{"role":"user","content":"x"}]}"#;
    for template in ["{{ 'a'|wordwrap }}", "{{ 'a'.zfill(3) }}", "{{ lipsum() }}", "{{ strftime_now('%j') }}"]
    {
        let got = render(&model(template), body);
        assert!(matches!(got, Err(RenderError::Unsupported { .. })), "{template}: {got:?}");
    }
    let broken = model("{% if %}");
    assert!(broken.chat_unsupported().is_some());
    assert!(matches!(render(&broken, body), Err(RenderError::Unsupported { .. })));
    assert!(broken.render(Dialect::Completions, EngineKind::Vllm, br#"{"prompt":"x"}"#).is_ok());
}
