//! Profiles against the published tables of their deployments (operator tables of aisimulate 0.13, ms).

use proptest::prelude::*;
use tandem_engine_model::{EngineModel, Flavor, PassShape, Profile, TimingModel};

const K: u32 = 1024;

fn timing(profile: &str) -> TimingModel {
    Profile::by_name(profile).expect("a known profile").timing()
}

fn prefill(model: &TimingModel, new: u32, past: u32) -> f64 {
    let mut shape = PassShape::default();
    shape.add_prefill(new, past);
    model.pass_ms(&shape)
}

fn decode(model: &TimingModel, batch: u32, context: u32) -> f64 {
    let mut shape = PassShape::default();
    (0..batch).for_each(|_| shape.add_decode(context));
    model.pass_ms(&shape)
}

fn near(what: &str, got: f64, table: f64, tolerance: f64) {
    let error = got / table - 1.0;
    assert!(error.abs() <= tolerance, "{what}: {got:.2} against {table} ({:+.1} %)", error * 100.0);
}

const NEW: [u32; 6] = [256, K, 2 * K, 8 * K, 16 * K, 32 * K];

fn check_prefill(profile: &str, past: u32, table: &[f64], tolerance: f64) {
    let model = timing(profile);
    for (new, ms) in NEW.iter().zip(table) {
        near(&format!("{profile} prefill {new} after {past}"), prefill(&model, *new, past), *ms, tolerance);
    }
}

/// I-PRO-2.
#[test]
fn prefill_times() {
    let minimax = "minimax-m2.5-h100-tp4";
    check_prefill(minimax, 0, &[29.6, 44.9, 61.2, 184.0, 379.0, 863.0], 0.057);
    check_prefill(minimax, 32 * K, &[33.8, 64.3, 103.0, 354.0], 0.057);
    check_prefill(minimax, 64 * K, &[39.2, 85.8, 146.0, 526.0], 0.057);
    check_prefill(minimax, 128 * K, &[50.0, 129.0, 232.0, 872.0], 0.057);
    check_prefill("qwen3-30b-a3b-h200-tp4", 0, &[11.2, 17.2, 23.3, 70.9, 150.0, 374.0], 0.07);
    check_prefill("qwen3-30b-a3b-h200-tp4", 32 * K, &[13.1, 26.4, 42.6, 152.0], 0.07);
    check_prefill("qwen3-30b-a3b-h100-tp1", 0, &[26.7, 33.9, 46.0, 153.0, 370.0, 1047.0], 0.02);
    check_prefill("llama-70b-h100-tp4", 0, &[24.1, 67.4, 130.0, 577.0, 1132.0, 2531.0], 0.071);
}

const CONTEXT: [u32; 5] = [K, 8 * K, 16 * K, 32 * K, 64 * K];

fn check_decode(profile: &str, table: &[(u32, [f64; 5])]) {
    let model = timing(profile);
    for (batch, row) in table {
        for (context, ms) in CONTEXT.iter().zip(row) {
            near(
                &format!("{profile} decode {batch} x {context}"),
                decode(&model, *batch, *context),
                *ms,
                0.09,
            );
        }
    }
}

/// I-PRO-2.
#[test]
fn decode_times() {
    check_decode(
        "minimax-m2.5-h100-tp4",
        &[
            (1, [7.5, 7.7, 7.9, 8.2, 9.0]),
            (8, [12.1, 12.7, 13.7, 15.2, 17.9]),
            (16, [15.0, 16.6, 18.1, 20.9, 26.5]),
            (32, [17.7, 20.6, 23.4, 29.0, 39.9]),
            (64, [24.3, 29.6, 35.2, 46.4, 69.8]),
            (128, [27.7, 37.6, 48.5, 72.2, 119.0]),
            (256, [32.7, 53.5, 75.7, 122.0, 214.0]),
        ],
    );
    check_decode("minimax-m2.5-h100-tp4-bf16kv", &[(64, [24.9, 34.1, 44.5, 65.8, 109.0])]);
    check_decode(
        "qwen3-30b-a3b-h200-tp4",
        &[
            (16, [6.6, 7.3, 8.0, 9.5, 12.4]),
            (64, [8.5, 11.3, 14.2, 20.1, 32.2]),
            (256, [12.4, 23.0, 34.6, 58.7, 105.0]),
        ],
    );
    check_decode(
        "llama-70b-h100-tp4",
        &[(16, [16.4, 19.8, 23.2, 30.3, 43.6]), (64, [19.1, 30.8, 44.5, 72.6, 128.0])],
    );
    for (profile, short, long) in [("qwen3-30b-a3b-h200-tp4", 4.7, 5.6), ("llama-70b-h100-tp4", 14.9, 17.1)] {
        near(profile, decode(&timing(profile), 1, K), short, 0.09);
        near(profile, decode(&timing(profile), 1, 64 * K), long, 0.09);
    }
}

