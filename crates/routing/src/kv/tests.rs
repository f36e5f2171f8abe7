//! Costs worked by hand, and what holds for any fleet.

use proptest::prelude::*;
use tandem_types::{
    LabelWish, MatchSource, PrefixMatch, RouteWishes, SharedPrefix, WeightOverrides, WorkerPrefix,
};

use super::*;
use crate::testing::{Workers, candidate, worker};
use crate::{Candidate, Rng, SCORES_MAX};

fn held(engine: u32, device: u32, host: u32, disk: u32) -> WorkerPrefix {
    WorkerPrefix { worker: worker(engine), device, host, disk, source: MatchSource::Exact }
}

/// Ten blocks of 100 tokens.
fn ten_blocks(workers: &[WorkerPrefix]) -> PrefixMatch {
    PrefixMatch {
        block_size: 100,
        blocks: 10,
        workers: workers.iter().copied().collect(),
        ..PrefixMatch::unknown()
    }
}

fn choose(turn: &RouteTurn<'_>, fleet: &Workers) -> Choice {
    Kv::new(KvConfig::default()).choose(turn, fleet, &mut Rng::new(3)).expect("not empty")
}

fn terms_of(choice: &Choice, engine: u32) -> CostTerms {
    let at = choice.scores.iter().position(|(id, _)| *id == worker(engine)).expect("kept");
    choice.terms[at]
}

#[test]
fn each_block_counts_once_at_its_best_tier() {
    // Device 2, host to 5, disk to 6, shared 4..8: 4 and 5 lie in host and store, 6 and 7 in the store behind the
    // local run. 2 * 1 + 3 * 0.75 + disk block 5 at the store's 0.5 + 2 * 0.5 = 5.75 blocks.
    let mut found = ten_blocks(&[held(0, 2, 5, 6)]);
    found.shared.push(4..8);
    let turn = RouteTurn { input_tokens: 1040, prefix: Some(&found), ..RouteTurn::default() };
    let choice = choose(&turn, &Workers::new(&[(0, 0), (1, 0)]));
    let terms = terms_of(&choice, 0);
    assert_eq!(
        (terms.device_blocks, terms.host_blocks, terms.disk_blocks, terms.shared_blocks),
        (2, 3, 1, 2)
    );
    assert_eq!(terms.prefill, 1040 - 575);
    // Worker 1 has nothing of its own, and the store's blocks are behind a hole for it.
    assert_eq!(terms_of(&choice, 1).prefill, 1040);
    assert_eq!((choice.worker, choice.reason), (worker(0), Reason::Overlap));
    assert_eq!([worker(0), worker(1)].map(|id| expected_prefill(&turn, id)), [240, 1040]);
}

#[test]
fn every_term_of_the_formula_is_in_its_place() {
    let found = ten_blocks(&[held(0, 8, 8, 8), held(1, 3, 3, 3)]);
    let wishes = RouteWishes {
        prefer: vec![LabelWish { label: "h200".to_owned(), weight: 0.25 }],
        ..RouteWishes::none()
    };
    let turn = RouteTurn {
        home: Some(worker(0)),
        input_tokens: 1000,
        program_tokens: Some(900),
        prefix: Some(&found),
        wishes: Some(&wishes),
        ..RouteTurn::default()
    };
    let mut busy = candidate(0, 3);
    (busy.queued_prefill, busy.home_tokens) = (2000, 3000);
    let mut quiet = candidate(1, 1);
    quiet.home_tokens = 1000;
    let choice = choose(&turn, &Workers::of(vec![busy, quiet]).labelled(1, &["h200"]));
    // 2000 queued count 0.3 each. Mean share (3000 + 1000) / 2; home has 1.5 times that, the other would
    // have exactly that.
    let home = CostTerms {
        device_blocks: 8,
        prefill: 200,
        queued: 600,
        decode: 1536,
        crowding: 500,
        labels: 250,
        ..CostTerms::default()
    };
    let other = CostTerms {
        device_blocks: 3,
        prefill: 700,
        decode: 512,
        left_behind: 500,
        affinity: 100,
        ..CostTerms::default()
    };
    assert_eq!(choice.terms, [other, home]);
    assert_eq!(choice.scores, [(worker(1), 1812.0), (worker(0), 3086.0)]);
    assert_eq!((choice.reason, choice.compared), (Reason::CheaperThanHome, 2));
}

