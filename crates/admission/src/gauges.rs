//! Of every worker what a comparison of the whole fleet asks, by id, and what follows from it for a turn.
//!
//! - Purpose: a comparison of a thousand workers takes microseconds only where the same few steps are made for all of them,
//!   several at once and without a branch between. Four workers lie together, each of their numbers in a row.
//! - What is not known is no bound: infinite.
//! - I-GAU-1 each score is the one that the worker alone would have ([`Gauge::score`]).
//! - Deliberately absent: which programs idle where (`rooms`), and what is done about it (the policy's).

use crate::contract::Capacity;
use crate::rooms::{Limits, Room, float};

/// While a turn fills its home, or a newcomer any worker, to no more than this, where it goes is not a question of memory,
/// and routing decides: below three quarters of the pools no gate gains anything (independent hardware campaign,
/// zetxqx's thunderagent-original-verification).
const ROOMY: f64 = 0.75;

/// A worker.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Gauge {
    /// 0 where it is ready, else infinite.
    closed: f64,
    /// Tokens of running turns and of heads.
    tokens: f64,
    /// Running turns.
    running: f64,
    /// As in [`Room`].
    weighted: f64,
    giving: f64,
    pub(crate) served: f64,
    /// What all idle programs count for; infinite where there is none that could lose its place.
    leaving: f64,
    /// What the device holds, and what the worker does.
    device: f64,
    pub(crate) resident: f64,
    /// Up to how many tokens it is filled.
    pub(crate) admits: f64,
    /// What running turns may take.
    running_max: f64,
}

impl Gauge {
    /// A worker that is not there.
    const NOBODY: Self = Self {
        closed: f64::INFINITY,
        tokens: 0.0,
        running: 0.0,
        weighted: 0.0,
        giving: 0.0,
        served: 0.0,
        leaving: f64::INFINITY,
        device: f64::INFINITY,
        resident: f64::INFINITY,
        admits: f64::INFINITY,
        running_max: f64::INFINITY,
    };

    pub(crate) fn of(room: &Room, limits: &Limits) -> Self {
        let known = |tokens: fn(&Limits, Capacity) -> f64| {
            room.capacity.map_or(f64::INFINITY, |capacity| tokens(limits, capacity))
        };
        Self {
            closed: if room.ready { 0.0 } else { f64::INFINITY },
            tokens: room.tokens,
            running: f64::from(room.running),
            weighted: room.weighted,
            giving: room.giving,
            served: room.served,
            leaving: if room.list.is_empty() { f64::INFINITY } else { room.weighted },
            device: known(|_, capacity| float(capacity.device)),
            resident: known(|_, capacity| float(capacity.resident)),
            admits: known(Limits::admits),
            running_max: known(Limits::running_max),
        }
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.closed <= 0.0
    }

    /// Whether its capacity is known.
    pub(crate) fn is_told(&self) -> bool {
        self.resident < f64::INFINITY
    }

    /// Tokens that running turns will take, their growth and shared heads included; `answer` = how long answers are.
    fn running(&self, answer: f64) -> f64 {
        self.tokens + self.running * answer / 2.0
    }

    /// The same with what idle programs count for.
    pub(crate) fn used(&self, answer: f64) -> f64 {
        self.running(answer) + self.weighted
    }

    /// Whether a turn may run beside those that do. One that is alone may, however large.
    pub(crate) fn may_run(&self, answer: f64, need: f64) -> bool {
        (self.running <= 0.0) | (self.running(answer) + need <= self.running_max)
    }

    /// Whether a turn is let in because nothing else runs there, too large as it is.
    pub(crate) fn is_alone(&self, need: f64) -> bool {
        (self.running <= 0.0) & (need > self.admits)
    }

    /// Whether routing may decide although so many tokens would be taken: of device memory, for what has to come up from
    /// lower tiers takes as long wherever it goes.
    pub(crate) fn is_roomy(&self, taken: f64) -> bool {
        taken <= self.device * ROOMY
    }

