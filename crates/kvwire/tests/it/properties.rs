//! Round trips and hostile bytes.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use tandem_kvwire::{Layout, Skipped, decode, encode};
use tandem_types::{BlockRemoved, BlockStored, KvBatch, KvEvent, Tier};

fn tier() -> impl Strategy<Value = Tier> {
    prop_oneof![Just(Tier::Device), Just(Tier::Host), Just(Tier::Disk), Just(Tier::Shared)]
}

fn stored(layout: Layout) -> impl Strategy<Value = BlockStored> {
    (1_u32..40, 1_usize..12)
        .prop_flat_map(move |(block_size, blocks)| {
            // SGLang has one salt for the event; vLLM has keys block by block.
            let keys = match layout {
                Layout::Vllm => vec(option::of(vec("[a-z0-9@-]{0,40}", 1..3)), blocks).boxed(),
                Layout::Sglang => "[a-z]{1,40}"
                    .prop_map(move |salt| {
                        let mut keys = vec![None; blocks];
                        keys[0] = Some(vec![salt]);
                        keys
                    })
                    .boxed(),
            };
            (
                (
                    Just(block_size),
                    vec(any::<u64>(), blocks),
                    vec(any::<u32>(), blocks * block_size as usize),
                ),
                option::of(any::<u64>()),
                tier(),
                option::of("[!-~]{1,300}"),
                prop_oneof![Just(Vec::new()), keys],
                option::of("[!-~]{1,300}"),
            )
        })
        .prop_map(|((block_size, block_hashes, tokens), parent, tier, lora, extra_keys, session)| {
            let no_keys = extra_keys.iter().all(Option::is_none);
            BlockStored {
                block_hashes,
                parent,
                tokens,
                block_size,
                tier,
                lora: lora.map(Arc::from),
                extra_keys: if no_keys { Vec::new() } else { extra_keys },
                session: session.map(Arc::from),
            }
        })
}

fn batch(layout: Layout) -> impl Strategy<Value = KvBatch> {
    let event = prop_oneof![
        4 => stored(layout).prop_map(KvEvent::Stored),
        3 => (vec(any::<u64>(), 0..20), tier())
            .prop_map(|(block_hashes, tier)| KvEvent::Removed(BlockRemoved { block_hashes, tier })),
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
