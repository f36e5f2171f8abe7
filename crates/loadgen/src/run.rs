//! The load: lanes or recorded times, and what is kept of it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tandem_workload::{NodeNo, Trigger, Workload, mix};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::body::completion;
use crate::client::{Caller, Client, Target};
use crate::ideal::Unlimited;
use crate::play::{Due, Plan, Run, Sizes};
use crate::record::{Outcome, Record};

/// A time that no run reaches; clocks cannot count much further.
const FAR: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// When sessions begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrivals {
    /// As recorded.
    Recorded,
    /// That many lanes, each of which runs one play after the other. When the workload has no more, its plays come
    /// again, under other names and with blocks of their own.
    Lanes {
        /// How many.
        lanes: u32,
        /// Each lane's first play begins at a turn that is drawn: contexts are then of all lengths from the start.
        midway: bool,
    },
}

/// What is run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where to.
    pub target: Target,
    /// When sessions begin.
    pub arrivals: Arrivals,
    /// Recorded tokens for each token sent, of prompts and answers.
    pub shrink: u32,
    /// Recorded time over real time, of pauses and of recorded times.
    pub speed: f64,
    /// Tokens in the engine's blocks.
    pub block_size: u32,
    /// The run is over after this, whatever goes on; `None` = when the workload is.
    pub duration: Option<Duration>,
    /// Seed of the order of plays and of where lanes begin; part of sessions' names.
    pub seed: u64,
}

/// Why nothing can be run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// A size that must be at least 1 is 0.
    #[error("{0} must be at least 1")]
    Zero(&'static str),
    /// The speed makes no sense.
    #[error("the speed must be finite and above 0")]
    Speed,
    /// Lanes go on for ever.
    #[error("lanes need a duration")]
    Endless,
    /// There is nothing to send.
    #[error("the workload is empty")]
    Empty,
}

/// What all lanes share.
struct Load {
    workload: Arc<Workload>,
    plan: Plan,
    client: Arc<Client>,
    options: Options,
    start: Instant,
    order: Mutex<Order>,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    outcome: Outcome,
    unlimited: Unlimited,
    under_way: u64,
}

/// Runs the workload against the target.
///
/// # Errors
/// [`LoadError`]; calls that fail are in the records.
pub async fn run(workload: Arc<Workload>, options: Options) -> Result<Outcome, LoadError> {
    check(&workload, &options)?;
    let load = Arc::new(Load {
        plan: Plan::new(&workload),
        client: Client::new(options.target.clone()),
        start: Instant::now(),
        order: Mutex::new(Order::new(workload.plays.len(), options.seed)),
        kept: Mutex::default(),
        workload,
        options,
    });
    let mut running = JoinSet::new();
    match load.options.arrivals {
        Arrivals::Recorded => {
            for play in 0..load.workload.plays.len() {
                running.spawn(Arc::clone(&load).recorded(play));
            }
        }
        Arrivals::Lanes { lanes, midway } => {
            for _ in 0..lanes {
                running.spawn(Arc::clone(&load).lane(midway));
            }
        }
    }
    let all = async { while running.join_next().await.is_some() {} };
    match load.options.duration {
        // Time over: tasks end with the set, and their calls with them.
        Some(duration) => drop(tokio::time::timeout(duration, all).await),
        None => all.await,
    }
    running.shutdown().await;
    let mut kept = load.kept();
    kept.outcome.abandoned = kept.under_way;
    Ok(std::mem::take(&mut kept.outcome))
}

fn check(workload: &Workload, options: &Options) -> Result<(), LoadError> {
    for (name, value) in [("shrink", options.shrink), ("block_size", options.block_size)] {
        if value == 0 {
            return Err(LoadError::Zero(name));
        }
    }
    if options.target.connections == 0 {
        return Err(LoadError::Zero("connections"));
    }
    if !(options.speed.is_finite() && options.speed > 0.0) {
        return Err(LoadError::Speed);
    }
    match options.arrivals {
        _ if workload.nodes.is_empty() || workload.plays.is_empty() => Err(LoadError::Empty),
        Arrivals::Lanes { lanes: 0, .. } => Err(LoadError::Zero("lanes")),
        Arrivals::Lanes { .. } if options.duration.is_none() => Err(LoadError::Endless),
        Arrivals::Lanes { .. } | Arrivals::Recorded => Ok(()),
    }
}

impl Load {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When so much recorded time has passed since `start`.
    fn after(&self, start: Instant, recorded: Duration) -> Instant {
        let real = Duration::try_from_secs_f64(recorded.as_secs_f64() / self.options.speed).unwrap_or(FAR);
        start + real.min(FAR)
    }

    /// Recorded time that has passed since `start`.
    fn passed(&self, start: Instant) -> Duration {
        let recorded = start.elapsed().as_secs_f64() * self.options.speed;
        Duration::try_from_secs_f64(recorded).unwrap_or(Duration::MAX)
    }

    async fn recorded(self: Arc<Self>, play: usize) {
        let starts = self.workload.plays.get(play).map_or(Duration::ZERO, |play| play.starts);
        tokio::time::sleep_until(self.after(self.start, starts)).await;
        self.play(play, 0, 0).await;
    }

