//! Scenarios worked by hand, vLLM flavour. Blocks have 4 tokens.

use std::sync::Arc;

use tandem_engine_model::{
    ConfigError, EngineConfig, EngineModel, Finish, Namespace, Output, Pass, PreemptionOrder, Prompt,
    Refusal, Request, RequestKey, SchedulingPolicy,
};
use tandem_types::{KvEvent, Time};

use crate::support::{changes, config, drain, engine, outputs, pass, request, run, tokens};

/// I-MDL-4.
#[test]
fn one_request_prefills_then_decodes_and_all_comes_at_pass_ends() {
    let mut engine = engine(10);
    engine.submit(request(1, tokens(0, 10), 3)).expect("accepted");
    let mut seen = Pass::default();
    assert!(engine.step(Time::from_millis(100), &mut seen));
    assert_eq!((seen.starts_at, seen.ends_at), (Time::from_millis(100), Time::from_millis(110)));
    assert_eq!((seen.prefill_tokens, seen.decode_requests), (10, 0));
    assert_eq!((seen.outputs[0].index, seen.outputs[0].finish), (0, None));
    assert_eq!(engine.load().used_blocks, 3);
    // Called too early, the next pass starts where the last one ends.
    assert!(engine.step(Time::from_millis(105), &mut seen));
    assert_eq!((seen.starts_at, seen.ends_at), (Time::from_millis(110), Time::from_millis(111)));
    assert_eq!((seen.prefill_tokens, seen.decode_requests), (0, 1));
    assert!(engine.step(Time::from_millis(120), &mut seen));
    assert_eq!(seen.ends_at, Time::from_millis(121));
    assert_eq!((seen.outputs[0].index, seen.outputs[0].finish), (2, Some(Finish::Stop)));
    assert!(!engine.step(Time::from_millis(121), &mut seen));
    assert_eq!(seen, Pass::default());
    // 10 prompt tokens and 2 of 3 generated ones were computed: three full blocks stay cached.
    let load = engine.load();
    assert_eq!((load.used_blocks, load.cached_blocks, load.context_tokens), (0, 3, 0));
    assert_eq!((load.prompt_tokens, load.generation_tokens, load.passes), (10, 3, 3));
    assert_eq!((load.finished_stop, load.finished_length), (1, 0));
}

#[test]
fn outputs_are_the_given_tokens_cut_where_the_client_or_the_context_says() {
    let mut set_up = config(100);
    set_up.max_model_len = Some(20);
    let mut engine = EngineModel::new(set_up).expect("usable");
    let answer: Arc<[u32]> = [70, 71, 72, 73, 74].into();
    let ask = |id: u64, prompt: u32, max: u32| Request {
        output: Output::Tokens(Arc::clone(&answer)),
        max_output_tokens: max,
        ..request(id, tokens(0, prompt), 1)
    };
    let mut got = |request: Request| {
        engine.submit(request).expect("accepted");
        let passes = drain(&mut engine);
        let outputs: Vec<_> = passes.iter().flat_map(|p| p.outputs.clone()).collect();
        let text: Vec<u32> = outputs.iter().map(|o| o.token).collect();
        (text, outputs.last().and_then(|o| o.finish))
    };
    assert_eq!(got(ask(1, 8, 9)), (vec![70, 71, 72, 73, 74], Some(Finish::Stop)));
    assert_eq!(got(ask(2, 8, 5)), (vec![70, 71, 72, 73, 74], Some(Finish::Stop)));
    assert_eq!(got(ask(3, 8, 2)), (vec![70, 71], Some(Finish::Length)));
    assert_eq!(got(ask(4, 17, 9)), (vec![70, 71, 72], Some(Finish::Length)));
    let seeded = Output::Seeded { seed: 7, tokens: 3 };
    assert_eq!(seeded.token(3), None);
    assert_eq!(seeded.token(1), seeded.clone().token(1));
}

