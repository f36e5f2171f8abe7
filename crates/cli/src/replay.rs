//! `tandem replay`: what the scheduler makes of recorded inputs, and from where on it decides otherwise under other
//! settings.
//!
//! - Input: a file that `record_inputs` wrote. Output: counts; or a line for each decision or each step with effects.
//! - I-RPL-1 without `--set` the effects are those of the run that was recorded.
//! - Deliberately absent: engines. Under other settings the recording goes on as if nothing had changed, so that only
//!   the first difference is sure; `tandem simulate` finds what would come of it.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, anyhow};
use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};
use tandem_scheduler::replay::{Header, Step};
use tandem_scheduler::{Effect, Input, Scheduler, SchedulerConfig};
use tandem_types::Time;

use crate::assign::assign;
use crate::{Failure, print};

/// Arguments of `tandem replay`.
#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    /// A file that a gateway with `record_inputs` wrote.
    #[arg(value_name = "RECORDING")]
    path: PathBuf,
    /// Print a JSON line for each routing decision, as the gateway's `/decisions` shows it.
    #[arg(long, conflicts_with = "effects")]
    decisions: bool,
    /// Print a JSON line for each step that had effects: its number, its time, the effects.
    #[arg(long)]
    effects: bool,
    /// Print the counts as JSON.
    #[arg(long, conflicts_with_all = ["decisions", "effects"])]
    json: bool,
    /// Play with another setting too, named as in the recording's first line, and tell the first step at which the
    /// scheduler then decides otherwise: `policy=kv`, `admission.tandem.admit=0.8`.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

/// Runs the command.
pub(crate) fn run(args: &ReplayArgs) -> Result<ExitCode, Failure> {
    let mut recording = Recording::open(&args.path).map_err(Failure::Usage)?;
    let Header { config, seed } = recording.header.clone();
    let mut changed = match args.set.as_slice() {
        [] => None,
        settings => Some(Run::new(other(&config, settings).map_err(Failure::Usage)?, seed)?),
    };
    let mut recorded = Run::new(config, seed)?;
    let mut first = None;
    let mut reader = print::Reader::There;
    while let Some((number, step)) = recording.next().map_err(Failure::Usage)? {
        let at = step.at;
        let again = changed.is_some().then(|| step.clone());
        let effects = recorded.play(step);
        let shown = match (&mut changed, again) {
            (Some(run), Some(step)) => {
                let input = first.is_none().then(|| step.input.clone()).flatten();
                let others = run.play(step);
                if first.is_none() && others != effects {
                    first = Some(Difference {
                        step: number,
                        at,
                        input,
                        recorded: effects,
                        changed: others.clone(),
                    });
                }
                others
            }
            _ => effects,
        };
        if reader == print::Reader::There {
            reader = args.show(number, at, &shown)?;
        }
    }
    let told = Told {
        steps: recording.steps,
        seconds: recorded.seconds(),
        recorded: recorded.counts(),
        changed: changed.as_ref().map(Run::counts),
        first_difference: first,
    };
    args.tell(&told)?;
    Ok(ExitCode::SUCCESS)
}

impl ReplayArgs {
    /// Prints what was asked for of a step.
    fn show(&self, step: u64, at: Time, effects: &[Effect]) -> anyhow::Result<print::Reader> {
        let mut text = String::new();
        if self.effects && !effects.is_empty() {
            text = line(&Shown { step, at, effects })?;
        } else if self.decisions {
            for effect in effects {
                if let Effect::Record(decision) = effect {
                    text += &line(decision)?;
                }
            }
        }
        if text.is_empty() { Ok(print::Reader::There) } else { print::data(&text) }
    }

    /// Says how it went: on stdout, or beside what stands there.
    fn tell(&self, told: &Told) -> anyhow::Result<()> {
        if self.json {
            print::data(&line(told)?)?;
        } else if self.decisions || self.effects {
            print::note(told.text()?.trim_end());
        } else {
            print::data(&told.text()?)?;
        }
        Ok(())
    }
}

/// A line of JSON. Not by way of a [`Value`], which has no room for block hashes.
fn line(what: &impl Serialize) -> anyhow::Result<String> {
    Ok(serde_json::to_string(what).context("writing JSON")? + "\n")
}

/// A step with effects.
#[derive(Serialize)]
struct Shown<'a> {
    step: u64,
    at: Time,
    effects: &'a [Effect],
}

/// What is told at the end.
#[derive(Debug, Serialize)]
struct Told {
    steps: u64,
    /// From the first step to the last.
    seconds: f64,
    recorded: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    changed: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_difference: Option<Difference>,
}