/// I-KV-3.
#[test]
fn a_session_leaves_only_a_queue_of_many_times_the_prefill_that_a_move_costs() {
    // 100 blocks at home, none elsewhere: a move costs 10,000 of prefill, 10,000 left behind and a tenth for not being
    // home, 21,000; each token queued counts 0.3.
    let found = PrefixMatch { blocks: 100, ..ten_blocks(&[held(0, 100, 100, 100)]) };
    let turn = RouteTurn {
        home: Some(worker(0)),
        input_tokens: 10_000,
        prefix: Some(&found),
        ..RouteTurn::default()
    };
    let with_queue = |tokens| {
        let mut home = candidate(0, 0);
        home.queued_prefill = tokens;
        choose(&turn, &Workers::of(vec![home, candidate(1, 0)])).reason
    };
    assert_eq!(with_queue(69_900), Reason::Affinity);
    assert_eq!(with_queue(70_100), Reason::CheaperThanHome);
}

#[test]
fn a_new_program_goes_where_there_is_room_for_its_life_and_a_child_to_its_parent() {
    let found = ten_blocks(&[held(0, 6, 6, 6)]);
    let mut crowded = candidate(0, 0);
    crowded.home_tokens = 21_000;
    let mut roomy = candidate(1, 0);
    roomy.home_tokens = 19_000;
    let fleet = || Workers::of(vec![crowded, roomy]);
    let new = RouteTurn {
        input_tokens: 1000,
        program_tokens: Some(0),
        prefix: Some(&found),
        ..RouteTurn::default()
    };
    // 22,000 against a mean of 20,500: 73 tokens over count fourfold, less than the 600 that are cached there.
    assert_eq!(choose(&new, &fleet()).worker, worker(0));
    crowded.home_tokens = 25_000;
    let fleet = || Workers::of(vec![crowded, roomy]);
    // 26,000 against 22,500: 156 over, 622.
    assert_eq!(choose(&new, &fleet()).worker, worker(1));
    let child = RouteTurn { parent_home: Some(worker(0)), ..new };
    assert_eq!(choose(&child, &fleet()).reason, Reason::ParentAffinity);
    // Twice the pool is twice the room.
    crowded.kv_capacity_tokens = Some(500_000);
    roomy.kv_capacity_tokens = Some(100_000);
    assert_eq!(choose(&new, &fleet_of(crowded, roomy)).worker, worker(0));
}

/// Workers with a KV pool of 100,000 tokens and programs of so many thousand at home.
fn pools(thousands: &[u64]) -> Workers {
    let workers = (0..).zip(thousands).map(|(id, &at_home)| {
        let mut it = candidate(id, 0);
        (it.home_tokens, it.kv_capacity_tokens) = (at_home * 1000, Some(100_000));
        it
    });
    Workers::of(workers.collect())
}

/// I-KV-8.
#[test]
fn a_worker_whose_programs_have_outgrown_its_pool_lets_them_go_where_there_is_room() {
    let found = PrefixMatch { blocks: 100, ..ten_blocks(&[held(0, 100, 100, 100)]) };
    let turn = RouteTurn {
        home: Some(worker(0)),
        input_tokens: 10_000,
        program_tokens: Some(10_000),
        prefix: Some(&found),
        ..RouteTurn::default()
    };
    let at = |thousands: &[u64]| {
        let choice = choose(&turn, &pools(thousands));
        (choice.worker.engine.0, terms_of(&choice, 0).crowding)
    };
    // Leaving costs 21,000: the prompt, what is left behind, and a tenth. Home has 4/3 of the mean, which counts
    // 4/3 of the prompt, and is full, which counts the prompt.
    assert_eq!(at(&[120, 60]), (1, 23_333));
    // 99 of 95 and of a mean of 79.5: 4/10 of the prompt, and 4 * 0.245 of it.
    assert_eq!(at(&[99, 60]), (0, 4_000 + 9_811));
    // There is room, whatever the others have.
    assert_eq!(at(&[60, 40]), (0, 2_000));
    // Full everywhere: nobody moves.
    assert_eq!(at(&[120, 120]), (0, 10_000));
}

