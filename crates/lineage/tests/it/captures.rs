//! What is found in the recorded sequences of real harnesses.

use tandem_lineage::{Arrival, Cause, Relation, SegmentKind, ToolsChange};
use tandem_types::{TenantId, Time};

use crate::support::{Answer, Recorded, arriving, lineage, recorded, tokens};

/// Runs the turns of a recording with the identities that it carries; `side` and `told` pick by request number the
/// calls beside the chain and those that are marked as following a compaction.
fn run(turns: &[Recorded], side: &[usize], told: &[usize]) -> Vec<(usize, Arrival)> {
    let mut lineage = lineage();
    let mut found = Vec::new();
    for turn in turns {
        let (outline, now) = (turn.outline(), Time(turn.index as u64));
        let mut asked = arriving(&outline);
        asked.side = side.contains(&turn.index);
        asked.compacted = told.contains(&turn.index);
        let arrival = lineage.arrived(&turn.program(), &asked, now);
        let ids: Vec<&str> = turn.calls.iter().map(String::as_str).collect();
        Answer::new(tokens(&outline), 20, None).calling(&ids).end(&mut lineage, &arrival, now);
        found.push((turn.index, arrival));
    }
    found
}

fn relations(found: &[(usize, Arrival)]) -> Vec<(usize, Relation)> {
    found.iter().map(|(index, arrival)| (*index, arrival.relation)).collect()
}

fn causes(found: &[(usize, Arrival)]) -> Vec<(usize, SegmentKind, Cause)> {
    let all = found.iter().filter_map(|(index, arrival)| Some((*index, arrival.divergence?)));
    all.map(|(index, divergence)| (index, divergence.kind, divergence.cause)).collect()
}

use Relation::{Appends, Branch, Compacted, First, Rewrites};

/// The cache mark moves to the newest block with each turn, and nothing else changes.
#[test]
fn claude_code_only_appends_and_its_subagents_are_programs_of_their_own() {
    let found = run(&recorded("claude-code"), &[], &[]);
    let first = [1, 5, 7, 8, 13, 15, 16];
    let expected: Vec<(usize, Relation)> = found
        .iter()
        .map(|(index, _)| (*index, if first.contains(index) { First } else { Appends }))
        .collect();
    assert_eq!(relations(&found), expected);
    assert_eq!(causes(&found), []);
}

/// 7 is `--resume --fork-session`: a new id with the same history. 10 is the compaction call, which goes on from the
/// history; 13 the first turn behind it, whose billing line has another version.
#[test]
fn claude_code_forks_and_loses_everything_at_a_compaction_for_its_billing_line() {
    let mut turns = recorded("claude-code-resume");
    turns.retain(|turn| turn.index != 11);
    let found = run(&turns, &[10], &[13]);
    let expected = [
        (1, First),
        (2, Appends),
        (4, Appends),
        (5, Appends),
        (7, First),
        (8, Appends),
        (10, Appends),
        (13, Compacted),
    ];
    assert_eq!(relations(&found), expected);
    assert_eq!(causes(&found), [(13, SegmentKind::System, Cause::VolatileText)]);
    let forked = &found[4].1;
    assert_eq!(forked.forked_from, Some(turns[0].program()));
    assert_eq!(forked.expected.tokens, tokens(&turns[3].outline()));
    // What stands before the billing line: the model's name and the thinking switch.
    assert!(found[7].1.expected.tokens < 10, "{:?}", found[7].1);

    // Without that line the system prompt and the tools stay, and the history is what was replaced.
    for turn in &mut turns {
        turn.body["system"].as_array_mut().expect("blocks").remove(0);
    }
    let found = run(&turns, &[10], &[13]);
    assert_eq!(causes(&found), [(13, SegmentKind::User, Cause::Compaction)]);
    assert!(found[7].1.expected.tokens > 15_000, "{:?}", found[7].1);
}

