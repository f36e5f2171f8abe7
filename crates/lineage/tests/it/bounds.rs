//! The table's bounds, and that nothing is left behind.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tandem_lineage::{Arriving, Basis, Lineage, LineageConfig, limits};
use tandem_types::{Dialect, TenantId, Time};

use crate::support::{Answer, arriving, assistant, chat, program, read, user};

/// I-LTB-2; I-LIN-3: a known program is compared with itself, a forgotten one with another as a new one is.
#[test]
fn the_program_that_was_quiet_longest_leaves_first() {
    let mut lineage = Lineage::new(LineageConfig { programs_max: 3, ..LineageConfig::default() });
    let outline = read(Dialect::Chat, &chat(&[user("go")]));
    for (time, name) in ["a", "b", "c", "a", "d"].into_iter().enumerate() {
        let arrival = lineage.arrived(&program(name), &arriving(&outline), Time(time as u64));
        Answer::new(100, 10, None).end(&mut lineage, &arrival, Time(time as u64));
    }
    assert_eq!(lineage.programs(), 3);
    let next = read(Dialect::Chat, &chat(&[user("go"), assistant("yes"), user("on")]));
    let known = |name: &str, lineage: &mut Lineage| {
        let arrival = lineage.arrived(&program(name), &arriving(&next), Time(9));
        lineage.withdrawn(arrival.ticket);
        arrival.forked_from.is_none()
    };
    let found: Vec<bool> = ["a", "c", "d"].into_iter().map(|name| known(name, &mut lineage)).collect();
    assert_eq!(found, [true, true, true]);
    assert!(!known("b", &mut lineage));
}

#[test]
fn quiet_programs_are_forgotten() {
    let config = LineageConfig { idle: Duration::from_nanos(10), ..LineageConfig::default() };
    let mut lineage = Lineage::new(config);
    let outline = read(Dialect::Chat, &chat(&[user("go")]));
    lineage.arrived(&program("a"), &arriving(&outline), Time(0));
    lineage.arrived(&program("b"), &arriving(&outline), Time(5));
    lineage.expire(Time(9));
    assert_eq!(lineage.programs(), 2);
    lineage.expire(Time(10));
    assert_eq!(lineage.programs(), 1);
    lineage.expire(Time(15));
    assert_eq!((lineage.programs(), lineage.segments()), (0, 0));
}

/// Token ids go before outlines do: the expectation falls back to the engine's counts.
#[test]
fn token_ids_are_given_up_first() {
    let mut lineage = Lineage::new(LineageConfig { tokens_max: 150, ..LineageConfig::default() });
    let outline = read(Dialect::Chat, &chat(&[user("go")]));
    let ids: Arc<[u32]> = (0..100).collect();
    for name in ["a", "b"] {
        let asked = Arriving { tokens: Some(&ids), ..arriving(&outline) };
        let arrival = lineage.arrived(&program(name), &asked, Time(1));
        Answer::new(100, 10, None).end(&mut lineage, &arrival, Time(1));
    }
    assert_eq!((lineage.programs(), lineage.tokens()), (2, 100));
    let next = read(Dialect::Chat, &chat(&[user("go"), assistant("yes"), user("on")]));
    let ids: Arc<[u32]> = (0..120).collect();
    let basis = |name, lineage: &mut Lineage| {
        let asked = Arriving { tokens: Some(&ids), side: true, ..arriving(&next) };
        lineage.arrived(&program(name), &asked, Time(2)).expected.basis
    };
    assert_eq!(basis("a", &mut lineage), Basis::Prompt);
    assert_eq!(basis("b", &mut lineage), Basis::Tokens);
}

