//! What is known of programs, put away as bytes and taken back by another table.

use std::collections::BTreeMap;

use tandem_lineage::{Arrival, Lineage, LineageConfig, OUTLINES_VERSION, Relation, Remembered};
use tandem_types::{AgentId, Dialect, ProgramKey, Time};

use crate::support::{
    Answer, Recorded, arriving, assistant, chat, lineage, program, read, recorded, tokens, user,
};

const HARNESSES: [&str; 13] = [
    "claude-code",
    "claude-code-resume",
    "cline",
    "codex",
    "codex-compact",
    "hermes",
    "kimi-code",
    "mini-swe-agent",
    "openclaw",
    "opencode-chat",
    "openhands",
    "pi",
    "qwen-code",
];

/// As a store would have it: bytes.
fn bytes(remembered: &Remembered) -> Vec<u8> {
    rmp_serde::to_vec(remembered).expect("writes")
}

/// What an earlier run knew, given to a new one, the longest quiet program first.
fn restarted(before: &Lineage, programs: &BTreeMap<ProgramKey, Time>, config: LineageConfig) -> Lineage {
    let mut after = Lineage::new(config);
    let learned = rmp_serde::to_vec(&before.learned()).expect("writes");
    after.relearn(rmp_serde::from_slice(&learned).expect("reads"));
    let mut by_time: Vec<(&ProgramKey, &Time)> = programs.iter().collect();
    by_time.sort_by_key(|(_, last)| **last);
    for (program, last) in by_time {
        if let Some(remembered) = before.remembered(program) {
            let read = rmp_serde::from_slice(&bytes(&remembered)).expect("reads");
            assert!(after.remember(program, read, *last), "{program}");
        }
    }
    after
}

/// All that matters of an arrival.
fn said(arrival: &Arrival) -> impl PartialEq + std::fmt::Debug + use<> {
    (
        arrival.relation,
        arrival.forked_from.clone(),
        arrival.alike.clone(),
        arrival.divergence,
        arrival.expected,
        (arrival.history, arrival.displaced),
    )
}

fn key(turn: &Recorded) -> ProgramKey {
    let mut key = program(turn.session.as_deref().unwrap_or("none"));
    key.agent = turn.agent.as_deref().and_then(|agent| AgentId::new(agent).ok());
    key
}

/// Every recorded sequence, with a restart before each of its turns: each arrival is judged as without any.
#[test]
fn a_restart_changes_no_judgement() {
    let mut remembered = 0;
    for harness in HARNESSES {
        let (mut whole, mut cut) = (lineage(), lineage());
        let mut programs = BTreeMap::new();
        for (number, turn) in recorded(harness).iter().enumerate() {
            let now = Time::from_millis(number as u64 * 1000);
            let outline = turn.outline();
            cut = restarted(&cut, &programs, LineageConfig::default());
            let (key, asked) = (key(turn), arriving(&outline));
            let arrivals = [whole.arrived(&key, &asked, now), cut.arrived(&key, &asked, now)];
            assert_eq!(said(&arrivals[0]), said(&arrivals[1]), "{harness}, request {}", turn.index);
            assert_eq!(whole.segments(), cut.segments(), "{harness}, request {}", turn.index);
            assert!(!arrivals[0].remembered);
            assert_eq!(
                arrivals[1].remembered,
                arrivals[1].relation != Relation::First
                    || arrivals[1].alike.is_some() && arrivals[1].history > 0,
                "{harness}, request {}",
                turn.index
            );
            remembered += u32::from(arrivals[1].remembered);
            // What is reported lies between the prompt before and all that the session had.
            let cached = arrivals[0].expected.tokens.max(arrivals[0].history) / 16 * 16;
            let ids: Vec<&str> = turn.calls.iter().map(String::as_str).collect();
            let answer = Answer::new(tokens(&outline), 40 + number as u64, Some(cached)).calling(&ids);
            answer.end(&mut whole, &arrivals[0], now);
            answer.end(&mut cut, &arrivals[1], now);
            programs.insert(key, now);
        }
    }
    assert!(remembered > 50, "{remembered}");
}

fn grown(answers: usize) -> serde_json::Value {
    let mut messages = vec![user("a secret question")];
    for number in 0..answers {
        messages.extend([assistant(&format!("a secret answer {number}")), user("more")]);
    }
    chat(&messages)
}

