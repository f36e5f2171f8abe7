//! What the policy `tandem` learns from engines' counts of cached tokens.

use std::time::Duration;

use tandem_admission::{AdmissionConfig, End, Event, HoldReason, TandemConfig};
use tandem_types::{TurnId, Usage};

use crate::support::{World, key, lies, w};

/// 500 tokens a second: a pool of 50,000 tokens has a horizon of 100 s, times 1.5 at first.
fn config() -> AdmissionConfig {
    let tandem = TandemConfig { prefill_tokens_per_s: 500.0, ..TandemConfig::default() };
    AdmissionConfig { policy: "tandem".to_owned(), tandem, ..AdmissionConfig::default() }
}

/// Tools take 200 s. A program whose 30,000 tokens are computed again each time takes the worker for 60 s in 260, and in
/// most of each minute after it more than a quarter of it: then one who waits for tools is kept for three times the
/// horizon, 300 s. While nothing is computed again it is 70 s, and it gives way at once.
#[test]
fn idle_programs_are_kept_for_longer_while_workers_compute_much_again() {
    for (cached, keeps, patience) in [(0, true, 3.0), (30_000, false, 0.7)] {
        let mut world = World::new(&config(), &[50_000]);
        for round in 0..30_u32 {
            world.at(f64::from(round) * 260.0);
            let turn = world.arrive("busy", 30_000);
            world.at(f64::from(round) * 260.0 + 60.0);
            world.tell(&Event::FirstToken { turn: TurnId(turn) });
            world.end_counted(turn, 30_000, cached);
        }
        world.tell(&Event::SessionEnd { program: &key("busy") });
        world.acting("a", 30_000);
        let b = world.arrive("b", 20_000);
        assert_eq!(!world.runs(b), keeps, "{cached} cached");
        assert_eq!(world.policy.patience(), Some(patience), "{cached} cached");
    }
}

/// 500 tokens a second. For a minute after its first turn nothing is computed again: 1.5 sinks by 2/3 of an e-fold. Its second
/// turn has 30,000 tokens computed again, 60 s of one worker: all its time in the last minute, or half of that of two. In
/// the 10 s after it that falls to 0.92 in the mean, four times or twice what is wanted.
#[test]
fn what_is_computed_again_counts_as_a_part_of_all_workers() {
    for (workers, too_much) in [(1, 2.0), (2, 0.842)] {
        let mut world = World::new(&config(), &vec![50_000; workers]);
        for from in [0.0, 260.0] {
            world.at(from);
            let turn = world.arrive("busy", 30_000);
            world.at(from + 60.0);
            world.tell(&Event::FirstToken { turn: TurnId(turn) });
            world.end_counted(turn, 30_000, 0);
        }
        world.at(330.0);
        world.arrive("other", 10);
        let expected = 1.5 * (-2.0_f64 / 3.0 + too_much * 10.0 / 90.0).exp();
        let patience = world.policy.patience().expect("tandem reckons so");
        assert!((patience - expected).abs() < 1e-3, "{patience} {expected}");
    }
}

/// The last 14,000 of 30,000 tokens take 240 s, because there are 16,000 before them or others in the way. That does not
/// make a program of 14,000 take so long: at 5,000 a second it is kept for seven times 10 s, and tools take 260 s.
#[test]
fn how_fast_prompts_are_computed_is_told_by_those_of_which_most_is_missing() {
    let tandem = TandemConfig {
        prefill_tokens_per_s: 5_000.0,
        patience: 7.0,
        reprefill_target: 0.0,
        ..config().tandem
    };
    let mut world = World::new(&AdmissionConfig { tandem, ..config() }, &[50_000]);
    for round in 0..20_u32 {
        world.at(f64::from(round) * 500.0);
        let turn = world.arrive("busy", 30_000);
        world.at(f64::from(round) * 500.0 + 240.0);
        world.tell(&Event::FirstToken { turn: TurnId(turn) });
        world.end_counted(turn, 30_000, 16_000);
    }
    world.tell(&Event::SessionEnd { program: &key("busy") });
    world.acting("a", 14_000);
    let b = world.arrive("b", 40_000);
    assert!(world.runs(b), "a gives way");
}

