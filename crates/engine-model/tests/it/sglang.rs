//! Scenarios worked by hand, SGLang flavour. Pages have 4 tokens.

use std::sync::Arc;

use tandem_engine_model::{EngineConfig, EngineModel, Flavor, Output, Request, RequestKey};
use tandem_types::KvEvent;

use crate::support::{changes, config, drain, outputs, pass, request, run, tokens};

fn engine(pages: u32, budget: u32) -> EngineModel {
    let set_up = EngineConfig { flavor: Flavor::Sglang, max_num_batched_tokens: budget, ..config(pages) };
    EngineModel::new(set_up).expect("usable")
}

#[test]
fn prefill_passes_go_before_decode_passes() {
    let mut engine = engine(50, 10);
    engine.submit(request(1, tokens(0, 4), 3)).expect("accepted");
    assert_eq!(outputs(&pass(&mut engine)), [1]);
    engine.submit(request(2, tokens(100, 19), 2)).expect("accepted");
    // Ten tokens fit, cut at a page boundary to eight; the decode waits until the prompt is done.
    for (prefill, outs) in [(8, vec![]), (8, vec![]), (3, vec![2])] {
        let seen = pass(&mut engine);
        assert_eq!((seen.prefill_tokens, seen.decode_requests, outputs(&seen)), (prefill, 0, outs));
    }
    let seen = pass(&mut engine);
    assert_eq!((seen.prefill_tokens, seen.decode_requests, outputs(&seen)), (0, 2, vec![1, 2]));
}

#[test]
fn a_budget_below_a_page_still_makes_progress() {
    let mut engine = engine(10, 3);
    assert_eq!(run(&mut engine, request(1, tokens(0, 10), 2)), 0);
}

#[test]
fn generated_pages_are_cached_when_the_request_ends() {
    let mut engine = engine(50, 100);
    let answer: Arc<[u32]> = tokens(900, 6);
    let ask = Request { output: Output::Tokens(answer), max_output_tokens: 6, ..request(1, tokens(0, 7), 1) };
    engine.submit(ask).expect("accepted");
    let passes = drain(&mut engine);
    let stores: Vec<usize> = passes.iter().map(|p| changes(std::slice::from_ref(p)).0.len()).collect();
    assert_eq!(stores, [1, 0, 0, 0, 0, 2]);
    let next: Arc<[u32]> = tokens(0, 7).iter().copied().chain(900..906).chain(50..60).collect();
    assert_eq!(run(&mut engine, request(2, next, 1)), 12);
}

#[test]
fn a_page_has_one_copy() {
    let mut engine = engine(50, 100);
    // Both are admitted in one pass, when neither is cached.
    engine.submit(request(1, tokens(0, 9), 1)).expect("accepted");
    engine.submit(request(2, tokens(0, 9), 1)).expect("accepted");
    let seen = pass(&mut engine);
    assert_eq!(seen.prefill_tokens, 18);
    assert_eq!(changes(std::slice::from_ref(&seen)).0.len(), 2);
    assert_eq!((engine.load().cached_blocks, engine.load().used_blocks), (2, 0));
}

#[test]
fn evicted_pages_go_out_in_one_event() {
    let mut engine = engine(4, 100);
    run(&mut engine, request(1, tokens(0, 16), 1));
    engine.submit(request(2, tokens(100, 12), 1)).expect("accepted");
    let events = drain(&mut engine).remove(0).events;
    assert!(
        matches!(&events[..], [KvEvent::Removed(removed), KvEvent::Stored(_)] if removed.block_hashes.len() == 3)
    );
}

