//! Requests without identity.

use proptest::prelude::*;
use serde_json::{Value, json};
use tandem_lineage::{Arrival, Lineage};
use tandem_types::{Dialect, ProgramKey, SessionId, TenantId, Time};

use crate::support::{Answer, arriving, assistant, chat, lineage, read, user};

fn ask(lineage: &mut Lineage, messages: &[Value], now: u64) -> (ProgramKey, bool, Arrival) {
    let outline = read(Dialect::Chat, &chat(messages));
    let who = lineage.identify(&TenantId::default(), &outline, Time(now)).expect("a program");
    let arrival = lineage.arrived(&who.program, &arriving(&outline), Time(now));
    (who.program, who.continues, arrival)
}

fn continues(lineage: &Lineage, messages: &[Value]) -> Option<ProgramKey> {
    lineage.infer(&TenantId::default(), &read(Dialect::Chat, &chat(messages)), Time(9))
}

/// The smallest evidence: a system prompt alone, an equal prompt, or a prompt with no answer in it prove nothing.
#[test]
fn a_turn_is_continued_by_its_answer_and_what_follows() {
    let mut lineage = lineage();
    let (program, known, arrival) = ask(&mut lineage, &[user("go")], 1);
    assert!(!known && program.session.as_str().starts_with("inferred-"));
    let next = [user("go"), assistant("yes"), user("on")];
    assert_eq!(continues(&lineage, &next), None, "while the turn runs");
    Answer::new(100, 10, None).end(&mut lineage, &arrival, Time(2));
    assert_eq!(continues(&lineage, &next), Some(program));
    for other in [
        &[user("go")][..],
        &[user("go"), user("on")],
        &[user("stop"), assistant("yes"), user("on")],
        &[assistant("yes"), user("on")],
        &[user("go"), assistant("yes"), user("on"), assistant("no"), user("on")],
    ] {
        assert_eq!(continues(&lineage, other), None, "{other:?}");
    }
    // Another tenant (I-INF-2, I-LIN-3), and the same when the program is quiet for too long.
    let (tenant, outline) = (TenantId::new("other").expect("id"), read(Dialect::Chat, &chat(&next)));
    assert_eq!(lineage.infer(&tenant, &outline, Time(9)), None);
    assert_eq!(lineage.infer(&TenantId::default(), &outline, Time::from_millis(3_700_000)), None);
}

/// Many rollouts of one prompt at once are as many programs.
#[test]
fn equal_first_prompts_are_programs_of_their_own() {
    let mut lineage = lineage();
    let mut programs: Vec<ProgramKey> =
        (0..2000).map(|now| ask(&mut lineage, &[user("go")], now).0).collect();
    programs.sort_unstable();
    programs.dedup();
    assert_eq!((programs.len(), lineage.programs()), (2000, 2000));
}

#[test]
fn a_system_prompt_alone_is_everybodys() {
    let mut lineage = lineage();
    let alone = read(Dialect::Chat, &chat(&[]));
    assert_eq!(lineage.identify(&TenantId::default(), &alone, Time(1)), None);
    let named = ProgramKey::root(TenantId::default(), SessionId::new("s").expect("id"));
    let arrival = lineage.arrived(&named, &arriving(&alone), Time(1));
    Answer::new(100, 10, None).end(&mut lineage, &arrival, Time(2));
    assert_eq!(continues(&lineage, &[assistant("yes"), user("on")]), None);
}

fn calling(id: &str) -> [Value; 2] {
    let call = json!({"id": id, "type": "function", "function": {"name": "read", "arguments": "{}"}});
    [
        json!({"role": "assistant", "content": "", "tool_calls": [call]}),
        json!({"role": "tool", "tool_call_id": id, "content": "text"}),
    ]
}

/// Two rollouts of one prompt: the ids of their tool calls tell which is which.
#[test]
fn equal_beginnings_are_told_apart_by_tool_calls() {
    let mut lineage = lineage();
    let asked: Vec<_> = (0..3).map(|now| ask(&mut lineage, &[user("go")], now)).collect();
    for ((_, _, arrival), id) in asked.iter().zip(["call_1", "call_2", "call_3"]) {
        Answer::new(100, 10, None).calling(&[id]).end(&mut lineage, arrival, Time(5));
    }
    for (number, id) in [(1, "call_2"), (0, "call1"), (2, "call-3")] {
        let mut next = vec![user("go")];
        next.extend(calling(id));
        assert_eq!(continues(&lineage, &next).as_ref(), Some(&asked[number].0), "{id}");
    }
    let mut next = vec![user("go")];
    next.extend(calling("call_4"));
    assert_eq!(continues(&lineage, &next), None, "an id that none of them made");
    assert_eq!(continues(&lineage, &[user("go"), assistant("yes"), user("on")]), None, "no call at all");
}