/// A policy that has seen four first prompts of 10,000 tokens, of which `head` says what lay somewhere.
fn that_saw(head: WorkerPrefix, turn: RouteTurn<'_>) -> (Kv, Rng) {
    let (mut policy, mut rng) = (Kv::new(KvConfig::default()), Rng::new(1));
    let found = PrefixMatch { blocks: 100, ..ten_blocks(&[head]) };
    let turn = RouteTurn { input_tokens: 10_000, program_tokens: Some(0), prefix: Some(&found), ..turn };
    for _ in 0..4 {
        policy.choose(&turn, &pools(&[10, 10]), &mut rng).expect("not empty");
    }
    (policy, rng)
}

/// I-KV-8.
#[test]
fn what_programs_have_in_common_fills_a_pool_once() {
    let own = PrefixMatch { blocks: 100, ..ten_blocks(&[held(0, 100, 100, 100)]) };
    let turn = RouteTurn {
        home: Some(worker(0)),
        input_tokens: 10_000,
        program_tokens: Some(10_000),
        prefix: Some(&own),
        ..RouteTurn::default()
    };
    // Half of each first prompt lies somewhere already, in whichever tier. A subagent has its parent's: that says nothing
    // of programs.
    let first = RouteTurn::default();
    let child = RouteTurn { parent_home: Some(worker(1)), ..first };
    for (head, seen, expected) in [
        (held(1, 50, 50, 50), first, (0, 3_333)),
        (held(1, 0, 0, 50), first, (0, 3_333)),
        (held(1, 50, 50, 50), child, (1, 23_333)),
    ] {
        let (mut policy, mut rng) = that_saw(head, seen);
        // 120 thousand are 60 of their own: the pool is not full, and a third beyond the mean counts once. Else it is, as
        // above.
        let choice = policy.choose(&turn, &pools(&[120, 60]), &mut rng).expect("not empty");
        assert_eq!((choice.worker.engine.0, terms_of(&choice, 0).crowding), expected, "{head:?} {seen:?}");
    }
}

/// I-KV-9: half of all prompts is common, so that pools have room for twice as much.
#[test]
fn a_fleet_is_overfull_by_what_its_programs_do_not_have_in_common() {
    let (mut policy, mut rng) = that_saw(held(1, 50, 50, 50), RouteTurn::default());
    let new = RouteTurn { input_tokens: 10_000, program_tokens: Some(0), ..RouteTurn::default() };
    let mut at = |thousands: &[u64]| {
        let drawn = (0..12)
            .map(|_| policy.choose(&new, &pools(thousands), &mut rng).expect("not empty").worker.engine.0);
        drawn.collect::<std::collections::BTreeSet<_>>().into_iter().collect::<Vec<_>>()
    };
    // 326 thousand in pools of 300 are 163 of their own: where least lies.
    assert_eq!(at(&[120, 100, 96]), [2]);
    // 710 are 355: gathered, but for a worker with room: 160 are 80.
    assert_eq!(at(&[300, 250, 150]), [2]);
    assert_eq!(at(&[260, 250, 190]), [0]);
}

