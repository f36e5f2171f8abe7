//! Tokens of the programs at home at each worker.
//!
//! - I-HOM-1 by id, no zeros, and each count as a float beside it.

use std::borrow::Cow;

use tandem_types::WorkerId;

/// Tokens by worker.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Homes {
    workers: Vec<WorkerId>,
    tokens: Vec<u64>,
    /// The same as routing asks for it, of the whole fleet at once.
    floats: Vec<f64>,
}

impl Homes {
    fn place(&self, worker: WorkerId) -> Result<usize, usize> {
        self.workers.binary_search(&worker)
    }

    /// Tokens at a worker.
    pub(crate) fn at(&self, worker: WorkerId) -> u64 {
        self.place(worker).ok().and_then(|at| self.tokens.get(at)).copied().unwrap_or(0)
    }

    fn set(&mut self, at: usize, count: u64) {
        if let (Some(tokens), Some(as_float)) = (self.tokens.get_mut(at), self.floats.get_mut(at)) {
            (*tokens, *as_float) = (count, float(count));
        }
    }

    /// So many more are there.
    pub(crate) fn add(&mut self, worker: WorkerId, more: u64) {
        match self.place(worker) {
            Ok(at) => self.set(at, self.tokens.get(at).map_or(more, |tokens| tokens.saturating_add(more))),
            Err(at) if more > 0 => {
                self.workers.insert(at, worker);
                self.tokens.insert(at, more);
                self.floats.insert(at, float(more));
            }
            Err(_) => {}
        }
    }

    /// So many fewer are there.
    pub(crate) fn take(&mut self, worker: WorkerId, fewer: u64) {
        let Ok(at) = self.place(worker) else { return };
        let left = self.tokens.get(at).map_or(0, |tokens| tokens.saturating_sub(fewer));
        if left > 0 {
            return self.set(at, left);
        }
        self.workers.remove(at);
        self.tokens.remove(at);
        self.floats.remove(at);
    }

    /// The tokens at each of some workers, asked for in ascending order.
    pub(crate) fn of_each(&self, workers: &[WorkerId]) -> Cow<'_, [f64]> {
        if self.workers == workers {
            return Cow::Borrowed(&self.floats);
        }
        let mut homes = self.workers.iter().zip(&self.floats).peekable();
        let each = workers.iter().map(|worker| {
            while homes.next_if(|(home, _)| *home < worker).is_some() {}
            homes.next_if(|(home, _)| *home == worker).map_or(0.0, |(_, tokens)| *tokens)
        });
        each.collect()
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
        assert_eq!(homes.floats, [7.0, 18.0]);
        assert_eq!([1, 4, 5, 9].map(|engine| homes.at(id(engine))), [7, 0, 18, 0]);
        let each = |engines: &[u32]| {
            let workers: Vec<WorkerId> = engines.iter().copied().map(id).collect();
            homes.of_each(&workers).iter().copied().map(f64::to_bits).collect::<Vec<_>>()
        };
        assert_eq!(each(&[0, 1, 4, 5, 9]), [0.0_f64, 7.0, 0.0, 18.0, 0.0].map(f64::to_bits));
        assert_eq!(each(&[1, 5]), [7.0_f64, 18.0].map(f64::to_bits));
    }
}