#[test]
fn codex_only_appends() {
    let found = run(&recorded("codex"), &[], &[]);
    let first = [0, 3, 5];
    let expected: Vec<(usize, Relation)> = found
        .iter()
        .map(|(index, _)| (*index, if first.contains(index) { First } else { Appends }))
        .collect();
    assert_eq!(relations(&found), expected);
    assert_eq!(causes(&found), []);
}

/// 1 and 3 are compaction calls: they leave out the tools. 2 is the turn behind the first: five items.
#[test]
fn codex_compacts_without_its_tools() {
    let turns = recorded("codex-compact");
    let found = run(&turns, &[1, 3], &[2]);
    assert_eq!(relations(&found)[..2], [(0, First), (1, Rewrites)]);
    assert_eq!(found[1].1.divergence.map(|d| d.cause), Some(Cause::ToolsChanged(ToolsChange::Removed)));
    // The new window has the old one's items, and the summary behind them: it appends.
    assert_eq!(found[2].1.divergence.map(|d| d.cause), None);
    assert_eq!(found[2].1.expected.tokens, tokens(&turns[0].outline()));
    assert_eq!(found[3].1.divergence.map(|d| d.cause), Some(Cause::ToolsChanged(ToolsChange::Removed)));
}

/// A message with context is kept last: all that the former turn generated is computed again.
#[test]
fn openclaw_moves_its_tail() {
    let turns = recorded("openclaw");
    let mut lineage = lineage();
    let mut program = None;
    for turn in &turns {
        let (outline, now) = (turn.outline(), Time(turn.index as u64));
        let who = lineage.identify(&TenantId::default(), &outline, now).expect("a program");
        let known = program.replace(who.program.clone());
        let arrival = lineage.arrived(&who.program, &arriving(&outline), now);
        if let Some(known) = known {
            assert_eq!((known, arrival.relation), (who.program, Rewrites));
            let divergence = arrival.divergence.expect("a divergence");
            assert_eq!((divergence.kind, divergence.cause), (SegmentKind::User, Cause::MovedTail));
        }
        let ids: Vec<&str> = turn.calls.iter().map(String::as_str).collect();
        Answer::new(tokens(&outline), 20, None).calling(&ids).end(&mut lineage, &arrival, now);
    }
}

/// One id for parent and children, and nothing that tells them apart: 4 and 5 are two children with one task.
#[test]
fn kimi_codes_subagents_are_told_apart_by_their_prompts() {
    let found = run(&recorded("kimi-code"), &[], &[]);
    let expected = [
        (0, First),
        (1, Appends),
        (2, Appends),
        (3, First),
        (4, Branch),
        (5, Relation::Repeat),
        (6, Appends),
        (7, Appends),
        (8, Appends),
    ];
    assert_eq!(relations(&found), expected);
    assert_eq!(causes(&found), []);
}

#[test]
fn openhands_subagents_are_told_apart_by_their_prompts() {
    let found = run(&recorded("openhands"), &[], &[]);
    let expected =
        [(0, First), (1, Appends), (2, Appends), (3, First), (4, Branch), (5, Appends), (6, Appends)];
    assert_eq!(relations(&found), expected);
    assert_eq!(causes(&found), []);
}