/// I-KV-9.
#[test]
fn an_overfull_fleet_gathers_its_newcomers_so_that_other_workers_keep_what_they_hold() {
    let new = RouteTurn { input_tokens: 1000, program_tokens: Some(0), ..RouteTurn::default() };
    let at = |turn: &RouteTurn<'_>, gather: f64, thousands: &[u64]| {
        let mut policy = Kv::new(KvConfig { gather, ..KvConfig::default() });
        policy.choose(turn, &pools(thousands), &mut Rng::new(3)).expect("not empty").worker.engine.0
    };
    // 251 thousand in pools of 300: where less than the mean lies.
    assert_eq!(at(&new, 3.0, &[110, 100, 40]), 2);
    // 317 thousand: the fullest. It may have at most so many times the mean (222), else it is the next one.
    assert_eq!(at(&new, 3.0, &[120, 100, 96]), 0);
    assert_eq!(at(&new, 3.0, &[450, 120, 96]), 0);
    assert_eq!(at(&new, 2.0, &[450, 120, 96]), 1);
    // One has room all the same.
    assert_eq!(at(&new, 3.0, &[300, 200, 90]), 2);
    assert_eq!(at(&new, 0.0, &[120, 110, 80]), 2);
    // A subagent goes to its parent as ever.
    let child = RouteTurn { parent_home: Some(worker(2)), ..new };
    assert_eq!(at(&child, 3.0, &[110, 100, 98]), 2);
}

fn fleet_of(a: Candidate, b: Candidate) -> Workers {
    Workers::of(vec![a, b])
}

#[test]
fn a_leg_counts_what_its_worker_has_to_do() {
    let found = ten_blocks(&[held(0, 8, 8, 8)]);
    let turn =
        RouteTurn { home: Some(worker(0)), input_tokens: 1000, prefix: Some(&found), ..RouteTurn::default() };
    let mut busy = candidate(0, 3);
    busy.queued_prefill = 400;
    let fleet = || Workers::of(vec![busy, candidate(1, 1)]);
    // All that runs at a worker for prompts is queued prefill.
    let choice = choose(&RouteTurn { leg: crate::Leg::Prefill, ..turn }, &fleet());
    assert_eq!(terms_of(&choice, 0).total(), 200 + 120);
    assert_eq!(terms_of(&choice, 1).total(), 1000 + 800 + 100);
    // A worker for answers fetches what it lacks, at a tenth.
    let choice = choose(&RouteTurn { leg: crate::Leg::Decode, ..turn }, &fleet());
    let (home, other) = (terms_of(&choice, 0), terms_of(&choice, 1));
    assert_eq!((home.prefill, home.transfer, home.total()), (0, 20, 20 + 120 + 3 * 512));
    assert_eq!((other.prefill, other.transfer, other.total()), (0, 100, 100 + 80 + 10 + 512));
}

#[test]
fn an_adapter_to_load_counts_as_a_prompt_of_its_size() {
    let mut cold = candidate(0, 0);
    cold.cold = true;
    let at = |queued| {
        let mut warm = candidate(1, 0);
        warm.queued_prefill = queued;
        choose(&RouteTurn { input_tokens: 100, ..RouteTurn::default() }, &fleet_of(cold, warm)).worker
    };
    // 4096 tokens for the adapter, 0.3 for each one queued: 13,653.
    assert_eq!([13_640, 13_670].map(at), [worker(1), worker(0)]);
}

/// I-KV-4.
#[test]
fn without_a_match_home_is_taken_to_hold_what_the_program_had_there() {
    let turn = RouteTurn {
        home: Some(worker(1)),
        input_tokens: 5000,
        program_tokens: Some(4000),
        ..RouteTurn::default()
    };
    let choice = choose(&turn, &Workers::new(&[(0, 0), (1, 16)]));
    assert_eq!((choice.worker, choice.reason), (worker(1), Reason::Affinity));
    assert_eq!(terms_of(&choice, 1).assumed_tokens, 4000);
    assert_eq!([0, 1].map(|id| expected_prefill(&turn, worker(id))), [5000, 1000]);
    // A valve: 4000 of prefill, 4000 left behind and 500 against 512 for each request more.
    let choice = choose(&turn, &Workers::new(&[(0, 0), (1, 40)]));
    assert_eq!(choice.reason, Reason::CheaperThanHome);
    // The index knows one worker and is blind at the other: only the blind one is taken on trust.
    let found = PrefixMatch { blind: [worker(1)].into_iter().collect(), ..ten_blocks(&[held(0, 2, 2, 2)]) };
    let choice = choose(&RouteTurn { prefix: Some(&found), ..turn }, &Workers::new(&[(0, 0), (1, 0)]));
    assert_eq!(terms_of(&choice, 1).assumed_tokens, 4000);
    assert_eq!((terms_of(&choice, 0).assumed_tokens, terms_of(&choice, 0).device_blocks), (0, 2));
    // Without a program: the least load.
    let choice = choose(&RouteTurn::default(), &Workers::new(&[(0, 2), (1, 1), (2, 5)]));
    assert_eq!((choice.worker, choice.reason), (worker(1), Reason::LowestCost));
}