#[test]
fn derived_profiles_follow_their_derivation() {
    let (h20, h200) = (timing("qwen3-30b-a3b-h20-tp4"), timing("qwen3-30b-a3b-h200-tp4"));
    assert_eq!(decode(&h20, 64, 20_000), decode(&h200, 64, 20_000));
    let (slow, fast) = (prefill(&h20, 8 * K, 0) - 9.36, prefill(&h200, 8 * K, 0) - 9.36);
    near("h20 prefill beyond the base", slow / fast, 6.7, 1e-9);
    // Two GPUs instead of four compute a prompt; they read 1.5 GB and 29 GB of experts, 8 of 128 per token, in fp8 where
    // four read 3 GB and 58 GB.
    let fp8 = timing("qwen3-30b-a3b-fp8-h100-tp2");
    let (two, four) = (prefill(&fp8, 8 * K, 32 * K) - 9.36, prefill(&h200, 8 * K, 32 * K) - 9.36);
    near("two GPUs' prefill beyond the base", two / four, 2.0, 1e-9);
    for batch in [8_u32, 64] {
        let active = 1.0 - (1.0 - 8.0 / 128.0_f64).powi(batch as i32);
        let streams = (1.5 + 29.0 * active) / 2.0 / (0.8 * 3.35) - (3.0 + 58.0 * active) / 4.0 / (0.8 * 4.8);
        near("fp8 decode", decode(&fp8, batch, 1), decode(&h200, batch, 1) + streams, 0.01);
    }
    // 19 GB of always active weights and 336 GB of experts, 8 of 160 per token, over eight GPUs.
    let glm = timing("glm-4.6-h100-tp8");
    for batch in [1_u32, 8, 64] {
        let active = 1.0 - (1.0 - 8.0 / 160.0_f64).powi(batch as i32);
        let weights = (19.0 + 336.0 * active) / 8.0 / (0.8 * 3.35);
        near("glm decode", decode(&glm, batch, 1), 92.0 * 0.097 + weights, 0.01);
    }
}

#[test]
fn a_lost_prefix_costs_what_is_published() {
    // A full 30 K prefill takes about 0.8 s, a 256-token append about 35 ms: a factor of about 23.
    let minimax = timing("minimax-m2.5-h100-tp4");
    near("thrash penalty", prefill(&minimax, 30_000, 0) / prefill(&minimax, 256, 30_000), 23.0, 0.05);
}

/// I-PRO-1.
#[test]
fn every_profile_makes_an_engine_with_the_published_pool() {
    let pools = [
        ("glm-4.6-h100-tp8", 1_180_000),
        ("llama-70b-h100-tp4", 454_016),
        ("minimax-m2.5-h100-tp4", 468_626),
        ("minimax-m2.5-h100-tp4-bf16kv", 234_313),
        ("qwen3-30b-a3b-fp8-h100-tp2", 2_237_040),
        ("qwen3-30b-a3b-h100-tp1", 118_341),
        ("qwen3-30b-a3b-h20-tp4", 3_807_728),
        ("qwen3-30b-a3b-h200-tp4", 3_807_728),
    ];
    assert_eq!(Profile::names(), pools.map(|p| p.0));
    assert!(Profile::names().is_sorted());
    for (name, tokens) in pools {
        let profile = Profile::by_name(name).expect("listed");
        for flavor in [Flavor::Vllm, Flavor::Sglang] {
            let engine = EngineModel::new(profile.config(flavor)).expect("usable");
            assert!(tokens - engine.config().pool_tokens() < engine.config().block_size, "{name}");
        }
    }
    let error = Profile::by_name("gpt").expect_err("unknown").to_string();
    assert!(error.contains("'gpt'") && error.contains("llama-70b-h100-tp4"), "{error}");
}

fn profile() -> impl Strategy<Value = TimingModel> {
    prop::sample::select(Profile::names()).prop_map(timing)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// I-PTM-3, I-PTM-4: of two passes, the one that computes more never takes less; all are finite.
    #[test]
    fn more_work_takes_longer(
        model in profile(),
        prefills in prop::collection::vec((1_u32..40_000, 0_u32..200_000), 0..4),
        decodes in prop::collection::vec(1_u32..200_000, 0..300),
        more in (1_u32..5_000, 1_u32..5_000),
    ) {
        let mut shape = PassShape::default();
        prefills.iter().for_each(|(new, past)| shape.add_prefill(*new, *past));
        decodes.iter().for_each(|context| shape.add_decode(*context));
        let ms = model.pass_ms(&shape);
        prop_assert!(ms.is_finite() && ms >= 0.0);
        let (mut prefill, mut decode) = (shape, shape);
        prefill.add_prefill(more.0, more.1);
        decode.add_decode(more.0);
        prop_assert!(model.pass_ms(&prefill) > ms);
        prop_assert!(model.pass_ms(&decode) > ms);
    }
}