/// Prompts of 30,000 tokens are computed in 6 s, at 5,000 a second, and answers take 234 s more. One that comes whole comes
/// after 240 s and does not say that the prompt took so long: as above, a is kept for 70 s. Streamed answers tell of 6 s.
#[test]
fn an_answer_that_comes_whole_does_not_tell_how_fast_its_prompt_was_computed() {
    let tandem = TandemConfig {
        prefill_tokens_per_s: 5_000.0,
        patience: 7.0,
        reprefill_target: 0.0,
        ..config().tandem
    };
    for first in [6.0, 240.0] {
        let mut world = World::new(&AdmissionConfig { tandem: tandem.clone(), ..config() }, &[50_000]);
        for round in 0..20_u32 {
            world.at(f64::from(round) * 500.0);
            let turn = world.arrive("busy", 30_000);
            world.at(f64::from(round) * 500.0 + first);
            world.tell(&Event::FirstToken { turn: TurnId(turn) });
            world.at(f64::from(round) * 500.0 + 240.0);
            let usage = Usage {
                input_tokens: 30_000,
                output_tokens: 5_000,
                cached_tokens: Some(0),
                ..Usage::default()
            };
            world.tell(&Event::Ended { turn: TurnId(turn), end: End { usage: Some(usage), tools: true } });
        }
        world.tell(&Event::SessionEnd { program: &key("busy") });
        world.acting("a", 14_000);
        let b = world.arrive("b", 36_000);
        assert!(world.runs(b), "a gives way: {first}");
    }
}

/// The first answer that is seen is the best guess for the next: 3,000 tokens.
#[test]
fn turns_need_room_for_an_answer_from_the_first_one_seen() {
    let mut world = World::new(&config(), &[10_000]);
    let first = world.arrive("first", 1_000);
    let usage = Usage { input_tokens: 1_000, output_tokens: 3_000, ..Usage::default() };
    world.tell(&Event::Ended { turn: TurnId(first), end: End { usage: Some(usage), tools: false } });
    world.tell(&Event::SessionEnd { program: &key("first") });
    let b = world.arrive("b", 5_000);
    assert!(world.runs(b), "8,000 of 9,000");
    let c = world.arrive("c", 1_500);
    assert_eq!(world.held(c), HoldReason::NoRoom, "5,000, half of b's answer, 1,500 and an answer: 11,000");
}

/// 5,000 that wait for tools keep 6,000 out, until twenty others never came back from theirs and did not say so.
#[test]
fn programs_that_never_come_back_make_idle_ones_less_likely_to() {
    for (gone, runs) in [(0, false), (20, true)] {
        let mut world = World::new(
            &AdmissionConfig { program_idle_ttl: Duration::from_secs(600), ..config() },
            &[10_000],
        );
        (0..gone).for_each(|number| world.acting(&format!("gone{number}"), 10));
        world.at(700.0);
        assert_eq!(world.policy.stats().expired, gone);
        world.acting("a", 5_000);
        let b = world.arrive("b", 6_000);
        assert_eq!(world.runs(b), runs, "{gone}");
    }
}

/// The engine keeps finding caches that nobody told of. a was paused at worker 0; that nothing is told of its cache there
/// does not mean that it is gone.
#[test]
fn word_that_caches_are_gone_is_not_believed_of_those_who_kept_being_wrong() {
    // Once is chance, and more than half of what was found is near enough.
    for (told, wrong, at_home) in [(0, 20, true), (0, 1, false), (600, 20, false), (1_000, 20, false)] {
        let mut world = World::new(&config(), &[10_000, 10_000]);
        for round in 0..20 {
            let told = if round < wrong { told } else { 1_000 };
            let turn = world.arrive_with("known", 1_000, &lies(&[(w(0), told), (w(1), told)], 1_000));
            world.end_counted(turn, 1_000, 999);
        }
        world.tell(&Event::SessionEnd { program: &key("known") });
        world.acting("a", 2_500);
        let x = world.arrive("x", 8_000);
        let y = world.arrive("y", 6_400);
        assert_eq!((world.worker(x), world.worker(y)), (w(1), w(0)));
        world.tell(&Event::Progress { turn: TurnId(y), generated: 3_000 });
        assert_eq!(world.paused, ["a"], "8,900 + 3,000");
        world.end(x, 8_000);
        world.tell(&Event::SessionEnd { program: &key("x") });
        world.end(y, 5_000);
        let a = world.arrive_with("a", 2_600, &lies(&[(w(0), 0)], 2_600));
        assert_eq!(world.worker(a) == w(0), at_home, "worker 1 is empty, home has room too: {told} {wrong}");
    }
}
