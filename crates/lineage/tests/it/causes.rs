//! Each cause has its rule, and each rule its example.

use serde_json::{Value, json};
use tandem_lineage::{Arrival, Cause, Divergence, Relation, SegmentKind, ToolsChange};
use tandem_types::{Dialect, Time};

use crate::support::{Answer, arriving, assistant, chat, lineage, program, read, thinking, user};

/// The second of two turns of one program, the first of which was answered.
fn second(first: &Value, next: &Value) -> Arrival {
    second_told(first, next, false)
}

fn second_told(first: &Value, next: &Value, compacted: bool) -> Arrival {
    let (mut lineage, program) = (lineage(), program("s"));
    let (first, next) = (read(Dialect::Chat, first), read(Dialect::Chat, next));
    let arrival = lineage.arrived(&program, &arriving(&first), Time(1));
    assert_eq!((arrival.relation, arrival.divergence), (Relation::First, None));
    Answer::new(first.bytes(), 10, None).end(&mut lineage, &arrival, Time(2));
    let mut asked = arriving(&next);
    asked.compacted = compacted;
    lineage.arrived(&program, &asked, Time(3))
}

fn cause(first: &Value, next: &Value) -> (Relation, Option<(u32, SegmentKind, Cause)>) {
    let arrival = second(first, next);
    let named = |found: Divergence| (found.segment, found.kind, found.cause);
    (arrival.relation, arrival.divergence.map(named))
}

/// Two exchanges and a question: segments 0 model, 1 system, 2 and 3 tools, then 4 to 8.
fn history() -> Vec<Value> {
    vec![
        user("please find the fault in the parser"),
        assistant("looking at the parser now"),
        user("and be quick about it"),
        assistant("the fault is in the lexer"),
        user("then mend the lexer"),
    ]
}

fn changed(at: usize, message: Value) -> Vec<Value> {
    let mut messages = history();
    messages[at] = message;
    messages
}

fn longer(mut messages: Vec<Value>) -> Vec<Value> {
    messages.extend([assistant("mended it"), user("thanks")]);
    messages
}

#[test]
fn a_body_that_only_grew_has_no_cause() {
    assert_eq!(cause(&chat(&history()), &chat(&longer(history()))), (Relation::Appends, None));
    assert_eq!(cause(&chat(&history()), &chat(&history())), (Relation::Repeat, None));
}

#[test]
fn volatile_text() {
    let with = |text: &str| {
        let mut body = chat(&longer(history()));
        body["messages"][0]["content"] = json!(format!("You are an agent. Now: {text}"));
        body
    };
    let found = cause(&with("2026-11-30 05:20:01"), &with("Tue, 1 Dec 2026, 11:00"));
    assert_eq!(found.0, Relation::Rewrites);
    // Another form of date is other text.
    assert_eq!(found.1, Some((1, SegmentKind::System, Cause::SystemChanged)));
    let found = cause(&with("2026-11-30 05:20:01"), &with("2026-12-01 11:00:59"));
    assert_eq!(found, (Relation::Rewrites, Some((1, SegmentKind::System, Cause::VolatileText))));
}

#[test]
fn system_changed() {
    let mut next = chat(&longer(history()));
    next["messages"][0]["content"] = json!("You are another agent.");
    let found = cause(&chat(&history()), &next);
    assert_eq!(found, (Relation::Rewrites, Some((1, SegmentKind::System, Cause::SystemChanged))));
}

#[test]
fn tools_changed() {
    let change = |edit: &dyn Fn(&mut Vec<Value>)| {
        let mut next = chat(&longer(history()));
        edit(next["tools"].as_array_mut().expect("tools"));
        cause(&chat(&history()), &next).1.map(|(segment, _, cause)| (segment, cause))
    };
    let another = json!({"type": "function", "function": {"name": "grep"}});
    assert_eq!(
        change(&|tools| tools.push(another.clone())),
        Some((4, Cause::ToolsChanged(ToolsChange::Added)))
    );
    assert_eq!(change(&|tools| tools.truncate(1)), Some((3, Cause::ToolsChanged(ToolsChange::Removed))));
    assert_eq!(change(&|tools| tools.swap(0, 1)), Some((2, Cause::ToolsChanged(ToolsChange::Reordered))));
    assert_eq!(
        change(&|tools| tools[1] = another.clone()),
        Some((3, Cause::ToolsChanged(ToolsChange::Changed)))
    );
}

#[test]
fn parameters_changed() {
    for (name, value) in [
        ("model", json!("other")),
        ("reasoning_effort", json!("high")),
        ("chat_template_kwargs", json!({"enable_thinking": false})),
        ("tool_choice", json!("none")),
        ("cache_salt", json!("tenant")),
    ] {
        let mut next = chat(&longer(history()));
        next[name] = value;
        let (relation, found) = cause(&chat(&history()), &next);
        let cause = found.map(|(_, _, cause)| cause);
        assert_eq!((relation, cause), (Relation::Rewrites, Some(Cause::ParametersChanged)), "{name}");
    }
    for (name, value) in [
        ("temperature", json!(0.5)),
        ("max_tokens", json!(7)),
        ("tool_choice", json!("auto")),
        ("stream", json!(true)),
        ("metadata", json!({"a": 1})),
    ] {
        let mut next = chat(&longer(history()));
        next[name] = value;
        assert_eq!(cause(&chat(&history()), &next), (Relation::Appends, None), "{name}");
    }
}