    async fn lane(self: Arc<Self>, midway: bool) {
        let mut skip = midway;
        loop {
            let (play, round) = self.order.lock().unwrap_or_else(PoisonError::into_inner).draw();
            let turns = if skip { self.turns(play) } else { 0 };
            let drawn = mix(mix(self.options.seed, play as u64), u64::from(round));
            let first = drawn.checked_rem(u64::from(turns)).unwrap_or(0);
            self.play(play, round, u32::try_from(first).unwrap_or(0)).await;
            skip = false;
        }
    }

    /// Turns of a play's first session.
    fn turns(&self, play: usize) -> u32 {
        let first = self.workload.plays.get(play).and_then(|play| play.sessions.first());
        first.map_or(0, |no| u32::try_from(self.workload.turns(*no).len()).unwrap_or(u32::MAX))
    }

    /// Runs a play to its end.
    async fn play(self: &Arc<Self>, play: usize, round: u32, skip: u32) {
        let workload = Arc::clone(&self.workload);
        let sizes = Sizes { shrink: self.options.shrink, block_size: self.options.block_size };
        let (mut run, mut due) = Run::new(&workload, &self.plan, play, round, skip, sizes);
        let start = Instant::now();
        let (sent, mut sendings) = mpsc::unbounded_channel();
        let mut calls = JoinSet::new();
        loop {
            for (no, at) in due.drain(..) {
                if let Some(call) = self.call(&mut run, (no, at), start, round, sent.clone()) {
                    calls.spawn(call);
                } else {
                    run.over(no);
                }
            }
            if run.left() == 0 || (calls.is_empty() && sendings.is_empty()) {
                break;
            }
            tokio::select! {
                biased;
                Some(no) = sendings.recv() => due = run.came(no, Trigger::Dispatch, self.passed(start)),
                Some(ended) = calls.join_next() => {
                    let Ok(no) = ended else { break };
                    due = run.came(no, Trigger::Completion, self.passed(start));
                    run.over(no);
                }
                else => break,
            }
        }
        let ended = workload.plays.get(play).map_or(0, |play| play.sessions.len() as u64);
        self.kept().outcome.sessions += ended;
    }

    /// One request, from its pause to its end. `None` = the workload does not know it.
    fn call(
        self: &Arc<Self>,
        run: &mut Run<'_>,
        (no, at): Due,
        start: Instant,
        round: u32,
        sent: mpsc::UnboundedSender<NodeNo>,
    ) -> Option<impl Future<Output = NodeNo> + Send + 'static> {
        let node = self.workload.node(no)?;
        let session = self.workload.session(node.session)?;
        let prompt = run.prompt(no)?;
        let output = node.output_tokens.div_ceil(self.options.shrink).max(1);
        let name = |session: u32| format!("{}-{session}-{round}", self.options.seed);
        let caller =
            Caller { session: name(node.session.0), parent: session.parent.map(|parent| name(parent.0)) };
        let (session_no, turn) = (node.session.0, no.0 - session.nodes.start);
        let load = Arc::clone(self);
        let due = load.after(start, at);
        Some(async move {
            tokio::time::sleep_until(due).await;
            let began = load.start.elapsed();
            let body = completion(load.client.model(), &prompt, output);
            let ideal = {
                let mut kept = load.kept();
                kept.under_way += 1;
                kept.unlimited.send(&prompt)
            };
            // Nobody listens any more when the play was given up.
            let _ = sent.send(no);
            let called = load.client.call(&caller, body).await;
            let mut kept = load.kept();
            kept.under_way -= 1;
            kept.outcome.records.push(Record {
                session: session_no,
                round,
                turn,
                sent: began.as_secs_f64(),
                first: called.first.map(|first| first.as_secs_f64()),
                whole: called.whole.as_secs_f64(),
                tries: called.tries,
                prompt: prompt.tokens,
                cached: called.cached,
                ideal,
                output: called.output,
                worker: called.worker,
                held: called.held.as_secs_f64(),
                error: called.error,
            });
            no
        })
    }
}

/// The order in which lanes take plays: shuffled anew for each round.
#[derive(Debug)]
struct Order {
    seed: u64,
    next: usize,
    list: Vec<usize>,
}

impl Order {
    fn new(plays: usize, seed: u64) -> Self {
        Self { seed, next: 0, list: (0..plays).collect() }
    }

    /// The next play and its round.
    fn draw(&mut self) -> (usize, u32) {
        let plays = self.list.len().max(1);
        let (round, at) = (self.next / plays, self.next % plays);
        if at == 0 {
            let seed = mix(self.seed, round as u64);
            self.list.sort_unstable_by_key(|play| (mix(seed, *play as u64), *play));
        }
        self.next += 1;
        (self.list.get(at).copied().unwrap_or(0), u32::try_from(round).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_play_comes_once_in_each_round_in_an_order_of_its_own() {
        let draws = |seed: u64| -> Vec<(usize, u32)> {
            let mut order = Order::new(9, seed);
            (0..18).map(|_| order.draw()).collect()
        };
        let one = draws(1);
        assert_eq!(one, draws(1));
        assert_ne!(one, draws(2));
        let round = |no: u32| -> Vec<usize> {
            one.iter().filter(|(_, round)| *round == no).map(|(play, _)| *play).collect()
        };
        assert_ne!(round(0), round(1));
        for no in [0, 1] {
            let mut plays = round(no);
            plays.sort_unstable();
            assert_eq!(plays, (0..9).collect::<Vec<_>>());
        }
    }
}
