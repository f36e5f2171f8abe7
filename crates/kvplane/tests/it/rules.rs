//! Rules of what counts, one by one.

use tandem_kvplane::{Media, Plane, PlaneConfig, Prompt, WorkerSpec};
use tandem_types::{EngineKind, ExtraKey, GroupKind, KvEvent, MatchSource, PrefixMatch, Tier};

use crate::told::*;

/// I-KVP-1.
#[test]
fn what_a_connector_wrote_to_a_store_is_no_tier_of_the_worker() {
    let mut plane = plane(1);
    let reader = plane.reader();
    let prompt = tokens(1, 17);
    store(&mut plane, 0, stored(&[1, 2], None, &prompt[..8]), at(0));
    let mut echo = stored(&[1, 2, 3], None, &prompt[..12]);
    (echo.tier, echo.echo) = (Tier::Host, true);
    store(&mut plane, 0, echo, at(0));
    assert_eq!(depths(&find(&reader, &prompt, at(0)), 0), Some([2, 2, 2]));
    // The same from an offload tier of the worker's own does count.
    let mut own = stored(&[3], Some(2), &prompt[8..12]);
    own.tier = Tier::Host;
    store(&mut plane, 0, own, at(0));
    assert_eq!(depths(&find(&reader, &prompt, at(0)), 0), Some([2, 3, 3]));
    let counts = plane.stats().workers[0].events;
    assert_eq!((counts.echoes, counts.stored), (3, 3));
}

/// I-KVP-2.
#[test]
fn a_store_without_content_moves_what_is_known_and_nothing_else() {
    let mut plane = plane(1);
    let reader = plane.reader();
    store(&mut plane, 0, stored(&[1, 2], None, &tokens(1, 8)), at(0));
    let mut placeholder = stored(&[1, 9], None, &[]);
    (placeholder.block_size, placeholder.tier) = (0, Tier::Disk);
    store(&mut plane, 0, placeholder, at(0));
    remove(&mut plane, 0, removed(&[1], Tier::Device), at(0));
    // The first block lies on disk, the second in device memory.
    assert_eq!(depths(&held(&reader, &tokens(1, 8)), 0), Some([0, 0, 2]));
    assert_eq!(plane.stats().workers[0].events.unknown, 1);
}

/// I-KVP-3.
#[test]
fn only_groups_of_full_attention_bound_a_prefix_and_all_of_them_do() {
    let mut plane = plane(1);
    let reader = plane.reader();
    let of = |group, kind, ids: &[u64], parent, tokens: &[u32]| {
        let mut event = stored(ids, parent, tokens);
        (event.group, event.kind) = (group, kind);
        event
    };
    let prompt = tokens(1, 12);
    store(&mut plane, 0, of(0, GroupKind::Window, &[1, 2, 3], None, &prompt), at(0));
    assert_eq!(depths(&held(&reader, &prompt), 0), Some([0, 0, 0]), "a window alone is no prefix");
    store(&mut plane, 0, of(1, GroupKind::Full, &[1, 2, 3], None, &prompt), at(0));
    let mut gone = removed(&[1, 2], Tier::Device);
    remove(&mut plane, 0, gone.clone(), at(0));
    assert_eq!(depths(&held(&reader, &prompt), 0), Some([3, 3, 3]), "the window's own removals");
    store(&mut plane, 0, of(2, GroupKind::Full, &[1, 2], None, &prompt[..8]), at(0));
    assert_eq!(depths(&held(&reader, &prompt), 0), Some([2, 2, 2]), "the shorter of two");
    gone.group = 2;
    remove(&mut plane, 0, gone, at(0));
    assert_eq!(depths(&held(&reader, &prompt), 0), Some([0, 0, 0]), "none where one has none");
}

