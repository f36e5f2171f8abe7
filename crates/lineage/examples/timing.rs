//! How long an outline takes: `cargo run --release -p tandem-lineage --example timing`.

#![expect(clippy::expect_used, clippy::print_stdout, reason = "a tool for the command line")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tandem_lineage::{Arriving, Ended, Lineage, LineageConfig, outline, text_blocks};
use tandem_types::{Dialect, EngineKind, Harness, ProgramKey, SessionId, TenantId, Time, Usage};

const RUNS: usize = 60;

fn main() {
    let prose = "The parser reads one line after the other, and forgets none of them. ".repeat(1500);
    let code =
        "fn next(&mut self) -> Option<u8> {\n    self.at += 1; // 0x1f\n    \"x\\\\y\"\n}\n".repeat(20);
    let log = "2026-11-30T05:20:00.123Z 10.0.0.1 GET /v1/models/17 200 0.004\n".repeat(25);
    for (name, text, parts) in [("prose", &prose, 4), ("code", &code, 230), ("logs", &log, 250)] {
        let body = body(text, parts);
        let text = body.to_string();
        report(&format!("{name}: outline of {} KiB", text.len() / 1024), || {
            black_box(outline(Dialect::Chat, EngineKind::Vllm, text.as_bytes()).expect("an outline"));
        });
        report(&format!("{name}: text blocks"), || {
            black_box(text_blocks(Dialect::Chat, EngineKind::Vllm, text.as_bytes(), 64).expect("blocks"));
        });
    }
    table(&body(&code, 230));
    adversarial();
}

/// Bodies made to be slow: time per byte must stay near that of ordinary ones.
fn adversarial() {
    let list = |item: &str, count: usize| vec![item; count].join(",");
    let cases = [
        (
            "tiny parts",
            format!("{{\"messages\":[{{\"role\":\"user\",\"content\":[{}]}}]}}", list("\"a\"", 250_000)),
        ),
        ("empty messages", format!("{{\"messages\":[{}]}}", list("{}", 300_000))),
        ("one name many times", format!("{{{}}}", list("\"messages\":[]", 70_000))),
        (
            "many names in a part",
            format!("{{\"messages\":[{{\"content\":[{{{}}}]}}]}}", list("\"a\":1", 200_000)),
        ),
        (
            "digits",
            format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"{}\"}}]}}", "1 may ".repeat(170_000)),
        ),
        ("deep", format!("{{\"messages\":{}{}}}", "[".repeat(120), "]".repeat(120))),
    ];
    for (name, text) in cases {
        report(&format!("{name}: outline of {} KiB", text.len() / 1024), || {
            drop(black_box(outline(Dialect::Chat, EngineKind::Vllm, text.as_bytes())));
        });
    }
    let long = |middle: &str| {
        let mut messages = vec![json!({"role": "user", "content": "a"}); 30_000];
        if let Some(message) = messages.get_mut(10_000) {
            *message = json!({"role": "assistant", "content": middle});
        }
        let body = json!({"messages": messages});
        outline(Dialect::Chat, EngineKind::Vllm, body.to_string().as_bytes()).expect("an outline")
    };
    let (one, two) = (long("x"), long("y"));
    let mut lineage = Lineage::new(LineageConfig::default());
    let program = ProgramKey::root(TenantId::default(), SessionId::new("s").expect("id"));
    let usage = Usage { input_tokens: 100_000, ..Usage::default() };
    let ended = Ended {
        usage: Some(usage),
        tool_calls: &[],
        answer: None,
        block_size: Some(16),
        text: None,
        lost: false,
    };
    let mut turn = false;
    report("a change amid 30,000 equal segments", || {
        turn = !turn;
        let outline = if turn { &one } else { &two };
        let arriving =
            Arriving { outline, tokens: None, harness: Harness::Unknown, compacted: false, side: false };
        let arrival = lineage.arrived(&program, &arriving, Time::ZERO);
        lineage.ended(arrival.ticket, &ended, Time::ZERO);
    });
}

fn body(text: &str, messages: usize) -> Value {
    let messages: Vec<Value> = (0..messages)
        .map(|number| json!({"role": if number % 2 == 0 { "user" } else { "assistant" }, "content": text}))
        .collect();
    json!({"model": "m", "messages": messages})
}

fn table(body: &Value) {
    let outline = outline(Dialect::Chat, EngineKind::Vllm, body.to_string().as_bytes()).expect("an outline");
    let mut lineage = Lineage::new(LineageConfig::default());
    let programs: Vec<ProgramKey> = (0..20_000)
        .map(|number| {
            ProgramKey::root(TenantId::default(), SessionId::new(&format!("s{number}")).expect("id"))
        })
        .collect();
    let arriving = Arriving {
        outline: &outline,
        tokens: None,
        harness: Harness::Unknown,
        compacted: false,
        side: false,
    };
    let usage =
        Usage { input_tokens: 100_000, output_tokens: 100, cached_tokens: Some(0), reasoning_tokens: None };
    let ended = Ended {
        usage: Some(usage),
        tool_calls: &[],
        answer: None,
        block_size: Some(16),
        text: None,
        lost: false,
    };
    for program in &programs {
        let arrival = lineage.arrived(program, &arriving, Time::ZERO);
        lineage.ended(arrival.ticket, &ended, Time::ZERO);
    }
    let mut at = 0;
    report(
        &format!("arrived and ended, {} programs of {} segments", programs.len(), outline.segments().len()),
        || {
            at = (at + 7919) % programs.len();
            if let Some(program) = programs.get(at) {
                let arrival = lineage.arrived(program, &arriving, Time::ZERO);
                lineage.ended(arrival.ticket, &ended, Time::ZERO);
            }
        },
    );
    let tenant = TenantId::default();
    report("infer", || drop(black_box(lineage.infer(&tenant, &outline, Time::ZERO))));
}

fn report(name: &str, mut work: impl FnMut()) {
    let mut times: Vec<Duration> = (0..RUNS)
        .map(|_| {
            let start = Instant::now();
            work();
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    let at = |share: usize| times.get(RUNS * share / 100).copied().unwrap_or_default();
    println!("{name}: p50 {:?}, p90 {:?}", at(50), at(90));
}