    /// What a turn may need at most to fit, were all who may give way to do so; infinitely little where it is not ready.
    #[inline]
    pub(crate) fn free(&self, answer: f64) -> f64 {
        let running = self.running(answer);
        let free = self.admits - (running + self.weighted) + self.giving;
        let beside = least(free, self.running_max - running);
        let most = if self.running > 0.0 { beside } else { f64::INFINITY };
        if self.is_ready() { most } else { f64::NEG_INFINITY }
    }

    /// The part of the worker that would be taken if a turn went there that needs so many tokens of which so many are
    /// missing; 1 more where idle programs would lose their places, infinite where it does not fit.
    #[inline]
    pub(crate) fn score(&self, answer: f64, need: f64, missing: f64) -> f64 {
        let used = self.used(answer);
        let lacks = used + need - self.admits;
        let gives = if self.is_alone(need) { self.leaving >= used } else { self.giving >= lacks };
        let fits = self.may_run(answer, need) & ((lacks <= 0.0) | gives);
        // Taking a place costs somebody something.
        let cost = if lacks <= 0.0 { 0.0 } else { 1.0 };
        // Where nothing is known of its room, its running turns stand for it.
        let told = (used + need + missing) / self.resident + cost;
        let score = if self.is_told() { told } else { self.running * 1e-3 };
        if fits { score + self.closed } else { f64::INFINITY }
    }
}

pub(crate) const fn least(a: f64, b: f64) -> f64 {
    if b < a { b } else { a }
}

pub(crate) const fn most(a: f64, b: f64) -> f64 {
    if b > a { b } else { a }
}

/// What a turn asks of any worker, in tokens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    pub(crate) prompt: f64,
    /// The most that others can have computed of it.
    pub(crate) others: f64,
    /// How long answers are.
    pub(crate) answer: f64,
    /// The place of its program's home, and what it needs there.
    pub(crate) home: Option<(usize, f64)>,
}

impl Asked {
    /// What it needs at a place where so much of its prompt lies.
    pub(crate) fn need(&self, at: usize, lies: f64) -> f64 {
        self.home.filter(|(home, _)| *home == at).map_or_else(|| self.need_away(lies), |(_, need)| need)
    }

    /// The same away from home.
    fn need_away(&self, lies: f64) -> f64 {
        most(self.prompt - least(lies, self.others), 0.0) + self.answer
    }

    /// What of its prompt has to be computed there.
    fn missing(&self, lies: f64) -> f64 {
        most(self.prompt - lies, 0.0)
    }
}

/// Workers that lie together.
const LANES: usize = 4;

/// One number of each of four workers.
type Lanes = [f64; LANES];

/// Four workers.
#[derive(Debug, Clone)]
struct Four {
    closed: Lanes,
    tokens: Lanes,
    running: Lanes,
    weighted: Lanes,
    giving: Lanes,
    served: Lanes,
    leaving: Lanes,
    device: Lanes,
    resident: Lanes,
    admits: Lanes,
    running_max: Lanes,
}

impl Four {
    #[inline]
    const fn row(&self, lane: usize) -> Gauge {
        Gauge {
            closed: self.closed[lane],
            tokens: self.tokens[lane],
            running: self.running[lane],
            weighted: self.weighted[lane],
            giving: self.giving[lane],
            served: self.served[lane],
            leaving: self.leaving[lane],
            device: self.device[lane],
            resident: self.resident[lane],
            admits: self.admits[lane],
            running_max: self.running_max[lane],
        }
    }

    fn of(row: impl Fn(usize) -> Gauge) -> Self {
        let none = [0.0; LANES];
        let mut four = Self {
            closed: none,
            tokens: none,
            running: none,
            weighted: none,
            giving: none,
            served: none,
            leaving: none,
            device: none,
            resident: none,
            admits: none,
            running_max: none,
        };
        (0..LANES).for_each(|lane| four.set(lane, row(lane)));
        four
    }

    const fn set(&mut self, lane: usize, gauge: Gauge) {
        self.closed[lane] = gauge.closed;
        self.tokens[lane] = gauge.tokens;
        self.running[lane] = gauge.running;
        self.weighted[lane] = gauge.weighted;
        self.giving[lane] = gauge.giving;
        self.served[lane] = gauge.served;
        self.leaving[lane] = gauge.leaving;
        self.device[lane] = gauge.device;
        self.resident[lane] = gauge.resident;
        self.admits[lane] = gauge.admits;
        self.running_max[lane] = gauge.running_max;
    }

