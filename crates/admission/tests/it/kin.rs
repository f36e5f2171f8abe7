//! Tenants, groups and subagents under the policy `tandem`. A pool of 10,000 tokens takes 9,000 of newcomers.

use std::time::Duration;

use tandem_admission::{AdmissionConfig, Event, HoldReason, TandemConfig};
use tandem_types::{PrefixMatch, TurnId};

use crate::support::{Kin, World, key, w};

fn world(change: impl FnOnce(&mut TandemConfig)) -> World {
    let mut tandem = TandemConfig {
        admit: 0.9,
        pause: 1.0,
        pause_to: 0.98,
        prefill_tokens_per_s: 100.0,
        reprefill_share: 0.0,
        ..TandemConfig::default()
    };
    change(&mut tandem);
    let config = AdmissionConfig { policy: "tandem".to_owned(), tandem, ..AdmissionConfig::default() };
    World::new(&config, &[10_000])
}

fn over(world: &mut World, turn: u64, program: &str, tenant: Option<&'static str>) {
    world.end(turn, 1_000);
    let mut key = key(program);
    if let Some(tenant) = tenant {
        key.tenant = tandem_types::TenantId::new(tenant).expect("an id");
    }
    world.tell(&Event::SessionEnd { program: &key });
}

/// I-KIN-1, I-KIN-2 (counted again after each event). a fills the pool and has five turns waiting before b's first comes. Then each 1,000 that become free go to whoever has
/// less for its share: with equal ones b until both have as much, with three to one b until it has a third of a's.
#[test]
fn room_goes_to_the_tenant_that_has_least_for_its_share() {
    for (share, expected) in [(1.0, 4), (3.0, 2)] {
        let mut world = world(|c| c.shares = [("a".to_owned(), share)].into());
        let (a, b) =
            (Kin { tenant: Some("a"), ..Kin::default() }, Kin { tenant: Some("b"), ..Kin::default() });
        let ask = |world: &mut World, kin: &Kin, name: String| {
            world.arrive_of(kin, &name, 990, &PrefixMatch::unknown())
        };
        let first: Vec<u64> = (0..9).map(|i| ask(&mut world, &a, format!("a{i}"))).collect();
        let more: Vec<u64> = (9..14).map(|i| ask(&mut world, &a, format!("a{i}"))).collect();
        let others: Vec<u64> = (0..6).map(|i| ask(&mut world, &b, format!("b{i}"))).collect();
        assert!(first.iter().all(|turn| world.runs(*turn)));
        assert!(more.iter().chain(&others).all(|turn| !world.runs(*turn)));
        // Five of nine end: 4 of a run on.
        for (i, turn) in first.iter().take(5).enumerate() {
            over(&mut world, *turn, &format!("a{i}"), Some("a"));
        }
        let got = others.iter().filter(|turn| world.runs(**turn)).count();
        let kept = more.iter().filter(|turn| world.runs(**turn)).count();
        assert_eq!((got, kept), (expected, 5 - expected), "share {share}");
    }
}

/// Nobody of a is expected to leave. b is alone below its share, so it need not wait until it is overdue; the budget of
/// 5 % of a worker, 100 tokens a second, pays for a's 125, counted twice, after 50 s at most, and for nothing where it is 0.
#[test]
fn a_tenant_below_its_share_is_overdue_at_once() {
    for (share, runs) in [(0.05, true), (0.0, false)] {
        let mut world = world(|c| {
            c.reprefill_share = share;
            c.give_way = 0.0;
            c.turns_at_least = 1;
            c.overdue = Duration::from_secs(3_600);
        });
        let a = Kin { tenant: Some("a"), ..Kin::default() };
        let b = Kin { tenant: Some("b"), ..Kin::default() };
        world.arrive_of(&a, "runs", 8_800, &PrefixMatch::unknown());
        let again = |world: &mut World| {
            let turn = world.arrive_of(&a, "small", 125, &PrefixMatch::unknown());
            if world.runs(turn) {
                world.end(turn, 125);
            }
        };
        again(&mut world);
        let late = world.arrive_of(&b, "late", 100, &PrefixMatch::unknown());
        assert!(!world.runs(late));
        for i in 1..60_u32 {
            world.at(f64::from(i));
            if !world.runs(late) {
                again(&mut world);
            }
        }
        assert_eq!(world.runs(late), runs, "{share}");
    }
}

