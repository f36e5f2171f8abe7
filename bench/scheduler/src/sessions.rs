//! Sessions: how long their contexts are, how they grow and how long they pause.
//!
//! Lengths and pauses are drawn: log-normal steps between turns with a median of 800 tokens, answers of 64 to 736, nine
//! pauses in ten behind tools (median 6 s), the others behind people (median 120 s), at most ten minutes. A session has
//! 2 to 40 turns; half of them say that they end. One in ten is a subagent of another one.

use std::time::Duration;

use tandem_routing::Rng;
use tandem_types::{AgentId, ProgramKey, SessionId, TenantId};

/// Tokens in a block.
pub const BLOCK: u32 = 64;

/// One that is alive.
#[derive(Debug, Clone, Copy, Default)]
pub struct Session {
    /// Its name.
    pub number: u64,
    /// It is a subagent of the root of that number.
    pub parent: Option<u64>,
    /// Which head its prompts have.
    pub head: u64,
    /// Tokens of its next prompt.
    pub prompt: u64,
    /// Turns still to come.
    pub turns: u64,
    /// It says that it ends.
    pub announces: bool,
    /// Its turn under way.
    pub turn: Option<u64>,
    /// Where its cache lies, and how much.
    pub at: Option<(u32, u64)>,
    /// When that was used last.
    pub used: u64,
    /// It runs there now.
    pub running: bool,
    /// Tokens of the answer under way.
    pub answer: u64,
}

/// Draws them.
#[derive(Debug)]
pub struct Maker {
    pub rng: Rng,
    heads: u64,
    tenants: u64,
    next: u64,
}

impl Maker {
    #[must_use]
    pub fn new(seed: u64, heads: u64, tenants: u64) -> Self {
        Self { rng: Rng::child(seed, "sessions"), heads, tenants: tenants.max(1), next: 0 }
    }

    fn normal(&mut self) -> f64 {
        let (a, b) = (self.rng.fraction().max(1e-12), self.rng.fraction());
        (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()
    }

    fn lognormal(&mut self, median: f64, sigma: f64) -> f64 {
        median * (sigma * self.normal()).exp()
    }

    /// Tokens of a head.
    #[must_use]
    pub fn head_tokens(&self, head: u64) -> u64 {
        if self.heads == 0 { 0 } else { 8_192 + 4_096 * head }
    }

    /// A new session: at its beginning, or some turns into its life.
    pub fn session(&mut self, begun: bool) -> Session {
        self.next += 1;
        let (number, head) = (self.next, self.rng.below(self.heads.max(1)));
        let turns = 2 + self.rng.below(39);
        let done = if begun { self.rng.below(turns) } else { 0 };
        let mut prompt = self.head_tokens(head) + self.lognormal(6_000.0, 0.8) as u64;
        for _ in 0..done {
            prompt += self.answer() + self.step();
        }
        let spawned = number > 1 && self.rng.below(10) == 0;
        let parent = spawned.then(|| 1 + self.rng.below(number - 1));
        let announces = self.rng.below(2) == 0;
        Session { number, parent, head, prompt, turns: turns - done, announces, ..Session::default() }
    }

    /// Tokens of an answer.
    pub fn answer(&mut self) -> u64 {
        64 + self.rng.below(673)
    }

    /// Tokens that a prompt grows by beside the answer before it.
    pub fn step(&mut self) -> u64 {
        self.lognormal(800.0, 1.2).min(20_000.0) as u64
    }

    /// A pause between turns.
    pub fn pause(&mut self) -> Duration {
        let tools = self.rng.below(10) > 0;
        let seconds = if tools { self.lognormal(6.0, 1.5) } else { self.lognormal(120.0, 1.6) };
        Duration::from_secs_f64(seconds.clamp(0.05, 600.0))
    }

    /// The key of a session of that number, in memory of its own as each request brings it.
    #[must_use]
    pub fn key(&self, number: u64, parent: Option<u64>) -> ProgramKey {
        let root = parent.unwrap_or(number);
        let name = |n: u64| format!("5f0e6b2c-7d1a-4c3b-9e2f-{n:012x}");
        let tenant = TenantId::new(&format!("tenant-{}", root % self.tenants));
        let tenant = tenant.unwrap_or_default();
        let session = SessionId::new(&name(root)).unwrap_or_else(|_| unreachable!("a valid id"));
        let agent = parent.and_then(|_| AgentId::new(&name(number)).ok());
        ProgramKey { tenant, session, agent }
    }
}