/// I-REM-1.
#[test]
fn no_text_is_in_what_is_put_away() {
    let mut lineage = lineage();
    let key = program("s");
    for number in 0..3 {
        let outline = read(Dialect::Chat, &grown(number));
        let arrival = lineage.arrived(&key, &arriving(&outline), Time(number as u64));
        let answer = Answer { text: Some("a secret answer"), ..Answer::new(100, 20, None) };
        answer.end(&mut lineage, &arrival, Time(number as u64));
    }
    let bytes = bytes(&lineage.remembered(&key).expect("known"));
    for word in ["secret", "question", "answer", "agent", "read", "things", "more"] {
        assert!(!bytes.windows(word.len()).any(|window| window == word.as_bytes()), "{word}");
    }
    assert!(lineage.remembered(&program("other")).is_none());
}

/// I-REM-2: an earlier run's word changes nothing of what this one knows; its evidence is used until there is some.
#[test]
fn what_this_run_knows_stays() {
    let (mut before, mut after) = (lineage(), lineage());
    let key = program("s");
    let (short, long) = (read(Dialect::Chat, &grown(0)), read(Dialect::Chat, &grown(1)));
    let arrival = before.arrived(&key, &arriving(&short), Time(1));
    Answer::new(100, 20, None).end(&mut before, &arrival, Time(1));
    let arrival = after.arrived(&key, &arriving(&short), Time(5));
    Answer::new(900, 20, None).end(&mut after, &arrival, Time(5));
    assert!(!after.remember(&key, before.remembered(&key).expect("known"), Time(2)));
    let arrival = after.arrived(&key, &arriving(&long), Time(6));
    assert_eq!((arrival.expected.tokens, arrival.remembered), (900, false));
}

/// I-REM-3: the newest of what is remembered stay.
#[test]
fn bounds_hold_for_what_is_remembered() {
    let mut before = lineage();
    let mut programs = BTreeMap::new();
    let outline = read(Dialect::Chat, &grown(2));
    for number in 0..10_u64 {
        let key = program(&format!("s{number}"));
        let arrival = before.arrived(&key, &arriving(&outline), Time(number));
        Answer::new(100, 20, None).end(&mut before, &arrival, Time(number));
        programs.insert(key, Time(number));
    }
    let segments = before.segments() / 10;
    for config in [
        LineageConfig { programs_max: 3, ..LineageConfig::default() },
        LineageConfig { segments_max: segments * 3 + 1, ..LineageConfig::default() },
    ] {
        let after = restarted(&before, &programs, config);
        let known: Vec<bool> =
            (0..10).map(|number| after.remembered(&program(&format!("s{number}"))).is_some()).collect();
        assert_eq!(known, (0..10).map(|number| number >= 7).collect::<Vec<_>>());
    }
    let key = program("s1");
    let mut none = Lineage::new(LineageConfig { segments_max: segments - 1, ..LineageConfig::default() });
    assert!(!none.remember(&key, before.remembered(&key).expect("known"), Time(1)));
    assert!(none.is_empty() && none.segments() == 0);
}

/// Bytes of a value that was cut or made up are an error.
#[test]
fn what_is_no_value_is_refused() {
    let mut lineage = lineage();
    let outline = read(Dialect::Chat, &grown(2));
    let arrival = lineage.arrived(&program("s"), &arriving(&outline), Time(1));
    Answer::new(100, 20, None).end(&mut lineage, &arrival, Time(1));
    let good = bytes(&lineage.remembered(&program("s")).expect("known"));
    for length in 0..good.len() {
        assert!(rmp_serde::from_slice::<Remembered>(&good[..length]).is_err(), "{length}");
    }
}

/// Whoever changes outlines so that this fails must count [`OUTLINES_VERSION`] up: what was put away before is then
/// not compared with what comes after.
#[test]
fn outlines_are_those_of_their_version() {
    let outline = read(Dialect::Chat, &grown(1));
    let chained = outline.segments().iter().fold(0_u64, |chain, segment| {
        chain.rotate_left(5) ^ segment.hash ^ segment.masked.rotate_left(32) ^ u64::from(segment.bytes)
    });
    assert_eq!((OUTLINES_VERSION, chained), (1, 3_801_451_228_348_882_652));
}
