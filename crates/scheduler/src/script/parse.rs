//! Scripts from text.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::{Error as ValueError, StrDeserializer};
use tandem_types::{
    Adapter, AgentId, EngineId, EngineKind, GroupId, LabelWish, LoadReport, MatchSource, PrefixMatch,
    ProgramKey, RequestClass, RetryKey, RouteWishes, SessionId, TenantId, Time, TurnId, Usage,
    WeightOverrides, WorkerId, WorkerInfo, WorkerPrefix, WorkerRole,
};

use super::{Content, Line, Script, ScriptError};
use crate::config::{LocalPrefill, PdFallback, SchedulerConfig};
use crate::contract::{
    DispatchFailure, FailureKind, Input, Remembered, TurnArrival, TurnOutcome, TurnResult,
};
use crate::replay::Step;

/// How long a scripted client can be kept waiting unless it says otherwise.
const HOLD_DEFAULT: Duration = Duration::from_secs(30);

pub(super) fn script(text: &str) -> Result<Script, ScriptError> {
    let mut script = Script::default();
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        let content =
            content(line, &mut script).map_err(|message| ScriptError::Syntax { line: number, message })?;
        if let Some(content) = content {
            script.lines.push(Line { number, text: line.to_owned(), content });
        }
    }
    Ok(script)
}

fn content(line: &str, script: &mut Script) -> Result<Option<Content>, String> {
    let mut words = Words::of(line);
    let Some(first) = words.next() else { return Ok(Some(Content::Other)) };
    if first.starts_with('#') {
        return Ok(Some(Content::Other));
    }
    if first.starts_with('>') {
        return Ok(None);
    }
    match first {
        "config" => config(&mut words, &mut script.config)?,
        "seed" => script.seed = words.parse("seed")?,
        _ => {
            let at = first.strip_prefix('@').ok_or_else(|| format!("{first:?} is not a line's beginning"))?;
            let at = Time::ZERO + seconds(at)?;
            return step(at, &mut words);
        }
    }
    words.finish().map(|()| Some(Content::Other))
}

fn step(at: Time, words: &mut Words<'_>) -> Result<Option<Content>, String> {
    let verb = words.word("input")?;
    let input = match verb {
        "timeout" => return Ok(None),
        "view" => return words.finish().map(|()| Some(Content::View(at))),
        "wait" => None,
        _ => Some(input(verb, words)?),
    };
    words.finish()?;
    Ok(Some(Content::Step(Box::new(Step { at, input }))))
}

fn input(verb: &str, words: &mut Words<'_>) -> Result<Input, String> {
    Ok(match verb {
        "expect" => Input::WorkerExpected { worker: words.worker()? },
        "up" => Input::WorkerUp { worker: words.worker()?, info: worker_info(words)? },
        "drain" => Input::WorkerDraining { worker: words.worker()? },
        "down" => Input::WorkerDown { worker: words.worker()? },
        "remove" => Input::WorkerRemoved { worker: words.worker()? },
        "load" => {
            let worker = words.worker()?;
            let running = words.value("running")?.unwrap_or(0);
            let waiting = words.value("waiting")?.unwrap_or(0);
            let kv_capacity_tokens = words.value("kv")?;
            let load = LoadReport { running, waiting, kv_capacity_tokens, ..LoadReport::default() };
            Input::WorkerLoad { worker, load }
        }
        "arrive" => Input::TurnArrived(arrival(words)?),
        "match" => Input::PrefixFound { turn: words.turn()?, prefix: prefix(words)? },
        "prefilled" => Input::PrefillDone { turn: words.turn()? },
        "start" => Input::TurnStarted { turn: words.turn()? },
        "first" => Input::FirstToken { turn: words.turn()? },
        "gone" => Input::ClientGone { turn: words.turn()? },
        "bye" => Input::SessionEnd { program: program(words.word("session")?)? },
        "progress" => Input::Progress { turn: words.turn()?, generated: words.parse("number")? },
        "pause" => Input::ProgramPause { program: program(words.word("session")?)? },
        "resume" => Input::ProgramResume { program: program(words.word("session")?)? },
        "remember" => Input::ProgramRemembered(remembered(words)?),
        "sync" => Input::SyncBegin { at_most: seconds(words.word("number of seconds")?)? },
        "synced" => Input::SyncEnd,
        "fail" => {
            let turn = words.turn()?;
            let kind: FailureKind = named(words.word("kind of failure")?)?;
            let failure = DispatchFailure { kind, retryable: !words.flag("fatal") };
            if words.flag("prefill") {
                Input::PrefillFailed { turn, failure }
            } else {
                Input::TurnFailed { turn, failure }
            }
        }
        "end" => Input::TurnEnded { turn: words.turn()?, outcome: outcome(words)? },
        _ => return Err(format!("no input named {verb:?}")),
    })
}

