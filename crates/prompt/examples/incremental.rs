//! What a session's next prompt costs: `cargo run --release -p tandem-prompt --example incremental -- MODEL_DIR`.
//!
//! Renders a chat of about 400 KiB, then the same with 2 KiB more, and prints the medians of rendering, of
//! tokenizing from scratch and of tokenizing with the memo of the prompt before.
#![expect(clippy::print_stdout, reason = "an example that prints")]

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use tandem_prompt::{LoadOptions, PromptModel};
use tandem_types::{Dialect, EngineKind};

const RUNS: usize = 5;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::args().nth(1).ok_or("usage: incremental MODEL_DIR")?;
    let model = PromptModel::load(Path::new(&dir), LoadOptions::default())?;
    let (before, after) = (chat(400), chat(402));
    let first = model.tokens(&model.render(Dialect::Chat, EngineKind::Vllm, before.as_bytes())?, None)?;
    let render = || model.render(Dialect::Chat, EngineKind::Vllm, after.as_bytes());
    let rendered = render()?;
    let next = model.tokens(&rendered, Some(&first.memo))?;
    if next.ids != model.tokens(&rendered, None)?.ids {
        return Err("the memo changed the ids".into());
    }
    let scratch = median(|| model.tokens(&rendered, None).map(|t| t.ids.len()));
    let tail = median(|| model.tokens(&rendered, Some(&first.memo)).map(|t| t.ids.len()));
    println!(
        "body {} KiB, {} tokens, {} of them taken over",
        after.len() / 1024,
        next.ids.len(),
        next.reused
    );
    println!("render {:?}, tokens from scratch {scratch:?}, with the memo {tail:?}", median(render));
    Ok(())
}

fn median<T, E>(mut work: impl FnMut() -> Result<T, E>) -> Duration {
    let mut times: Vec<Duration> = (0..RUNS)
        .map(|_| {
            let start = Instant::now();
            let _ = work();
            start.elapsed()
        })
        .collect();
    times.sort();
    times[RUNS / 2]
}

/// A chat of so many messages of a KiB each.
fn chat(messages: usize) -> String {
    let mut out = String::from("{\"messages\":[");
    for at in 0..messages {
        let role = if at % 2 == 0 { "user" } else { "assistant" };
        let _ = write!(out, "{}{{\"role\":\"{role}\",\"content\":\"", if at == 0 { "" } else { "," });
        for line in 0..20 {
            let _ = write!(out, "let value_{line} = read(path_{at}, {}); // a line of code\\n", at * line);
        }
        out.push_str("\"}");
    }
    out + "]}"
}
