//! How long a pass takes.
//!
//! - Purpose: turn the shape of a batch into milliseconds.
//! - Inputs: [`PassShape`]. Output: [`TimingModel::pass_ms`].
//! - Invariants: I-PTM-1 prefill and decode are added, never overlapped; I-PTM-2 a part of which the batch
//!   has nothing costs nothing; I-PTM-3 with the compact model, more tokens, more context or a larger batch
//!   (within a base table that rises) never make a pass shorter; I-PTM-4 validated models give finite,
//!   non-negative times.
//! - Deliberately absent: clocks, jitter, overlap of host and device work, speculative decoding.
//! - Sources: the polynomial, its 1 ms decode floor and the grid's axes are those of aisimulate-core 0.13
//!   (which took them over from dynamo-mocker); the compact form was fitted on aisimulate's operator tables
//!   (vLLM 0.24 data), see [`profile`](crate::Profile) for the constants.

use serde::{Deserialize, Serialize};

use crate::grid::GridModel;

/// What one pass computes, summed over its batch.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PassShape {
    /// Requests of which prompt tokens are computed.
    pub prefill_requests: u32,
    /// Prompt tokens computed.
    pub prefill_tokens: u64,
    /// Sum over those requests of `n * (P + n / 2)`, where `n` tokens are computed after `P` that are there.
    pub prefill_attention: f64,
    /// Requests that decode one token.
    pub decode_requests: u32,
    /// Sum of their contexts in tokens, the new one included.
    pub decode_context: u64,
    /// KV pool in tokens.
    pub pool_tokens: u64,
}

impl PassShape {
    /// Adds a prefill of `new` tokens after `past` present ones.
    pub fn add_prefill(&mut self, new: u32, past: u32) {
        self.prefill_requests += 1;
        self.prefill_tokens += u64::from(new);
        self.prefill_attention += f64::from(new) * (f64::from(past) + f64::from(new) / 2.0);
    }

    /// Adds a decode with a context of `context` tokens.
    pub fn add_decode(&mut self, context: u32) {
        self.decode_requests += 1;
        self.decode_context += u64::from(context);
    }
}

/// A fitted engine: `decode = f(batch) + k * sum(context)`, `prefill = a + sum(b * n + c * n * (P + n / 2))`,
/// all in milliseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompactModel {
    /// `a`: per pass that prefills, ms.
    pub prefill_base_ms: f64,
    /// `b`: per prompt token, ms.
    pub prefill_token_ms: f64,
    /// `c`: per pair of a new token and one that it attends to, ms.
    pub prefill_attention_ms: f64,
    /// `f`: points (batch size, ms), batch sizes rising from at least 1; linear in log2 of the batch size
    /// between points and beyond the last two, flat below the first.
    pub decode_base_ms: Vec<(f64, f64)>,
    /// `k`: per token of context in the batch, ms.
    pub decode_context_ms: f64,
}

/// How long a pass takes.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(tag = "model", rename_all = "snake_case", deny_unknown_fields)]
pub enum TimingModel {
    /// A generic mid-size model: prefill `4.209989e-7 T^2 + 1.518344e-2 T + 16.50142` ms for `T` new tokens,
    /// decode `max(1, -25.74 u^2 + 54.01 u + 5.74)` ms where `u` is the part of the pool that the batch's
    /// contexts fill.
    #[default]
    Polynomial,
    /// Constant times.
    Fixed {
        /// A pass that prefills, ms.
        prefill_ms: f64,
        /// A pass that decodes, ms (added if it does both).
        decode_ms: f64,
    },
    /// Fitted coefficients.
    Compact(CompactModel),
    /// Measured tables.
    Grid(GridModel),
}