/// Blocks of 8 tokens in one group and of 12 in the other: prefixes end where both end.
#[test]
fn groups_of_two_block_sizes_meet_at_common_multiples() {
    let mut plane = plane(1);
    let reader = plane.reader();
    let prompt = tokens(1, 48);
    for (group, size) in [(0, 8u32), (1, 12)] {
        let mut event = stored(&(1..=u64::from(48 / size)).collect::<Vec<_>>(), None, &prompt);
        (event.group, event.block_size) = (group, size);
        store(&mut plane, 0, event, at(0));
    }
    let mut gone = removed(&[4], Tier::Device);
    gone.group = 1;
    remove(&mut plane, 0, gone, at(0));
    // 48 tokens in one, 36 in the other: 24 in both. Blocks of the match have 4 tokens.
    let found = held(&reader, &prompt);
    assert_eq!((found.block_size, depths(&found, 0)), (4, Some([6, 6, 6])));
}

/// I-KVP-4.
#[test]
fn a_salt_told_at_the_start_holds_for_what_follows() {
    let mut plane = plane(1);
    let reader = plane.reader();
    let prompt = tokens(1, 13);
    let mut root = stored(&[1], None, &prompt[..4]);
    root.salt = Some("a".into());
    store(&mut plane, 0, root, at(0));
    store(&mut plane, 0, stored(&[2], Some(1), &prompt[4..8]), at(0));
    store(&mut plane, 0, stored(&[3], Some(2), &prompt[8..12]), at(0));
    let of = |lora, salt| depths(&reader.find(&reader.chain(&prompt, lora, salt, None), at(0)), 0);
    assert_eq!(of(None, Some("a")), Some([3, 3, 3]));
    for (lora, salt) in [(None, None), (None, Some("b")), (Some("a"), None), (Some("a"), Some("a"))] {
        assert_eq!(of(lora, salt), Some([0, 0, 0]), "{lora:?} {salt:?}");
    }
}

/// A forgotten salt costs a match, and never gives one to somebody else.
#[test]
fn a_forgotten_salt_makes_blocks_unknown() {
    let mut plane = Plane::new(PlaneConfig { salted_max: 2, ..config() });
    plane.worker(worker(0), vllm(), at(0));
    plane.live(worker(0), at(0));
    let reader = plane.reader();
    let prompt = tokens(1, 9);
    for (id, salt) in [(1, "a"), (11, "b"), (21, "c")] {
        let mut root = stored(&[id], None, &prompt[..4]);
        root.salt = Some(salt.into());
        store(&mut plane, 0, root, at(0));
    }
    store(&mut plane, 0, stored(&[2], Some(1), &prompt[4..8]), at(0));
    for salt in [None, Some("a"), Some("b"), Some("c")] {
        let found = reader.find(&reader.chain(&prompt, None, salt, None), at(0));
        let expected = u32::from(salt.is_some());
        assert_eq!(depths(&found, 0), Some([expected; 3]), "{salt:?}");
    }
    assert!(plane.stats().salted_forgotten > 0);
}

/// I-KVP-5.
#[test]
fn the_last_token_of_a_prompt_is_computed_whatever_is_cached() {
    let mut plane = plane(1);
    let reader = plane.reader();
    store(&mut plane, 0, stored(&[1, 2, 3], None, &tokens(1, 12)), at(0));
    for (length, reused, whole) in [(12, 2, 3), (13, 3, 3), (11, 2, 2), (4, 0, 1), (3, 0, 0)] {
        let found = find(&reader, &tokens(1, length), at(0));
        assert_eq!((depths(&found, 0), found.blocks), (Some([reused; 3]), whole), "{length} tokens");
    }
    assert_eq!(depths(&held(&reader, &tokens(1, 12)), 0), Some([3, 3, 3]));
}

#[test]
fn pairs_of_a_drafter_match_prompts_cut_into_pairs() {
    let mut plane = Plane::new(config());
    plane.worker(worker(0), WorkerSpec { kind: EngineKind::Sglang, ..vllm() }, at(0));
    plane.live(worker(0), at(0));
    let reader = plane.reader();
    let mut event = stored(&[1, 2], None, &tokens(1, 8));
    event.lookahead = vec![vec![5], vec![9]];
    store(&mut plane, 0, event, at(0));
    // Nine positions have eight pairs; what SGLang looks up are those before the last token.
    assert_eq!(depths(&find(&reader, &tokens(1, 10), at(0)), 0), Some([2, 2, 2]));
    assert_eq!(depths(&find(&reader, &tokens(1, 9), at(0)), 0), Some([1, 1, 1]));
    let other: Vec<u32> = tokens(1, 8).into_iter().chain([99, 99]).collect();
    assert_eq!(depths(&find(&reader, &other, at(0)), 0), Some([1, 1, 1]), "the last pair is another one");
}

