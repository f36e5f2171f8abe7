//! Pass times interpolated from measured tables.

use serde::{Deserialize, Serialize};

use crate::timing::{TimingError, check_axis, check_value};

/// Measured tables, with the axes of the `.npz` profiles that Dynamo's profiler writes
/// (`prefill_isl`, `prefill_ttft_ms`, `decode_active_kv_tokens`, `decode_context_length`, `decode_itl`).
/// Linear between points and beyond the ends; an axis of one point is constant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GridModel {
    /// New prompt tokens in the pass, rising.
    pub prefill_tokens: Vec<f64>,
    /// Prefill time at each, ms.
    pub prefill_ms: Vec<f64>,
    /// Context tokens in the batch, rising: the rows of `decode_ms`.
    pub decode_active_tokens: Vec<f64>,
    /// Mean context of the batch, rising: the columns of `decode_ms`.
    pub decode_context: Vec<f64>,
    /// Decode time, ms: one row for each of `decode_active_tokens`.
    pub decode_ms: Vec<Vec<f64>>,
}

impl GridModel {
    pub(crate) fn validate(&self) -> Result<(), TimingError> {
        check_axis("prefill_tokens", self.prefill_tokens.iter().copied())?;
        check_axis("decode_active_tokens", self.decode_active_tokens.iter().copied())?;
        check_axis("decode_context", self.decode_context.iter().copied())?;
        check_len("prefill_ms", &self.prefill_tokens, self.prefill_ms.len())?;
        check_len("decode_ms", &self.decode_active_tokens, self.decode_ms.len())?;
        for row in &self.decode_ms {
            check_len("a row of decode_ms", &self.decode_context, row.len())?;
        }
        self.prefill_ms.iter().try_for_each(|ms| check_value("prefill_ms", *ms))?;
        self.decode_ms.iter().flatten().try_for_each(|ms| check_value("decode_ms", *ms))
    }

    /// Prefill of that many new tokens, ms, not below 0.
    pub(crate) fn prefill_ms(&self, tokens: f64) -> f64 {
        let at = Place::on(&self.prefill_tokens, tokens);
        at.mix(value(&self.prefill_ms, at.low), value(&self.prefill_ms, at.high)).max(0.0)
    }

    /// Decode with that many context tokens in all and that mean context, ms.
    pub(crate) fn decode_ms(&self, active: f64, context: f64) -> f64 {
        let row = Place::on(&self.decode_active_tokens, active);
        let column = Place::on(&self.decode_context, context);
        let along = |index: usize| {
            let entries = self.decode_ms.get(index).map_or(&[][..], Vec::as_slice);
            column.mix(value(entries, column.low), value(entries, column.high))
        };
        row.mix(along(row.low), along(row.high))
    }
}

fn check_len(name: &'static str, axis: &[f64], found: usize) -> Result<(), TimingError> {
    if axis.len() == found {
        Ok(())
    } else {
        Err(TimingError::Mismatch { name, expected: axis.len(), found })
    }
}

fn value(entries: &[f64], index: usize) -> f64 {
    entries.get(index).copied().unwrap_or(0.0)
}

/// Two neighbouring points of an axis and where between (or beyond) them a value lies.
struct Place {
    low: usize,
    high: usize,
    part: f64,
}

impl Place {
    fn on(axis: &[f64], x: f64) -> Self {
        let last = axis.len().saturating_sub(1);
        let high = axis.partition_point(|p| *p <= x).clamp(1.min(last), last);
        let low = high.saturating_sub(1);
        let (x0, x1) = (value(axis, low), value(axis, high));
        let part = if high > low { (x - x0) / (x1 - x0) } else { 0.0 };
        Self { low, high, part }
    }

    fn mix(&self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.part
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timing::{PassShape, TimingModel};

    fn grid() -> GridModel {
        GridModel {
            prefill_tokens: vec![100.0, 200.0, 400.0],
            prefill_ms: vec![10.0, 30.0, 40.0],
            decode_active_tokens: vec![1_000.0, 3_000.0],
            decode_context: vec![100.0, 500.0],
            decode_ms: vec![vec![2.0, 4.0], vec![6.0, 16.0]],
        }
    }

    #[test]
    fn between_points_at_points_and_beyond() {
        let g = grid();
        let prefill = [(100.0, 10.0), (150.0, 20.0), (300.0, 35.0), (600.0, 50.0), (75.0, 5.0), (0.0, 0.0)];
        for (tokens, ms) in prefill {
            assert!((g.prefill_ms(tokens) - ms).abs() < 1e-12, "{tokens}");
        }
        let decode =
            [(1_000.0, 100.0, 2.0), (3_000.0, 500.0, 16.0), (2_000.0, 300.0, 7.0), (5_000.0, 100.0, 10.0)];
        for (active, context, ms) in decode {
            assert!((g.decode_ms(active, context) - ms).abs() < 1e-12, "{active} {context}");
        }
    }

    #[test]
    fn one_point_is_constant_and_the_decode_floor_holds() {
        let flat = GridModel {
            prefill_tokens: vec![5.0],
            prefill_ms: vec![9.0],
            decode_active_tokens: vec![1.0],
            decode_context: vec![1.0],
            decode_ms: vec![vec![0.25]],
        };
        assert_eq!((flat.prefill_ms(1.0), flat.prefill_ms(500.0)), (9.0, 9.0));
        let mut shape = PassShape::default();
        shape.add_decode(100);
        let model = TimingModel::Grid(flat);
        assert_eq!(model.validate(), Ok(()));
        assert_eq!(model.pass_ms(&shape), 1.0);
    }

    #[test]
    fn tables_must_fit_their_axes() {
        let check = |change: fn(&mut GridModel)| {
            let mut g = grid();
            change(&mut g);
            g.validate()
        };
        assert_eq!(check(|_| ()), Ok(()));
        assert!(matches!(check(|g| g.prefill_tokens.swap(0, 1)), Err(TimingError::NotRising(_))));
        assert!(matches!(check(|g| g.decode_context.clear()), Err(TimingError::Empty("decode_context"))));
        assert_eq!(
            check(|g| g.decode_ms.truncate(1)),
            Err(TimingError::Mismatch { name: "decode_ms", expected: 2, found: 1 })
        );
        assert!(matches!(
            check(|g| g.decode_ms.iter_mut().for_each(|row| row.truncate(1))),
            Err(TimingError::Mismatch { name: "a row of decode_ms", expected: 2, found: 1 })
        ));
        assert!(matches!(
            check(|g| g.prefill_ms.fill(f64::INFINITY)),
            Err(TimingError::Coefficient { name: "prefill_ms", .. })
        ));
    }
}
