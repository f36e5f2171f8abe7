//! `tandem replay`: recorded inputs played again, by the binary.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tandem_scheduler::replay::{Header, Step};
use tandem_scheduler::{
    AdmissionConfig, Effect, Input, Scheduler, SchedulerConfig, TurnArrival, TurnOutcome, TurnResult,
};
use tandem_types::{
    EngineId, EngineKind, PrefixMatch, ProgramKey, RequestClass, RetryKey, RouteWishes, SessionId, TenantId,
    Time, TurnId, WorkerId, WorkerInfo,
};

use crate::output::{output, tandem};

const TURNS: u64 = 6;

fn at(seconds: u64) -> Time {
    Time::ZERO + Duration::from_secs(seconds)
}

fn arrival(turn: u64) -> Input {
    let session = SessionId::new(&format!("s{}", turn % 2)).expect("an id");
    Input::TurnArrived(TurnArrival {
        turn: TurnId(turn),
        program: Some(ProgramKey::root(TenantId::default(), session)),
        parent: None,
        group: None,
        session_final: false,
        class: RequestClass::Turn,
        // Larger than any number of a JSON value.
        retry_key: Some(RetryKey(u128::MAX - u128::from(turn))),
        model: None,
        input_tokens_estimate: 600,
        prefix: PrefixMatch::unknown(),
        wishes: RouteWishes::none(),
        max_output_tokens: None,
        hold_max: Duration::from_secs(30),
    })
}

/// Two engines of 1,000 tokens each; turns of 600 tokens of two sessions by turns, each over a second later.
fn steps() -> Vec<Step> {
    let mut steps = Vec::new();
    for engine in 0..2 {
        let info = WorkerInfo { kv_capacity_tokens: Some(1000), ..WorkerInfo::new(EngineKind::Vllm) };
        let worker = WorkerId { engine: EngineId(engine), rank: 0 };
        steps.push(Step { at: at(0), input: Some(Input::WorkerUp { worker, info }) });
    }
    for turn in 0..TURNS {
        steps.push(Step { at: at(2 * turn + 1), input: Some(arrival(turn)) });
        let outcome = TurnOutcome { result: TurnResult::Finished, usage: None, tool_calls: 1 };
        let ended = Input::TurnEnded { turn: TurnId(turn), outcome };
        steps.push(Step { at: at(2 * turn + 2), input: Some(ended) });
    }
    steps
}

fn line(what: &impl serde::Serialize) -> String {
    serde_json::to_string(what).expect("json") + "\n"
}

/// The file that a gateway would have written, and decisions of its scheduler.
fn recording(folder: &Path) -> (PathBuf, Vec<Value>) {
    let admission = AdmissionConfig { policy: "tandem".to_owned(), ..AdmissionConfig::default() };
    let header = Header { config: SchedulerConfig { admission, ..SchedulerConfig::default() }, seed: 3 };
    let mut text = line(&header);
    let mut scheduler = Scheduler::new(header.config, header.seed).expect("sound settings");
    let mut effects = Vec::new();
    for step in steps() {
        text += &line(&step);
        step.play(&mut scheduler, &mut effects);
    }
    let path = folder.join("inputs.jsonl");
    std::fs::write(&path, text).expect("written");
    let decisions = effects.into_iter().filter_map(|effect| match effect {
        Effect::Record(decision) => Some(json!(decision)),
        _ => None,
    });
    (path, decisions.collect())
}

fn replay(path: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    let mut command = tandem(&["replay"]);
    output(command.arg(path).args(args))
}

/// I-RPL-1.
#[test]
fn a_recording_gives_the_decisions_of_its_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, decisions) = recording(folder.path());
    let (code, out, err) = replay(&path, &["--decisions"]);
    assert_eq!(code, Some(0), "{err}");
    let again: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).expect("json")).collect();
    assert_eq!((again.len() as u64, &again), (TURNS, &decisions));
    assert!(err.contains("14 steps in 12.000 s"), "{err}");

    let (_, out, _) = replay(&path, &["--json"]);
    let told: Value = serde_json::from_str(&out).expect("json");
    assert_eq!((&told["steps"], &told["seconds"]), (&json!(14), &json!(12.0)));
    assert_eq!(told["recorded"]["scheduler"]["finished"], TURNS);
    assert_eq!(told["recorded"]["admission"]["admitted"], TURNS);
    assert!(told.get("changed").is_none());

    let (_, out, _) = replay(&path, &["--effects"]);
    let first: Value = serde_json::from_str(out.lines().next().expect("a line")).expect("json");
    // Steps 1 and 2 are the engines.
    assert_eq!(first["step"], 3);
}

/// Without admission decisions have no word of it: the first turn's is another.
#[test]
fn other_settings_are_told_where_they_first_decide_otherwise() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, _) = recording(folder.path());
    let (code, out, err) = replay(&path, &["--json", "--set", "admission.policy=none"]);
    assert_eq!(code, Some(0), "{err}");
    let told: Value = serde_json::from_str(&out).expect("json");
    assert_eq!(told["first_difference"]["step"], 3);
    assert_eq!(told["first_difference"]["input"]["TurnArrived"]["turn"], 0);
    assert_eq!(told["changed"]["scheduler"]["finished"], TURNS);

    let (_, out, _) = replay(&path, &["--set", "queue_max=17"]);
    assert!(out.contains("no step has other effects"), "{out}");
}

#[test]
fn what_is_no_recording_is_said_with_its_place() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, _) = recording(folder.path());
    let whole = std::fs::read_to_string(&path).expect("read");

    // Killed while it wrote: the rest counts.
    std::fs::write(&path, whole.get(..whole.len() - 9).expect("longer")).expect("written");
    let (code, out, err) = replay(&path, &[]);
    assert!(
        code == Some(0) && out.starts_with("13 steps") && err.contains("ends within a line"),
        "{out}{err}"
    );

    let broken = whole.replacen("{\"at\"", "{\"when\"", 2);
    std::fs::write(&path, broken).expect("written");
    let (code, _, err) = replay(&path, &[]);
    assert!(code == Some(2) && err.contains("line 2"), "{err}");

    std::fs::write(&path, "{}\n").expect("written");
    let (code, _, err) = replay(&path, &[]);
    assert!(code == Some(2) && err.contains("no recording"), "{err}");

    std::fs::write(&path, &whole).expect("written");
    let (code, _, err) = replay(&path, &["--set", "admission.tandem.admitt=0.8"]);
    assert!(code == Some(2) && err.contains("admitt"), "{err}");
}
