//! Tokens of the programs at home at each worker.
//!
//! - I-HOM-1 by id, no zeros.

use tandem_types::WorkerId;

/// Tokens by worker.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Homes(Vec<(WorkerId, u64)>);

impl Homes {
    fn place(&self, worker: WorkerId) -> Result<usize, usize> {
        self.0.binary_search_by_key(&worker, |(home, _)| *home)
    }

    /// Tokens at a worker.
    pub(crate) fn at(&self, worker: WorkerId) -> u64 {
        self.place(worker).ok().and_then(|at| self.0.get(at)).map_or(0, |(_, tokens)| *tokens)
    }

    /// So many more are there.
    pub(crate) fn add(&mut self, worker: WorkerId, more: u64) {
        match self.place(worker).map(|at| self.0.get_mut(at)) {
            Ok(Some((_, tokens))) => *tokens = tokens.saturating_add(more),
            Ok(None) => {}
            Err(at) if more > 0 => self.0.insert(at, (worker, more)),
            Err(_) => {}
        }
    }

    /// So many fewer are there.
    pub(crate) fn take(&mut self, worker: WorkerId, fewer: u64) {
        let Ok(at) = self.place(worker) else { return };
        let Some((_, tokens)) = self.0.get_mut(at) else { return };
        *tokens = tokens.saturating_sub(fewer);
        if *tokens == 0 {
            self.0.remove(at);
        }
    }

    /// The tokens at each of some workers, asked for in ascending order.
    pub(crate) fn of_each(&self, workers: &[WorkerId], out: &mut Vec<f64>) {
        let mut homes = self.0.as_slice();
        for worker in workers {
            while let [(home, _), rest @ ..] = homes
                && home < worker
            {
                homes = rest;
            }
            let tokens = homes.first().filter(|(home, _)| home == worker).map_or(0, |(_, tokens)| *tokens);
            out.push(float(tokens));
        }
    }
}

/// Token and request counts are far below 2^52, where the conversion stays exact.
#[expect(clippy::cast_precision_loss, reason = "token counts are far below 2^52")]
pub(crate) const fn float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use tandem_types::EngineId;

    use super::*;

    const fn id(engine: u32) -> WorkerId {
        WorkerId { engine: EngineId(engine), rank: 0 }
    }

    /// I-HOM-1.
    #[test]
    fn tokens_come_and_go_by_worker() {
        let mut homes = Homes::default();
        for (engine, tokens) in [(5, 10), (1, 7), (9, 3), (5, 20), (4, 0)] {
            homes.add(id(engine), tokens);
        }
        homes.take(id(9), 3);
        homes.take(id(8), 3);
        homes.take(id(5), 12);
        assert_eq!(homes.0, [(id(1), 7), (id(5), 18)]);
        assert_eq!([1, 4, 5, 9].map(|engine| homes.at(id(engine))), [7, 0, 18, 0]);
        let mut each = Vec::new();
        homes.of_each(&[id(0), id(1), id(4), id(5), id(9)], &mut each);
        assert!(
            each.iter().map(|tokens| tokens.to_bits()).eq([0.0_f64, 7.0, 0.0, 18.0, 0.0].map(f64::to_bits))
        );
    }
}