fn remembered(words: &mut Words<'_>) -> Result<Remembered, String> {
    let program = program(words.word("session")?)?;
    let worker_of = |text: Option<&str>| text.map(worker).transpose();
    Ok(Remembered {
        program,
        parent: None,
        group: None,
        last_worker: worker_of(words.take("at"))?,
        last_prefill: worker_of(words.take("prefill"))?,
        turns_dispatched: 1,
        turns_finished: 1,
        known_tokens: words.value("tokens")?.unwrap_or(0),
        ended_with_tools: false,
        last_active: Time::ZERO + words.take("since").map(seconds).transpose()?.unwrap_or_default(),
        stopped: words.flag("stopped"),
    })
}

fn worker_info(words: &mut Words<'_>) -> Result<WorkerInfo, String> {
    let models = words.take("models").map(|list| list.split(',').map(str::to_owned).collect());
    let kind = words.take("kind").map(named::<EngineKind>).transpose()?.unwrap_or(EngineKind::Vllm);
    Ok(WorkerInfo {
        role: words.take("role").map(named::<WorkerRole>).transpose()?.unwrap_or_default(),
        models: models.unwrap_or_default(),
        adapters: list(words.take("adapters")).iter().map(|text| adapter(text)).collect::<Result<_, _>>()?,
        loads_adapters: words.flag("loads_adapters"),
        kv_capacity_tokens: words.value("kv")?,
        kv_resident_tokens: words.value("resident")?,
        max_running: words.value("max")?,
        labels: list(words.take("labels")),
        taints: list(words.take("taints")),
        ..WorkerInfo::new(kind)
    })
}

/// `NAME:BASE`.
fn adapter(text: &str) -> Result<Adapter, String> {
    let (name, base) =
        text.split_once(':').ok_or_else(|| format!("{text:?} is not an adapter such as sql:tiny"))?;
    Ok(Adapter { name: name.to_owned(), base: base.to_owned() })
}

fn arrival(words: &mut Words<'_>) -> Result<TurnArrival, String> {
    let turn = words.turn()?;
    let hold = words.take("hold").map(seconds).transpose()?;
    Ok(TurnArrival {
        turn,
        program: words.take("session").map(program).transpose()?,
        parent: words.take("parent").map(program).transpose()?,
        group: words.take("group").map(|id| GroupId::new(id).map_err(|e| e.to_string())).transpose()?,
        session_final: words.flag("final"),
        class: words.take("class").map(named::<RequestClass>).transpose()?.unwrap_or_default(),
        retry_key: words.value("key")?.map(RetryKey),
        model: words.take("model").map(str::to_owned),
        input_tokens_estimate: words.value("tokens")?.unwrap_or(0),
        prefix: prefix(words)?,
        wishes: wishes(words)?,
        max_output_tokens: None,
        hold_max: hold.unwrap_or(HOLD_DEFAULT),
    })
}

/// `blocks=12x16` (twelve blocks of sixteen tokens), `at=e0:3,e1:2/4/5` (leading blocks in device / and host / and
/// disk), `approx` (all of these), `blind=e2,e3`, `shared=1-3,7-12` (half open), `version=N`.
fn prefix(words: &mut Words<'_>) -> Result<PrefixMatch, String> {
    let source = if words.flag("approx") { MatchSource::Approximate } else { MatchSource::Exact };
    let (blocks, block_size) =
        words.take("blocks").map(|text| pair(text, 'x')).transpose()?.unwrap_or_default();
    let mut found = PrefixMatch {
        block_size,
        blocks,
        version: words.value("version")?.unwrap_or(0),
        ..PrefixMatch::unknown()
    };
    for text in words.take("at").into_iter().flat_map(|list| list.split(',')) {
        let (id, depths) =
            text.split_once(':').ok_or_else(|| format!("{text:?} is not a match such as e0:3"))?;
        let depths: Vec<u32> = depths
            .split('/')
            .map(|depth| depth.parse().map_err(|_| format!("{depth:?} is not a number of blocks")))
            .collect::<Result<_, _>>()?;
        let device = depths.first().copied().unwrap_or(0);
        let host = depths.get(1).copied().unwrap_or(device);
        let disk = depths.get(2).copied().unwrap_or(host);
        found.workers.push(WorkerPrefix { worker: worker(id)?, device, host, disk, source });
    }
    for id in words.take("blind").into_iter().flat_map(|list| list.split(',')) {
        found.blind.push(worker(id)?);
    }
    for text in words.take("shared").into_iter().flat_map(|list| list.split(',')) {
        let (start, end) = pair(text, '-')?;
        found.shared.push(start..end);
    }
    found.shared.sort_by_key(|run| run.start);
    Ok(found)
}

