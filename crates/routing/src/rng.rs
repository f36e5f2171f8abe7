//! A small seeded generator: the only source of chance in the pure crates.
//!
//! - Purpose: tie breaks, random policies and retry jitter that come out the same for the same seed.
//! - SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): a 64-bit counter that steps by the odd constant nearest to
//!   2^64 divided by the golden ratio, put through a bijective mixer. It passes `BigCrush`, needs one word of
//!   state, and any seed is a good seed.
//! - I-RNG-1 equal seeds give equal sequences, on every platform and in every version: recorded inputs stay
//!   replayable.
//! - Deliberately absent: anything secret. Never use it for keys or ids that must not be guessed.

/// A seeded generator of 64-bit numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rng {
    state: u64,
}

/// 2^64 / golden ratio, made odd.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

impl Rng {
    /// A generator that starts at `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// A generator of its own for one consumer, so that a further draw in one place does not shift what all
    /// others draw. `label` names the consumer.
    #[must_use]
    pub fn child(seed: u64, label: &str) -> Self {
        // FNV-1a folds the label in; the first draw mixes it.
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for byte in label.bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        Self::new(Self::new(seed ^ hash).next_u64())
    }

    /// The next number.
    pub const fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(STEP);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 when `bound` is 0. Uses the high bits of a 128-bit product (Lemire 2019);
    /// the bias is below `bound` / 2^64 and not corrected.
    pub const fn below(&mut self, bound: u64) -> u64 {
        let wide = (self.next_u64() as u128) * (bound as u128);
        (wide >> 64) as u64
    }

    /// A number from 0 to below 1, in steps of 2^-53.
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit a double's mantissa")]
    pub const fn fraction(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// An index below `len`; 0 when `len` is 0.
    pub fn index(&mut self, len: usize) -> usize {
        let bound = u64::try_from(len).unwrap_or(u64::MAX);
        usize::try_from(self.below(bound)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// I-RNG-1.
    #[test]
    fn the_sequence_is_the_published_one() {
        // Reference output for seed 1234567 as distributed with the algorithm's public C version.
        let mut rng = Rng::new(1_234_567);
        let drawn: Vec<u64> = (0..5).map(|_| rng.next_u64()).collect();
        assert_eq!(
            drawn,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423,
                4_593_380_528_125_082_431,
                16_408_922_859_458_223_821
            ]
        );
    }

    #[test]
    fn bounded_draws_stay_below_their_bound_and_reach_every_value() {
        let mut rng = Rng::new(7);
        let mut seen = [0_u32; 5];
        for _ in 0..5000 {
            seen[rng.index(5)] += 1;
        }
        assert!(seen.iter().all(|&n| (850..1150).contains(&n)), "{seen:?}");
        assert_eq!((rng.below(0), rng.index(0), rng.below(1)), (0, 0, 0));
    }

    #[test]
    fn children_differ_by_label_and_by_seed() {
        let first = |seed, label| Rng::child(seed, label).next_u64();
        assert_eq!(first(1, "a"), first(1, "a"));
        assert_ne!(first(1, "a"), first(1, "b"));
        assert_ne!(first(1, "a"), first(2, "a"));
    }
}
