//! Tokens of the programs at home at each worker.
//!
//! - I-HOM-1 by id, no zeros.

use tandem_types::WorkerId;

/// Tokens by worker.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Homes {
    workers: Vec<WorkerId>,
    tokens: Vec<u64>,
}

impl Homes {
    fn place(&self, worker: WorkerId) -> Result<usize, usize> {
        self.workers.binary_search(&worker)
    }

    /// Tokens at a worker.
    pub(crate) fn at(&self, worker: WorkerId) -> u64 {
        self.place(worker).ok().and_then(|at| self.tokens.get(at)).copied().unwrap_or(0)
    }

    /// So many more are there.
    pub(crate) fn add(&mut self, worker: WorkerId, more: u64) {
        match self.place(worker).map(|at| self.tokens.get_mut(at)) {
            Ok(Some(tokens)) => *tokens = tokens.saturating_add(more),
            Ok(None) => {}
            Err(at) if more > 0 => {
                self.workers.insert(at, worker);
                self.tokens.insert(at, more);
            }
            Err(_) => {}
        }
    }

    /// So many fewer are there.
    pub(crate) fn take(&mut self, worker: WorkerId, fewer: u64) {
        let Ok(at) = self.place(worker) else { return };
        let Some(tokens) = self.tokens.get_mut(at) else { return };
        *tokens = tokens.saturating_sub(fewer);
        if *tokens == 0 {
            self.workers.remove(at);
            self.tokens.remove(at);
        }
    }

    /// The tokens at each of some workers, asked for in ascending order.
    pub(crate) fn of_each(&self, workers: &[WorkerId], out: &mut Vec<f64>) {
        if self.workers == workers {
            return out.extend(self.tokens.iter().copied().map(float));
        }
        let mut homes = self.workers.iter().zip(&self.tokens).peekable();
        out.extend(workers.iter().map(|worker| {
            while homes.next_if(|(home, _)| *home < worker).is_some() {}
            homes.next_if(|(home, _)| *home == worker).map_or(0.0, |(_, tokens)| float(*tokens))
        }));
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
        assert_eq!((&*homes.workers, &*homes.tokens), (&[id(1), id(5)][..], &[7, 18][..]));
        assert_eq!([1, 4, 5, 9].map(|engine| homes.at(id(engine))), [7, 0, 18, 0]);
        let each = |engines: &[u32]| {
            let workers: Vec<WorkerId> = engines.iter().copied().map(id).collect();
            let mut each = Vec::new();
            homes.of_each(&workers, &mut each);
            each.into_iter().map(f64::to_bits).collect::<Vec<_>>()
        };
        assert_eq!(each(&[0, 1, 4, 5, 9]), [0.0_f64, 7.0, 0.0, 18.0, 0.0].map(f64::to_bits));
        assert_eq!(each(&[1, 5]), [7.0_f64, 18.0].map(f64::to_bits));
    }
}