/// A failed turn leaves its program as it was: the same request again is the same program's turn.
#[test]
fn a_turn_that_failed_is_asked_again_by_the_same_program() {
    let mut lineage = lineage();
    let (program, _, arrival) = ask(&mut lineage, &[user("go")], 1);
    Answer::new(100, 10, None).end(&mut lineage, &arrival, Time(2));
    let next = [user("go"), assistant("yes"), user("on")];
    for now in 3..6 {
        let (again, known, arrival) = ask(&mut lineage, &next, now);
        assert_eq!((&again, known), (&program, true));
        lineage.withdrawn(arrival.ticket);
    }
}

/// Conversations that take turns at random. Each has its own answers, but many begin alike.
#[derive(Debug, Clone)]
struct Talk {
    task: u8,
    /// Answers with a tool call or without.
    calls: Vec<bool>,
    /// One of a few answers, so that conversations often stay equal for several turns.
    words: Vec<u8>,
}

fn talk() -> impl Strategy<Value = Talk> {
    (0..2_u8, prop::collection::vec((any::<bool>(), 0..2_u8), 0..5)).prop_map(|(task, answers)| Talk {
        task,
        calls: answers.iter().map(|(call, _)| *call).collect(),
        words: answers.iter().map(|(_, word)| *word).collect(),
    })
}

struct Running {
    messages: Vec<Value>,
    /// What it asked last.
    asked: Vec<Value>,
    program: Option<ProgramKey>,
    open: Option<Arrival>,
    answered: usize,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// I-INF-1, with the truth as the oracle: no program ever belongs to two conversations at once, unless the two
    /// read alike to the last byte; and a conversation whose answers have tool calls is never lost.
    #[test]
    fn conversations_never_become_one(
        talks in prop::collection::vec(talk(), 1..6),
        order in prop::collection::vec(any::<prop::sample::Index>(), 0..80),
    ) {
        let mut lineage = lineage();
        let mut running: Vec<Running> = talks
            .iter()
            .map(|talk| Running {
                messages: vec![user(&format!("task {}", talk.task))],
                asked: Vec::new(),
                program: None,
                open: None,
                answered: 0,
            })
            .collect();
        for (now, index) in order.into_iter().enumerate() {
            let at = index.index(talks.len());
            let (talk, now) = (&talks[at], now as u64);
            if let Some(arrival) = running[at].open.take() {
                let one = &mut running[at];
                let Some(word) = talk.words.get(one.answered) else {
                    // Its last turn runs for ever.
                    one.open = Some(arrival);
                    continue;
                };
                let id = format!("call_{at}_{}", one.answered);
                let calls = talk.calls[one.answered];
                let answer = Answer::new(100, 10, None);
                let answer = if calls { answer.calling(&[&id]) } else { answer };
                answer.end(&mut lineage, &arrival, Time(now));
                if calls {
                    one.messages.extend(calling(&id));
                } else {
                    one.messages.extend([assistant(&format!("word {word}")), user("on")]);
                }
                one.answered += 1;
                continue;
            }
            let (program, known, arrival) = ask(&mut lineage, &running[at].messages, now);
            if known {
                let owner = running.iter().position(|one| one.program.as_ref() == Some(&program));
                let owner = owner.expect("someone's");
                let alike = owner == at || running[at].messages.starts_with(&running[owner].asked);
                prop_assert!(alike, "{program} is another conversation's");
                // Two that read alike change places.
                let old = running[at].program.take();
                running[owner].program = old;
            }
            let busy = running.iter().any(|one| one.open.is_some() && one.program.as_ref() == Some(&program));
            prop_assert!(!busy, "{program} has a turn that runs");
            let all_calls = talk.calls.iter().take(running[at].answered).all(|calls| *calls);
            if all_calls && running[at].answered > 0 {
                prop_assert_eq!(running[at].program.as_ref(), Some(&program), "lost, {} turns", running[at].answered);
            }
            running[at].asked = running[at].messages.clone();
            running[at].program = Some(program);
            running[at].open = Some(arrival);
        }
    }
}
