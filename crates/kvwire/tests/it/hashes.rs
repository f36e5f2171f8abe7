//! Hashes against vectors that CPython 3.11 (pickle, hashlib), cbor2 and the xxhash package computed, and
//! against the ids that real engines published.

use proptest::prelude::*;
use tandem_kvwire::decode;
use tandem_kvwire::hash::block::{self, Media, Namespace, Parent, Shape};
use tandem_kvwire::hash::sglang::{self, PageTokens};
use tandem_kvwire::hash::vllm::{DEFAULT_SEED, VllmAlgorithm, VllmDigest, VllmHasher, VllmKey, VllmKeyForm};
use tandem_types::{BlockHash, BlockStored, ExtraKey, KvEvent};

use crate::captured::{SGLANG, VLLM, VLLM_MOONCAKE, captured};

const ALGORITHMS: [&str; 4] = ["sha256", "sha256_cbor", "xxhash", "xxhash_cbor"];

fn hasher(algorithm: &str, seed: &str, form: VllmKeyForm) -> VllmHasher {
    VllmHasher::seeded(VllmAlgorithm::parse(algorithm).expect("known"), seed, form)
}

fn tokens(range: std::ops::RangeInclusive<u32>) -> Vec<u32> {
    range.collect()
}

fn text(digest: VllmDigest) -> String {
    hex::encode(digest.bytes())
}

#[test]
fn vllm_roots_and_first_blocks() {
    // Algorithm, seed, root, digest of tokens 1 to 16, id of tokens 17 to 32 behind them.
    let rows = [
        (
            "sha256",
            DEFAULT_SEED,
            "066b1e8987e027138e98701c46128929378935f9b6cd1549105ae6b4f0d71198",
            "7b255da405e1d722823892e4fef187b4d8ac78215d7f0dd2137bb037547f4caf",
            Some(1_643_945_449_041_937_783),
        ),
        (
            "sha256_cbor",
            DEFAULT_SEED,
            "9bd96a485ad84efdafb72ee48a1d7a69bcead0f8f0433173941b276b9581eef0",
            "cd7c51bc5a8fc8643f383a2b9e01522fba7473c669e9270c7b0bf7bf7fd01682",
            Some(807_986_237_951_177_663),
        ),
        (
            "sha256_cbor",
            "0",
            "4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e",
            "202da172482d928bbc42ab25b0151e2b895f13f41002e27b2ceabcfae6d332ea",
            None,
        ),
        ("xxhash_cbor", "0", "1ebe36576dcb573f26b99533a20aaeca", "c2d7a75070fc6d6b0c3fb0af456c1009", None),
        ("xxhash", "0", "6fb31cc38bba6066183f7f2104b9c051", "6ba7d7fc1608e5f0a4612b1b0c87458f", None),
        (
            "sha256",
            "0",
            "1973e23848344dc43a988a9b478663803cfffe1243480253f9a3cf004b14aa7c",
            "bea72b7d33de03c1aa715efbb492d0e0d3801f00c1f985756896072ae8b31325",
            None,
        ),
    ];
    for (algorithm, seed, root, first, second) in rows {
        let hasher = hasher(algorithm, seed, VllmKeyForm::Tagged);
        assert_eq!(text(hasher.root()), root, "{algorithm}");
        let chain = hasher.prompt(&tokens(1..=40), 16, |_| &[]);
        assert_eq!(chain.len(), 2);
        assert_eq!(text(chain[0]), first, "{algorithm}");
        if let Some(second) = second {
            assert_eq!(chain[1].id(), second, "{algorithm}");
        }
    }
    let id = hasher("sha256", DEFAULT_SEED, VllmKeyForm::Tagged).prompt(&tokens(1..=16), 16, |_| &[])[0].id();
    assert_eq!(id, 1_403_909_460_543_360_175);
    assert_eq!(VllmAlgorithm::parse("md5"), None);
}

