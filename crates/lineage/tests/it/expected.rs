//! How many tokens of a prompt repeat what the session left.

use std::sync::Arc;

use serde_json::Value;
use tandem_lineage::{Arrival, Basis, Cause, Expected, Lineage, LineageConfig, Outline, Position, Relation};
use tandem_types::{Dialect, Harness, ProgramKey, Time};

use crate::support::{Answer, arriving, assistant, chat, lineage, program, read, user};

/// A chat that grows by one answer and one question with each turn.
fn turn(number: usize) -> Outline {
    let mut messages: Vec<Value> = vec![user("go on")];
    for done in 0..number {
        messages.extend([assistant(&format!("step {done}")), user("more")]);
    }
    read(Dialect::Chat, &chat(&messages))
}

fn ids(range: std::ops::Range<u32>) -> Arc<[u32]> {
    range.collect()
}

struct Session {
    lineage: Lineage,
    program: ProgramKey,
    harness: Harness,
    turns: usize,
}

impl Session {
    fn new() -> Self {
        Self { lineage: lineage(), program: program("s"), harness: Harness::Unknown, turns: 0 }
    }

    fn arrive(&mut self, tokens: Option<&Arc<[u32]>>) -> Arrival {
        let outline = turn(self.turns);
        self.turns += 1;
        let mut asked = arriving(&outline);
        asked.tokens = tokens;
        asked.harness = self.harness;
        self.lineage.arrived(&self.program, &asked, Time(self.turns as u64))
    }

    /// One turn; what was expected of it.
    fn turn(&mut self, prompt: u64, answer: u64, cached: u64) -> Expected {
        let arrival = self.arrive(None);
        Answer::new(prompt, answer, Some(cached)).end(&mut self.lineage, &arrival, Time(self.turns as u64));
        arrival.expected
    }
}

const fn expected(tokens: u64, basis: Basis) -> Expected {
    Expected { tokens, basis }
}

/// Blocks of 16: 100 + 61 tokens leave 160 in the cache.
#[test]
fn the_answer_counts_once_it_was_seen_to_come_back() {
    let mut session = Session::new();
    assert_eq!(session.turn(100, 61, 0), expected(0, Basis::Nothing));
    assert_eq!(session.turn(200, 50, 160), expected(100, Basis::Prompt));
    assert_eq!(session.turn(300, 41, 240), expected(249, Basis::PromptAndAnswer));
    // Then it does not: 300 in whole blocks is 288.
    assert_eq!(session.turn(400, 41, 288), expected(340, Basis::PromptAndAnswer));
    assert_eq!(session.turn(500, 41, 400), expected(400, Basis::Prompt));
}

#[test]
fn what_one_session_taught_helps_the_next_of_its_kind_only() {
    let mut session = Session::new();
    session.harness = Harness::Pi;
    session.turn(100, 61, 0);
    session.turn(200, 50, 160);
    for (harness, basis, tokens) in
        [(Harness::Pi, Basis::PromptAndAnswer, 160), (Harness::Cline, Basis::Prompt, 100)]
    {
        let mut other = Session { program: program("other"), harness, turns: 0, ..session };
        other.turn(100, 61, 0);
        assert_eq!(other.arrive(None).expected, expected(tokens, basis), "{harness:?}");
        other.lineage.end_session(&other.program);
        session = Session { program: program("s"), harness: Harness::Pi, turns: 0, ..other };
    }
}

/// An answer with tool calls teaches nothing of answers without.
#[test]
fn tool_calls_and_texts_are_judged_apart() {
    let mut session = Session::new();
    let arrival = session.arrive(None);
    Answer::new(100, 61, Some(0)).calling(&["c1"]).end(&mut session.lineage, &arrival, Time(1));
    assert_eq!(session.turn(200, 50, 160), expected(100, Basis::Prompt));
    assert_eq!(session.turn(300, 41, 192), expected(200, Basis::Prompt));
}

#[test]
fn token_ids_make_it_exact() {
    let mut session = Session::new();
    let first = session.arrive(Some(&ids(0..100)));
    let mut answer = Answer::new(100, 50, Some(0));
    answer.tokens = Some(ids(100..150));
    answer.end(&mut session.lineage, &first, Time(1));
    // All of it comes back, and the last generated token has no KV.
    let next = session.arrive(Some(&ids(0..200)));
    assert_eq!(next.expected, expected(149, Basis::Tokens));
    assert_eq!(next.divergence, None);
    Answer::new(200, 50, Some(144)).end(&mut session.lineage, &next, Time(2));
    // The answer's ids are not known this time, but answers are known to come back.
    let next = session.arrive(Some(&ids(0..300)));
    assert_eq!(next.expected, expected(249, Basis::PromptAndAnswer));
}

