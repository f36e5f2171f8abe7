//! Keeping count while a run goes on.

use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::time::Duration;

use tandem_types::{ProgramKey, Time};

use crate::report::{Report, Stats, jain};

/// What a request came to.
#[derive(Debug, Clone)]
pub(crate) struct Done<'a> {
    pub(crate) program: &'a ProgramKey,
    pub(crate) sent: Time,
    pub(crate) first: Time,
    pub(crate) last: Time,
    pub(crate) held: Option<Duration>,
    pub(crate) input: u32,
    pub(crate) output: u32,
    pub(crate) cached: u32,
    pub(crate) ideal: u32,
}

/// A session's fate.
#[derive(Debug, Clone, Default)]
struct Fate {
    turns: u64,
    worst: f64,
    waited: f64,
    answered: f64,
}

/// Counts of a run.
#[derive(Debug, Default)]
pub(crate) struct Measure {
    from: Time,
    until: Option<Time>,
    ttft: Vec<f64>,
    tpot: Vec<f64>,
    e2e: Vec<f64>,
    held: Vec<f64>,
    sessions: BTreeMap<ProgramKey, Fate>,
    input: u64,
    output: u64,
    cached: u64,
    ideal: u64,
    pub(crate) refusals: u64,
    pub(crate) plays: u64,
    idle_while_held: Duration,
    /// Every block that a prompt ever had, for the unlimited cache.
    seen: HashSet<u64, BuildHasherDefault<DefaultHasher>>,
}

impl Measure {
    pub(crate) fn new(from: Time, until: Option<Time>) -> Self {
        Self { from, until, ..Self::default() }
    }

    pub(crate) fn measures(&self, now: Time) -> bool {
        now >= self.from && self.until.is_none_or(|until| now < until)
    }

    /// Tokens of a prompt that an unlimited cache would have: leading blocks that any prompt or answer had before.
    pub(crate) fn ideal(&self, ids: &[u64], input: u32, block_size: u32) -> u32 {
        let most = (input.saturating_sub(1) / block_size) as usize;
        let known = ids.iter().take(most).take_while(|id| self.seen.contains(*id)).count();
        u32::try_from(known).unwrap_or(u32::MAX).saturating_mul(block_size)
    }

    /// These blocks were computed.
    pub(crate) fn computed(&mut self, ids: &[u64]) {
        self.seen.extend(ids);
    }

    pub(crate) fn done(&mut self, done: &Done<'_>) {
        if !self.measures(done.last) {
            return;
        }
        let ttft = done.first.since(done.sent).as_secs_f64();
        self.ttft.push(ttft);
        if done.output > 1 {
            self.tpot.push(done.last.since(done.first).as_secs_f64() / f64::from(done.output - 1));
        }
        let whole = done.last.since(done.sent).as_secs_f64();
        self.e2e.push(whole);
        self.held.extend(done.held.map(|held| held.as_secs_f64()));
        self.input += u64::from(done.input);
        self.output += u64::from(done.output);
        self.cached += u64::from(done.cached);
        self.ideal += u64::from(done.ideal);
        let fate = self.sessions.entry(done.program.clone()).or_default();
        fate.turns += 1;
        fate.worst = fate.worst.max(ttft);
        fate.waited += ttft;
        fate.answered += whole - ttft;
    }

    /// A turn that was still waiting when the run ended counts against its session.
    pub(crate) fn unserved(&mut self, program: &ProgramKey, sent: Time, now: Time) {
        let waited = now.since(sent).as_secs_f64();
        let fate = self.sessions.entry(program.clone()).or_default();
        fate.turns += 1;
        fate.worst = fate.worst.max(waited);
        fate.waited += waited;
    }

    /// So many workers stood still from one time to the other while turns were held.
    pub(crate) fn stood_still(&mut self, workers: u32, from: Time, to: Time) {
        let from = from.max(self.from);
        let to = self.until.map_or(to, |until| to.min(until));
        self.idle_while_held += to.since(from) * workers;
    }

    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    pub(crate) fn report(self, end: Time, workers: u32) -> Report {
        let duration = self.until.map_or(end, |until| until.min(end)).since(self.from).as_secs_f64();
        let rate = |count: f64| if duration > 0.0 { count / duration } else { 0.0 };
        let part = |some: u64, all: u64| if all > 0 { some as f64 / all as f64 } else { 0.0 };
        let completed = self.e2e.len() as u64;
        let means = |fate: &Fate| fate.waited / fate.turns.max(1) as f64;
        let mut waits: Vec<f64> = self.sessions.values().map(means).collect();
        waits.sort_by(|a, b| b.total_cmp(a));
        let tenth = waits.len().div_ceil(10);
        let slowest: f64 = waits.iter().take(tenth).sum::<f64>() / tenth.max(1) as f64;
        let worst: Vec<f64> = self.sessions.values().map(|fate| fate.worst).collect();
        let within = worst.iter().filter(|worst| **worst <= 30.0).count() as u64;
        let shares: Vec<f64> = self
            .sessions
            .values()
            .map(|fate| if fate.answered > 0.0 { fate.answered / (fate.answered + fate.waited) } else { 0.0 })
            .collect();
        Report {
            duration_s: duration,
            completed_requests: completed,
            refusals: self.refusals,
            completed_plays: self.plays,
            total_input_tokens: self.input,
            total_output_tokens: self.output,
            output_throughput_tok_s: rate(self.output as f64),
            request_throughput: rate(completed as f64),
            prefix_cache_reused_ratio: part(self.cached, self.input),
            ideal_reused_ratio: part(self.ideal, self.input),
            amplification: part(
                self.input - self.cached.min(self.input),
                self.input - self.ideal.min(self.input),
            ),
            ttft_s: Stats::of(self.ttft),
            tpot_s: Stats::of(self.tpot),
            e2e_s: Stats::of(self.e2e),
            held_s: Stats::of(self.held),
            sessions_within_30s: part(within, worst.len() as u64),
            worst_turn_s: Stats::of(worst),
            slowest_tenth_ttft_s: slowest,
            jain_index: jain(&shares),
            idle_while_held: rate(self.idle_while_held.as_secs_f64()) / f64::from(workers.max(1)),
            ..Report::default()
        }
    }
}