    /// The scores of a turn that needs so much there and of whose prompt so much lies there, and whether all that are ready have room to spare for it.
    #[inline]
    fn scores(&self, asked: &Asked, needs: &Lanes, lies: &Lanes) -> (Lanes, bool) {
        let mut roomy = true;
        let scores = std::array::from_fn(|lane| {
            let (gauge, need, missing) = (self.row(lane), needs[lane], asked.missing(lies[lane]));
            let score = gauge.score(asked.answer, need, missing);
            let taken = gauge.used(asked.answer) + need + missing;
            roomy &= (score < f64::INFINITY) & gauge.is_roomy(taken) | !gauge.is_ready();
            score
        });
        (scores, roomy)
    }
}

/// All workers.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    /// What is behind the last worker is not ready.
    fours: Vec<Four>,
    count: usize,
}

impl Gauges {
    fn of(rows: &[Gauge]) -> Self {
        let fours = rows.chunks(LANES);
        let four = |part: &[Gauge]| Four::of(|lane| part.get(lane).copied().unwrap_or(Gauge::NOBODY));
        Self { fours: fours.map(four).collect(), count: rows.len() }
    }

    pub(crate) fn set(&mut self, at: usize, gauge: Gauge) {
        if let Some(four) = self.fours.get_mut(at / LANES) {
            four.set(at % LANES, gauge);
        }
    }

    /// Another worker, at a place up to the one behind the last.
    pub(crate) fn insert(&mut self, at: usize, gauge: Gauge) {
        let mut rows: Vec<Gauge> = self.rows().collect();
        rows.insert(at, gauge);
        *self = Self::of(&rows);
    }

    /// The worker at a place is gone.
    pub(crate) fn remove(&mut self, at: usize) {
        let mut rows: Vec<Gauge> = self.rows().collect();
        rows.remove(at);
        *self = Self::of(&rows);
    }

    pub(crate) fn get(&self, at: usize) -> Option<Gauge> {
        let four = self.fours.get(at / LANES).filter(|_| at < self.count)?;
        Some(four.row(at % LANES))
    }

    /// All of them, by id.
    pub(crate) fn rows(&self) -> impl Iterator<Item = Gauge> {
        (0..self.count).filter_map(|at| self.get(at))
    }

    /// What a turn may need at most to fit at each ready worker ([`Gauge::free`]): the most, where that is, and the most
    /// at any other.
    pub(crate) fn most_free(&self, answer: f64) -> (f64, Option<usize>, f64) {
        let (mut most, mut second, mut place) = (f64::NEG_INFINITY, f64::NEG_INFINITY, None);
        for (part, four) in self.fours.iter().enumerate() {
            let free: Lanes = std::array::from_fn(|lane| four.row(lane).free(answer));
            if free.iter().fold(true, |less, free| less & (*free <= second)) {
                continue;
            }
            for (lane, free) in free.into_iter().enumerate() {
                if free > most {
                    (second, most, place) = (most, free, Some(part * LANES + lane));
                } else if free > second {
                    second = free;
                }
            }
        }
        (most, place, second)
    }

