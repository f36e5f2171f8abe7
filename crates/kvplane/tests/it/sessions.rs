//! Sessions: what they were told to be, what engines echo of them.

use tandem_kvplane::Relation;
use tandem_types::{AgentId, BlockStored, ProgramKey, TenantId, Tier};

use crate::told::*;

fn named(session: &str, event: BlockStored) -> BlockStored {
    BlockStored { session: Some(session.into()), ..event }
}

/// I-KVP-11.
#[test]
fn an_answer_that_the_engine_echoes_lengthens_the_sessions_path() {
    for text in ["default/s", "s"] {
        let mut plane = plane(1);
        let reader = plane.reader();
        let prompt = tokens(1, 9);
        let chain = reader.chain(&prompt, None, None, None);
        plane.told(&key("s"), None, &chain, Some(worker(0)), at(0));
        store(&mut plane, 0, named(text, stored(&[1, 2], None, &prompt[..8])), at(0));
        store(&mut plane, 0, named(text, stored(&[3], Some(2), &tokens(9, 12))), at(1));
        let path = reader.session_path(&key("s")).expect("a path");
        assert_eq!(path.blocks(SIZE), reader.chain(&tokens(1, 12), None, None, None).blocks(SIZE), "{text}");
        // The next prompt is longer than what is known of it: nothing is held back for a last token.
        assert_eq!(depths(&reader.find(&path, at(1)), 0), Some([3, 3, 3]));
        let summary = reader.sessions().session(&key("s")).expect("known");
        assert_eq!((summary.blocks, summary.branches, summary.home), (3, 1, Some(worker(0))));
        let set = reader.sessions().worker(worker(0)).expect("known");
        assert_eq!((set.tokens, set.resident), (12, [12, 0, 0]));
    }
}

#[test]
fn residency_of_a_path_follows_the_last_copy_in_each_tier() {
    let mut plane = plane(1);
    let reader = plane.reader();
    let chain = reader.chain(&tokens(1, 13), None, None, None);
    for _ in 0..2 {
        store(&mut plane, 0, stored(&[1, 2, 3], None, &tokens(1, 12)), at(0));
    }
    plane.told(&key("s"), None, &chain, Some(worker(0)), at(0));
    let resident = || reader.sessions().worker(worker(0)).map(|set| set.resident);
    assert_eq!(resident(), Some([12, 0, 0]), "what the index knew when it was told");
    remove(&mut plane, 0, removed(&[3, 2], Tier::Device), at(0));
    assert_eq!(resident(), Some([12, 0, 0]), "other copies are there");
    store(&mut plane, 0, BlockStored { tier: Tier::Host, ..stored(&[3], Some(2), &tokens(9, 12)) }, at(0));
    // The first block has two copies still, the others go.
    remove(&mut plane, 0, removed(&[3, 1, 2], Tier::Device), at(0));
    assert_eq!(resident(), Some([4, 4, 0]));
    plane.cleared(worker(0), at(0));
    assert_eq!(resident(), Some([0, 0, 0]));
    assert_eq!(reader.session_path(&key("s")).map(|path| path.tokens()), Some(12), "lineage stays");
}

#[test]
fn sessions_that_nobody_told_of_are_found_by_their_text() {
    let mut plane = plane(1);
    let reader = plane.reader();
    // As after a restart of ours: events of history come before any prompt.
    let history = [("default/s/a", 1, 0), ("other/s", 11, 100), ("plain", 21, 200)];
    for (text, id, base) in history {
        store(&mut plane, 0, named(text, stored(&[id], None, &tokens(base + 1, base + 4))), at(0));
    }
    let agent = ProgramKey { agent: AgentId::new("a").ok(), ..key("s") };
    let foreign = ProgramKey { tenant: TenantId::new("other").expect("an id"), ..key("s") };
    let stranger = ProgramKey { tenant: TenantId::new("other").expect("an id"), ..key("plain") };
    let path = |key: &ProgramKey| {
        reader.session_path(key).map(|path| depths(&reader.find(&path, at(0)), 0).map_or(0, |held| held[0]))
    };
    assert_eq!((path(&agent), path(&foreign), path(&key("plain"))), (Some(1), Some(1), Some(1)));
    assert_eq!((path(&key("s")), path(&stranger)), (None, None), "another program, another tenant");
    // Told of, it goes on under its own name.
    let chain = reader.chain(&tokens(1, 9), None, None, None);
    plane.told(&agent, None, &chain, Some(worker(0)), at(1));
    assert_eq!(plane.stats().sessions.sessions, 3);
    assert_eq!(reader.session_path(&agent).map(|path| path.tokens()), Some(8));
}

#[test]
fn children_parents_replacement_and_end() {
    let mut plane = plane(1);
    let reader = plane.reader();
    let child = ProgramKey { agent: AgentId::new("a").ok(), ..key("s") };
    let (long, new) =
        (reader.chain(&tokens(1, 17), None, None, None), reader.chain(&tokens(90, 98), None, None, None));
    plane.told(&child, Some(&key("s")), &long, Some(worker(0)), at(0));
    assert!(reader.sessions().session(&key("s")).is_some(), "the parent is known with its child");
    plane.told_as(Relation::Replaces, &child, None, &new, Some(worker(0)), at(1));
    assert_eq!(
        reader.sessions().worker(worker(0)).map(|set| set.tokens),
        Some(8),
        "the old history is not needed"
    );
    // An echo of the agent by its own name, and of its session's by the root's.
    store(&mut plane, 0, named("a", stored(&[1, 2, 3], None, &tokens(90, 101))), at(1));
    assert_eq!(reader.session_path(&child).map(|path| path.tokens()), Some(12));
    plane.session_end(&child, at(2));
    assert_eq!(reader.session_path(&child).map(|path| path.tokens()), None);
    assert_eq!(reader.sessions().worker(worker(0)).map(|set| set.tokens), Some(0));
}

#[test]
fn silent_sessions_end() {
    let mut plane = plane(1);
    let reader = plane.reader();
    let chain = reader.chain(&tokens(1, 9), None, None, None);
    plane.told(&key("s"), None, &chain, Some(worker(0)), at(0));
    plane.tick(at(3_599));
    assert!(reader.sessions().session(&key("s")).is_some());
    plane.tick(at(3_600));
    assert!(reader.sessions().session(&key("s")).is_none());
}
