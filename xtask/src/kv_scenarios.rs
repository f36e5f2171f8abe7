//! `cargo xtask kv-scenarios FILE...`: feeds recorded event streams to the real decoders, trackers and indexes, and
//! compares what they then know of prompts with what each file expects.
//!
//! A scenario is a JSON object:
//! - `about`: what it shows;
//! - `workers`: list of `{id, engine, block_size, ranks?, store?}`; `engine` is `vllm` or `sglang`, `ranks` a list of
//!   data-parallel ranks (`[0]` when absent);
//! - `steps`: list of objects, each with one of
//!   - `frame` `{worker, rank, seq, payload, lost?}`: one message of a rank's publisher; `payload` is hex, and with
//!     `lost: true` it was published but never arrived;
//!   - `replay` `{worker, rank, asked, frames: [{seq, payload}]}`: what the publisher's replay socket answers when
//!     asked from `asked` on;
//!   - `store` `{seq, payload}`: one message of a Mooncake master; `listing` `[key, ...]`: all keys that it has;
//!   - `query` `{tokens, lora?, salt?, media?: [{identifier, start, length}]}` with `expect`
//!     `{"worker/rank": {device?, host?, any?, reuse?, shared?}}`: a number of blocks or `[least, most]`. `device`,
//!     `host` and `any` are leading blocks that lie in device memory, in that or host memory, in any tier of the
//!     worker; `reuse` is what the engine would take from any tier (it always computes the last token);
//!     `shared` is what it could load from the store behind that;
//!   - `says` and `why` are for people.
//! - A worker's `store` says how it lays its blocks out there: `{engine: "vllm", head, tp?, pp?, groups?,
//!   algorithm?, seed?}` or `{engine: "sglang", prefix?, tp?, pp?, mla?}`. Without `algorithm` names are learned
//!   from the worker's events.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use tandem_kvplane::{
    Media, Plane, PlaneConfig, PlaneReader, Prompt, StoreChange, StoreUse, VllmHashing, WorkerSpec,
};
use tandem_kvwire::hash::vllm::{VllmAlgorithm, VllmKeyForm};
use tandem_kvwire::mooncake::event;
use tandem_kvwire::mooncake::sglang::SglangLayout;
use tandem_kvwire::mooncake::vllm::VllmLayout;
use tandem_kvwire::tracker::TrackerState;
use tandem_kvwire::{Effect, Tracker, TrackerConfig, decode};
use tandem_types::{EngineId, EngineKind, PrefixMatch, Time, WorkerId};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Scenario {
    #[serde(default, rename = "about")]
    _about: String,
    workers: Vec<WorkerForm>,
    steps: Vec<Step>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WorkerForm {
    id: String,
    engine: Engine,
    block_size: u32,
    #[serde(default = "rank_zero")]
    ranks: Vec<u32>,
    store: Option<StoreForm>,
}

fn rank_zero() -> Vec<u32> {
    vec![0]
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Engine {
    Vllm,
    Sglang,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "engine", rename_all = "lowercase", deny_unknown_fields)]
enum StoreForm {
    Vllm {
        head: String,
        tp: Option<u32>,
        pp: Option<u32>,
        groups: Option<u32>,
        algorithm: Option<String>,
        seed: Option<String>,
    },
    Sglang {
        prefix: Option<String>,
        tp: Option<u32>,
        pp: Option<u32>,
        #[serde(default)]
        mla: bool,
    },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    frame: Option<Frame>,
    replay: Option<ReplayForm>,
    store: Option<Numbered>,
    listing: Option<Vec<String>>,
    query: Option<Query>,
    #[serde(default)]
    expect: BTreeMap<String, Expected>,
    #[serde(default, rename = "says")]
    _says: String,
    #[serde(default)]
    why: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Frame {
    worker: String,
    rank: u32,
    seq: u64,
    payload: String,
    #[serde(default)]
    lost: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReplayForm {
    worker: String,
    rank: u32,
    asked: u64,
    frames: Vec<Numbered>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Numbered {
    seq: u64,
    payload: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Query {
    tokens: Vec<u32>,
    lora: Option<String>,
    salt: Option<String>,
    #[serde(default)]
    media: Vec<MediaForm>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MediaForm {
    identifier: String,
    start: usize,
    length: usize,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Expected {
    device: Option<Count>,
    host: Option<Count>,
    any: Option<Count>,
    reuse: Option<Count>,
    shared: Option<Count>,
}

/// A number, or the least and the most that it may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(untagged)]
enum Count {
    Exact(u32),
    Between([u32; 2]),
}

impl Count {
    const fn takes(self, got: u32) -> bool {
        let [least, most] = match self {
            Self::Exact(count) => [count, count],
            Self::Between(bounds) => bounds,
        };
        least <= got && got <= most
    }
}

/// One comparison.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Outcome {
    file: String,
    step: usize,
    worker: String,
    what: &'static str,
    expected: Count,
    got: u32,
    ok: bool,
    why: String,
}

/// Runs the files and reports; fails where one got something else than it expects.
#[expect(clippy::print_stdout, reason = "a command line tool reports")]
pub(crate) fn run(files: &[PathBuf], json: bool) -> Result<()> {
    ensure!(!files.is_empty(), "name a scenario file, such as those in scenarios/kv");
    let mut outcomes = Vec::new();
    for file in files {
        let of_file = run_file(file).with_context(|| file.display().to_string())?;
        if !json {
            for outcome in &of_file {
                let Outcome { step, worker, what, expected, got, ok, why, .. } = outcome;
                let verdict = if *ok { "ok   " } else { "WRONG" };
                let expected = serde_json::to_string(expected)?;
                println!("{verdict} step {step} {worker} {what}: expected {expected}, got {got}  {why}");
            }
            let wrong = of_file.iter().filter(|outcome| !outcome.ok).count();
            println!("{}: {} expectations, {wrong} wrong", file.display(), of_file.len());
        }
        outcomes.extend(of_file);
    }
    if json {
        println!("{}", serde_json::to_string_pretty(&outcomes)?);
    }
    let wrong = outcomes.iter().filter(|outcome| !outcome.ok).count();
    if wrong > 0 {
        bail!("{wrong} of {} expectations are not met", outcomes.len());
    }
    Ok(())
}

/// Runs one file.
pub(crate) fn run_file(path: &Path) -> Result<Vec<Outcome>> {
    let text = fs::read_to_string(path).context("cannot be read")?;
    let scenario: Scenario = serde_json::from_str(&text)
        .context("is no scenario (the form is described in xtask/src/kv_scenarios.rs)")?;
    let mut runner = Runner::new(&scenario)?;
    let mut outcomes = Vec::new();
    for (at, step) in scenario.steps.iter().enumerate() {
        runner.now = Time::from_millis(at as u64);
        let got = runner.step(step).with_context(|| format!("step {at}"))?;
        for (worker, what, expected, got) in got {
            outcomes.push(Outcome {
                file: path.display().to_string(),
                step: at,
                worker,
                what,
                expected,
                got,
                ok: expected.takes(got),
                why: step.why.clone(),
            });
        }
    }
    Ok(outcomes)
}

/// A rank's publisher as it is followed.
struct Rank {
    id: WorkerId,
    tracker: Tracker<Vec<u8>>,
    /// The replay that waits for its answer: attempt, first message missing.
    asked: Option<(u64, u64)>,
}

struct Runner {
    plane: Plane,
    reader: PlaneReader,
    ranks: BTreeMap<String, Rank>,
    sizes: BTreeMap<String, u32>,
    now: Time,
}

type Got = (String, &'static str, Count, u32);

impl Runner {
    fn new(scenario: &Scenario) -> Result<Self> {
        let mut plane = Plane::new(PlaneConfig { approximate: None, ..PlaneConfig::default() });
        let (mut ranks, mut sizes) = (BTreeMap::new(), BTreeMap::new());
        for (engine, worker) in (0..).zip(&scenario.workers) {
            ensure!(worker.block_size > 0, "worker {}: block_size must be above 0", worker.id);
            let store = worker.store.as_ref().map(StoreForm::read).transpose();
            let store = store.with_context(|| format!("worker {}: store", worker.id))?;
            for rank in &worker.ranks {
                let id = WorkerId { engine: EngineId(engine), rank: *rank };
                let kind = match worker.engine {
                    Engine::Vllm => EngineKind::Vllm,
                    Engine::Sglang => EngineKind::Sglang,
                };
                let mut spec = WorkerSpec::new(kind, true);
                spec.block_size = Some(worker.block_size);
                spec.store.clone_from(&store);
                plane.worker(id, spec, Time::ZERO);
                // Nothing was missed before the first message.
                plane.live(id, Time::ZERO);
                let config = TrackerConfig { replay_on_join: false, ..TrackerConfig::engine(true) };
                let name = format!("{}/{rank}", worker.id);
                sizes.insert(name.clone(), worker.block_size);
                let rank = Rank { id, tracker: Tracker::new(config), asked: None };
                ensure!(ranks.insert(name, rank).is_none(), "two workers {}", worker.id);
            }
        }
        let reader = plane.reader();
        Ok(Self { plane, reader, ranks, sizes, now: Time::ZERO })
    }

    fn step(&mut self, step: &Step) -> Result<Vec<Got>> {
        let kinds = [
            step.frame.is_some(),
            step.replay.is_some(),
            step.store.is_some(),
            step.listing.is_some(),
            step.query.is_some(),
        ];
        let count = kinds.iter().filter(|there| **there).count();
        ensure!(count == 1, "has {count} of frame, replay, store, listing and query; one is needed");
        ensure!(step.query.is_some() || step.expect.is_empty(), "expect belongs to a query");
        if let Some(frame) = &step.frame {
            self.frame(frame)?;
        } else if let Some(replay) = &step.replay {
            self.replay(replay)?;
        } else if let Some(Numbered { seq, payload }) = &step.store {
            let decoded = event::decode(&bytes(payload)?).context("the store's payload")?;
            self.plane.store(StoreChange::Batch { seq: *seq, batch: &decoded.batch }, self.now);
        } else if let Some(keys) = &step.listing {
            let keys: Vec<_> = keys.iter().map(|key| key.as_str().into()).collect();
            self.plane.store(StoreChange::ListingBegins, self.now);
            self.plane.store(StoreChange::Listed(&keys), self.now);
            self.plane.store(StoreChange::ListingEnds { complete: true }, self.now);
            self.plane.tick(self.now);
        } else if let Some(query) = &step.query {
            return self.query(query, &step.expect);
        }
        Ok(Vec::new())
    }

    fn rank(&mut self, worker: &str, rank: u32) -> Result<&mut Rank> {
        let name = format!("{worker}/{rank}");
        self.ranks.get_mut(&name).with_context(|| format!("{name} is no rank of a worker"))
    }

    fn frame(&mut self, frame: &Frame) -> Result<()> {
        let payload = bytes(&frame.payload)?;
        let now = self.now;
        let rank = self.rank(&frame.worker, frame.rank)?;
        if frame.lost {
            return Ok(());
        }
        let mut effects = Vec::new();
        rank.tracker.live(now, frame.seq, payload, &mut effects);
        self.carry_out(&frame.worker, frame.rank, effects)
    }

    fn replay(&mut self, replay: &ReplayForm) -> Result<()> {
        let now = self.now;
        let rank = self.rank(&replay.worker, replay.rank)?;
        let Some((attempt, missing)) = rank.asked.take() else { bail!("nobody asked for a replay") };
        ensure!(missing == replay.asked, "the replay was asked from {missing} on, not from {}", replay.asked);
        let mut effects = Vec::new();
        for Numbered { seq, payload } in &replay.frames {
            rank.tracker.replayed(now, attempt, *seq, bytes(payload)?, &mut effects);
        }
        rank.tracker.replay_ended(now, attempt, &mut effects);
        self.carry_out(&replay.worker, replay.rank, effects)
    }

    /// Does what the tracker wants done.
    fn carry_out(&mut self, worker: &str, number: u32, effects: Vec<Effect<Vec<u8>>>) -> Result<()> {
        let now = self.now;
        let rank = self.rank(worker, number)?;
        let id = rank.id;
        let live = rank.tracker.state() == TrackerState::Live;
        for effect in effects {
            match effect {
                Effect::Apply { seq, payload } => {
                    let decoded = decode(&payload).with_context(|| format!("message {seq}"))?;
                    self.plane.batch(id, &decoded.batch, now);
                }
                Effect::Replay { attempt, missing, .. } => {
                    self.rank(worker, number)?.asked = Some((attempt, missing));
                }
                Effect::Clear(_) | Effect::Reconcile(_) => self.plane.cleared(id, now),
            }
        }
        if live {
            self.plane.live(id, now);
        }
        Ok(())
    }

    fn query(&self, query: &Query, expect: &BTreeMap<String, Expected>) -> Result<Vec<Got>> {
        let media: Vec<Media> = query
            .media
            .iter()
            .map(|m| Media { id: m.identifier.as_str().into(), start: m.start, len: m.length })
            .collect();
        let prompt = Prompt {
            tokens: &query.tokens,
            lora: query.lora.as_deref(),
            salt: query.salt.as_deref(),
            media: &media,
        };
        let chain = self.reader.chain_of(&prompt, None);
        let (held, usable) = (self.reader.held(&chain, self.now), self.reader.find(&chain, self.now));
        let mut got = Vec::new();
        for (name, expected) in expect {
            let id = self.ranks.get(name).with_context(|| format!("{name} is no rank of a worker"))?.id;
            let size = self.sizes.get(name).copied().unwrap_or(1);
            let blocks = |found: &PrefixMatch, count: u32| count * found.block_size / size;
            let (all, most) = (held.of(id), usable.of(id));
            let counts = [
                ("device", expected.device, all.map_or(0, |all| blocks(&held, all.device))),
                ("host", expected.host, all.map_or(0, |all| blocks(&held, all.host))),
                ("any", expected.any, all.map_or(0, |all| blocks(&held, all.disk))),
                ("reuse", expected.reuse, most.map_or(0, |most| blocks(&usable, most.disk))),
                (
                    "shared",
                    expected.shared,
                    most.map_or(0, |most| blocks(&usable, usable.shared_beyond(most))),
                ),
            ];
            got.extend(counts.into_iter().filter_map(|(what, expected, got)| {
                expected.map(|expected| (name.clone(), what, expected, got))
            }));
        }
        ensure!(!got.is_empty(), "expects nothing");
        Ok(got)
    }
}

impl StoreForm {
    fn read(&self) -> Result<StoreUse> {
        Ok(match self {
            Self::Vllm { head, tp, pp, groups, algorithm, seed } => {
                let hash = match algorithm {
                    None => None,
                    Some(name) => Some(VllmHashing {
                        algorithm: VllmAlgorithm::parse(name)
                            .with_context(|| format!("{name} is no hash algorithm of vLLM"))?,
                        seed: seed.clone(),
                        form: VllmKeyForm::Tagged,
                    }),
                };
                let layout = VllmLayout {
                    tp_size: tp.unwrap_or(1),
                    pp_size: pp.unwrap_or(1),
                    groups: groups.unwrap_or(1),
                    ..VllmLayout::single(head)
                };
                StoreUse::Vllm { tenant: String::new(), layout, hash }
            }
            Self::Sglang { prefix, tp, pp, mla } => {
                let mut layout = SglangLayout::new(tp.unwrap_or(1), pp.unwrap_or(1), *mla);
                layout.prefix.clone_from(prefix);
                StoreUse::Sglang { tenant: String::new(), layout, bigram: false, trailing: Vec::new() }
            }
        })
    }
}

fn bytes(hex: &str) -> Result<Vec<u8>> {
    hex::decode(hex).context("the payload is no hex text")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scenarios() -> Vec<PathBuf> {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios/kv");
        let mut files: Vec<PathBuf> =
            fs::read_dir(dir).expect("the folder").map(|entry| entry.expect("an entry").path()).collect();
        files.sort();
        files
    }

    #[test]
    fn every_scenario_gets_what_it_expects() {
        let files = scenarios();
        assert!(files.len() >= 10, "{files:?}");
        for file in files {
            let outcomes = run_file(&file).expect("a scenario");
            let wrong: Vec<&Outcome> = outcomes.iter().filter(|outcome| !outcome.ok).collect();
            assert!(!outcomes.is_empty() && wrong.is_empty(), "{wrong:#?}");
        }
    }

    /// What is wrong with a file is said with its place, and a wrong expectation is reported as such.
    #[test]
    fn faults_are_told_from_wrong_expectations() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("s.json");
        let run = |steps: &str| {
            let workers = r#"[{"id": "w", "engine": "vllm", "block_size": 4}]"#;
            fs::write(&file, format!(r#"{{"workers": {workers}, "steps": [{steps}]}}"#)).expect("written");
            run_file(&file).map_err(|error| format!("{error:#}"))
        };
        let query = r#"{"query": {"tokens": [1, 2, 3, 4]}, "expect": {"w/0": {"device": [1, 2]}}}"#;
        let outcomes = run(query).expect("runs");
        assert_eq!(outcomes.iter().map(|o| (o.got, o.ok)).collect::<Vec<_>>(), [(0, false)]);
        for (steps, part) in [
            (r#"{"frame": {"worker": "x", "rank": 0, "seq": 0, "payload": ""}}"#, "step 0: x/0 is no rank"),
            (
                r#"{"frame": {"worker": "w", "rank": 0, "seq": 0, "payload": "zz"}}"#,
                "step 0: the payload is no hex",
            ),
            (r#"{"frame": {"worker": "w", "rank": 0, "seq": 0, "payload": "c1"}}"#, "step 0: message 0"),
            (r#"{"replay": {"worker": "w", "rank": 0, "asked": 1, "frames": []}}"#, "step 0: nobody asked"),
            (r#"{"says": "nothing"}"#, "step 0: has 0 of frame"),
            (r#"{"query": {"tokens": []}, "expect": {}}"#, "step 0: expects nothing"),
            (r#"{"frme": {}}"#, "is no scenario"),
        ] {
            let error = run(steps).expect_err("a fault");
            assert!(error.contains(part), "{steps}: {error}");
        }
    }
}
