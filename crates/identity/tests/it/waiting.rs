//! How long harnesses may be kept waiting. The limits restate what was measured of each.

use std::time::Duration;

use tandem_identity::hold::{HOLDS, MARGIN, SILENT_EVERYWHERE};
use tandem_identity::{Declared, hold_tolerance};
use tandem_types::Harness;

/// A client that says nothing of its patience.
const SILENT: Declared = Declared { read_timeout: None, hold_max: None };

/// Seconds of silence after which each gave up, and whether comments or events kept its stream alive.
const GAVE_UP: [(Harness, u64); 10] = [
    (Harness::ClaudeCode, 359),
    (Harness::OpenCode, 300),
    (Harness::Pi, 300),
    (Harness::KimiCode, 306),
    (Harness::QwenCode, 120),
    (Harness::OpenClaw, 600),
    (Harness::GeminiCli, 61),
    (Harness::OpenHands, 300),
    (Harness::MiniSweAgent, 600),
    (Harness::Cline, 300),
];

/// I-HLD-1, I-HLD-4
#[test]
fn no_wait_reaches_the_limit_of_its_harness() {
    for (harness, secs) in GAVE_UP {
        for stream in [true, false] {
            let hold = hold_tolerance(harness, stream, SILENT);
            assert!(hold.silent <= Duration::from_secs(secs) - MARGIN, "{harness:?}");
            assert!(hold.silent >= SILENT_EVERYWHERE, "{harness:?}");
            assert!(hold.early_200_after <= hold.silent, "{harness:?}");
        }
        assert_eq!(hold_tolerance(harness, false, SILENT).early_200, None, "{harness:?}");
    }
    for harness in [Harness::Codex, Harness::Hermes] {
        assert_eq!(hold_tolerance(harness, true, SILENT).silent, Duration::from_secs(900));
    }
}

/// An early 200 would start a clock that Codex does not have before it.
#[test]
fn codex_is_held_silently() {
    let hold = hold_tolerance(Harness::Codex, true, SILENT);
    assert_eq!((hold.early_200, hold.longest()), (None, Duration::from_secs(900)));
}

#[test]
fn keep_alive_prolongs_streams_as_far_as_it_was_seen_to() {
    for (harness, secs) in [(Harness::ClaudeCode, 420), (Harness::OpenCode, 420), (Harness::QwenCode, 300)] {
        let hold = hold_tolerance(harness, true, SILENT);
        let keep_alive = hold.early_200.expect("streams");
        assert_eq!(keep_alive.proven, Duration::from_secs(secs));
        assert!(keep_alive.every <= Duration::from_secs(20));
        assert_eq!(hold.longest(), Duration::from_secs(secs));
    }
    // OpenClaw waits longer in silence than its stream was kept alive, but only one of both can be had.
    let hold = hold_tolerance(Harness::OpenClaw, true, SILENT);
    assert_eq!(hold.longest(), Duration::from_secs(330));
    assert_eq!(hold_tolerance(Harness::OpenClaw, false, SILENT).longest(), Duration::from_secs(594));
}

/// I-HLD-2
#[test]
fn an_unknown_client_gets_the_least_of_all() {
    for unknown in [Harness::Unknown, Harness::Aider] {
        for entry in HOLDS {
            let (one, other) =
                (hold_tolerance(unknown, true, SILENT), hold_tolerance(entry.harness, true, SILENT));
            assert!(one.silent <= other.silent, "{:?}", entry.harness);
            let proven = one.early_200.expect("events").proven;
            assert!(other.early_200.is_none_or(|k| proven <= k.proven), "{:?}", entry.harness);
        }
        assert_eq!(hold_tolerance(unknown, false, SILENT).silent, Duration::from_secs(55));
    }
}

fn reads_for(secs: u64) -> Declared {
    Declared { read_timeout: Some(Duration::from_secs(secs)), ..SILENT }
}

fn waits_for(secs: u64) -> Declared {
    Declared { hold_max: Some(Duration::from_secs(secs)), ..SILENT }
}

/// I-HLD-3
#[test]
fn a_stated_timeout_shortens_and_is_all_that_is_known_of_an_unknown_client() {
    let silent = |harness, secs| hold_tolerance(harness, false, reads_for(secs)).silent.as_secs_f64();
    let table = hold_tolerance(Harness::OpenHands, false, SILENT).silent.as_secs_f64();
    let of_table = [1800, 100, 10, 1].map(|secs| silent(Harness::OpenHands, secs));
    assert_eq!(of_table, [table, 94.0, 5.0, 0.5]);
    let of_nobody = [600, 100, 10, 1].map(|secs| silent(Harness::Unknown, secs));
    assert_eq!(of_nobody, [594.0, 94.0, 5.0, 0.5]);
    let short = hold_tolerance(Harness::Unknown, true, reads_for(8));
    assert_eq!(short.early_200_after, Duration::from_secs(4));
    assert!(short.early_200.is_some_and(|k| k.every < Duration::from_secs(8)));
    let long = hold_tolerance(Harness::Unknown, true, reads_for(600));
    assert_eq!((long.early_200_after, long.longest()), (SILENT_EVERYWHERE, Duration::from_secs(300)));
}

/// I-HLD-5
#[test]
fn a_client_that_says_how_long_it_waits_is_held_for_that_long() {
    for harness in [Harness::Unknown, Harness::Codex, Harness::GeminiCli] {
        assert_eq!(hold_tolerance(harness, false, waits_for(1500)).longest(), Duration::from_secs(1500));
        assert_eq!(hold_tolerance(harness, false, waits_for(20)).longest(), Duration::from_secs(20));
        assert_eq!(hold_tolerance(harness, true, waits_for(1500)).longest(), Duration::from_secs(1500));
    }
    let stream = hold_tolerance(Harness::Unknown, true, waits_for(1500));
    assert_eq!((stream.early_200.is_some(), stream.early_200_after), (true, SILENT_EVERYWHERE));
    let both = Declared { hold_max: Some(Duration::from_secs(1500)), ..reads_for(600) };
    assert_eq!(hold_tolerance(Harness::Unknown, false, both).longest(), Duration::from_secs(594));
    assert_eq!(hold_tolerance(Harness::Unknown, true, both).longest(), Duration::from_secs(1500));
}