#[test]
fn requests_share_a_prefix_within_and_across_passes() {
    let mut engine = engine(20);
    engine.submit(request(1, tokens(0, 12), 2)).expect("accepted");
    // Shares two blocks, then differs.
    let other: Arc<[u32]> = tokens(0, 8).iter().copied().chain(500..505).collect();
    engine.submit(request(2, other, 2)).expect("accepted");
    let first = pass(&mut engine);
    assert_eq!(first.admitted.iter().map(|a| a.cached_tokens).collect::<Vec<_>>(), [0, 8]);
    assert_eq!(first.prefill_tokens, 12 + 5);
    // 3 blocks of the first, 2 more of the second.
    assert_eq!(engine.load().used_blocks, 5);
    drain(&mut engine);
    // The first one's turn again, longer: its 12 tokens and its first answer token fill no fourth block.
    assert_eq!(run(&mut engine, request(3, tokens(0, 30), 1)), 12);
    let load = engine.load();
    assert_eq!((load.prefix_cache_queries, load.prefix_cache_hits), (12 + 13 + 30, 8 + 12));
    assert_eq!(load.cached_prompt_tokens, 20);
}

#[test]
fn the_last_token_of_a_cached_prompt_is_computed() {
    let mut engine = engine(20);
    assert_eq!(run(&mut engine, request(1, tokens(0, 12), 1)), 0);
    let ask = |id: u64, count: u32| request(id, tokens(0, count), 1);
    assert_eq!(engine.cached_prefix(&ask(2, 12)), 8);
    assert_eq!(run(&mut engine, ask(2, 12)), 8);
    assert_eq!(run(&mut engine, ask(3, 13)), 12);
    assert_eq!(run(&mut engine, ask(4, 3)), 0);
}

#[test]
fn a_turn_reuses_the_answer_before_it() {
    let mut engine = engine(20);
    let answer = tokens(900, 6);
    let first = Request {
        output: Output::Tokens(Arc::clone(&answer)),
        max_output_tokens: 6,
        ..request(1, tokens(0, 7), 1)
    };
    run(&mut engine, first);
    // 7 + 6 tokens, of which the last was never computed: three blocks.
    let next: Arc<[u32]> = tokens(0, 7).iter().chain(answer.iter()).copied().chain(50..60).collect();
    assert_eq!(run(&mut engine, request(2, next, 1)), 12);
}

#[test]
fn block_ids_stand_for_tokens() {
    let ask = |id: u64, ids: &[u64], tokens: u32| Request {
        prompt: Prompt::Blocks { ids: ids.into(), tokens },
        ..request(id, tokens_unused(), 6)
    };
    let mut engine = engine(20);
    // 10 prompt tokens, 6 generated: ids 1, 2 are the prompt's, 3 gets full while decoding, 4 never.
    assert_eq!(run(&mut engine, ask(1, &[11, 12, 13, 14], 10)), 0);
    assert_eq!(run(&mut engine, ask(2, &[11, 12, 13, 14, 15], 18)), 12);
    assert_eq!(run(&mut engine, ask(3, &[11, 12, 99], 18)), 8);
    let salted = Namespace { lora: None, salt: Some("tenant".into()) };
    assert_eq!(run(&mut engine, Request { namespace: salted.clone(), ..ask(4, &[11, 12, 13], 18) }), 0);
    assert_eq!(run(&mut engine, Request { namespace: salted, ..ask(5, &[11, 12, 13], 18) }), 12);
}

fn tokens_unused() -> Arc<[u32]> {
    tokens(0, 1)
}

#[test]
fn eviction_takes_the_oldest_requests_tail_first() {
    let mut engine = engine(6);
    let (mut hashes, removed) = {
        engine.submit(request(1, tokens(0, 12), 1)).expect("accepted");
        let passes = drain(&mut engine);
        changes(&passes)
    };
    assert_eq!((hashes.len(), removed.len()), (3, 0));
    engine.submit(request(2, tokens(100, 8), 1)).expect("accepted");
    hashes.extend(changes(&drain(&mut engine)).0);
    // One block is empty; three more have to go: the first request's, from its end.
    engine.submit(request(3, tokens(200, 13), 1)).expect("accepted");
    let third = drain(&mut engine);
    assert_eq!(changes(&third).1, [hashes[2], hashes[1], hashes[0]]);
    assert!(matches!(
        third[0].events[..],
        [KvEvent::Removed(_), KvEvent::Removed(_), KvEvent::Removed(_), KvEvent::Stored(_)]
    ));
    assert_eq!(engine.cached_prefix(&request(9, tokens(0, 12), 1)), 0);
    assert_eq!(engine.cached_prefix(&request(9, tokens(100, 9), 1)), 8);
}

