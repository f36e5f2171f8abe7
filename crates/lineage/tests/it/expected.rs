//! How many tokens of a prompt repeat what the session left.

use std::sync::Arc;

use serde_json::{Value, json};
use tandem_lineage::{Arrival, Basis, Cause, Expected, Lineage, LineageConfig, Outline, Position, Relation};
use tandem_types::{Dialect, EngineKind, Harness, ProgramKey, Time};

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
    fn turn(&mut self, prompt: u64, answer: u64, cached: u64) -> (u64, Basis) {
        told(self.bounded(prompt, answer, cached))
    }

    fn bounded(&mut self, prompt: u64, answer: u64, cached: u64) -> Expected {
        let arrival = self.arrive(None);
        Answer::new(prompt, answer, Some(cached)).end(&mut self.lineage, &arrival, Time(self.turns as u64));
        arrival.expected
    }
}

/// How many tokens, and on what that rests.
const fn expected(tokens: u64, basis: Basis) -> (u64, Basis) {
    (tokens, basis)
}

const fn told(expected: Expected) -> (u64, Basis) {
    (expected.tokens, expected.basis)
}

/// Lower and upper bound; no upper one = nothing is promised (I-LTB-6).
fn bounds(expected: Expected) -> (u64, Option<u64>) {
    assert!((expected.low..=expected.high).contains(&expected.tokens), "{expected:?}");
    (expected.low, Some(expected.high).filter(|high| *high < u64::MAX))
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
        assert_eq!(told(other.arrive(None).expected), expected(tokens, basis), "{harness:?}");
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
    assert_eq!(told(next.expected), expected(149, Basis::Tokens));
    assert_eq!(next.divergence, None);
    Answer::new(200, 50, Some(144)).end(&mut session.lineage, &next, Time(2));
    // The answer's ids are not known this time, but answers are known to come back.
    let next = session.arrive(Some(&ids(0..300)));
    assert_eq!(told(next.expected), expected(249, Basis::PromptAndAnswer));
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
    assert_eq!(told(next.expected), expected(96, Basis::Tokens));
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
    assert_eq!((arrival.divergence, told(arrival.expected)), (None, expected(100, Basis::Tokens)));
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
    assert_eq!(told(arrival.expected), expected(position.tokens, Basis::Estimated));
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
    assert_eq!(told(session.arrive(None).expected), expected(100, Basis::Prompt));
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

/// Blocks of 16. The prompt of 100 tokens (6 blocks and 4 tokens) comes back but for at most those 4 when 96 were
/// reused; all of it when more were. Before that up to 64 may be the opening of an answer.
#[test]
fn bounds_narrow_with_what_was_seen_to_come_back() {
    let mut session = Session::new();
    assert_eq!(bounds(session.bounded(100, 61, 0)), (0, None));
    assert_eq!(bounds(session.bounded(200, 8, 96)), (100 - 64, Some(160)));
    // 200 = 12 blocks and 8: 192 to 207 is one block more or not.
    assert_eq!(bounds(session.bounded(300, 4, 192)), (200 - 4, Some(207)));
    // 300 to 303 all lie within the 19th block: exact in blocks.
    let third = session.bounded(400, 70, 288);
    assert_eq!(bounds(third), (300 - 4, Some(303)));
    assert_eq!((third.low / 16, third.high / 16), (18, 18));
    // More than the prompt's own blocks came back: no token of the prompt was lost. One token stays in doubt.
    assert_eq!(bounds(session.bounded(500, 5, 464)), (400 - 4, Some(469)));
    assert_eq!(bounds(session.bounded(600, 5, 496)), (500 - 1, Some(504)));
}

/// The very prompt again: all but its last token, by whomever it was sent.
#[test]
fn a_prompt_that_was_answered_is_known_to_the_token() {
    let mut session = Session::new();
    session.turn(100, 61, 0);
    session.turns -= 1;
    assert_eq!(
        session.bounded(100, 40, 96),
        Expected { tokens: 99, basis: Basis::Prompt, low: 99, high: 99 }
    );
    session.turn(200, 10, 96);
    // Back to the first prompt, which is the beginning of the line by now.
    session.turns = 0;
    assert_eq!(bounds(session.arrive(None).expected), (99, Some(99)));
    let mut twin = Session { program: program("twin"), turns: 1, ..session };
    let arrival = twin.arrive(None);
    assert_eq!((arrival.relation, bounds(arrival.expected)), (Relation::First, (199, Some(199))));
    assert_eq!((arrival.alike, arrival.forked_from, arrival.history), (Some(program("s")), None, 0));
}

/// What another session with the same beginning left, or leaves meanwhile, nobody can bound.
#[test]
fn a_beginning_that_others_sent_has_no_upper_bound() {
    let mut session = Session::new();
    session.turn(100, 61, 0);
    session.turn(200, 50, 160);
    let mut fork = Session { program: program("fork"), turns: 2, ..session };
    let arrival = fork.arrive(None);
    let bounded = bounds(arrival.expected);
    assert_eq!((arrival.forked_from.clone(), bounded), (Some(program("s")), (199, Some(249))));
    Answer::new(300, 41, Some(240)).end(&mut fork.lineage, &arrival, Time(9));
    assert_eq!(bounds(fork.bounded(400, 41, 336)), (0, None));
    let mut session = Session { program: program("s"), turns: 2, ..fork };
    assert_eq!(bounds(session.arrive(None).expected), (0, None));
}

/// A turn of the program that runs beside it may leave more than is known.
#[test]
fn a_busy_line_has_no_upper_bound() {
    let mut session = Session::new();
    session.turn(100, 61, 0);
    session.turn(200, 50, 160);
    let running = session.arrive(None);
    assert_eq!(bounds(running.expected), (199, Some(249)));
    assert_eq!(bounds(session.arrive(None).expected), (0, None));
    session.lineage.withdrawn(running.ticket);
}

/// A template may leave out what was thought before the last user's message.
#[test]
fn reasoning_before_a_new_question_is_not_counted_on() {
    let (mut lineage, program) = (lineage(), program("s"));
    let thought = serde_json::json!({"role": "assistant", "reasoning_content": "hm", "content": "calls"});
    let mut messages = vec![user("go"), thought, serde_json::json!({"role": "tool", "content": "42"})];
    let mut ask = |messages: &[Value], prompt: u64, now: u64| {
        let outline = read(Dialect::Chat, &chat(messages));
        let arrival = lineage.arrived(&program, &arriving(&outline), Time(now));
        Answer::new(prompt, 3, Some(prompt - 50)).end(&mut lineage, &arrival, Time(now));
        arrival.expected
    };
    ask(&messages, 100, 1);
    messages.push(assistant("forty-two"));
    assert_eq!(bounds(ask(&messages, 110, 2)), (100 - 64, Some(102)));
    messages.push(user("and now?"));
    assert_eq!(bounds(ask(&messages, 120, 3)), (0, None));
}

/// 4,000 of 20,000 bytes were 2,000 tokens when the first prompt ended there; a change at 12,000 bytes lies half way
/// between that end and the next one at 5,000 tokens (of all bytes in proportion it would be 3,000).
#[test]
fn a_place_between_two_ends_is_measured_from_them() {
    let (mut lineage, program) = (lineage(), program("s"));
    let said = |letter: &str, count: usize| letter.repeat(count);
    let mut messages = vec![user(&said("a", 4000))];
    let mut ask = |messages: &[Value], prompt: u64, now: u64| {
        let outline = read(Dialect::Chat, &chat(messages));
        let arrival = lineage.arrived(&program, &arriving(&outline), Time(now));
        Answer::new(prompt, 3, None).end(&mut lineage, &arrival, Time(now));
        arrival.expected
    };
    ask(&messages, 2000, 1);
    messages.extend([assistant(&said("b", 8000)), user(&said("c", 8000))]);
    ask(&messages, 5000, 2);
    messages[2] = user(&said("d", 9000));
    let cut = ask(&messages, 5200, 3);
    assert_eq!((cut.basis, bounds(cut)), (Basis::Estimated, (0, None)));
    assert!((3400..=3600).contains(&cut.tokens), "{cut:?}");
}

/// A session's first prompt with the system prompt of another one: what that one's head was seen to be worth.
#[test]
fn a_common_head_is_estimated() {
    let mut lineage = lineage();
    let mut ask = |name: &str, words: &str, cached: u64| {
        let system = serde_json::json!({"role": "system", "content": "r".repeat(3000)});
        let outline = read(Dialect::Chat, &chat(&[system, user(words)]));
        let arrival = lineage.arrived(&program(name), &arriving(&outline), Time(1));
        Answer::new(1000, 3, Some(cached)).end(&mut lineage, &arrival, Time(2));
        arrival
    };
    assert_eq!(told(ask("one", &"a".repeat(1000), 0).expected), expected(0, Basis::Nothing));
    let two = ask("two", &"b".repeat(1000), 768);
    assert!((700..=800).contains(&two.expected.tokens), "{two:?}");
    assert_eq!((two.relation, two.alike, two.history), (Relation::First, Some(program("one")), 0));
    let three = ask("three", &"c".repeat(1000), 768);
    assert_eq!((told(three.expected), bounds(three.expected)), (expected(768, Basis::Estimated), (0, None)));
    assert_eq!(three.alike, Some(program("two")));
}

/// A forced tool changes the prompt where the engine then shows that one only and there are others. The line of turns
/// without goes on beside it.
#[test]
fn a_forced_tool_is_another_prompt_on_sglang_only() {
    let turn = |kind: EngineKind, tools: &[&str], done: usize, forced: bool| {
        let mut messages = vec![user("go on")];
        for step in 0..done {
            messages.extend([assistant(&format!("step {step}")), user("more")]);
        }
        let tool = |name: &&str| serde_json::json!({"type": "function", "function": {"name": *name}});
        let mut body = chat(&messages);
        body["tools"] = tools.iter().map(tool).collect();
        if forced {
            body["tool_choice"] = tool(&"look");
        }
        tandem_lineage::outline(Dialect::Chat, kind, body.to_string().as_bytes()).expect("an outline")
    };
    let run = |kind: EngineKind, tools: &[&str]| {
        let (mut lineage, program) = (lineage(), program("s"));
        let mut seen = Vec::new();
        for (done, forced, prompt) in [(0, true, 100), (1, false, 200), (2, true, 300), (3, false, 400)] {
            let outline = turn(kind, tools, done, forced);
            let arrival = lineage.arrived(&program, &arriving(&outline), Time(done as u64));
            Answer::new(prompt, 3, None).end(&mut lineage, &arrival, Time(done as u64));
            seen.push(told(arrival.expected));
        }
        seen
    };
    let (nothing, prompt) = (expected(0, Basis::Nothing), |tokens| expected(tokens, Basis::Prompt));
    let all = [nothing, prompt(100), prompt(200), prompt(300)];
    for tools in [&["look"][..], &["hide", "look"][..]] {
        assert_eq!(run(EngineKind::Vllm, tools), all);
    }
    assert_eq!(run(EngineKind::Sglang, &["look"]), all);
    let beside = run(EngineKind::Sglang, &["hide", "look"]);
    assert!(beside[1..].iter().all(|(_, basis)| *basis == Basis::Estimated), "{beside:?}");
    // Of an engine of unknown make it is not known what it shows.
    let other = expected(0, Basis::Estimated);
    assert_eq!(run(EngineKind::OpenAi, &["look"]), [nothing, other, prompt(100), prompt(200)]);
}

/// The cache had lost what it did not reuse: that is no evidence that answers come back otherwise.
#[test]
fn an_eviction_teaches_nothing() {
    let mut session = Session::new();
    session.turn(100, 61, 0);
    session.turn(200, 50, 160);
    let arrival = session.arrive(None);
    assert_eq!(told(arrival.expected), expected(249, Basis::PromptAndAnswer));
    let mut answer = Answer::new(300, 41, Some(192));
    answer.lost = true;
    answer.end(&mut session.lineage, &arrival, Time(7));
    assert_eq!(session.turn(400, 41, 336), expected(340, Basis::PromptAndAnswer));
}

/// An answer of 61 tokens that comes back as another text: at most the bytes that both begin with are the same tokens.
/// `step 1` is what comes back.
#[test]
fn an_answer_that_reads_otherwise_now_is_bounded_by_what_both_begin_with() {
    for (said, high) in [("done", 200 + 3), ("step by step", 200 + 15), ("step 1", 200 + 60), ("", 200 + 60)]
    {
        let mut session = Session::new();
        session.turn(100, 61, 0);
        let arrival = session.arrive(None);
        let mut answer = Answer::new(200, 61, Some(160));
        answer.text = Some(said);
        answer.end(&mut session.lineage, &arrival, Time(3));
        let next = session.arrive(None).expected;
        assert_eq!(bounds(next), (199, Some(high)), "{said}");
        let tokens = if high == 260 { (260, Basis::PromptAndAnswer) } else { (200, Basis::Prompt) };
        assert_eq!(told(next), tokens, "{said}");
    }
}

/// Texts of 600 and 650 bytes are both two whole pieces of 256 and a rest.
#[test]
fn a_raw_prompt_that_grows_within_its_last_piece_is_no_repetition() {
    let mut session = Session::new();
    let mut ask = |text: &str, at: u64| {
        let outline = read(Dialect::Completions, &json!({"prompt": text}));
        let arrival = session.lineage.arrived(&session.program, &arriving(&outline), Time(at));
        Answer::new(text.len() as u64 / 4, 20, Some(0)).end(&mut session.lineage, &arrival, Time(at));
        arrival
    };
    let text = "abcdefgh".repeat(100);
    ask(&text[..600], 1);
    let grown = ask(&text[..650], 2);
    assert_eq!(grown.relation, Relation::Appends);
    let (low, high) = bounds(grown.expected);
    assert!(
        low < 150 && high == Some(169),
        "its end may be other tokens; the answer, too, may lie there: {low}"
    );
    let again = ask(&text[..650], 3);
    assert_eq!((again.relation, told(again.expected)), (Relation::Repeat, expected(161, Basis::Prompt)));
    // One that ends where its second piece does is not the first prompt, nor is its length known.
    let shorter = ask(&text[..512], 4);
    assert_ne!(shorter.relation, Relation::Repeat);
    assert_eq!(bounds(shorter.expected).1, None, "{:?}", shorter.expected);
    assert!(shorter.expected.tokens <= 128, "{:?}", shorter.expected);
}