/// The body only grew, but the prompt's last four tokens (the opening of the answer) read otherwise now.
#[test]
fn a_template_that_rewrites_the_prompts_end_is_found() {
    let mut session = Session::new();
    let first = session.arrive(Some(&ids(0..100)));
    Answer::new(100, 50, Some(0)).end(&mut session.lineage, &first, Time(1));
    let other: Arc<[u32]> = (0..96).chain(1000..1100).collect();
    let next = session.arrive(Some(&other));
    let divergence = next.divergence.expect("a divergence");
    assert_eq!((next.relation, divergence.cause), (Relation::Appends, Cause::TemplateArtefact));
    assert_eq!(divergence.position, Some(Position { tokens: 96, exact: true }));
    assert_eq!((divergence.block(16), divergence.block(0)), (Some(6), None));
    assert_eq!(next.expected, expected(96, Basis::Tokens));
}

/// A body that differs where its prompt does not: nothing is lost.
#[test]
fn equal_tokens_are_no_divergence_whatever_the_bodies_say() {
    let (mut lineage, program) = (lineage(), program("s"));
    let mut body = chat(&[user("go"), assistant("done"), user("more")]);
    let tokens = ids(0..100);
    let outline = read(Dialect::Chat, &body);
    let asked = |outline, tokens| tandem_lineage::Arriving { tokens: Some(tokens), ..arriving(outline) };
    let arrival = lineage.arrived(&program, &asked(&outline, &tokens), Time(1));
    Answer::new(100, 10, None).end(&mut lineage, &arrival, Time(2));
    body["reasoning_effort"] = Value::from("high");
    let (outline, tokens) = (read(Dialect::Chat, &body), ids(0..120));
    let arrival = lineage.arrived(&program, &asked(&outline, &tokens), Time(3));
    assert_eq!((arrival.divergence, arrival.expected), (None, expected(100, Basis::Tokens)));
}

/// Without token ids the place is told from bytes: half of the prompt's bytes stand before the change.
#[test]
fn a_place_without_token_ids_is_an_estimate() {
    let (mut lineage, program) = (lineage(), program("s"));
    let long = "x".repeat(10_000);
    let talk = |last: &str| read(Dialect::Chat, &chat(&[user(&long), assistant("yes"), user(last)]));
    let first = talk(&"a".repeat(10_000));
    let arrival = lineage.arrived(&program, &arriving(&first), Time(1));
    Answer::new(4000, 10, None).end(&mut lineage, &arrival, Time(2));
    let arrival = lineage.arrived(&program, &arriving(&talk(&"b".repeat(10_000))), Time(3));
    let position = arrival.divergence.and_then(|divergence| divergence.position).expect("a place");
    assert!(!position.exact && (2000..2200).contains(&position.tokens), "{position:?}");
    assert_eq!(arrival.expected, expected(position.tokens, Basis::Estimated));
    assert_eq!((arrival.history, arrival.displaced), (4009, Some(0)));
}

/// I-LTB-1: a turn that failed was never there, and one that runs is not built on.
#[test]
fn only_answered_turns_count() {
    let mut session = Session::new();
    session.turn(100, 61, 0);
    let failed = session.arrive(None);
    session.lineage.withdrawn(failed.ticket);
    session.turns -= 1;
    assert_eq!(session.arrive(None).expected, expected(100, Basis::Prompt));
    let again = turn(1);
    let repeated = session.lineage.arrived(&session.program, &arriving(&again), Time(9));
    assert_eq!(repeated.relation, Relation::Repeat);
}

/// I-LTB-3.
#[test]
fn a_ticket_is_good_once() {
    let mut session = Session::new();
    let arrival = session.arrive(None);
    for prompt in [100, 200] {
        Answer::new(prompt, 61, Some(0)).end(&mut session.lineage, &arrival, Time(1));
    }
    session.lineage.withdrawn(arrival.ticket);
    assert_eq!(session.arrive(None).expected.tokens, 100);
    session.lineage.end_session(&session.program);
    Answer::new(1, 1, None).end(&mut session.lineage, &arrival, Time(1));
    assert_eq!((session.lineage.programs(), session.lineage.segments()), (0, 0));
}

/// I-LTB-4.
#[test]
fn a_side_call_is_compared_and_not_remembered() {
    let (mut lineage, program) = (Lineage::new(LineageConfig::default()), program("s"));
    let main = turn(1);
    let arrival = lineage.arrived(&program, &arriving(&main), Time(1));
    Answer::new(100, 10, None).end(&mut lineage, &arrival, Time(2));
    let side = turn(2);
    let mut asked = arriving(&side);
    asked.side = true;
    let arrival = lineage.arrived(&program, &asked, Time(3));
    assert_eq!((arrival.relation, arrival.expected.tokens), (Relation::Appends, 100));
    Answer::new(200, 10, None).end(&mut lineage, &arrival, Time(4));
    let arrival = lineage.arrived(&program, &arriving(&turn(3)), Time(5));
    assert_eq!(arrival.expected.tokens, 100);
}