/// Requests as if they carried no identity, and which conversation each belongs to.
const CONVERSATIONS: &[(&str, &[(usize, char)])] = &[
    ("cline", &[(0, 'a'), (1, 'a'), (2, 'a'), (3, 'p'), (4, 'x'), (5, 'y'), (6, 'x'), (7, 'y'), (8, 'p')]),
    ("hermes", &[(6, 'a'), (7, 'a'), (8, 'a'), (15, 'p'), (20, 'x'), (21, 'x')]),
    (
        "qwen-code",
        &[(0, 'a'), (1, 'a'), (2, 'a'), (3, 'p'), (4, 'p'), (5, 'x'), (6, 'y'), (7, 'x'), (8, 'y'), (9, 'p')],
    ),
    ("mini-swe-agent", &[(0, 'a'), (1, 'a'), (2, 'a')]),
    ("openclaw", &[(0, 'a'), (1, 'a'), (2, 'a')]),
    ("pi", &[(0, 'a'), (1, 'a'), (2, 'a'), (3, 'b'), (4, 'b'), (5, 'c'), (6, 'c'), (7, 'd'), (8, 'd')]),
    (
        "kimi-code",
        &[(0, 'a'), (1, 'a'), (2, 'a'), (3, 'p'), (4, 'x'), (5, 'y'), (6, 'x'), (7, 'y'), (8, 'p')],
    ),
    ("openhands", &[(0, 'a'), (1, 'a'), (2, 'a'), (3, 'p'), (4, 'x'), (5, 'x'), (6, 'p')]),
    (
        "opencode-chat",
        &[
            (0, 't'),
            (1, 'a'),
            (2, 'a'),
            (3, 'a'),
            (4, 'u'),
            (5, 'p'),
            (6, 'x'),
            (7, 'y'),
            (8, 'x'),
            (9, 'y'),
            (10, 'p'),
        ],
    ),
    (
        "codex",
        &[
            (0, 'a'),
            (1, 'a'),
            (2, 'a'),
            (3, 'p'),
            (4, 'p'),
            (5, 'x'),
            (6, 'x'),
            (7, 'p'),
            (8, 'p'),
            (9, 'p'),
            (10, 'p'),
        ],
    ),
    (
        "claude-code",
        &[
            (1, 'a'),
            (2, 'a'),
            (3, 'a'),
            (5, 'p'),
            (6, 'p'),
            (7, 'x'),
            (8, 'y'),
            (9, 'x'),
            (10, 'y'),
            (11, 'p'),
            (13, 'q'),
            (14, 'q'),
            (15, 'v'),
            (16, 'w'),
            (17, 'w'),
            (18, 'v'),
            (19, 'q'),
        ],
    ),
];

/// Answers come at once, or only when the conversation's next request is there.
#[test]
fn conversations_without_identity_are_found_in_all_harnesses() {
    for (harness, conversations) in CONVERSATIONS {
        for late in [false, true] {
            conversations_are_found(harness, conversations, late);
        }
    }
}

fn conversations_are_found(harness: &str, conversations: &[(usize, char)], late: bool) {
    let turns = recorded(harness);
    let numbers: Vec<usize> = turns.iter().map(|turn| turn.index).collect();
    assert_eq!(numbers, conversations.iter().map(|(index, _)| *index).collect::<Vec<_>>(), "{harness}");
    let mut lineage = lineage();
    let mut programs = Vec::new();
    let mut running: Vec<(char, Arrival, Answer)> = Vec::new();
    for (turn, (index, name)) in turns.iter().zip(conversations) {
        let (outline, now) = (turn.outline(), Time(turn.index as u64));
        let (ready, others): (Vec<_>, Vec<_>) =
            running.into_iter().partition(|(running, ..)| !late || running == name);
        running = others;
        ready.iter().for_each(|(_, arrival, answer)| answer.end(&mut lineage, arrival, now));
        let who = lineage.identify(&TenantId::default(), &outline, now).expect("a program");
        let known = programs.iter().find(|(known, _)| known == name).map(|(_, program)| program);
        match known {
            Some(known) => assert_eq!((&who.program, who.continues), (known, true), "{harness} {index}"),
            None => {
                assert!(!who.continues, "{harness} {index}");
                programs.push((*name, who.program.clone()));
            }
        }
        let arrival = lineage.arrived(&who.program, &arriving(&outline), now);
        let ids: Vec<&str> = turn.calls.iter().map(String::as_str).collect();
        running.push((*name, arrival, Answer::new(tokens(&outline), 20, None).calling(&ids)));
    }
}