/// I-TAN-3. Three of g and three of h come by turns; 3,000 are free, then 3,000 more.
#[test]
fn a_group_that_began_is_whole_before_the_next_begins() {
    let mut world = world(|_| {});
    let x = world.arrive("x", 8_500);
    let mut turns = Vec::new();
    for i in 0..3 {
        for group in ["g", "h"] {
            let kin = Kin { group: Some(group), ..Kin::default() };
            turns.push(world.arrive_of(&kin, &format!("{group}{i}"), 3_000, &PrefixMatch::unknown()));
        }
    }
    let [g0, h0, g1, h1, g2, h2] = turns[..] else { panic!("six") };
    // 400 are free: nobody of g fits, and a small one of h may not pass, while a stranger may.
    let small = Kin { group: Some("h"), ..Kin::default() };
    let h3 = world.arrive_of(&small, "h3", 300, &PrefixMatch::unknown());
    assert_eq!(world.held(h3), HoldReason::Behind);
    let stranger = world.arrive("stranger", 300);
    assert!(world.runs(stranger));
    over(&mut world, stranger, "stranger", None);
    over(&mut world, x, "x", None);
    assert!([g0, g1].iter().all(|turn| world.runs(*turn)), "9,000 take three of 3,000 and an answer");
    let wait = [h0, h1, h2, h3, g2].map(|turn| !world.runs(turn));
    assert_eq!(wait, [true; 5], "h waits although h0 came before g1");
    world.end(g0, 3_000);
    world.tell(&Event::SessionEnd { program: &key("g0") });
    assert!(world.runs(g2) && !world.runs(h0));
}

/// I-TAN-4. The parent's 7,000 lie idle until its subagent, which needs 4,500, is done. Seven of ten who wait for subagents
/// are back within the horizon of 150 s: counted so, they would keep it out.
#[test]
fn a_parent_gives_way_to_the_subagent_that_it_waits_for() {
    let mut world = world(|_| {});
    world.acting("parent", 7_000);
    let stranger = world.arrive("stranger", 4_500);
    assert_eq!(world.held(stranger), HoldReason::NoRoom);
    world.abort(stranger);
    let kin = Kin { parent: Some("parent"), ..Kin::default() };
    let child = world.arrive_of(&kin, "child", 4_500, &PrefixMatch::unknown());
    assert!(world.runs(child));
    world.end(child, 4_500);
    world.tell(&Event::SessionEnd { program: &key("child") });
    let parent = world.arrive("parent", 7_100);
    assert!(world.runs(parent));
}

/// Nearly all tools are back within the horizon of 150 s, and seven of ten subagents, who take 90 s: beside 1,000 that run,
/// the idle 5,000 count as 4,900 or as 3,500.
#[test]
fn who_waits_for_subagents_is_expected_later_than_who_waits_for_tools() {
    for (parent, runs) in [(None, false), (Some("idle"), true)] {
        let mut world = world(|_| {});
        world.acting("idle", 5_000);
        let other =
            world.arrive_of(&Kin { parent, ..Kin::default() }, "other", 1_000, &PrefixMatch::unknown());
        assert!(world.runs(other));
        let stranger = world.arrive("stranger", 4_000);
        assert_eq!(world.runs(stranger), runs, "{parent:?}");
    }
}

/// A subagent that comes last goes before those that came after its parent's turn ended, not before others.
#[test]
fn a_subagent_takes_its_parents_place_in_the_queue() {
    let mut world = world(|_| {});
    let parent = world.arrive("parent", 500);
    let x = world.arrive("x", 8_400);
    world.at(1.0);
    let early = world.arrive("early", 4_000);
    world.at(2.0);
    world.end(parent, 500);
    world.at(3.0);
    let late = world.arrive("late", 4_000);
    world.at(4.0);
    let kin = Kin { parent: Some("parent"), ..Kin::default() };
    let child = world.arrive_of(&kin, "child", 4_000, &PrefixMatch::unknown());
    assert!(![early, late, child].iter().any(|turn| world.runs(*turn)));
    over(&mut world, x, "x", None);
    assert!(world.runs(early) && world.runs(child) && !world.runs(late), "500 + 2 * 4,000 fit 9,000");
}

/// Running turns grow by 600 each: 9,000 become 10,200. The idle one loses its place, nobody who runs is disturbed.
#[test]
fn growth_of_running_turns_takes_places_from_idle_programs() {
    let mut world = world(|_| {});
    world.acting("idle", 1_000);
    let turns = [world.arrive("a", 4_000), world.arrive("b", 3_900)];
    assert!(turns.iter().all(|turn| world.runs(*turn)));
    for turn in turns {
        world.tell(&Event::Progress { turn: TurnId(turn), generated: 600 });
    }
    assert_eq!(world.paused, ["idle"], "8,900 + 1,200 + 1,000 * nearly 1");
    assert_eq!(world.policy.charged(w(0)), (9_100, 0));
}
