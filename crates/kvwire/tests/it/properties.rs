//! Round trips and hostile bytes.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use tandem_kvwire::{Layout, Skipped, decode, encode};
use tandem_types::{BlockRemoved, BlockStored, ExtraKey, GroupKind, KvBatch, KvEvent, Tier};

fn tier() -> impl Strategy<Value = Tier> {
    prop_oneof![Just(Tier::Device), Just(Tier::Host), Just(Tier::Disk), Just(Tier::Shared)]
}

fn kind() -> impl Strategy<Value = GroupKind> {
    prop_oneof![
        Just(GroupKind::Full),
        Just(GroupKind::Window),
        Just(GroupKind::State),
        Just(GroupKind::Other)
    ]
}

/// A store that the layout has fields for.
fn stored(layout: Layout) -> impl Strategy<Value = BlockStored> {
    let vllm = layout == Layout::Vllm;
    (1_u32..40, 1_usize..12)
        .prop_flat_map(move |(block_size, blocks)| {
            let key = prop_oneof![
                ("[a-z0-9@-]{0,40}", any::<i64>())
                    .prop_map(|(id, offset)| ExtraKey::Media { id: id.into(), offset }),
                vec(any::<u8>(), 0..33).prop_map(|bytes| ExtraKey::Bytes(bytes.into())),
            ];
            (
                (
                    Just(block_size),
                    vec(any::<u64>(), blocks),
                    vec(any::<u32>(), blocks * block_size as usize),
                ),
                (option::of(any::<u64>()), tier(), any::<bool>()),
                (option::of("[!-~]{1,300}"), option::of("[!-~]{1,300}"), option::of("[!-~]{1,256}")),
                prop_oneof![Just(Vec::new()), vec(vec(key, 0..3), blocks)],
                prop_oneof![Just(Vec::new()), vec(vec(any::<u32>(), 1..2), blocks)],
                (0_u32..4, option::of(1_u32..1 << 20), option::of("[a-z]{1,9}"), kind()),
            )
        })
        .prop_map(move |(blocks, (parent, tier, echo), (lora, salt, session), keys, lookahead, group)| {
            let (block_size, block_hashes, tokens) = blocks;
            // vLLM says the salt with a prompt's first block only; SGLang has neither groups nor media.
            let salt = salt.filter(|_| !vllm || parent.is_none());
            let mut stored = BlockStored {
                block_hashes,
                parent,
                tokens,
                block_size,
                tier,
                lora: lora.map(Arc::from),
                salt: salt.map(Arc::from),
                lookahead,
                session: session.map(Arc::from),
                ..BlockStored::default()
            };
            if vllm {
                stored.extra_keys = if keys.iter().all(Vec::is_empty) { Vec::new() } else { keys };
                let (group, window, owner, kind) = group;
                (stored.group, stored.window) = (group, window);
                stored.owner = owner.map(Arc::from);
                stored.echo = echo && tier == Tier::Host;
                stored.kind = kind;
            }
            stored
        })
}

fn removed(layout: Layout) -> impl Strategy<Value = BlockRemoved> {
    (vec((any::<u64>(), any::<u32>()), 0..20), any::<bool>(), tier(), 0_u32..4, option::of("[a-z]{1,9}"))
        .prop_map(move |(hashes, counted, tier, group, owner)| {
            let mut removed = BlockRemoved {
                block_hashes: hashes.iter().map(|(hash, _)| *hash).collect(),
                tier,
                ..BlockRemoved::default()
            };
            if layout == Layout::Vllm {
                removed.group = group;
                removed.owner = owner.map(Arc::from);
                if counted {
                    removed.remaining = hashes.iter().map(|(_, copies)| *copies).collect();
                }
            }
            removed
        })
}

fn batch(layout: Layout) -> impl Strategy<Value = KvBatch> {
    let event = prop_oneof![
        4 => stored(layout).prop_map(KvEvent::Stored),
        3 => removed(layout).prop_map(KvEvent::Removed),
        1 => Just(KvEvent::Cleared),
    ];
    (any::<f64>().prop_filter("a time", |t| t.is_finite()), vec(event, 0..20), option::of(any::<u32>()))
        .prop_map(|(timestamp, events, rank)| KvBatch { timestamp, events, rank })
}

fn either() -> impl Strategy<Value = (Layout, KvBatch)> {
    prop_oneof![
        batch(Layout::Vllm).prop_map(|b| (Layout::Vllm, b)),
        batch(Layout::Sglang).prop_map(|b| (Layout::Sglang, b)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// I-KVW-3.
    #[test]
    fn what_is_encoded_decodes_to_the_same((layout, batch) in either()) {
        let decoded = decode(&encode(&batch, layout)).expect("own bytes");
        prop_assert_eq!(decoded.skipped, Skipped::default());
        prop_assert_eq!(decoded.batch, batch);
    }

    #[test]
    fn a_prefix_of_a_batch_is_an_error_and_damage_never_panics(
        (layout, batch) in either(),
        cut in any::<prop::sample::Index>(),
        flips in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = encode(&batch, layout);
        let cut = cut.index(bytes.len());
        prop_assert!(decode(&bytes[..cut]).is_err());
        for (at, byte) in flips {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let _ = decode(&bytes);
    }

    /// I-KVW-1.
    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..512)) {
        let _ = decode(&bytes);
        // The same inside a well-formed batch head, where the event decoder meets them.
        let _ = decode(&[&[0x93, 0x07, 0x9f], bytes.as_slice()].concat());
    }
}
