//! Ids with equal bits.

use super::At;

/// A mark of each id, and where it lies. Newer ones come later.
#[derive(Debug, Default)]
pub(super) struct Class {
    pub(super) marks: Vec<u16>,
    pub(super) at: Vec<At>,
}

impl Class {
    pub(super) fn reserve(&mut self, more: usize) {
        self.marks.reserve_exact(more);
        self.at.reserve_exact(more);
    }

    #[inline]
    pub(super) fn push(&mut self, mark: u16, at: At) {
        if self.marks.len() == self.marks.capacity() {
            self.reserve((self.marks.len() / 2).max(32));
        }
        self.marks.push(mark);
        self.at.push(at);
    }

    /// The newest entry with this mark that `wanted` takes.
    #[inline]
    pub(super) fn find(&self, mark: u16, wanted: impl Fn(At) -> bool) -> Option<At> {
        /// Marks compared before one looks which of them it was: some machine words.
        const STEP: usize = 64;
        let mut end = self.marks.len();
        for marks in self.marks.rchunks(STEP) {
            let start = end - marks.len();
            if marks.iter().fold(0u16, |any, m| any | u16::from(*m == mark)) != 0 {
                let at = self.at.get(start..end).unwrap_or_default();
                let found = marks.iter().zip(at).rev().find(|(m, at)| **m == mark && wanted(**at));
                if let Some((_, at)) = found {
                    return Some(*at);
                }
            }
            end = start;
        }
        None
    }
}