#[test]
fn compaction() {
    let summary = |text: &str| vec![user("please find the fault in the parser"), user(text)];
    let next = chat(&summary("so far: the fault is in the lexer, and you mended half of it"));
    assert_eq!(
        cause(&chat(&history()), &next),
        (Relation::Compacted, Some((5, SegmentKind::Assistant, Cause::Compaction)))
    );
    // With nothing in common but system prompt and tools it takes the harness's word.
    let next = chat(&[user("so far: the fault is in the lexer")]);
    assert_eq!(second(&chat(&history()), &next).relation, Relation::Branch);
    let told = second_told(&chat(&history()), &next, true);
    assert_eq!(
        (told.relation, told.divergence.map(|d| d.cause)),
        (Relation::Compacted, Some(Cause::Compaction))
    );
}

#[test]
fn edited_history() {
    let next = chat(&longer(changed(2, user("and take your time"))));
    assert_eq!(
        cause(&chat(&history()), &next),
        (Relation::Rewrites, Some((6, SegmentKind::User, Cause::EditedHistory)))
    );
}

#[test]
fn moved_tail() {
    let tail = |number: u32| user(&format!("<reminder>{number} files changed</reminder>"));
    let mut first = history();
    first.push(tail(3));
    let mut next = longer(history());
    next.push(tail(4));
    assert_eq!(
        cause(&chat(&first), &chat(&next)),
        (Relation::Rewrites, Some((9, SegmentKind::User, Cause::MovedTail)))
    );
    // A part of the last message moves as well as a message of its own.
    let parts = |text: &str, number: u32| {
        json!({"role": "user", "content": [
            {"type": "text", "text": text},
            {"type": "text", "text": format!("<reminder>{number} files changed</reminder>")},
        ]})
    };
    let first = chat(&changed(4, parts("then mend the lexer", 3)));
    let mut next = history();
    next.extend([assistant("mended it"), parts("thanks", 4)]);
    assert_eq!(
        cause(&first, &chat(&next)),
        (Relation::Rewrites, Some((9, SegmentKind::User, Cause::MovedTail)))
    );
}

#[test]
fn dropped_reasoning() {
    let first = chat(&changed(3, thinking("where may it be", "the fault is in the lexer")));
    let next = chat(&longer(history()));
    assert_eq!(
        cause(&first, &next),
        (Relation::Rewrites, Some((7, SegmentKind::Reasoning, Cause::DroppedReasoning)))
    );
    let other = chat(&longer(changed(3, assistant("the fault is elsewhere"))));
    assert_eq!(cause(&first, &other).1.map(|(_, _, cause)| cause), Some(Cause::EditedHistory));
}

#[test]
fn truncated_history() {
    let sliding = |marker: Option<Value>| {
        let mut messages = longer(history());
        messages.splice(0..2, marker);
        chat(&messages)
    };
    let found = (Relation::Rewrites, Some((4, SegmentKind::User, Cause::TruncatedHistory)));
    assert_eq!(cause(&chat(&history()), &sliding(None)), found);
    assert_eq!(cause(&chat(&history()), &sliding(Some(user("[older messages left out]")))), found);
    // Rewound to an earlier place.
    assert_eq!(
        cause(&chat(&history()), &chat(&history()[..3])),
        (Relation::Rewrites, Some((7, SegmentKind::Assistant, Cause::TruncatedHistory)))
    );
}

#[test]
fn other() {
    let mut next = chat(&longer(history()));
    next["messages"][2]["role"] = json!("narrator");
    assert_eq!(
        cause(&chat(&history()), &next),
        (Relation::Rewrites, Some((5, SegmentKind::Assistant, Cause::Other)))
    );
}

/// A subagent under its parent's id, and the parent's next turn behind it.
#[test]
fn a_branch_is_no_divergence_and_leaves_the_parents_line_alone() {
    let (mut lineage, program) = (lineage(), program("s"));
    let parent = read(Dialect::Chat, &chat(&history()));
    let arrival = lineage.arrived(&program, &arriving(&parent), Time(1));
    Answer::new(1000, 10, None).end(&mut lineage, &arrival, Time(2));
    let child = read(Dialect::Chat, &chat(&[user("search the web for lexers")]));
    let found = lineage.arrived(&program, &arriving(&child), Time(3));
    assert_eq!((found.relation, found.divergence, found.displaced), (Relation::Branch, None, Some(0)));
    let next = read(Dialect::Chat, &chat(&longer(history())));
    let found = lineage.arrived(&program, &arriving(&next), Time(4));
    assert_eq!((found.relation, found.expected.tokens), (Relation::Appends, 1000));
}