/// `require=a,b`, `tolerate=a,b`, `prefer=a:0.5,b:-1`, and `weights=host:0,temperature:1` by the names of
/// [`WeightOverrides`].
fn wishes(words: &mut Words<'_>) -> Result<RouteWishes, String> {
    let weighted = |text: Option<&str>| -> Result<Vec<(String, f64)>, String> {
        let one = |text: &str| {
            let (name, weight) = text.rsplit_once(':')?;
            Some((name.to_owned(), weight.parse().ok()?))
        };
        let items = text.into_iter().flat_map(|list| list.split(','));
        items.map(|text| one(text).ok_or_else(|| format!("{text:?} is not a weight such as a:0.5"))).collect()
    };
    let prefer = weighted(words.take("prefer"))?;
    let mut weights = WeightOverrides::none();
    for (name, weight) in weighted(words.take("weights"))? {
        let place = weights.named(&name).ok_or_else(|| format!("no weight named {name:?}"))?;
        *place = Some(weight);
    }
    Ok(RouteWishes {
        require: list(words.take("require")),
        tolerate: list(words.take("tolerate")),
        prefer: prefer.into_iter().map(|(label, weight)| LabelWish { label, weight }).collect(),
        weights,
    })
}

fn list(text: Option<&str>) -> Vec<String> {
    text.into_iter().flat_map(|list| list.split(',')).map(str::to_owned).collect()
}

/// Two numbers with a mark between them.
fn pair(text: &str, mark: char) -> Result<(u32, u32), String> {
    let parse = || {
        let (first, second) = text.split_once(mark)?;
        Some((first.parse().ok()?, second.parse().ok()?))
    };
    parse().ok_or_else(|| format!("{text:?} is not a pair such as 3{mark}5"))
}

fn worker(text: &str) -> Result<WorkerId, String> {
    let parse = || {
        let (engine, rank) = text.strip_prefix('e')?.split_once('r').unwrap_or((text.get(1..)?, "0"));
        Some(WorkerId { engine: EngineId(engine.parse().ok()?), rank: rank.parse().ok()? })
    };
    parse().ok_or_else(|| format!("{text:?} is not a worker such as e0 or e0r1"))
}

fn outcome(words: &mut Words<'_>) -> Result<TurnOutcome, String> {
    let result = words.next().map(named::<TurnResult>).transpose()?.unwrap_or(TurnResult::Finished);
    let (input, output) = (words.value("in")?, words.value("out")?);
    let usage = (input.is_some() || output.is_some()).then(|| Usage {
        input_tokens: input.unwrap_or(0),
        output_tokens: output.unwrap_or(0),
        ..Usage::default()
    });
    let tool_calls = words.value("tools")?.unwrap_or(0);
    Ok(TurnOutcome { result, usage, tool_calls })
}

fn config(words: &mut Words<'_>, config: &mut SchedulerConfig) -> Result<(), String> {
    fn set<T>(target: &mut T, value: Option<T>) {
        if let Some(value) = value {
            *target = value;
        }
    }
    set(&mut config.policy, words.take("policy").map(str::to_owned));
    set(&mut config.admission.policy, words.take("admission").map(str::to_owned));
    set(&mut config.queue_max, words.value("queue")?);
    set(&mut config.programs_max, words.value("programs")?);
    set(&mut config.attempts_max, words.value("attempts")?);
    set(&mut config.breaker.failures_to_open, words.value("breaker")?);
    set(&mut config.program_idle_ttl, words.take("ttl").map(seconds).transpose()?);
    set(&mut config.startup_grace, words.take("grace").map(seconds).transpose()?);
    set(&mut config.breaker.open_first, words.take("open").map(seconds).transpose()?);
    set(&mut config.pd.fallback, words.take("fallback").map(named::<PdFallback>).transpose()?);
    set(&mut config.pd.local_prefill, words.take("local").map(local_prefill).transpose()?);
    set(&mut config.backoff_first, words.take("backoff").map(seconds).transpose()?);
    Ok(())
}

