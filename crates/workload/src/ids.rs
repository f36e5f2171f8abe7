//! Block ids: 64-bit names of "these tokens after exactly these".

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A new id from two numbers; stable over versions, so that seeds stay meaningful.
#[must_use]
pub fn mix(a: u64, b: u64) -> u64 {
    let mut bytes = [0u8; 16];
    let (left, right) = bytes.split_at_mut(8);
    left.copy_from_slice(&a.to_le_bytes());
    right.copy_from_slice(&b.to_le_bytes());
    xxh3_64_with_seed(&bytes, 0)
}

/// A number for a text.
pub(crate) fn of_text(text: &str) -> u64 {
    xxh3_64_with_seed(text.as_bytes(), 0)
}

/// A small seeded generator (SplitMix64): equal seeds give equal workloads on every machine.
#[derive(Debug, Clone)]
pub(crate) struct Draws(u64);

impl Draws {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in (0, 1).
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
    pub(crate) fn unit(&mut self) -> f64 {
        ((self.next() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    pub(crate) fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Standard normal (Box-Muller, one of the pair).
    pub(crate) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.unit().ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    pub(crate) fn lognormal(&mut self, mu: f64, sigma: f64) -> f64 {
        (mu + sigma * self.normal()).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_have_the_moments_of_their_distributions() {
        let mut draws = Draws::new(7);
        let count = 200_000;
        let (mut sum, mut squares, mut units) = (0.0, 0.0, 0.0);
        for _ in 0..count {
            let z = draws.normal();
            sum += z;
            squares += z * z;
            units += draws.uniform(2.0, 4.0);
        }
        let count = f64::from(count);
        assert!((sum / count).abs() < 0.01);
        assert!((squares / count - 1.0).abs() < 0.02);
        assert!((units / count - 3.0).abs() < 0.01);
        let mut logs: Vec<f64> = (0..10_001).map(|_| draws.lognormal(4.9, 0.6)).collect();
        logs.sort_by(f64::total_cmp);
        assert!((logs[5_000] - 134.3).abs() < 4.0, "the median of lognormal(4.9, .) is e^4.9");
    }
}