#[test]
fn branches_and_open_turns_of_one_id_are_bounded() {
    let mut lineage = Lineage::new(LineageConfig { branches_max: 3, ..LineageConfig::default() });
    let size = read(Dialect::Chat, &chat(&[user("go")])).segments().len();
    for number in 0..20 {
        let outline = read(Dialect::Chat, &chat(&[user(&format!("task {}", "x".repeat(number)))]));
        let arrival = lineage.arrived(&program("a"), &arriving(&outline), Time(number as u64));
        Answer::new(100, 10, None).end(&mut lineage, &arrival, Time(number as u64));
    }
    assert_eq!(lineage.segments(), 3 * size);
    let mut lineage = Lineage::new(LineageConfig { branches_max: 1000, ..LineageConfig::default() });
    for number in 0..200 {
        let outline = read(Dialect::Chat, &chat(&[user(&format!("task {}", "x".repeat(number)))]));
        lineage.arrived(&program("a"), &arriving(&outline), Time(1));
    }
    assert_eq!(lineage.segments(), limits::OPEN_TURNS_MAX * size);
}

#[derive(Debug, Clone)]
enum Step {
    Arrive { program: u8, task: u8, length: u8, tokens: bool },
    End { turn: u8, answer: bool },
    Withdraw { turn: u8 },
    Forget { program: u8 },
    Expire,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..6_u8, 0..3_u8, 0..5_u8, any::<bool>())
            .prop_map(|(program, task, length, tokens)| Step::Arrive { program, task, length, tokens }),
        5 => (any::<u8>(), any::<bool>()).prop_map(|(turn, answer)| Step::End { turn, answer }),
        2 => any::<u8>().prop_map(|turn| Step::Withdraw { turn }),
        1 => (0..6_u8).prop_map(|program| Step::Forget { program }),
        1 => Just(Step::Expire),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// I-LTB-2, I-LTB-5, I-LIN-2: whatever happens in whatever order, the bounds hold, and nothing remains of
    /// programs that are gone: neither segments nor token ids, nor entries in the index of prompts.
    #[test]
    fn the_table_keeps_its_bounds_and_leaves_nothing_behind(steps in prop::collection::vec(step(), 0..120)) {
        let config = LineageConfig {
            programs_max: 4,
            segments_max: 120,
            tokens_max: 90,
            branches_max: 2,
            idle: Duration::from_nanos(25),
        };
        let mut lineage = Lineage::new(config.clone());
        let mut turns = Vec::new();
        for (time, step) in steps.into_iter().enumerate() {
            let now = Time(time as u64);
            match step {
                Step::Arrive { program: name, task, length, tokens } => {
                    let mut messages = vec![user(&format!("task {task}"))];
                    (0..length).for_each(|_| messages.extend([assistant("yes"), user("more")]));
                    let outline = read(Dialect::Chat, &chat(&messages));
                    let ids: Arc<[u32]> = (0..u32::from(length) * 10).collect();
                    let asked = Arriving { tokens: tokens.then_some(&ids), ..arriving(&outline) };
                    turns.push(lineage.arrived(&program(&name.to_string()), &asked, now));
                    prop_assert!(lineage.segments() <= config.segments_max);
                }
                Step::End { turn, answer } if !turns.is_empty() => {
                    let turn = &turns[usize::from(turn) % turns.len()];
                    let mut ended = Answer::new(50, 20, Some(48));
                    ended.tokens = answer.then(|| (0..7).collect());
                    ended.end(&mut lineage, turn, now);
                }
                Step::Withdraw { turn } if !turns.is_empty() => {
                    lineage.withdrawn(turns[usize::from(turn) % turns.len()].ticket);
                }
                Step::Forget { program: name } => lineage.end_session(&program(&name.to_string())),
                Step::Expire => lineage.expire(now),
                Step::End { .. } | Step::Withdraw { .. } => {}
            }
            prop_assert!(lineage.programs() <= config.programs_max);
        }
        for name in 0..6_u8 {
            lineage.end_session(&program(&name.to_string()));
        }
        prop_assert_eq!((lineage.programs(), lineage.segments(), lineage.tokens()), (0, 0, 0));
        let messages = [user("task 0"), assistant("yes"), user("more")];
        let outline = read(Dialect::Chat, &chat(&messages));
        prop_assert_eq!(lineage.infer(&TenantId::default(), &outline, Time::ZERO), None);
        prop_assert!(lineage.is_empty());
    }
}