/// Why a timing model is unusable.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum TimingError {
    /// A coefficient or table entry is negative or not finite.
    #[error("{name} must be finite and not negative, not {value}")]
    Coefficient {
        /// Which.
        name: &'static str,
        /// Its value.
        value: f64,
    },
    /// A table has no points.
    #[error("{0} is empty")]
    Empty(&'static str),
    /// The points of an axis do not rise.
    #[error("{0} must rise strictly")]
    NotRising(&'static str),
    /// Batch sizes start below 1.
    #[error("{0} must start at 1 or above")]
    BelowOne(&'static str),
    /// A table's size does not match its axes.
    #[error("{name} has {found} entries where its axis has {expected}")]
    Mismatch {
        /// Which.
        name: &'static str,
        /// Entries that the axis asks for.
        expected: usize,
        /// Entries found.
        found: usize,
    },
}

/// Shortest decode of the polynomial and of grids, ms.
const DECODE_FLOOR_MS: f64 = 1.0;

pub(crate) fn check_value(name: &'static str, value: f64) -> Result<(), TimingError> {
    if value.is_finite() && value >= 0.0 { Ok(()) } else { Err(TimingError::Coefficient { name, value }) }
}

pub(crate) fn check_axis(
    name: &'static str,
    points: impl Iterator<Item = f64> + Clone,
) -> Result<(), TimingError> {
    if points.clone().next().is_none() {
        return Err(TimingError::Empty(name));
    }
    points.clone().try_for_each(|value| check_value(name, value))?;
    if points.clone().zip(points.skip(1)).any(|(a, b)| a >= b) {
        return Err(TimingError::NotRising(name));
    }
    Ok(())
}

impl TimingModel {
    /// Checks coefficients and tables.
    ///
    /// # Errors
    /// [`TimingError`] names the first one out of range.
    pub fn validate(&self) -> Result<(), TimingError> {
        match self {
            Self::Polynomial => Ok(()),
            Self::Fixed { prefill_ms, decode_ms } => {
                check_value("prefill_ms", *prefill_ms)?;
                check_value("decode_ms", *decode_ms)
            }
            Self::Compact(compact) => compact.validate(),
            Self::Grid(grid) => grid.validate(),
        }
    }

    /// Time of a pass of that shape, ms.
    #[must_use]
    pub fn pass_ms(&self, shape: &PassShape) -> f64 {
        let mut ms = 0.0;
        if shape.prefill_tokens > 0 {
            ms += self.prefill_ms(shape);
        }
        if shape.decode_requests > 0 {
            ms += self.decode_ms(shape);
        }
        ms
    }

    fn prefill_ms(&self, shape: &PassShape) -> f64 {
        let tokens = shape.prefill_tokens as f64;
        match self {
            Self::Polynomial => (4.209_989e-7 * tokens + 1.518_344e-2) * tokens + 16.501_42,
            Self::Fixed { prefill_ms, .. } => *prefill_ms,
            Self::Compact(m) => {
                m.prefill_base_ms
                    + m.prefill_token_ms * tokens
                    + m.prefill_attention_ms * shape.prefill_attention
            }
            Self::Grid(grid) => grid.prefill_ms(tokens),
        }
    }

    fn decode_ms(&self, shape: &PassShape) -> f64 {
        let context = shape.decode_context as f64;
        match self {
            Self::Polynomial => {
                let u = (context / (shape.pool_tokens.max(1) as f64)).min(1.0);
                ((-25.74 * u + 54.01) * u + 5.74).max(DECODE_FLOOR_MS)
            }
            Self::Fixed { decode_ms, .. } => *decode_ms,
            Self::Compact(m) => m.decode_base(shape.decode_requests) + m.decode_context_ms * context,
            Self::Grid(grid) => {
                grid.decode_ms(context, context / f64::from(shape.decode_requests)).max(DECODE_FLOOR_MS)
            }
        }
    }
}

impl CompactModel {
    fn validate(&self) -> Result<(), TimingError> {
        check_value("prefill_base_ms", self.prefill_base_ms)?;
        check_value("prefill_token_ms", self.prefill_token_ms)?;
        check_value("prefill_attention_ms", self.prefill_attention_ms)?;
        check_value("decode_context_ms", self.decode_context_ms)?;
        check_axis("decode_base_ms batch sizes", self.decode_base_ms.iter().map(|p| p.0))?;
        if self.decode_base_ms.iter().any(|p| p.0 < 1.0) {
            return Err(TimingError::BelowOne("decode_base_ms batch sizes"));
        }
        self.decode_base_ms.iter().try_for_each(|p| check_value("decode_base_ms", p.1))
    }

    /// `f(batch)`, ms.
    fn decode_base(&self, batch: u32) -> f64 {
        let batch = f64::from(batch);
        let points = &self.decode_base_ms;
        let above = points.partition_point(|p| p.0 <= batch).min(points.len().saturating_sub(1));
        match (above.checked_sub(1).and_then(|i| points.get(i)), points.get(above)) {
            (Some(&(x0, y0)), Some(&(x1, y1))) => {
                let part = (batch.log2() - x0.log2()) / (x1.log2() - x0.log2());
                (y0 + (y1 - y0) * part).max(0.0)
            }
            (None, Some(&(_, y))) => y,
            (_, None) => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(requests: u32, context: u32, pool_tokens: u64) -> PassShape {
        let mut shape = PassShape { pool_tokens, ..PassShape::default() };
        (0..requests).for_each(|_| shape.add_decode(context));
        shape
    }

    #[test]
    fn polynomial_values_worked_by_hand() {
        let mut shape = PassShape { pool_tokens: 1000, ..PassShape::default() };
        shape.add_prefill(600, 0);
        shape.add_prefill(400, 5_000);
        // 0.4209989 + 15.18344 + 16.50142
        assert!((TimingModel::Polynomial.pass_ms(&shape) - 32.105_858_9).abs() < 1e-9);
        // u = 0.5: -6.435 + 27.005 + 5.74
        assert!((TimingModel::Polynomial.pass_ms(&decode(5, 100, 1000)) - 26.31).abs() < 1e-9);
        // u is cut at 1: -25.74 + 54.01 + 5.74
        assert!((TimingModel::Polynomial.pass_ms(&decode(5, 1_000, 1000)) - 34.01).abs() < 1e-9);
    }

    /// I-PTM-1, I-PTM-2.
    #[test]
    fn parts_are_added_and_absent_parts_cost_nothing() {
        let fixed = TimingModel::Fixed { prefill_ms: 7.0, decode_ms: 3.0 };
        let mut shape = decode(2, 10, 100);
        assert_eq!(fixed.pass_ms(&shape), 3.0);
        shape.add_prefill(1, 0);
        assert_eq!(fixed.pass_ms(&shape), 10.0);
        assert_eq!(TimingModel::Polynomial.pass_ms(&PassShape::default()), 0.0);
    }

    fn compact() -> CompactModel {
        CompactModel {
            prefill_base_ms: 1.0,
            prefill_token_ms: 0.1,
            prefill_attention_ms: 0.001,
            decode_base_ms: vec![(2.0, 4.0), (8.0, 8.0)],
            decode_context_ms: 0.01,
        }
    }

    #[test]
    fn compact_decode_base_is_linear_in_the_logarithm_of_the_batch() {
        let m = compact();
        let expected = [(1, 4.0), (2, 4.0), (4, 6.0), (8, 8.0), (16, 10.0), (64, 14.0)];
        for (batch, ms) in expected {
            assert!((m.decode_base(batch) - ms).abs() < 1e-12, "batch {batch}");
        }
        let one = CompactModel { decode_base_ms: vec![(4.0, 5.0)], ..compact() };
        assert_eq!((one.decode_base(1), one.decode_base(400)), (5.0, 5.0));
    }

    #[test]
    fn compact_prefill_charges_the_base_once() {
        let mut shape = PassShape::default();
        shape.add_prefill(10, 0);
        shape.add_prefill(20, 100);
        // 1 + 0.1 * 30 + 0.001 * (10 * 5 + 20 * 110)
        assert!((TimingModel::Compact(compact()).pass_ms(&shape) - 6.25).abs() < 1e-12);
    }

    /// I-PTM-4.
    #[test]
    fn unusable_models_are_named() {
        let bad = |change: fn(&mut CompactModel)| {
            let mut m = compact();
            change(&mut m);
            TimingModel::Compact(m).validate()
        };
        assert_eq!(bad(|_| ()), Ok(()));
        assert!(matches!(
            bad(|m| m.prefill_token_ms = -1.0),
            Err(TimingError::Coefficient { name: "prefill_token_ms", .. })
        ));
        assert!(matches!(bad(|m| m.decode_base_ms.clear()), Err(TimingError::Empty(_))));
        assert!(matches!(bad(|m| m.decode_base_ms.reverse()), Err(TimingError::NotRising(_))));
        assert!(matches!(bad(|m| m.decode_base_ms = vec![(0.5, 1.0)]), Err(TimingError::BelowOne(_))));
        let nan = TimingModel::Fixed { prefill_ms: f64::NAN, decode_ms: 1.0 };
        assert!(matches!(nan.validate(), Err(TimingError::Coefficient { name: "prefill_ms", .. })));
    }
}