/// I-KV-7.
#[test]
fn where_programs_find_their_kv_lost_nobody_follows_the_queues() {
    let mut policy = Kv::new(KvConfig::default());
    let mut rng = Rng::new(1);
    let mut home = candidate(0, 0);
    home.queued_prefill = 50_000;
    let fleet = Workers::of(vec![home, candidate(1, 0)]);
    let found = ten_blocks(&[]);
    let turn = RouteTurn {
        home: Some(worker(0)),
        input_tokens: 1000,
        program_tokens: Some(1000),
        prefix: Some(&found),
        ..RouteTurn::default()
    };
    let mut reasons = (0..40).map(|_| policy.choose(&turn, &fleet, &mut rng).expect("not empty").reason);
    assert_eq!(reasons.next(), Some(Reason::CheaperThanHome));
    // All is lost each time: 0.2 is passed after fifteen turns, 1 - (63/64)^15 = 0.21, and the queue's 15 prompts soon after.
    assert_eq!(reasons.last(), Some(Reason::Affinity));
}

/// I-KV-7: new programs, too.
#[test]
fn where_programs_find_their_kv_lost_newcomers_go_where_there_is_room() {
    let mut policy = Kv::new(KvConfig::default());
    let mut rng = Rng::new(1);
    let (mut busy, mut crowded) = (candidate(0, 20), candidate(1, 0));
    (busy.home_tokens, crowded.home_tokens) = (10_000, 20_000);
    let fleet = Workers::of(vec![busy, crowded]);
    let new = RouteTurn { input_tokens: 1000, program_tokens: Some(0), ..RouteTurn::default() };
    let found = ten_blocks(&[]);
    let home = RouteTurn {
        home: Some(worker(0)),
        input_tokens: 1000,
        program_tokens: Some(1000),
        prefix: Some(&found),
        ..RouteTurn::default()
    };
    // 20 requests of 512 against 4 * 1000 * (21 / 15.5 - 1) = 1,419.
    assert_eq!(policy.choose(&new, &fleet, &mut rng).expect("not empty").worker, worker(1));
    for _ in 0..40 {
        policy.choose(&home, &fleet, &mut rng).expect("not empty");
    }
    // 0.47 is lost, 0.27 beyond what is tolerated: load counts less than a 250th.
    assert_eq!(policy.choose(&new, &fleet, &mut rng).expect("not empty").worker, worker(0));
}

/// I-KV-7: a prompt that was compacted lacks nothing of what lies there.
#[test]
fn a_shorter_prompt_that_is_all_there_has_lost_nothing() {
    let mut policy = Kv::new(KvConfig::default());
    let mut rng = Rng::new(1);
    let mut home = candidate(0, 0);
    home.queued_prefill = 50_000;
    let fleet = Workers::of(vec![home, candidate(1, 0)]);
    let found = ten_blocks(&[held(0, 10, 10, 10)]);
    let turn = RouteTurn {
        home: Some(worker(0)),
        input_tokens: 1000,
        program_tokens: Some(4000),
        prefix: Some(&found),
        ..RouteTurn::default()
    };
    // A queue of 15,000 against 2,100 for a move, each time.
    for _ in 0..40 {
        let choice = policy.choose(&turn, &fleet, &mut rng).expect("not empty");
        assert_eq!(choice.reason, Reason::CheaperThanHome);
    }
}

