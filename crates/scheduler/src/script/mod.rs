//! Scenarios: inputs as text that people read and write, and the effects that they lead to.
//!
//! A script is a list of lines. [`run`] plays the inputs and gives the script back with the effects written under
//! them, so that a scenario file is its own golden log.
//!
//! ```text
//! # a comment
//! config policy=least_load queue=2 breaker=3      first lines only; all keys optional
//! seed 7
//! @0    up e0 models=tiny max=1                   worker e0 (= e0r0; e1r2 is rank 2 of engine 1)
//! @1    arrive t1 session=A/agent parent=A model=tiny hold=30
//! > record t1 e0r0 least_load/least_load e0r0=0 of 1 attempt=1 held=0
//! > dispatch t1 e0r0 attempt=1 delay=0
//! @2.5  end t1 in=100 out=20 tools=1
//! @9    view                                      writes the state out
//! ```
//!
//! | input | arguments |
//! |---|---|
//! | `expect W`, `up W`, `drain W`, `down W`, `remove W` | `up`: `models=a,b`, `max=N`, `kv=TOKENS`, `resident=TOKENS`, `labels=a,b`, `taints=a,b`, `role=prefill` or `decode`, `kind=sglang`, `adapters=NAME:BASE,..`, `loads_adapters` |
//! | `load W` | `running=N`, `waiting=N`, `kv=TOKENS` |
//! | `arrive T` | `session=S` or `S/AGENT`, `parent=` likewise, `group=`, `class=`, `key=N`, `model=`, `tokens=N`, `hold=SECONDS` (30), `final`; a match and wishes, as below |
//! | `match T` | a match |
//! | `prefilled T`, `start T`, `first T`, `gone T` | |
//! | `fail T KIND` | a [`crate::FailureKind`] in snake case; `fatal` = not retryable, `prefill` = the fault of the prefill worker |
//! | `end T [RESULT]` | a [`crate::TurnResult`] (finished); `in=N`, `out=N`, `tools=N` |
//! | `progress T N` | tokens of the answer so far |
//! | `bye S` | session end |
//! | `pause S`, `resume S` | an operator's |
//! | `remember S` | an earlier run's: `at=W`, `prefill=W`, `tokens=N`, `since=SECONDS`, `stopped` |
//! | `sync SECONDS`, `synced` | weights are exchanged, at most so long |
//! | `wait` | nothing but time |
//! | `view` | nothing; writes programs, held turns and workers out |
//!
//! A match: `blocks=12x16` (twelve blocks of sixteen tokens), `at=e0:3,e1:2/4/5` (leading blocks in device memory /
//! with those in host memory / with those on disk), `approx`, `blind=e2,e3`, `shared=1-3,7-12` (half open),
//! `version=N`. Wishes: `require=a,b`, `tolerate=a,b`, `prefer=a:0.5,b:-1`, `weights=host:0,temperature:1`.
//!
//! Time-outs that lead to effects appear as `@T timeout` lines; they are written by [`run`] and not needed in a
//! hand-written script. [`crate::invariants::check`] runs after each step.

mod parse;
mod render;

use tandem_types::Time;

use crate::config::ConfigError;
use crate::contract::Effect;
use crate::invariants::{self, Violation};
use crate::replay::Step;
use crate::{Scheduler, SchedulerConfig};

/// Why a script cannot be played to its end.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    /// A line is not understood.
    #[error("line {line}: {message}")]
    Syntax {
        /// Which line, from 1.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// The configuration is refused.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The scheduler broke an invariant.
    #[error("after line {line}: {violation}")]
    Violation {
        /// Which line, from 1.
        line: usize,
        /// What broke.
        violation: Violation,
    },
}

/// A script, understood.
#[derive(Debug, Clone, Default)]
struct Script {
    config: SchedulerConfig,
    seed: u64,
    lines: Vec<Line>,
}

#[derive(Debug, Clone)]
struct Line {
    number: usize,
    text: String,
    content: Content,
}

#[derive(Debug, Clone)]
enum Content {
    /// Comment, blank line, `config` or `seed`.
    Other,
    Step(Box<Step>),
    View(Time),
}

impl Script {
    /// Understands the text. Effect lines (`>`) and `timeout` lines are dropped: [`Script::play`] writes them
    /// anew.
    ///
    /// # Errors
    /// [`ScriptError::Syntax`] names the line.
    fn parse(text: &str) -> Result<Self, ScriptError> {
        parse::script(text)
    }

    /// Plays the script; the script with its effects.
    ///
    /// # Errors
    /// [`ScriptError`] when the configuration is refused or an invariant breaks.
    fn play(&self) -> Result<String, ScriptError> {
        let mut player = Player { core: Scheduler::new(self.config.clone(), self.seed)?, log: String::new() };
        for line in &self.lines {
            let number = line.number;
            let broken = |violation| ScriptError::Violation { line: number, violation };
            match &line.content {
                Content::Other => player.write(&line.text),
                Content::Step(step) => {
                    player.time_outs_before(step.at).map_err(broken)?;
                    player.write(&line.text);
                    player.play((**step).clone()).map_err(broken)?;
                }
                Content::View(at) => {
                    player.time_outs_before(*at).map_err(broken)?;
                    player.write(&line.text);
                    player.play(Step { at: *at, input: None }).map_err(broken)?;
                    for text in render::view(player.core.view()) {
                        player.write(&format!("> {text}"));
                    }
                }
            }
        }
        Ok(player.log)
    }
}

/// Plays a script; the script with its effects.
///
/// # Errors
/// [`ScriptError`] says what and where.
pub fn run(text: &str) -> Result<String, ScriptError> {
    Script::parse(text)?.play()
}

struct Player {
    core: Scheduler,
    log: String,
}

impl Player {
    fn write(&mut self, line: &str) {
        self.log.push_str(line);
        self.log.push('\n');
    }

    fn play(&mut self, step: Step) -> Result<(), Violation> {
        let mut effects = Vec::new();
        step.play(&mut self.core, &mut effects);
        self.write_effects(&effects);
        invariants::check(&self.core)
    }

    fn write_effects(&mut self, effects: &[Effect]) {
        for effect in effects {
            for line in render::effect(effect) {
                self.write(&format!("> {line}"));
            }
        }
    }

    /// Calls the time-outs as a punctual driver would.
    fn time_outs_before(&mut self, at: Time) -> Result<(), Violation> {
        while let Some(deadline) = self.core.next_deadline().filter(|&deadline| deadline < at) {
            let mut effects = Vec::new();
            self.core.handle_timeout(deadline, &mut effects);
            if !effects.is_empty() {
                self.write(&format!("@{} timeout", render::time(deadline)));
                self.write_effects(&effects);
            }
            invariants::check(&self.core)?;
        }
        Ok(())
    }
}
