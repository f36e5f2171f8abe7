//! Block hashes against the reference system's own, and against an independent XXH3.

use std::num::NonZeroU32;

use proptest::prelude::*;
use serde::Deserialize;
use tandem_trace::hash::{ReplayHasher, block_hashes, replay, sequence_hashes};

#[derive(Deserialize)]
struct Blocks {
    block_size: NonZeroU32,
    prompt: Vec<u32>,
    input_sequence_hashes: Vec<u64>,
    generated: Vec<u32>,
    completed_block_hash: u64,
}

fn size(tokens: u32) -> NonZeroU32 {
    NonZeroU32::new(tokens).expect("not zero")
}

/// I-HSH-1, I-HSH-2, I-HSH-3.
#[test]
fn a_prompt_of_the_reference_system_has_its_hashes() {
    let blocks: Blocks =
        serde_json::from_str(include_str!("../fixtures/dynamo-1.6.1-blocks.json")).expect("fixture");
    assert_eq!(blocks.prompt.len(), 450, "28 whole blocks and one of two tokens");
    let got = replay(&blocks.prompt, &blocks.generated, blocks.block_size);
    assert_eq!(got.input_sequence_hashes, blocks.input_sequence_hashes);
    assert_eq!((got.trace_block_size, got.input_length), (16, 450));
    // The block that generation filled up, as the engine itself announced it.
    assert_eq!(got.output_sequence_hashes, [blocks.completed_block_hash]);
}

#[test]
fn small_vectors_computed_elsewhere() {
    // python-xxhash: xxh3_64_intdigest over struct.pack('<..I'), seed 1337.
    let tokens = [1, 2, 3, 4, 5, 6, 7];
    assert_eq!(
        block_hashes(&tokens, size(3)),
        [15_024_015_205_894_559_313, 14_842_227_984_648_868_509, 11_011_797_887_259_449_313]
    );
    assert_eq!(
        sequence_hashes(&tokens, size(3)),
        [15_024_015_205_894_559_313, 8_794_864_240_221_036_886, 5_891_724_244_042_119_653]
    );
    assert_eq!(sequence_hashes(&[0], size(16)), [16_451_421_758_532_862_321]);
    assert_eq!(
        sequence_hashes(&[u32::MAX; 5], size(2)),
        [12_069_691_727_505_790_082, 2_452_531_742_904_949_479, 11_702_072_201_544_471_624]
    );
    assert_eq!(sequence_hashes(&[], size(2)), [0u64; 0]);
}

#[test]
fn a_prompt_that_ends_on_a_block_boundary_starts_the_output_with_a_fresh_block() {
    let got = replay(&[1, 2, 3, 4], &[5], size(2));
    let whole = sequence_hashes(&[1, 2, 3, 4, 5], size(2));
    assert_eq!(got.input_sequence_hashes, whole[..2]);
    assert_eq!(got.output_sequence_hashes, whole[2..]);
    assert!(replay(&[1, 2, 3], &[], size(2)).output_sequence_hashes.is_empty());
    // Nothing but output.
    assert_eq!(replay(&[], &[5], size(2)).output_sequence_hashes, sequence_hashes(&[5], size(2)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// I-HSH-4.
    #[test]
    fn whole_prompt_blocks_then_output_are_the_chain_over_both(
        input in prop::collection::vec(any::<u32>(), 0..200),
        output in prop::collection::vec(any::<u32>(), 1..80),
        width in 1u32..40,
        cuts in prop::collection::vec(0usize..80, 0..5),
    ) {
        let mut hasher = ReplayHasher::new(&input, size(width));
        let mut rest = output.as_slice();
        for cut in cuts {
            let (head, tail) = rest.split_at(cut.min(rest.len()));
            hasher.generated(head);
            rest = tail;
        }
        hasher.generated(rest);
        let got = hasher.finish();
        let whole_blocks = input.len() / width as usize;
        prop_assert_eq!(&got.input_sequence_hashes, &sequence_hashes(&input, size(width)));
        let mut chain = got.input_sequence_hashes[..whole_blocks].to_vec();
        chain.extend(&got.output_sequence_hashes);
        let both: Vec<u32> = input.iter().chain(&output).copied().collect();
        prop_assert_eq!(chain, sequence_hashes(&both, size(width)));
    }
}