#[test]
fn a_home_that_may_not_take_the_turn_is_said_to_be_away() {
    let turn = RouteTurn { home: Some(worker(7)), input_tokens: 100, ..RouteTurn::default() };
    assert_eq!(choose(&turn, &Workers::new(&[(0, 0), (1, 0)])).reason, Reason::HomeUnavailable);
}

/// A weight below 0 asks for workers without the label.
#[test]
fn a_label_that_is_not_wanted_costs_the_workers_that_have_it() {
    let wishes = RouteWishes {
        prefer: vec![LabelWish { label: "slow".to_owned(), weight: -0.25 }],
        ..RouteWishes::none()
    };
    let turn = RouteTurn { input_tokens: 1000, wishes: Some(&wishes), ..RouteTurn::default() };
    let choice = choose(&turn, &Workers::new(&[(0, 1), (1, 1)]).labelled(1, &["slow"]));
    assert_eq!([0, 1].map(|engine| terms_of(&choice, engine).labels), [0, 250]);
}

/// Both have the first eight blocks on disk, a quarter each. The store gives half for each, to who is connected to it.
#[test]
fn a_worker_without_the_store_gains_nothing_by_it() {
    let mut found = ten_blocks(&[held(0, 0, 0, 8), held(1, 0, 0, 8)]);
    found.shared.push(0..8);
    found.loadable = Some(vec![SharedPrefix { worker: worker(0), blocks: 0 }]);
    let turn = RouteTurn { input_tokens: 1000, prefix: Some(&found), ..RouteTurn::default() };
    let choice = choose(&turn, &Workers::new(&[(0, 0), (1, 0)]));
    assert_eq!([0, 1].map(|engine| terms_of(&choice, engine).prefill), [600, 800]);
}

/// I-KV-2.
#[test]
fn equals_are_drawn_and_a_temperature_draws_others_less_often() {
    let found = ten_blocks(&[held(0, 10, 10, 10)]);
    let mut wishes = RouteWishes::none();
    let drawn = |wishes: &RouteWishes| {
        let mut seen = [0_u32; 3];
        let mut rng = Rng::new(5);
        let turn = RouteTurn {
            input_tokens: 1000,
            prefix: Some(&found),
            wishes: Some(wishes),
            ..RouteTurn::default()
        };
        for _ in 0..3000 {
            let fleet = Workers::new(&[(0, 0), (1, 0), (2, 0)]);
            let choice = Kv::new(KvConfig::default()).choose(&turn, &fleet, &mut rng).expect("not empty");
            seen[choice.worker.engine.0 as usize] += 1;
        }
        seen
    };
    assert_eq!(drawn(&wishes), [3000, 0, 0]);
    // e times less often each: 0.576, 0.212, 0.212.
    wishes.weights.temperature = Some(1.0);
    let [first, second, third] = drawn(&wishes);
    assert!((1650..1810).contains(&first) && (570..700).contains(&second), "{first} {second} {third}");
    // Nothing in any cache counts: all equal.
    wishes.weights = WeightOverrides { device: Some(0.0), host: Some(f64::NAN), ..WeightOverrides::none() };
    assert!(drawn(&wishes).iter().all(|&n| (900..1100).contains(&n)));
}

#[test]
fn a_record_keeps_the_chosen_one_home_and_the_cheapest() {
    let loads: Vec<(u32, u64)> = (0..40).map(|id| (id, u64::from(id))).collect();
    let turn = RouteTurn { home: Some(worker(39)), input_tokens: 100, ..RouteTurn::default() };
    let choice = choose(&turn, &Workers::new(&loads));
    let kept: Vec<u32> = choice.scores.iter().map(|(id, _)| id.engine.0).collect();
    assert_eq!(kept, [0, 39, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]);
    assert_eq!((choice.terms.len(), choice.compared), (SCORES_MAX, 40));
}

