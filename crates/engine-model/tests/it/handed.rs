//! Prompts that another engine computed.

use tandem_engine_model::{EngineConfig, EngineModel, Pass, Refusal, TiersConfig};
use tandem_types::Time;

use crate::support::{config, request, tokens};

const MS: u64 = 1_000_000;

/// A block of 4 tokens is 4 MB: 4 ms at 1 GB/s.
fn engine(blocks: u32) -> EngineModel {
    let tiers = TiersConfig { token_bytes: 1_000_000, ..TiersConfig::default() };
    EngineModel::new(EngineConfig { tiers, ..config(blocks) }).expect("usable set-up")
}

/// Steps until there is no more to do; (end of the pass, prefilled, decoded, outputs) of each pass.
fn run(engine: &mut EngineModel, mut now: Time) -> Vec<(u64, u32, u32, usize)> {
    let (mut pass, mut seen) = (Pass::default(), Vec::new());
    loop {
        if engine.step(now, &mut pass) {
            now = pass.ends_at;
            seen.push((now.0 / MS, pass.prefill_tokens, pass.decode_requests, pass.outputs.len()));
        } else {
            let Some(wake) = engine.wakes_at() else { return seen };
            assert!(wake > now, "time goes on");
            now = wake;
        }
    }
}

/// 22 tokens are five whole blocks and two tokens: 20 ms on the way, and then only decodes (1 ms each).
#[test]
fn a_prompt_computed_elsewhere_is_fetched_and_decoded_upon() {
    let mut engine = engine(20);
    engine.submit_computed(request(1, tokens(0, 22), 3), 1.0).expect("accepted");
    assert_eq!(run(&mut engine, Time::ZERO), [(21, 0, 1, 1), (22, 0, 1, 1), (23, 0, 1, 1)]);
    let load = engine.load();
    assert_eq!((load.prefill_tokens, load.generation_tokens, load.used_blocks), (0, 3, 0));

    // Of the next prompt five blocks lie here and three are fetched: 12 ms.
    engine.submit_computed(request(1, tokens(0, 34), 1), 1.0).expect("accepted");
    let next = run(&mut engine, Time(100 * MS));
    assert_eq!(next, [(113, 0, 1, 1)]);
}

#[test]
fn transfers_do_not_slow_each_other_down_and_what_is_all_here_is_not_fetched() {
    let mut engine = engine(40);
    engine.submit_computed(request(1, tokens(0, 22), 1), 1.0).expect("accepted");
    engine.submit_computed(request(2, tokens(1_000, 22), 1), 1.0).expect("accepted");
    assert_eq!(run(&mut engine, Time::ZERO), [(21, 0, 2, 2)]);
    engine.submit_computed(request(3, tokens(0, 22), 1), 1.0).expect("accepted");
    assert_eq!(run(&mut engine, Time(50 * MS)), [(51, 0, 1, 1)]);
    engine.submit_computed(request(4, tokens(2_000, 22), 1), f64::INFINITY).expect("accepted");
    assert_eq!(run(&mut engine, Time(60 * MS)), [(61, 0, 1, 1)]);
}

/// Blocks that were fetched go when others need them more urgently; the prompt is then computed here.
#[test]
fn what_was_fetched_and_lost_is_computed() {
    let mut engine = engine(8);
    // Five blocks, and grows to eight.
    engine.submit(request(1, tokens(0, 17), 14)).expect("accepted");
    engine.submit_computed(request(2, tokens(1_000, 9), 1), 0.1).expect("accepted");
    let passes = run(&mut engine, Time::ZERO);
    let prefilled: u32 = passes.iter().map(|pass| pass.1).sum();
    assert_eq!(prefilled, 17 + 9, "the fetch of 80 ms was given up");
    assert_eq!(
        engine.submit_computed(request(3, tokens(0, 40), 1), 1.0),
        Err(Refusal::ExceedsPool { needed: 10, total: 8 })
    );
}
