//! Prints the token ids of requests: `cargo run -p tandem-prompt --example prompt_tokens -- MODEL_DIR`.
//!
//! Reads one JSON object a line, `{"dialect": "chat", "kind": "vllm", "body": "..."}`, the body as text; writes one
//! line each, `{"ids": [...], "text": "..."}` or `{"error": "..."}`. Requests are taken as one session's, so that
//! each is tokenized with the memo of the one before, and once more from scratch to compare.

use std::io::{BufRead, Write};
use std::path::Path;

use tandem_prompt::{LoadOptions, Memo, Prompt, PromptModel, RenderError};
use tandem_types::{Dialect, EngineKind};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::args().nth(1).ok_or("usage: prompt_tokens MODEL_DIR")?;
    let model = PromptModel::load(Path::new(&dir), LoadOptions::default())?;
    let mut memo = None;
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let request: serde_json::Value = serde_json::from_str(&line?)?;
        let dialect: Dialect = serde_json::from_value(request["dialect"].clone())?;
        let kind: EngineKind = serde_json::from_value(request["kind"].clone())?;
        let body = request["body"].as_str().ok_or("no body")?;
        let answer = match answer(&model, dialect, kind, body.as_bytes(), &mut memo) {
            Ok(answer) => answer,
            Err(e) => serde_json::json!({"error": e.to_string()}),
        };
        writeln!(out, "{answer}")?;
    }
    Ok(())
}

fn answer(
    model: &PromptModel,
    dialect: Dialect,
    kind: EngineKind,
    body: &[u8],
    memo: &mut Option<Memo>,
) -> Result<serde_json::Value, RenderError> {
    let rendered = model.render(dialect, kind, body)?;
    let tokens = model.tokens(&rendered, memo.as_ref())?;
    if model.tokens(&rendered, None)?.ids != tokens.ids {
        return Err(RenderError::Tokenizer("the memo changed the ids".into()));
    }
    let text = if let Prompt::Text(text) = &rendered.prompt { Some(&**text) } else { None };
    *memo = Some(tokens.memo);
    Ok(serde_json::json!({"ids": &*tokens.ids, "text": text, "reused": tokens.reused}))
}