#[test]
fn weights_that_make_no_sense_are_refused_by_name() {
    let error = |config: KvConfig| config.check().expect_err("refused").to_string();
    assert_eq!(KvConfig::default().check(), Ok(()));
    assert_eq!(error(KvConfig { shared: 1.5, ..KvConfig::default() }), "shared must be a number from 0 to 1");
    assert_eq!(
        error(KvConfig { decode: f64::NAN, ..KvConfig::default() }),
        "decode must be a number from 0 to 1000000"
    );
    assert_eq!(error(KvConfig { disk: 0.8, ..KvConfig::default() }), "disk must not be above host");
}

prop_compose! {
    fn any_turn()(
        depths in prop::collection::vec((0_u32..20, 0_u32..20, 0_u32..20), 4),
        runs in prop::collection::btree_set(0_u32..24, 0..8),
        home in prop::option::of(0_u32..4),
        parent in prop::option::of(0_u32..4),
        program in prop::option::of(0_u64..3000),
        weights in prop::collection::vec(prop::option::of(-0.5_f64..1.5), 4),
        lots in prop::collection::vec((0_u64..20, 0_u64..4000, 0_u64..4000), 4),
    ) -> (PrefixMatch, Vec<Candidate>, RouteWishes, Option<u32>, Option<u32>, Option<u64>) {
        let mut found = PrefixMatch { block_size: 100, blocks: 16, ..PrefixMatch::unknown() };
        for (id, (a, b, c)) in (0..).zip(depths) {
            found.workers.push(held(id, a, a.max(b), a.max(b).max(c)));
        }
        let bounds: Vec<u32> = runs.into_iter().collect();
        found.shared = bounds.chunks_exact(2).map(|pair| pair[0]..pair[1]).collect();
        let candidates = (0..).zip(lots).map(|(id, (load, queued, at_home))| {
            let mut it = candidate(id, load);
            (it.queued_prefill, it.home_tokens) = (queued, at_home);
            it.kv_capacity_tokens = (id % 2 == 0).then_some(2500);
            it
        }).collect();
        let wishes = RouteWishes {
            weights: WeightOverrides {
                device: weights[0], host: weights[1], disk: weights[2], shared: weights[3],
                ..WeightOverrides::none()
            },
            ..RouteWishes::none()
        };
        (found, candidates, wishes, home, parent, program)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// I-KV-1, I-KV-6: one worker gets more; its cost against any other's does not rise.
    #[test]
    fn more_overlap_never_makes_a_worker_less_preferred(
        (found, candidates, wishes, home, parent, program_tokens) in any_turn(),
        favoured in 0_usize..4,
        tier in 0_u8..3,
        more in 1_u32..6,
    ) {
        let mut better = found.clone();
        let mut it = found.workers.iter().nth(favoured).expect("listed");
        match tier {
            0 => it.device += more,
            1 => it.host += more,
            _ => it.disk += more,
        }
        it.host = it.host.max(it.device);
        it.disk = it.disk.max(it.host);
        better.workers.push(it);
        let costs = |found: &PrefixMatch| -> Vec<f64> {
            let turn = RouteTurn {
                home: home.map(worker),
                parent_home: parent.map(worker),
                input_tokens: 1650,
                program_tokens,
                prefix: Some(found),
                wishes: Some(&wishes),
                ..RouteTurn::default()
            };
            let choice = choose(&turn, &Workers::of(candidates.clone()));
            let mut scores = choice.scores;
            scores.sort_by_key(|(id, _)| *id);
            scores.into_iter().map(|(_, cost)| cost).collect()
        };
        let (before, after) = (costs(&found), costs(&better));
        for other in 0..4 {
            prop_assert!(
                after[favoured] - after[other] <= before[favoured] - before[other],
                "{before:?} {after:?}"
            );
        }
        prop_assert!(after.iter().all(|cost| cost.is_finite() && *cost >= 0.0));
    }
}