/// Where other settings first led to something else.
#[derive(Debug, Serialize)]
struct Difference {
    step: u64,
    at: Time,
    /// Absent where time had passed.
    input: Option<Input>,
    recorded: Vec<Effect>,
    changed: Vec<Effect>,
}

impl Told {
    fn text(&self) -> anyhow::Result<String> {
        let mut text = format!("{} steps in {:.3} s\n", self.steps, self.seconds);
        let groups = self.recorded.as_object().into_iter().flatten();
        for (group, counts) in groups {
            for (name, count) in counts.as_object().into_iter().flatten() {
                let other = self.changed.as_ref().and_then(|changed| changed.get(group)?.get(name));
                let line = match other {
                    Some(other) => format!("{group:<10} {name:<24} {count:>12} {other:>12}\n"),
                    None => format!("{group:<10} {name:<24} {count:>12}\n"),
                };
                text.push_str(&line);
            }
        }
        match (&self.changed, &self.first_difference) {
            (None, _) => {}
            (Some(_), None) => text.push_str("no step has other effects under the other settings\n"),
            (Some(_), Some(first)) => {
                let Difference { step, at, input, recorded, changed } = first;
                text += &format!(
                    "first other effects at step {step}, after {:.3} s\n",
                    at.since(Time::ZERO).as_secs_f64()
                );
                text += &format!("input              {}", line(input)?);
                text += &format!("recorded settings  {}", line(recorded)?);
                text += &format!("other settings     {}", line(changed)?);
            }
        }
        Ok(text)
    }
}

/// A scheduler that a recording is played on.
struct Run {
    scheduler: Scheduler,
    began: Option<Time>,
    ended: Time,
}

impl Run {
    fn new(config: SchedulerConfig, seed: u64) -> Result<Self, Failure> {
        let scheduler = Scheduler::new(config, seed).map_err(|error| Failure::Usage(error.into()))?;
        Ok(Self { scheduler, began: None, ended: Time::ZERO })
    }

    fn play(&mut self, step: Step) -> Vec<Effect> {
        self.began.get_or_insert(step.at);
        self.ended = step.at;
        let mut effects = Vec::new();
        step.play(&mut self.scheduler, &mut effects);
        effects
    }

    fn seconds(&self) -> f64 {
        self.began.map_or(0.0, |began| self.ended.since(began).as_secs_f64())
    }

    fn counts(&self) -> Value {
        let view = self.scheduler.view();
        json!({ "scheduler": view.counters(), "admission": view.admission().stats })
    }
}

/// The steps of a recording, as they are read.
struct Recording {
    path: PathBuf,
    lines: BufReader<File>,
    header: Header,
    steps: u64,
}

impl Recording {
    fn open(path: &Path) -> anyhow::Result<Self> {
        let file = File::open(path).with_context(|| format!("reading {}", path.display()))?;
        let mut lines = BufReader::new(file);
        let mut first = Vec::new();
        lines.read_until(b'\n', &mut first).with_context(|| format!("reading {}", path.display()))?;
        let header = serde_json::from_slice(&first).with_context(|| {
            format!("{} is no recording of a scheduler's inputs: its first line", path.display())
        })?;
        Ok(Self { path: path.to_owned(), lines, header, steps: 0 })
    }

    /// The next step and its number, from 1. A line that was never finished, since the gateway was killed, is the end.
    fn next(&mut self) -> anyhow::Result<Option<(u64, Step)>> {
        let mut line = Vec::new();
        self.lines
            .read_until(b'\n', &mut line)
            .with_context(|| format!("reading {}", self.path.display()))?;
        if line.is_empty() {
            return Ok(None);
        }
        match serde_json::from_slice(&line) {
            Ok(step) => {
                self.steps += 1;
                Ok(Some((self.steps, step)))
            }
            Err(_) if !line.ends_with(b"\n") => {
                print::note(&format!("{} ends within a line", self.path.display()));
                Ok(None)
            }
            Err(error) => {
                let place = format!("{}, line {}", self.path.display(), self.steps + 2);
                Err(anyhow!(error).context(place))
            }
        }
    }
}

/// The recorded settings with some changed.
fn other(config: &SchedulerConfig, settings: &[String]) -> anyhow::Result<SchedulerConfig> {
    let mut table = toml::Table::new();
    settings.iter().try_for_each(|setting| assign(&mut table, setting))?;
    let mut whole = serde_json::to_value(config).context("the recorded settings")?;
    merge(&mut whole, serde_json::to_value(table).context("--set")?);
    serde_json::from_value(whole).with_context(|| format!("--set {}", settings.join(" --set ")))
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}