#[test]
fn a_hit_makes_blocks_young_again() {
    let mut engine = engine(6);
    run(&mut engine, request(1, tokens(0, 8), 1));
    run(&mut engine, request(2, tokens(100, 8), 1));
    // Touches the first request's blocks, and leaves a fifth block, without a key, just before them.
    run(&mut engine, request(3, tokens(0, 9), 1));
    // Takes the sixth block and the second request's last.
    run(&mut engine, request(4, tokens(200, 8), 1));
    assert_eq!(engine.cached_prefix(&request(9, tokens(0, 9), 1)), 8);
    assert_eq!(engine.cached_prefix(&request(9, tokens(100, 9), 1)), 4);
}

#[test]
fn prompts_are_cut_into_chunks_beside_decodes() {
    let mut set_up = config(50);
    set_up.max_num_batched_tokens = 8;
    let mut engine = EngineModel::new(set_up).expect("usable");
    engine.submit(request(1, tokens(0, 4), 9)).expect("accepted");
    assert_eq!(outputs(&pass(&mut engine)), [1]);
    engine.submit(request(2, tokens(100, 17), 2)).expect("accepted");
    // One token of the first, seven of the second, twice; then its last three.
    for (prefill, outs) in [(7, vec![1]), (7, vec![1]), (3, vec![1, 2])] {
        let seen = pass(&mut engine);
        assert_eq!((seen.prefill_tokens, seen.decode_requests), (prefill, 1));
        assert_eq!(outputs(&seen), outs);
        assert_eq!(seen.ends_at.since(seen.starts_at).as_millis(), 11);
    }
    let after = pass(&mut engine);
    assert_eq!((after.prefill_tokens, after.decode_requests), (0, 2));
    assert_eq!(after.outputs.last().map(|o| o.finish), Some(Some(Finish::Stop)));
}

/// Two requests that grow until three blocks each do not fit into five.
fn short_pool(preemption: PreemptionOrder) -> (EngineModel, Vec<Pass>) {
    let mut engine = EngineModel::new(EngineConfig { preemption, ..config(5) }).expect("usable");
    engine.submit(request(1, tokens(0, 7), 6)).expect("accepted");
    engine.submit(request(2, tokens(100, 7), 6)).expect("accepted");
    let passes = drain(&mut engine);
    (engine, passes)
}

