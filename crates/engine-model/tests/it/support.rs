//! Small engines and requests, and drivers.

use std::sync::Arc;

use tandem_engine_model::{
    EngineConfig, EngineModel, Namespace, Output, Pass, Prompt, Request, RequestKey, TimingModel,
};
use tandem_types::{KvEvent, Time};

pub(crate) const PREFILL_MS: f64 = 10.0;
pub(crate) const DECODE_MS: f64 = 1.0;

/// Blocks of 4 tokens, 10 ms per prefill, 1 ms per decode.
pub(crate) fn config(pool_blocks: u32) -> EngineConfig {
    EngineConfig {
        block_size: 4,
        pool_blocks,
        timing: TimingModel::Fixed { prefill_ms: PREFILL_MS, decode_ms: DECODE_MS },
        emit_events: true,
        ..EngineConfig::default()
    }
}

pub(crate) fn engine(pool_blocks: u32) -> EngineModel {
    EngineModel::new(config(pool_blocks)).expect("usable set-up")
}

/// `count` tokens that start with `first` and go on by one.
pub(crate) fn tokens(first: u32, count: u32) -> Arc<[u32]> {
    (first..first + count).collect()
}

pub(crate) fn request(id: u64, prompt: Arc<[u32]>, output: u32) -> Request {
    Request {
        id: RequestKey(id),
        prompt: Prompt::Tokens(prompt),
        output: Output::Seeded { seed: id, tokens: output },
        max_output_tokens: output,
        priority: 0,
        namespace: Namespace::default(),
        session: None,
        arrival: Time::ZERO,
    }
}

pub(crate) fn pass(engine: &mut EngineModel) -> Pass {
    let mut pass = Pass::default();
    assert!(engine.step(Time::ZERO, &mut pass), "nothing to do");
    pass
}

/// Runs until idle.
pub(crate) fn drain(engine: &mut EngineModel) -> Vec<Pass> {
    let mut passes = Vec::new();
    let mut pass = Pass::default();
    while engine.step(Time::ZERO, &mut pass) {
        passes.push(pass.clone());
        assert!(passes.len() < 100_000, "no end");
    }
    passes
}

/// Runs one request alone; returns the prompt tokens that it found cached.
pub(crate) fn run(engine: &mut EngineModel, request: Request) -> u32 {
    let id = request.id;
    engine.submit(request).expect("accepted");
    let passes = drain(engine);
    let last = passes.iter().flat_map(|p| &p.outputs).rfind(|o| o.id == id).expect("an answer");
    assert!(last.finish.is_some());
    last.cached_tokens
}

/// Ids of the requests with an output in this pass.
pub(crate) fn outputs(pass: &Pass) -> Vec<u64> {
    pass.outputs.iter().map(|o| o.id.0).collect()
}

/// (stored, removed) block hashes of a pass, in order.
pub(crate) fn changes(passes: &[Pass]) -> (Vec<u64>, Vec<u64>) {
    let (mut stored, mut removed) = (Vec::new(), Vec::new());
    for event in passes.iter().flat_map(|p| &p.events) {
        match event {
            KvEvent::Stored(s) => stored.extend(&s.block_hashes),
            KvEvent::Removed(r) => removed.extend(&r.block_hashes),
            KvEvent::Cleared => {}
        }
    }
    (stored, removed)
}
