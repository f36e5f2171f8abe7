//! Keeping count while a run goes on.

use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::time::Duration;

use tandem_types::{ProgramKey, Time};

use crate::config::SimConfig;
use crate::oracle::{Asked, belady};
use crate::report::{Report, Stats, jain};

/// What a request came to.
#[derive(Debug, Clone)]
pub(crate) struct Done<'a> {
    pub(crate) program: &'a ProgramKey,
    pub(crate) sent: Time,
    pub(crate) first: Time,
    pub(crate) second: Option<Time>,
    pub(crate) last: Time,
    pub(crate) held: Option<Duration>,
    pub(crate) input: u32,
    pub(crate) output: u32,
    pub(crate) cached: u32,
    pub(crate) cached_again: u64,
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
    slo: Duration,
    block_size: u32,
    ttft: Vec<f64>,
    ttst: Vec<f64>,
    tpot: Vec<f64>,
    per_user: Vec<f64>,
    good: u64,
    e2e: Vec<f64>,
    held: Vec<f64>,
    sessions: BTreeMap<ProgramKey, Fate>,
    input: u64,
    output: u64,
    cached: u64,
    cached_again: u64,
    ideal: u64,
    pub(crate) refusals: u64,
    pub(crate) plays: u64,
    idle_while_held: Duration,
    /// Every block that a prompt ever had, for the unlimited cache.
    seen: HashSet<u64, BuildHasherDefault<DefaultHasher>>,
    /// All prompts in order, and how many blocks all caches together hold, for the one that knows the future.
    asked: Option<(Vec<Asked>, u64)>,
    /// Tokens of the prompts there that count.
    asked_tokens: u64,
}

impl Measure {
    pub(crate) fn new(config: &SimConfig, from: Time, until: Option<Time>) -> Self {
        let engine = &config.engine;
        let own = [engine.tiers.host, engine.tiers.disk].into_iter().flatten();
        let below: u64 = own.map(|tier| tier.tokens).sum::<u64>() / u64::from(engine.block_size.max(1));
        let shared = config.shared_tokens / u64::from(engine.block_size.max(1));
        let capacity = u64::from(config.workers) * (u64::from(engine.pool_blocks) + below) + shared;
        Self {
            from,
            until,
            slo: config.slo_ttft,
            block_size: engine.block_size,
            asked: config.belady.then_some((Vec::new(), capacity)),
            ..Self::default()
        }
    }

    pub(crate) fn measures(&self, now: Time) -> bool {
        now >= self.from && self.until.is_none_or(|until| now < until)
    }

    /// A client sent a prompt.
    pub(crate) fn sent(&mut self, ids: &Arc<[u64]>, input: u32, now: Time) {
        let counts = self.measures(now);
        if let Some((asked, _)) = &mut self.asked {
            let most = ids.len().min((input.saturating_sub(1) / self.block_size.max(1)) as usize);
            asked.push(Asked { ids: Arc::clone(ids), most, counts });
            self.asked_tokens += if counts { u64::from(input) } else { 0 };
        }
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
        self.good += u64::from(done.first.since(done.sent) <= self.slo);
        self.ttst.extend(done.second.map(|second| second.since(done.first).as_secs_f64()));
        if done.output > 1 {
            let tpot = done.last.since(done.first).as_secs_f64() / f64::from(done.output - 1);
            self.tpot.push(tpot);
            self.per_user.extend((tpot > 0.0).then(|| 1.0 / tpot));
        }
        let whole = done.last.since(done.sent).as_secs_f64();
        self.e2e.push(whole);
        self.held.extend(done.held.map(|held| held.as_secs_f64()));
        self.input += u64::from(done.input);
        self.output += u64::from(done.output);
        self.cached += u64::from(done.cached);
        self.cached_again += done.cached_again;
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

    /// The part of the measured prompts that a cache would have had that knew what comes.
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    fn foreseen(&mut self) -> Option<f64> {
        let (asked, capacity) = self.asked.take()?;
        let tokens = belady(&asked, capacity) * u64::from(self.block_size);
        (self.asked_tokens > 0).then(|| tokens as f64 / self.asked_tokens as f64)
    }

    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    pub(crate) fn report(mut self, end: Time, workers: u32) -> Report {
        let belady_reused_ratio = self.foreseen();
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
        let slo = self.slo.as_secs_f64();
        let within = worst.iter().filter(|worst| **worst <= slo).count() as u64;
        let shares: Vec<f64> = self
            .sessions
            .values()
            .map(|fate| if fate.answered > 0.0 { fate.answered / (fate.answered + fate.waited) } else { 0.0 })
            .collect();
        let thousandfold =
            |values: Vec<f64>| Stats::of(values.into_iter().map(|value| value * 1e3).collect());
        Report {
            duration_ms: duration * 1e3,
            completed_requests: completed,
            refusals: self.refusals,
            completed_plays: self.plays,
            total_input_tokens: self.input,
            total_output_tokens: self.output,
            request_throughput_rps: rate(completed as f64),
            goodput_rps: rate(self.good as f64),
            input_throughput_tok_s: rate(self.input as f64),
            output_throughput_tok_s: rate(self.output as f64),
            prefix_cache_reused_ratio: part(self.cached + self.cached_again, self.input),
            first_admission_prefix_cache_reused_ratio: part(self.cached, self.input),
            ideal_reused_ratio: part(self.ideal, self.input),
            belady_reused_ratio,
            amplification: part(
                self.input - self.cached.min(self.input),
                self.input - self.ideal.min(self.input),
            ),
            ttft_ms: thousandfold(self.ttft),
            ttst_ms: thousandfold(self.ttst),
            tpot_ms: thousandfold(self.tpot),
            e2e_latency_ms: thousandfold(self.e2e),
            output_token_throughput_per_user: Stats::of(self.per_user),
            held_ms: thousandfold(self.held),
            session_slo_attainment: part(within, worst.len() as u64),
            worst_turn_ms: thousandfold(worst),
            slowest_tenth_ttft_ms: slowest * 1e3,
            jain_index: jain(&shares),
            idle_while_held: rate(self.idle_while_held.as_secs_f64()) / f64::from(workers.max(1)),
            ..Report::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use tandem_types::{SessionId, TenantId};

    use super::*;

    const fn at(seconds: u64) -> Time {
        Time::from_millis(seconds * 1_000)
    }

    fn of(from: u64) -> Measure {
        Measure::new(&SimConfig::default(), at(from), None)
    }

    /// Three of four workers, for 10 s of the measured 40.
    #[test]
    fn workers_that_stand_still_count_each() {
        let mut measure = of(5);
        measure.stood_still(3, at(0), at(15));
        assert!((measure.report(at(45), 4).idle_while_held - 30.0 / 160.0).abs() < 1e-12);
    }

    /// Of 21 sessions three are a tenth.
    #[test]
    fn the_slowest_tenth_is_that_of_sessions() {
        let mut measure = of(0);
        for seconds in 1..=21 {
            let name = format!("s{seconds}");
            let program = ProgramKey::root(TenantId::default(), SessionId::new(&name).expect("an id"));
            measure.unserved(&program, at(0), at(seconds));
        }
        assert!((measure.report(at(30), 1).slowest_tenth_ttft_ms - 20_000.0).abs() < 1e-9);
    }
}