fn local_prefill(text: &str) -> Result<LocalPrefill, String> {
    Ok(match text {
        "off" => LocalPrefill::Off,
        "auto" => LocalPrefill::Auto,
        tokens => LocalPrefill::Tokens(
            tokens.parse().map_err(|_| format!("local={text} is neither off nor auto nor a number"))?,
        ),
    })
}

/// A unit variant by its serialised name.
fn named<'de, T: Deserialize<'de>>(name: &'de str) -> Result<T, String> {
    let deserializer: StrDeserializer<'de, ValueError> = name.into_deserializer();
    T::deserialize(deserializer).map_err(|error| error.to_string())
}

fn program(text: &str) -> Result<ProgramKey, String> {
    let (session, agent) = text.split_once('/').map_or((text, None), |(s, a)| (s, Some(a)));
    let mut key =
        ProgramKey::root(TenantId::default(), SessionId::new(session).map_err(|error| error.to_string())?);
    key.agent = agent.map(AgentId::new).transpose().map_err(|error| error.to_string())?;
    Ok(key)
}

/// A decimal number of seconds, exactly.
fn seconds(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a number of seconds");
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    if part.len() > 9 || !part.bytes().all(|b| b.is_ascii_digit()) {
        return Err(wrong());
    }
    let nanos: u32 = format!("{part:0<9}").parse().map_err(|_| wrong())?;
    Ok(Duration::new(whole.parse().map_err(|_| wrong())?, nanos))
}

/// A line's words: plain ones in order, `key=value` ones by key.
struct Words<'a> {
    plain: std::collections::VecDeque<&'a str>,
    keyed: BTreeMap<&'a str, &'a str>,
}

impl<'a> Words<'a> {
    fn of(line: &'a str) -> Self {
        let mut words = Self { plain: std::collections::VecDeque::new(), keyed: BTreeMap::new() };
        for word in line.split_whitespace() {
            match word.split_once('=') {
                Some((key, value)) if !line.starts_with(['#', '>']) => {
                    words.keyed.insert(key, value);
                }
                Some(_) | None => words.plain.push_back(word),
            }
        }
        words
    }

    fn next(&mut self) -> Option<&'a str> {
        self.plain.pop_front()
    }

    fn word(&mut self, what: &str) -> Result<&'a str, String> {
        self.next().ok_or_else(|| format!("{what} is missing"))
    }

    fn parse<T: FromStr>(&mut self, what: &str) -> Result<T, String> {
        let word = self.word(what)?;
        word.parse().map_err(|_| format!("{word:?} is not a {what}"))
    }

    fn flag(&mut self, name: &str) -> bool {
        let found = self.plain.iter().position(|&word| word == name);
        found.is_some_and(|index| self.plain.remove(index).is_some())
    }

    fn take(&mut self, key: &str) -> Option<&'a str> {
        self.keyed.remove(key)
    }

    fn value<T: FromStr>(&mut self, key: &str) -> Result<Option<T>, String> {
        let parse = |text: &str| text.parse().map_err(|_| format!("{key}={text} is not a number"));
        self.take(key).map(parse).transpose()
    }

    fn turn(&mut self) -> Result<TurnId, String> {
        let word = self.word("turn")?;
        let number = word.strip_prefix('t').and_then(|digits| digits.parse().ok());
        number.map(TurnId).ok_or_else(|| format!("{word:?} is not a turn such as t1"))
    }

    fn worker(&mut self) -> Result<WorkerId, String> {
        worker(self.word("worker")?)
    }

    /// Nothing may be left over.
    fn finish(&mut self) -> Result<(), String> {
        let left = self.plain.front().map(|word| (*word).to_owned());
        let left = left.or_else(|| self.keyed.first_key_value().map(|(key, value)| format!("{key}={value}")));
        left.map_or(Ok(()), |word| Err(format!("{word:?} is not understood here")))
    }
}
