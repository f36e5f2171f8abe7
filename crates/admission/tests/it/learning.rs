//! What the policy `tandem` learns from engines' counts of cached tokens.

use tandem_admission::{AdmissionConfig, Event, TandemConfig};
use tandem_types::TurnId;

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
    for (cached, keeps) in [(0, true), (30_000, false)] {
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
    }
}

/// The engine keeps finding caches that nobody told of. a was paused at worker 0; that nothing is told of its cache there
/// does not mean that it is gone.
#[test]
fn word_that_caches_are_gone_is_not_believed_of_those_who_kept_being_wrong() {
    for (told, at_home) in [(0, true), (1_000, false)] {
        let mut world = World::new(&config(), &[10_000, 10_000]);
        for _ in 0..20 {
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
        assert_eq!(world.worker(a) == w(0), at_home, "worker 1 is empty, home has room too");
    }
}