/// I-VLH-2.
#[test]
fn random_seeds_have_no_hasher() {
    let known = ALGORITHMS.map(|name| {
        VllmHasher::reproducible(VllmAlgorithm::parse(name).expect("known"), VllmKeyForm::Tagged).is_some()
    });
    assert_eq!(known, [true, true, false, false]);
}

/// A first block's digest begins as expected, algorithm by algorithm.
fn check(form: VllmKeyForm, tokens: &[u32], keys: &[VllmKey<'_>], lookahead: &[u32], expected: [&str; 4]) {
    for (algorithm, expected) in ALGORITHMS.iter().zip(expected) {
        let hasher = hasher(algorithm, DEFAULT_SEED, form);
        let got = text(hasher.block(&hasher.root(), tokens, keys, lookahead));
        assert!(got.starts_with(expected), "{algorithm}: {got}");
    }
}

/// I-VLH-1: integers of all widths, short tuples, and a pickle of more than one frame.
#[test]
fn vllm_serialises_tokens_as_python_does() {
    let plain = |tokens: &[u32], expected| check(VllmKeyForm::Tagged, tokens, &[], &[], expected);
    let wide =
        [0, 23, 24, 255, 256, 65535, 65536, (1 << 31) - 1, 1 << 31, u32::MAX, 100, 1000, 100_000, 5, 6, 7];
    plain(&wide, ["9c4144063c6844ec", "509825771dcec3ce", "82546819cb1a4410", "77c5fc860a8339a2"]);
    plain(&[1], ["67330f0b596ddd4c", "810fe9c3fb811ed5", "3c40c1064c6cb552", "054cde75cd45cb37"]);
    plain(&[1, 2], ["786f9bbddcb5139e", "d448b117d4cbfc4c", "a9789b1d287b3b6e", "145abc59ff40323f"]);
    plain(&[1, 2, 3], ["d6a0584b5995a886", "e1af50ac0c00965b", "4af090c81c403dcc", "c61a5505abfa437f"]);
    let long: Vec<u32> = (0..30_000_u32).map(|i| i * 7919 % 151_000).collect();
    plain(&long, ["3303ef414a0d334b", "ca90649b99b6ebf1", "70fcc84c39d28a4e", "06d776a16a00b229"]);
}

/// I-VLH-1: every kind of extra key in every form.
#[test]
fn vllm_serialises_keys_as_python_does() {
    use VllmKeyForm::{Ids, Tagged, Untagged};
    let name = "x".repeat(300);
    let embeds: Vec<u8> = (0..32).collect();
    let media = |id, offset| VllmKey::Media { id, offset };
    let all = [
        VllmKey::Lora { name: "adapter", path: "/lora" },
        media("img-ééé", -3),
        media(&name, 7),
        VllmKey::Salt("tenant-a"),
        VllmKey::PromptEmbeds(&embeds),
    ];
    let offsets = [media("img-ééé", -1), media(&name, -256), media("c1", -40_000), media("d2", 300)];
    let tokens = tokens(1..=16);
    let first = |form, keys: &[VllmKey<'_>], expected| check(form, &tokens, keys, &[], expected);
    first(Tagged, &all, ["b66ef531efddf58a", "670a0d30cded71cd", "2b5ed2b5bba7ed66", "336a51b3785670fe"]);
    first(Untagged, &all, ["15d181c147653b41", "b619957f529e0860", "b48018c443b9d623", "5c75b252f910c053"]);
    first(Ids, &all[1..3], ["cba30356890683ed", "8e6b0170aeac8287", "ef3675913c862349", "66c61a3b9230be90"]);
    first(
        Untagged,
        &offsets,
        ["55b7082c2fdb9723", "201409af59d5c4d3", "b8c5ddb655acca9c", "55a039b7c92fb15a"],
    );
    let salt = &all[3..4];
    first(Tagged, salt, ["67b47fff1fdd4b5d", "d4fdd9f3dab139ea", "18b299ea4922feef", "f8feb6d82958444e"]);
    first(Untagged, salt, ["a53ac8bde370bb4c", "84ab0ef3dc094fc3", "c1ab61e44f8bc3dd", "3c90715a6a978336"]);
}

/// I-VLH-1: tokens behind the block, with and without keys.
#[test]
fn vllm_serialises_lookahead_as_python_does() {
    let tokens = tokens(1..=16);
    let salt = [VllmKey::Salt("tenant-a")];
    let form = VllmKeyForm::Untagged;
    let salted = ["381eddef7e5bb46b", "7eb313e91f27cdd2", "71c5167a9000f5b1", "1a32355f00105c1f"];
    check(form, &tokens, &salt, &[17], salted);
    let plain = ["25b7f9d5288c2e44", "a3dac66d6eb62c5c", "cd2cf0e704184774", "631a550c50ad7cc9"];
    check(form, &tokens, &[], &[17, 18], plain);
}

fn stores(jsonl: &str) -> Vec<BlockStored> {
    captured(jsonl)
        .iter()
        .flat_map(|c| decode(&c.frames[2]).expect("a batch").batch.events)
        .filter_map(|event| match event {
            KvEvent::Stored(stored) => Some(stored),
            _ => None,
        })
        .collect()
}

/// The ids that vLLM 0.32 published, from the tokens that it published. Returns how many were computed.
fn check_vllm(jsonl: &str) -> usize {
    let hasher = hasher("sha256", DEFAULT_SEED, VllmKeyForm::Tagged);
    let mut known = std::collections::BTreeMap::new();
    let mut computed = 0;
    for stored in stores(jsonl).iter().filter(|stored| stored.describes()) {
        let mut parent = match stored.parent {
            None => hasher.root(),
            Some(parent) => match known.get(&parent) {
                Some(digest) => *digest,
                None => continue,
            },
        };
        let salt: Vec<VllmKey<'_>> = stored.salt.as_deref().map(VllmKey::Salt).into_iter().collect();
        let blocks = stored.tokens.chunks(stored.block_size as usize).zip(&stored.block_hashes).enumerate();
        for (at, (tokens, id)) in blocks {
            let keys = if at == 0 { salt.as_slice() } else { &[] };
            parent = hasher.block(&parent, tokens, keys, &[]);
            assert_eq!(parent.id(), *id);
            known.insert(*id, parent);
            computed += 1;
        }
    }
    computed
}

#[test]
fn real_vllm_ids() {
    assert!(stores(VLLM).iter().any(|stored| stored.salt.is_some()));
    assert_eq!(check_vllm(VLLM), 204);
    assert_eq!(check_vllm(VLLM_MOONCAKE), 116);
}

/// I-SGH-1.
#[test]
fn real_sglang_ids() {
    let mut known = std::collections::BTreeMap::new();
    let mut computed = 0;
    for stored in stores(SGLANG) {
        let mut prior: Option<[u8; 32]> = stored.parent.and_then(|parent| known.get(&parent).copied());
        if stored.parent.is_some() && prior.is_none() {
            continue;
        }
        for (tokens, id) in stored.tokens.chunks(stored.block_size as usize).zip(&stored.block_hashes) {
            let wide: Vec<u64> = tokens.iter().map(|&token| token.into()).collect();
            let digest = sglang::page(prior.as_ref(), PageTokens::Ids(&wide));
            assert_eq!(sglang::event_id(&digest), *id);
            known.insert(*id, digest);
            prior = Some(digest);
            computed += 1;
        }
    }
    assert_eq!(computed, 93);
}

/// I-SGH-1, I-SGH-2.
#[test]
fn sglang_pages_and_seeds() {
    let pages = sglang::prompt(None, &tokens(1..=10), 4, false);
    assert_eq!(
        pages.iter().map(hex::encode).collect::<Vec<_>>(),
        [
            "cf97adeedb59e05bfd73a2b4c2a8885708c4f4f70c84c64b27120e72ab733b72",
            "4ebfa8a1f3c341517621838c6e1b9aa350307e3f00b3cbd1a07ef740f54396d6",
        ]
    );
    let ids: Vec<i64> = pages.iter().map(|page| sglang::event_id(page).cast_signed()).collect();
    assert_eq!(ids, [-3_488_128_144_981_237_669, 5_674_439_469_042_975_057]);
    let page = sglang::prompt(None, &tokens(1..=64), 64, false)[0];
    assert_eq!(sglang::event_id(&page), 905_019_192_701_563_378);
    let of_four = |seed| hex::encode(sglang::prompt(seed, &tokens(1..=4), 4, false)[0]);
    assert_eq!(
        of_four(sglang::storage_seed(None, Some("tenant-a"))),
        "2fd053693d7ef6aeb2f9315a5ca100dfe4b99434c563241ee3243a9163846222"
    );
    assert_eq!(
        of_four(sglang::event_seed(Some("tenant-a"))),
        "339927f491605c4b08e0228f28c8f0d39419a45902ba4230d24069bdb603cc64"
    );
    assert_eq!((sglang::storage_seed(None, None), sglang::event_seed(None)), (None, None));
    assert_ne!(
        sglang::storage_seed(Some("a"), Some("bc")),
        sglang::storage_seed(Some("ab"), Some("c")),
        "parts are told apart"
    );
    assert_eq!(sglang::dynamo_event_id(7, None, None), 7);
}

/// I-SGH-1: vectors of hashlib over the bytes that SGLang's source feeds it.
#[test]
fn sglang_pairs_and_wide_tokens() {
    let pairs = [(1, 2), (2, 3), (3, 4), (4, 5)];
    let page = sglang::page(None, PageTokens::Pairs(&pairs));
    assert_eq!(sglang::prompt(None, &tokens(1..=9), 4, true).first(), Some(&page));
    assert_eq!(
        sglang::prompt(None, &tokens(1..=8), 4, true).len(),
        1,
        "the second page lacks a token behind it"
    );
    assert_eq!(hex::encode(page), BIGRAM_PAGE);
    let wide = sglang::page(None, PageTokens::Ids(&[1, 1 << 40, 3, 4]));
    assert_eq!(hex::encode(wide), WIDE_PAGE);
    assert_eq!(sglang::dynamo_event_id(7, Some("k"), None), DYNAMO_ID);
}

const BIGRAM_PAGE: &str = "f721fe42aac11dcbfd1a17f24cc5765a0d5b6bc264d1c0b6581d775a7344c11f";
const WIDE_PAGE: &str = "4775a3d17f37dba78a63049c5df850afba007a7a81f0611c1cafde30a3b0ea5e";
const DYNAMO_ID: u64 = 2_518_649_652_068_458_289;

const PLAIN: Shape = Shape { block_size: 4, lookahead: 0 };

// I-BID-1, I-BID-2.
/// I-BID-1 to 3, against the xxhash package.
#[test]
fn own_hashes_are_those_of_request_traces() {
    let plain = block::prompt(Namespace::default(), PLAIN, &tokens(1..=9), &[]);
    assert_eq!(plain, OWN_PLAIN.map(BlockHash));
    let named = block::prompt(Namespace::new(Some("ad"), Some("tenant-a")), PLAIN, &tokens(1..=4), &[]);
    assert_eq!(named, [BlockHash(OWN_NAMED)]);
    let media = [Media { id: "img".into(), start: 2, len: 4 }];
    let pictured = block::prompt(Namespace::default(), PLAIN, &tokens(1..=12), &media);
    assert_eq!(pictured[..2], OWN_MEDIA.map(BlockHash));
    let bigram = Shape { lookahead: 1, ..PLAIN };
    assert_eq!(block::prompt(Namespace::default(), bigram, &tokens(1..=9), &[]), OWN_BIGRAM.map(BlockHash));
    assert_eq!(Namespace::new(Some(""), Some("")), Namespace::default());
}

const OWN_PLAIN: [u64; 2] = [14_643_705_804_678_351_452, 4_945_711_292_740_353_085];
const OWN_BIGRAM: [u64; 2] = [10_075_814_864_502_999_031, 11_707_538_852_605_725_109];
const OWN_NAMED: u64 = 3_893_218_436_252_339_258;
const OWN_MEDIA: [u64; 2] = [15_265_006_398_190_666_250, 13_883_772_451_721_616_230];

fn stored(tokens: &[u32]) -> BlockStored {
    BlockStored {
        block_hashes: vec![0; tokens.len() / 4],
        tokens: tokens.to_vec(),
        block_size: 4,
        ..BlockStored::default()
    }
}

// I-BID-3.
/// I-BID-4: vLLM's salt in the first block, SGLang's with each store, media as keys, pairs.
#[test]
fn stores_hash_as_prompts_do() {
    let salted = Namespace::new(None, Some("s"));
    let prompt = block::prompt(salted, PLAIN, &tokens(1..=12), &[]);
    let with_salt = BlockStored { salt: Some("s".into()), ..stored(&tokens(1..=8)) };
    let (namespace, first) = block::stored(Parent::Root, &with_salt);
    assert_eq!((namespace, first.as_slice()), (salted, &prompt[..2]));
    // The second store of vLLM does not repeat the salt.
    let parent = Parent::Block { hash: first[1], namespace };
    assert_eq!(block::stored(parent, &stored(&tokens(9..=12))).1, &prompt[2..]);

    let media = [Media { id: "img".into(), start: 2, len: 4 }];
    let key = |offset| vec![ExtraKey::Media { id: "img".into(), offset }];
    let pictured = BlockStored { extra_keys: vec![key(2), key(-2), vec![]], ..stored(&tokens(1..=12)) };
    let expected = block::prompt(Namespace::default(), PLAIN, &tokens(1..=12), &media);
    assert_eq!(block::stored(Parent::Root, &pictured).1, expected);
    assert_ne!(expected, block::prompt(Namespace::default(), PLAIN, &tokens(1..=12), &[]));

    let bigram = Shape { block_size: 4, lookahead: 1 };
    let paired = BlockStored { lookahead: vec![vec![5], vec![9]], ..stored(&tokens(1..=8)) };
    assert_eq!(
        block::stored(Parent::Root, &paired).1,
        block::prompt(Namespace::default(), bigram, &tokens(1..=9), &[])
    );
    assert_eq!(block::prompt(Namespace::default(), bigram, &tokens(1..=8), &[]).len(), 1);
    let placeholder = BlockStored { block_hashes: vec![1], ..BlockStored::default() };
    assert_eq!(block::stored(Parent::Root, &placeholder).1, []);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Prompts share as many hashes as leading blocks, and none behind.
    #[test]
    fn equal_hashes_are_equal_prefixes(
        one in prop::collection::vec(0_u32..3, 0..40),
        two in prop::collection::vec(0_u32..3, 0..40),
        salts in any::<(bool, bool)>(),
    ) {
        let of = |tokens: &[u32], salt: bool| {
            block::prompt(Namespace::new(None, salt.then_some("s")), PLAIN, tokens, &[])
        };
        let (first, second) = (of(&one, salts.0), of(&two, salts.1));
        let shared = one.chunks_exact(4).zip(two.chunks_exact(4)).take_while(|(a, b)| a == b).count();
        let expected = if salts.0 == salts.1 { shared } else { 0 };
        let equal: Vec<bool> = first.iter().zip(&second).map(|(a, b)| a == b).collect();
        prop_assert_eq!(equal.iter().take_while(|equal| **equal).count(), expected);
        prop_assert_eq!(equal.iter().filter(|equal| **equal).count(), expected);
    }
}