    /// The score of each worker for a turn ([`Gauge::score`]) of whose prompt so much lies at each, and whether all that
    /// are ready have room to spare for it.
    pub(crate) fn scores(&self, asked: &Asked, lies: &[f64], scores: &mut Vec<f64>) -> bool {
        let mut roomy = true;
        scores.clear();
        let (parts, rest) = lies.as_chunks::<LANES>();
        let mut last = [0.0; LANES];
        last.iter_mut().zip(rest).for_each(|(lane, lies)| *lane = *lies);
        let home = asked.home.map(|(at, need)| (at / LANES, at % LANES, need));
        for (at, (four, lies)) in self.fours.iter().zip(parts.iter().chain([&last])).enumerate() {
            let mut needs = lies.map(|lies| asked.need_away(lies));
            if let Some((_, lane, need)) = home.filter(|(home, _, _)| *home == at) {
                needs[lane] = need;
            }
            let (four, spare) = four.scores(asked, &needs, lies);
            scores.extend_from_slice(&four);
            roomy &= spare;
        }
        scores.truncate(self.count);
        roomy
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Workers that are alike in much: open or not, with known and unknown capacity, empty, full and beside themselves.
    fn any_gauge() -> impl Strategy<Value = Gauge> {
        let size = prop::sample::select(vec![100.0, 1_000.0, f64::INFINITY]);
        let counts = (0_u32..4, 0_u32..6, 0_u32..6, 0_u32..3, 0_u32..3);
        (any::<bool>(), any::<bool>(), size, counts).prop_map(|(closed, idles, size, counts)| {
            let (running, tokens, weighted, giving, above) = counts;
            let (weighted, giving) = if idles { (weighted, giving.min(weighted)) } else { (0, 0) };
            let tokens_of = |count: u32| f64::from(count) * 150.0;
            Gauge {
                closed: if closed { f64::INFINITY } else { 0.0 },
                tokens: tokens_of(tokens),
                running: f64::from(running),
                weighted: tokens_of(weighted),
                giving: tokens_of(giving),
                served: 0.0,
                leaving: if idles { tokens_of(weighted) } else { f64::INFINITY },
                device: size,
                resident: size * f64::from(1 + above),
                admits: size * f64::from(1 + above) * 0.9,
                running_max: size * 0.8,
            }
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// I-GAU-1, also after workers came, went and changed.
        #[test]
        fn each_score_is_that_of_the_worker_alone(
            workers in prop::collection::vec((any_gauge(), 0_u32..5), 1..40),
            (prompt, others, answer, home) in (0_u32..8, 0_u32..8, 0_u32..100, 0_usize..80),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any_gauge(), 0_u8..3), 0..6),
        ) {
            let tokens = |count: u32| f64::from(count) * 150.0;
            let (prompt, others, answer) = (tokens(prompt), tokens(others), f64::from(answer));
            let asked = Asked { prompt, others, answer, home: Some((home, 77.0)) };
            let (mut rows, mut lies): (Vec<Gauge>, Vec<f64>) =
                workers.into_iter().map(|(gauge, lies)| (gauge, tokens(lies))).unzip();
            let mut gauges = Gauges::of(&rows);
            for (index, gauge, change) in changes {
                let at = index.index(rows.len());
                match change {
                    0 => {
                        gauges.insert(at, gauge);
                        rows.insert(at, gauge);
                        lies.insert(at, 150.0);
                    }
                    1 if rows.len() > 1 => {
                        gauges.remove(at);
                        rows.remove(at);
                        lies.remove(at);
                    }
                    _ => {
                        gauges.set(at, gauge);
                        rows[at] = gauge;
                    }
                }
            }
            prop_assert!(gauges.rows().eq(rows.iter().copied()));
            prop_assert!((0..=rows.len()).all(|at| gauges.get(at) == rows.get(at).copied()));
            let mut scores = vec![7.0; 3];
            let roomy = gauges.scores(&asked, &lies, &mut scores);
            let mut all_roomy = true;
            let mut alone = Vec::new();
            for (at, (gauge, lies)) in rows.iter().zip(&lies).enumerate() {
                let (need, missing) = (asked.need(at, *lies), asked.missing(*lies));
                let score = gauge.score(asked.answer, need, missing);
                let taken = gauge.used(asked.answer) + need + missing;
                all_roomy &= !gauge.is_ready() || score < f64::INFINITY && gauge.is_roomy(taken);
                alone.push(score);
            }
            prop_assert_eq!(scores, alone);
            prop_assert_eq!(roomy, all_roomy);
            let (most, place, second) = gauges.most_free(asked.answer);
            let free: Vec<f64> = rows.iter().map(|gauge| gauge.free(asked.answer)).collect();
            let first = |most: f64| free.iter().position(|free| *free >= most && most > f64::NEG_INFINITY);
            let others = free.iter().enumerate().filter(|(at, _)| Some(*at) != place).map(|(_, free)| *free);
            prop_assert_eq!(most, free.iter().copied().fold(f64::NEG_INFINITY, f64::max));
            prop_assert_eq!((place, second), (first(most), others.fold(f64::NEG_INFINITY, f64::max)));
        }
    }
}