#[test]
fn pictures_tell_blocks_of_equal_tokens_apart() {
    let mut plane = plane(1);
    let reader = plane.reader();
    let mut event = stored(&[1, 2], None, &[7; 8]);
    let media = |offset| ExtraKey::Media { id: "cat".into(), offset };
    event.extra_keys = vec![vec![media(2)], vec![media(-2)]];
    store(&mut plane, 0, event, at(0));
    let of = |id: &str| {
        let media = [Media { id: id.into(), start: 2, len: 4 }];
        let prompt = Prompt { tokens: &[7; 9], media: &media, ..Prompt::default() };
        depths(&reader.find(&reader.chain_of(&prompt, None), at(0)), 0)
    };
    assert_eq!((of("cat"), of("dog")), (Some([2, 2, 2]), Some([0, 0, 0])));
}

/// I-KVP-6.
#[test]
fn workers_of_several_block_sizes_are_told_in_one_unit() {
    let mut plane = Plane::new(config());
    let prompt = tokens(1, 49);
    for (engine, size) in [(0, 16u32), (1, 24), (2, 8)] {
        plane.worker(worker(engine), WorkerSpec { block_size: Some(size), ..vllm() }, at(0));
        plane.live(worker(engine), at(0));
        let mut event = stored(&(1..=u64::from(48 / size)).collect::<Vec<_>>(), None, &prompt[..48]);
        event.block_size = size;
        store(&mut plane, engine, event, at(0));
    }
    remove(&mut plane, 0, removed(&[3], Tier::Device), at(0));
    let found = find(&plane.reader(), &prompt, at(0));
    assert_eq!((found.block_size, found.blocks), (8, 6));
    assert_eq!([0, 1, 2].map(|engine| depths(&found, engine)), [Some([4; 3]), Some([6; 3]), Some([6; 3])]);
    // A part of a block, and then blocks of another size: the events are right, whatever was told before.
    let mut part = stored(&[9], None, &prompt[..4]);
    part.block_size = 4;
    store(&mut plane, 0, part.clone(), at(0));
    let found = find(&plane.reader(), &prompt, at(0));
    assert_eq!((found.block_size, depths(&found, 0)), (8, Some([4; 3])));
    (part.block_hashes, part.tokens) = (vec![9, 10], prompt[..8].to_vec());
    store(&mut plane, 0, part, at(0));
    let found = find(&plane.reader(), &prompt, at(0));
    assert_eq!((found.block_size, depths(&found, 0)), (4, Some([2; 3])));
    let counts = plane.stats().workers[0].events;
    assert_eq!((counts.partial, counts.resized), (1, 1));
}

#[test]
fn deep_blocks_of_a_prompt_that_began_before_are_guessed_from_what_was_sent() {
    let mut plane = plane(1);
    let reader = plane.reader();
    let prompt = tokens(1, 13);
    reader.dispatched(worker(0), &reader.chain(&prompt, None, None, None), at(0)).expect("noted");
    plane.tick(at(20));
    assert_eq!(depths(&find(&reader, &prompt, at(20)), 0), Some([0, 0, 0]), "events would have told");
    store(&mut plane, 0, stored(&[7], Some(6), &tokens(50, 53)), at(20));
    let found = find(&reader, &prompt, at(20));
    assert_eq!(depths(&found, 0), Some([3, 3, 3]), "there are blocks of which no event told");
    assert_eq!(found.of(worker(0)).map(|held| held.source), Some(MatchSource::Approximate));
    assert!(plane.stats().workers[0].hollow);
    // The engine says that all is gone: then nothing is guessed.
    plane.batch(worker(0), &batch(vec![KvEvent::Cleared]), at(20));
    assert_eq!(depths(&find(&reader, &prompt, at(20)), 0), Some([0, 0, 0]));
}