#[test]
fn admission_reserves_room_for_answers() {
    // 20 pages. The first has 2 pages of prompt and may generate 40 tokens: 0.7 * 40 = 28 tokens, 7 pages.
    let mut engine = engine(20, 100);
    let ask =
        |id: u64, max: u32| Request { max_output_tokens: max, ..request(id, tokens(id as u32 * 100, 8), 3) };
    engine.submit(ask(1, 40)).expect("accepted");
    pass(&mut engine);
    // Needs 2 pages and 10 for its own answer, of 18 - 7 free ones: not now.
    engine.submit(ask(2, 40)).expect("accepted");
    assert_eq!(pass(&mut engine).decode_requests, 1);
    // The first ends after three tokens; then the second is alone.
    assert_eq!(outputs(&pass(&mut engine)), [1]);
    assert_eq!(outputs(&pass(&mut engine)), [2]);
    drain(&mut engine);
    // With smaller promises both fit at once.
    engine.submit(ask(3, 8)).expect("accepted");
    engine.submit(ask(4, 8)).expect("accepted");
    assert_eq!(outputs(&pass(&mut engine)), [3, 4]);
}

#[test]
fn the_reserve_for_answers_sinks_while_decoding_goes_well() {
    // Reserved at first: 0.7 * 3,999 tokens, 700 pages. The ratio sinks by 0.001 per pass, which is a page,
    // and frees more than the 200 tokens of the answer take.
    let mut engine = engine(700, 100);
    let long = Request { max_output_tokens: 4_000, ..request(1, tokens(0, 8), 200) };
    engine.submit(long).expect("accepted");
    pass(&mut engine);
    engine.submit(request(2, tokens(100, 8), 8)).expect("accepted");
    let passes = drain(&mut engine);
    let admitted = passes.iter().position(|p| !p.admitted.is_empty()).expect("admitted");
    assert!((3..15).contains(&admitted), "{admitted}");
}

#[test]
fn the_reserve_is_cut_after_what_was_generated_is_taken_off() {
    // The client allows 8,096 tokens; 100 are there, so 7,996 are open, of which 4,096 count. At a ratio of
    // about 0.6 these are 615 pages. (Cut first, 3,996 would be open: 600 pages.)
    let mut engine = engine(27 + 610, 200);
    let long = Request { max_output_tokens: 8_096, ..request(1, tokens(0, 8), 300) };
    engine.submit(long).expect("accepted");
    (0..101).for_each(|_| drop(pass(&mut engine)));
    assert_eq!(engine.load().used_blocks, 27);
    // Three pages for the second, of 610 free ones.
    engine.submit(request(2, tokens(1_000, 8), 4)).expect("accepted");
    assert_eq!(pass(&mut engine).admitted, []);
}

#[test]
fn retraction_takes_the_one_with_the_fewest_generated_tokens() {
    // The clients get all they allow, but the ratio reserves only 0.7 of it.
    let mut engine = engine(23, 100);
    let ask = |id: u64| request(id, tokens(id as u32 * 100, 8), 42);
    engine.submit(ask(1)).expect("accepted");
    pass(&mut engine);
    pass(&mut engine);
    // 0.7 * 40 tokens are 7 pages; 2 pages of prompt and 11 of answer just fit into the 20 free ones. But
    // both together grow to 13 pages each, almost in step.
    engine.submit(ask(2)).expect("accepted");
    let passes = drain(&mut engine);
    let retracted: Vec<_> = passes.iter().flat_map(|p| p.preempted.clone()).collect();
    assert_eq!(retracted, [RequestKey(2)]);
    let ends: Vec<u64> =
        passes.iter().flat_map(|p| &p.outputs).filter(|o| o.finish.is_some()).map(|o| o.id.0).collect();
    assert_eq!(ends, [1, 2]);
    // Its generated pages were not cached, its prompt's two pages were.
    let again = passes.iter().flat_map(|p| &p.admitted).find(|a| a.resumed).expect("resumed");
    assert_eq!((again.id, again.cached_tokens), (RequestKey(2), 8));
}

#[test]
fn an_aborted_request_leaves_its_pages_behind() {
    let mut engine = engine(50, 100);
    engine.submit(request(1, tokens(0, 7), 20)).expect("accepted");
    for _ in 0..6 {
        pass(&mut engine);
    }
    assert!(engine.abort(RequestKey(1)));
    // 7 prompt tokens and 5 generated ones were computed: 3 pages, of which the prompt's was known.
    let events = engine.take_events();
    assert!(matches!(&events[..], [KvEvent::Stored(stored)] if stored.block_hashes.len() == 2));
    assert_eq!(engine.load().cached_blocks, 3);
}
