//! How many modelled requests one core gets through: agent sessions on one engine, prompts as block ids.
//!
//! `cargo run --release -p tandem-engine-model --example speed -- [BLOCK_SIZE] [REQUESTS] [HOST_TOKENS]`

#![expect(clippy::expect_used, clippy::print_stdout, reason = "an example that prints")]

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Instant;

use tandem_engine_model::{
    EngineModel, Flavor, Namespace, Output, Pass, Profile, Prompt, Request, RequestKey, TierConfig,
};
use tandem_types::Time;

/// Sessions under way at once.
const SESSIONS: u64 = 64;
/// Turns of a session; each prompt repeats the one before, its answer and a tool's output.
const TURNS: u64 = 20;
/// Tokens of a first prompt, of an answer, of a tool's output.
const FIRST: u32 = 40_000;
const ANSWER: u32 = 250;
const GROWTH: u32 = 1_000;
/// Between an answer and the next turn.
const THINK: u64 = 2_000_000_000;

fn request(session: u64, turn: u64, block_size: u32, arrival: Time) -> Request {
    let tokens = FIRST + turn as u32 * GROWTH;
    let blocks = (tokens + ANSWER) / block_size;
    // Ids of a session's text: the same for all its turns.
    let ids: Arc<[u64]> = (0..u64::from(blocks)).map(|block| (session + 1) << 32 | block).collect();
    Request {
        id: RequestKey(session * TURNS + turn),
        prompt: Prompt::Blocks { ids, tokens },
        output: Output::Seeded { seed: session, tokens: ANSWER },
        max_output_tokens: ANSWER,
        priority: 0,
        namespace: Namespace::default(),
        session: None,
        arrival,
    }
}

/// Time of the processor where the system tells it (a busy machine must not count), else of the wall.
struct Clock(Option<u64>, Instant);

impl Clock {
    fn now() -> Self {
        Self(processor_ns(), Instant::now())
    }

    fn seconds(&self) -> f64 {
        match (self.0, processor_ns()) {
            (Some(before), Some(now)) => (now - before) as f64 / 1e9,
            _ => self.1.elapsed().as_secs_f64(),
        }
    }
}

fn processor_ns() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split(' ').next()?.parse().ok()
}

fn main() {
    let mut args = std::env::args().skip(1);
    let mut number = |default: u64| args.next().and_then(|a| a.parse().ok()).unwrap_or(default);
    let block_size = number(64) as u32;
    let requests = number(20_000);
    let host = number(0);
    let profile = Profile::by_name("qwen3-30b-a3b-h200-tp4").expect("a known profile");
    for flavor in [Flavor::Vllm, Flavor::Sglang] {
        let mut config = profile.config(flavor);
        config.pool_blocks = config.pool_tokens() / block_size;
        config.block_size = block_size;
        config.tiers.host = (host > 0).then(|| TierConfig { tokens: host, ..TierConfig::default() });
        let mut engine = EngineModel::new(config).expect("a usable set-up");
        let begun = Clock::now();
        let (passes, now) = run(&mut engine, requests, block_size);
        let wall = begun.seconds();
        let load = engine.load();
        println!(
            "{flavor:?}, blocks of {block_size}: {:.0} requests/s, {passes} passes ({:.2} us each), {:.1} % cached \
             ({:.1} % from the host), {:.0} s modelled in {wall:.2} s of processor time",
            requests as f64 / wall,
            wall * 1e6 / passes as f64,
            100.0 * load.cached_prompt_tokens as f64 / load.prompt_tokens as f64,
            100.0 * load.host_hits as f64 / load.prompt_tokens as f64,
            now.0 as f64 / 1e9,
        );
    }
}

/// Drives `requests` turns through the engine; returns the passes and the end.
fn run(engine: &mut EngineModel, requests: u64, block_size: u32) -> (u64, Time) {
    // (arrival, session, turn)
    let mut due: BinaryHeap<Reverse<(Time, u64, u64)>> =
        (0..SESSIONS).map(|session| Reverse((Time(session * 100_000_000), session, 0))).collect();
    let (mut started, mut fresh, mut done, mut passes) = (0, SESSIONS, 0, 0);
    let (mut now, mut pass) = (Time::ZERO, Pass::default());
    while done < requests {
        while let Some(Reverse((at, session, turn))) = due.peek().copied() {
            if at > now && (engine.has_work() || engine.wakes_at().is_some()) {
                break;
            }
            due.pop();
            now = now.max(at);
            if started < requests {
                started += 1;
                engine.submit(request(session, turn, block_size, at)).expect("it fits");
            }
        }
        if !engine.step(now, &mut pass) {
            // All that is under way is a transfer, or a turn to come.
            let next = due.peek().map(|Reverse((at, ..))| *at);
            match engine.wakes_at().into_iter().chain(next).min() {
                Some(at) => now = now.max(at),
                None => break,
            }
            continue;
        }
        passes += 1;
        now = pass.ends_at;
        for output in pass.outputs.iter().filter(|output| output.finish.is_some()) {
            done += 1;
            let (session, turn) = (output.id.0 / TURNS, output.id.0 % TURNS);
            let next = if turn + 1 < TURNS { (session, turn + 1) } else { (fresh, 0) };
            fresh += u64::from(next.1 == 0);
            due.push(Reverse((Time(now.0 + THINK), next.0, next.1)));
        }
    }
    (passes, now)
}