/// vLLM's offloaded blocks outlive a reset of its device cache; SGLang's flush drops all.
#[test]
fn a_clear_means_what_the_engine_means_by_it() {
    for (kind, left) in [(EngineKind::Vllm, 1), (EngineKind::Sglang, 0)] {
        let mut plane = Plane::new(config());
        plane.worker(worker(0), WorkerSpec { kind, ..vllm() }, at(0));
        plane.live(worker(0), at(0));
        for tier in [Tier::Device, Tier::Host] {
            store(
                &mut plane,
                0,
                tandem_types::BlockStored { tier, ..stored(&[1], None, &tokens(1, 4)) },
                at(0),
            );
        }
        plane.batch(worker(0), &batch(vec![KvEvent::Cleared]), at(0));
        assert_eq!(depths(&held(&plane.reader(), &tokens(1, 4)), 0), Some([0, left, left]), "{kind:?}");
    }
}

/// I-KVP-8.
#[test]
fn bounds_hold_and_are_counted() {
    let mut plane = Plane::new(PlaneConfig { workers_max: 1, predictions_max: 1, ..config() });
    assert!(plane.worker(worker(0), vllm(), at(0)) && !plane.worker(worker(1), vllm(), at(0)));
    store(&mut plane, 1, stored(&[1], None, &tokens(1, 4)), at(0));
    plane.live(worker(0), at(0));
    let reader = plane.reader();
    for start in [0, 100] {
        let chain = reader.chain(&tokens(start, start + 8), None, None, None);
        assert!(reader.dispatched(worker(0), &chain, at(0)).is_some());
    }
    for group in 0..40 {
        let mut event = stored(&[1], None, &tokens(1, 4));
        (event.group, event.block_size) = (group, 4);
        store(&mut plane, 0, event, at(0));
    }
    let stats = plane.stats();
    assert_eq!((stats.workers.len(), stats.workers_refused), (1, 2));
    assert_eq!((stats.pending, stats.pending_refused), (1, 1));
    assert_eq!((stats.workers[0].groups, stats.workers[0].events.refused), (16, 24));
    let mut many = Plane::new(config());
    for size in 1..40 {
        let mut event = stored(&[1, 2], None, &tokens(1, 2 * size));
        event.block_size = size;
        store(&mut many, size, event, at(0));
    }
    assert!(many.reader().chain(&tokens(1, 100), None, None, None).block_sizes().count() <= 2 * 8);
}

#[test]
fn a_worker_that_left_is_nowhere() {
    let mut plane = plane(2);
    let reader = plane.reader();
    let prompt = tokens(1, 9);
    for engine in [0, 1] {
        store(&mut plane, engine, stored(&[1, 2], None, &prompt[..8]), at(0));
        reader.dispatched(worker(engine), &reader.chain(&prompt, None, None, None), at(0));
    }
    plane.worker_gone(worker(0), at(1));
    let found = find(&reader, &prompt, at(1));
    assert_eq!(found.workers.iter().map(|held| held.worker).collect::<Vec<_>>(), [worker(1)]);
    // What was under way of its events does not bring it back; its owner can.
    plane.cleared(worker(0), at(2));
    store(&mut plane, 0, stored(&[1, 2], None, &prompt[..8]), at(2));
    let found = find(&reader, &prompt, at(2));
    assert_eq!((found.blind.len(), found.workers.len()), (0, 1));
    plane.worker(worker(0), vllm(), at(3));
    assert!(find(&reader, &prompt, at(3)).blind.iter().eq([worker(0)]));
    assert_eq!(find(&plane.reader(), &[], at(1)).blocks, 0);
    assert!(reader.find(&reader.chain_of_blocks(16, &[]), at(1)).workers.is_empty());
    assert!(PrefixMatch::unknown().is_unknown());
}