#[test]
fn the_last_admitted_is_preempted_and_computed_again() {
    let (engine, passes) = short_pool(PreemptionOrder::Lifo);
    // 7 tokens fit two blocks, as does the 8th; the 9th needs a third. The first gets it, the second not.
    assert_eq!(outputs(&passes[0]), [1, 2]);
    assert_eq!(outputs(&passes[1]), [1, 2]);
    assert_eq!((outputs(&passes[2]), passes[2].preempted.clone()), (vec![1], vec![RequestKey(2)]));
    // While the first runs there is room for two blocks only, and the second needs three (9 tokens).
    assert_eq!([3, 4, 5].map(|i| outputs(&passes[i])), [[1], [1], [1]]);
    // Resumed: its two blocks are still cached, and only the ninth token is computed.
    assert_eq!(passes[6].admitted.len(), 1);
    assert!(passes[6].admitted[0].resumed);
    assert_eq!((passes[6].admitted[0].cached_tokens, passes[6].prefill_tokens), (8, 1));
    let second: Vec<_> = passes.iter().flat_map(|p| &p.outputs).filter(|o| o.id.0 == 2).collect();
    assert_eq!(second.iter().map(|o| o.index).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    // What the client is told is the first admission's.
    assert!(second.iter().all(|o| o.cached_tokens == 0));
    let load = engine.load();
    assert_eq!((load.preemptions, load.prefix_cache_queries), (1, 14));
}

#[test]
fn preemption_recomputes_what_was_evicted() {
    let mut set_up = config(5);
    set_up.prefix_caching = false;
    let mut engine = EngineModel::new(set_up).expect("usable");
    engine.submit(request(1, tokens(0, 7), 6)).expect("accepted");
    engine.submit(request(2, tokens(100, 7), 6)).expect("accepted");
    let passes = drain(&mut engine);
    assert_eq!(passes[6].prefill_tokens, 9, "seven of the prompt and two generated ones");
    assert_eq!(engine.load().prefill_tokens, 7 + 7 + 9);
    assert_eq!(engine.load().generation_tokens, 12);
    assert_eq!(changes(&passes), (vec![], vec![]));
}

#[test]
fn fifo_preempts_the_first_admitted() {
    let (_, passes) = short_pool(PreemptionOrder::Fifo);
    assert_eq!((outputs(&passes[2]), passes[2].preempted.clone()), (vec![2], vec![RequestKey(1)]));
    assert_eq!(passes.iter().flat_map(|p| &p.outputs).filter(|o| o.finish.is_some()).count(), 2);
}

#[test]
fn priorities_order_admission_and_preemption() {
    let mut set_up = config(5);
    set_up.policy = SchedulingPolicy::Priority;
    set_up.max_num_seqs = 2;
    let mut engine = EngineModel::new(set_up).expect("usable");
    let ask = |id: u64, priority: i32, arrival: u64| Request {
        priority,
        arrival: Time(arrival),
        ..request(id, tokens(id as u32 * 100, 7), 6)
    };
    for request in [ask(1, 5, 0), ask(2, 0, 9), ask(3, 0, 3)] {
        engine.submit(request).expect("accepted");
    }
    let passes = drain(&mut engine);
    assert_eq!(outputs(&passes[0]), [3, 2], "urgent first, then by arrival");
    assert_eq!(passes[2].preempted, [RequestKey(2)], "the later of two equals");
    let ends: Vec<u64> =
        passes.iter().flat_map(|p| &p.outputs).filter(|o| o.finish.is_some()).map(|o| o.id.0).collect();
    assert_eq!(ends, [3, 2, 1]);

    // An urgent newcomer displaces one that was scheduled before it in the same pass.
    let mut engine =
        EngineModel::new(EngineConfig { max_num_seqs: 2, policy: SchedulingPolicy::Priority, ..config(5) })
            .expect("usable");
    engine.submit(ask(1, 5, 0)).expect("accepted");
    pass(&mut engine);
    engine.submit(ask(2, 0, 1)).expect("accepted");
    // Request 1 computes its 8th token, then needs its third block before request 2 does.
    assert_eq!(outputs(&pass(&mut engine)), [1, 2]);
    assert_eq!(outputs(&pass(&mut engine)), [1, 2]);
    let seen = pass(&mut engine);
    assert_eq!((seen.preempted.clone(), outputs(&seen)), (vec![RequestKey(1)], vec![2]));
    assert_eq!(seen.decode_requests, 1, "what the victim had scheduled is taken back");
}

#[test]
fn nobody_is_admitted_in_a_pass_that_preempts() {
    let set_up = EngineConfig { policy: SchedulingPolicy::Priority, max_num_seqs: 2, ..config(5) };
    let mut engine = EngineModel::new(set_up).expect("usable");
    for (id, priority) in [(1, 1), (2, 2)] {
        let ask = request(id, tokens(id as u32 * 100, 7), 6);
        engine.submit(Request { priority, ..ask }).expect("accepted");
    }
    pass(&mut engine);
    engine.submit(request(3, tokens(300, 3), 1)).expect("accepted");
    assert_eq!(outputs(&pass(&mut engine)), [1, 2], "the batch is full");
    let seen = pass(&mut engine);
    assert_eq!((seen.preempted.clone(), seen.admitted.len()), (vec![RequestKey(2)], 0));
    assert_eq!(outputs(&pass(&mut engine)), [1, 3]);
}

#[test]
fn the_budget_of_a_displaced_request_goes_to_others() {
    let set_up = EngineConfig {
        preemption: PreemptionOrder::Fifo,
        reserve_full_prompt: false,
        max_num_batched_tokens: 7,
        ..config(5)
    };
    let mut engine = EngineModel::new(set_up).expect("usable");
    (1..3).for_each(|id| engine.submit(request(id, tokens(id as u32 * 100, 3), 6)).expect("accepted"));
    pass(&mut engine);
    engine.submit(request(3, tokens(300, 20), 1)).expect("accepted");
    assert_eq!(pass(&mut engine).prefill_tokens, 5);
    // Four blocks are taken. The first takes the fifth and one token of the budget, and loses both again to
    // the second; so six of the seven tokens are left for the third, not five.
    let seen = pass(&mut engine);
    assert_eq!((seen.preempted.clone(), outputs(&seen)), (vec![RequestKey(1)], vec![2]));
    assert_eq!((seen.decode_requests, seen.prefill_tokens), (1, 6));
}

#[test]
fn the_one_preempted_last_is_resumed_first() {
    let mut engine = engine(6);
    // Leave places behind, so that the order of places is not the order of arrival.
    (11..14).for_each(|id| engine.submit(request(id, tokens(id as u32 * 100, 3), 1)).expect("accepted"));
    drain(&mut engine);
    (1..4).for_each(|id| engine.submit(request(id, tokens(id as u32 * 100, 7), 8)).expect("accepted"));
    let passes = drain(&mut engine);
    let order = |of: fn(&Pass) -> Vec<u64>| passes.iter().flat_map(of).collect::<Vec<_>>();
    assert_eq!(order(|p| p.preempted.iter().map(|id| id.0).collect()), [3, 2]);
    assert_eq!(order(|p| p.admitted.iter().filter(|a| a.resumed).map(|a| a.id.0).collect()), [2, 3]);
}

#[test]
fn cached_blocks_that_nobody_holds_need_room_too() {
    let mut set_up = config(8);
    set_up.max_num_batched_tokens = 8;
    let mut engine = EngineModel::new(set_up).expect("usable");
    run(&mut engine, request(1, tokens(0, 16), 1));
    engine.submit(request(2, tokens(100, 7), 3)).expect("accepted");
    pass(&mut engine);
    // Seven blocks, of which four are cached; six are not held by the other, these four among them.
    engine.submit(request(3, tokens(0, 28), 1)).expect("accepted");
    assert_eq!(engine.cached_prefix(&request(3, tokens(0, 28), 1)), 16);
    assert_eq!(pass(&mut engine).admitted, []);
}

#[test]
fn a_request_waits_until_its_whole_prompt_fits() {
    for (reserve, cached) in [(true, vec![]), (false, vec![0])] {
        let mut set_up = config(6);
        set_up.reserve_full_prompt = reserve;
        set_up.max_num_batched_tokens = 8;
        let mut engine = EngineModel::new(set_up).expect("usable");
        engine.submit(request(1, tokens(0, 8), 4)).expect("accepted");
        pass(&mut engine);
        // Five blocks; only four are left once the first has its third.
        engine.submit(request(2, tokens(100, 18), 1)).expect("accepted");
        let seen = pass(&mut engine);
        let admitted: Vec<u32> = seen.admitted.iter().map(|a| a.cached_tokens).collect();
        assert_eq!(admitted, cached, "reserve {reserve}");
        let ends = drain(&mut engine);
        assert_eq!(ends.iter().flat_map(|p| &p.outputs).filter(|o| o.finish.is_some()).count(), 2);
    }
}

/// I-VLL-3.
#[test]
fn the_queue_is_never_overtaken() {
    let mut engine = engine(6);
    engine.submit(request(1, tokens(0, 15), 2)).expect("accepted");
    pass(&mut engine);
    engine.submit(request(2, tokens(100, 12), 1)).expect("accepted");
    engine.submit(request(3, tokens(200, 1), 1)).expect("accepted");
    // Two blocks are free: enough for the third request, not for the second.
    assert_eq!(outputs(&pass(&mut engine)), [1]);
    assert_eq!(outputs(&pass(&mut engine)), [2, 3]);
}

#[test]
fn hopeless_requests_are_refused_with_the_reason() {
    let mut set_up = config(5);
    set_up.max_model_len = Some(100);
    set_up.max_num_batched_tokens = 12;
    set_up.chunked_prefill = false;
    let mut engine = EngineModel::new(set_up).expect("usable");
    let mut refuse = |request: Request| engine.submit(request).expect_err("refused");
    assert_eq!(refuse(request(1, tokens(0, 0), 1)), Refusal::EmptyPrompt);
    assert_eq!(refuse(request(1, tokens(0, 4), 0)), Refusal::EmptyOutput);
    let none = Request { max_output_tokens: 0, ..request(1, tokens(0, 4), 4) };
    assert_eq!(refuse(none), Refusal::EmptyOutput);
    assert_eq!(
        refuse(request(1, tokens(0, 100), 1)),
        Refusal::ContextLength { tokens: 100, max_model_len: 100 }
    );
    assert_eq!(refuse(request(1, tokens(0, 18), 4)), Refusal::ExceedsPool { needed: 6, total: 5 });
    assert_eq!(refuse(request(1, tokens(0, 10), 4)), Refusal::ExceedsBudget { tokens: 13, budget: 12 });
    assert_eq!(engine.load().refused, 6);
    assert!(!engine.has_work());
    // One token less fits: the last generated token needs no KV.
    engine.submit(request(1, tokens(0, 10), 3)).expect("accepted");
    assert_eq!(engine.submit(request(1, tokens(0, 1), 1)), Err(Refusal::DuplicateId));
    drain(&mut engine);
    engine.submit(request(1, tokens(0, 1), 1)).expect("the id is free again");
    let huge = Request {
        prompt: Prompt::Blocks { ids: [].into(), tokens: u32::MAX },
        ..request(2, tokens(0, 1), 9)
    };
    let mut open = EngineModel::new(config(5)).expect("usable");
    assert!(matches!(open.submit(huge), Err(Refusal::ExceedsPool { .. })));
}

#[test]
fn the_whole_pool_is_usable() {
    let mut engine = engine(5);
    assert_eq!(run(&mut engine, request(1, tokens(0, 17), 4)), 0);
    assert_eq!(engine.load().cached_blocks, 5);
    assert_eq!(run(&mut engine, request(2, tokens(100, 17), 4)), 0);
    assert_eq!(engine.cached_prefix(&request(3, tokens(100, 17), 1)), 16);
}

#[test]
fn aborting_frees_blocks_and_keeps_them_cached() {
    let mut engine = engine(10);
    engine.submit(request(1, tokens(0, 8), 9)).expect("accepted");
    engine.submit(request(2, tokens(100, 8), 1)).expect("accepted");
    assert!(engine.abort(RequestKey(2)), "waiting");
    assert_eq!((engine.load().waiting, engine.load().waiting_tokens), (1, 8));
    pass(&mut engine);
    assert!(engine.abort(RequestKey(1)), "running");
    assert!(!engine.abort(RequestKey(1)), "gone");
    let load = engine.load();
    assert_eq!((load.running, load.used_blocks, load.cached_blocks, load.context_tokens), (0, 0, 2, 0));
    assert_eq!((load.aborted, load.finished_stop, engine.has_work()), (2, 0, false));
    assert_eq!(engine.cached_prefix(&request(3, tokens(0, 9), 1)), 8);
}

#[test]
fn a_reset_forgets_and_is_refused_while_blocks_are_held() {
    let mut engine = engine(10);
    engine.submit(request(1, tokens(0, 8), 2)).expect("accepted");
    pass(&mut engine);
    assert!(!engine.reset_prefix_cache());
    drain(&mut engine);
    assert!(engine.reset_prefix_cache());
    assert_eq!(engine.load().cached_blocks, 0);
    assert_eq!(engine.cached_prefix(&request(2, tokens(0, 9), 1)), 0);
    engine.submit(request(2, tokens(0, 8), 1)).expect("accepted");
    let next = pass(&mut engine);
    assert!(matches!(next.events[..], [KvEvent::Cleared, KvEvent::Stored(_)]));
    assert!(engine.reset_prefix_cache());
    assert_eq!(engine.take_events(), [KvEvent::Cleared]);
    assert_eq!(engine.take_events(), []);
}

#[test]
fn events_describe_the_blocks() {
    let mut engine = engine(20);
    let namespace = Namespace { lora: Some("adapter".into()), salt: Some("s".into()) };
    engine
        .submit(Request {
            output: Output::Tokens((91..98).collect()),
            max_output_tokens: 7,
            namespace,
            session: Some("ses".into()),
            ..request(1, tokens(0, 10), 1)
        })
        .expect("accepted");
    let passes = drain(&mut engine);
    let stored: Vec<_> = passes
        .iter()
        .flat_map(|p| &p.events)
        .map(|event| match event {
            KvEvent::Stored(stored) => stored,
            other => panic!("unexpected {other:?}"),
        })
        .collect();
    let [prompt, generated, more] = stored[..] else { panic!("{stored:?}") };
    assert_eq!((prompt.parent, prompt.tokens.clone()), (None, (0..8).collect()));
    assert_eq!((prompt.lora.as_deref(), prompt.salt.as_deref()), (Some("adapter"), Some("s")));
    // The block of two prompt tokens and two generated ones continues the prompt's last block.
    assert_eq!(generated.parent, Some(prompt.block_hashes[1]));
    assert_eq!((generated.tokens.clone(), generated.block_size), (vec![8, 9, 91, 92], 4));
    assert_eq!((generated.lora.as_deref(), generated.session.as_deref()), (Some("adapter"), Some("ses")));
    assert_eq!(generated.salt, None, "only a prompt's first block is salted");
    assert_eq!((more.parent, more.tokens.clone()), (Some(generated.block_hashes[0]), vec![93, 94, 95, 96]));
    // The first generated one was stored by the pass that computed its last token, the third.
    assert!(passes[1].events.is_empty());
    assert_eq!(passes[2].events.len(), 1);
}

#[test]
fn two_copies_of_a_block_are_stored_and_removed_separately() {
    let mut set_up = config(8);
    set_up.max_num_batched_tokens = 64;
    let mut engine = EngineModel::new(set_up).expect("usable");
    // The answer of the first spells the prompt of the second: both compute block [0, 1, 2, 3].
    let first = Request {
        output: Output::Tokens([3, 50].into()),
        max_output_tokens: 2,
        ..request(1, [0, 1, 2].into(), 1)
    };
    engine.submit(first).expect("accepted");
    pass(&mut engine);
    // Admitted in the pass in which the first computes token 3, after it: shares. So recompute instead.
    engine.submit(request(2, tokens(0, 4), 1)).expect("accepted");
    let seen = pass(&mut engine);
    let (stored, _) = changes(std::slice::from_ref(&seen));
    assert_eq!(seen.admitted[0].cached_tokens, 0, "its last token must be computed, so its only block too");
    assert_eq!(stored.len(), 2);
    assert_eq!(stored[0], stored[1]);
    assert_eq!(engine.load().cached_blocks, 2);
    // Eight blocks are needed: both copies go, each with its event.
    engine.submit(request(3, tokens(100, 32), 1)).expect("accepted");
    let (_, removed) = changes(&drain(&mut engine));
    assert_eq!(removed, stored);
}

#[test]
fn unusable_set_ups_are_refused() {
    let broken = |change: fn(&mut EngineConfig)| {
        let mut set_up = config(4);
        change(&mut set_up);
        EngineModel::new(set_up).map(|_| ()).expect_err("refused")
    };
    assert_eq!(broken(|c| c.block_size = 0), ConfigError::Zero("block_size"));
    assert_eq!(broken(|c| c.max_model_len = Some(0)), ConfigError::Zero("max_model_len"));
    assert_eq!(broken(|c| c.speedup = 0.0), ConfigError::Speedup(0.0));
    assert!(matches!(broken(|c| c.speedup = f64::NAN), ConfigError::Speedup(_)));
    assert!(matches!(broken(|c| c.pool_blocks = u32::MAX), ConfigError::PoolTooLarge { .. }));
}

#[test]
fn speedup_divides_pass_times() {
    let mut set_up = config(10);
    set_up.speedup = 4.0;
    let mut engine = EngineModel::new(set_up).expect("usable");
    engine.submit(request(1, tokens(0, 4), 1)).expect("accepted");
    assert_eq!(pass(&mut engine).ends_at, Time(2_500_000));
}

/// Two sessions of two blocks each in a pool of four, the older one first in the order of eviction: the newer one is
/// demoted, and the next request takes its room.
#[test]
fn what_is_demoted_goes_before_what_is_older() {
    for demoted in [false, true] {
        let mut engine = engine(4);
        for (id, first) in [(1, 0), (2, 100)] {
            engine.submit(request(id, tokens(first, 8), 1)).expect("accepted");
            drain(&mut engine);
        }
        let (older, newer) = (request(3, tokens(0, 9), 1), request(4, tokens(100, 9), 1));
        if demoted {
            assert_eq!(engine.demote(&request(2, tokens(100, 8), 1)), 2);
        }
        engine.submit(request(5, tokens(200, 8), 1)).expect("accepted");
        drain(&mut engine);
        let left = (engine.cached_prefix(&older), engine.cached_prefix(&newer));
        assert_eq!(left, if demoted { (8, 0) } else { (0, 8) });
    }
}
