//! Ids with equal bits.

use super::At;

/// Marks compared before one looks which of them it was, some machine words; and the entries for which memory is taken
/// at a time, so that room for entries that never come is little.
const PIECE: usize = 64;
/// Low bits of a mark that do not follow from the id: they say in which part of its run the block lies.
const PART_BITS: u32 = 3;
/// Parts of a run.
pub(super) const PARTS: u32 = 1 << PART_BITS;
const ID_BITS: u16 = u16::MAX << PART_BITS;

/// Entries in the order in which they came.
#[derive(Debug)]
struct Piece {
    marks: [u16; PIECE],
    /// Low bits of the holds' numbers.
    holds: [u16; PIECE],
}

/// A mark of each id, and in which part of which hold it lies. Newer ones come later.
#[derive(Debug, Default)]
pub(super) struct Class {
    #[expect(clippy::vec_box, reason = "a list that grows must not copy its pieces")]
    full: Vec<Box<Piece>>,
    last: Option<Box<Piece>>,
    len: usize,
}

impl Class {
    #[inline]
    pub(super) fn push(&mut self, mark: u16, hold: u32, part: u32) {
        let slot = self.len % PIECE;
        if slot == 0 {
            let empty = Box::new(Piece { marks: [0; PIECE], holds: [0; PIECE] });
            self.full.extend(self.last.replace(empty));
        }
        if let Some(piece) = &mut self.last {
            piece.marks[slot] = mark & ID_BITS | part as u16 & !ID_BITS;
            piece.holds[slot] = hold as u16;
        }
        self.len += 1;
    }

    /// What `look` finds by the low bits of a hold's number and a part, from the newest entry with this mark on.
    #[inline]
    pub(super) fn find(&self, mark: u16, look: impl Fn(u16, u32) -> Option<At>) -> Option<At> {
        let same = |m: u16| (m ^ mark) & ID_BITS == 0;
        let mut end = self.len;
        for piece in self.last.iter().chain(self.full.iter().rev()) {
            let used = end.saturating_sub(1) % PIECE + 1;
            // A slot that is not in use yet may cause a look in vain, no more.
            if piece.marks.iter().fold(0u16, |any, m| any | u16::from(same(*m))) != 0 {
                let mut entries = piece.marks.iter().zip(&piece.holds).take(used).rev();
                let found = entries
                    .find_map(|(m, hold)| if same(*m) { look(*hold, u32::from(m & !ID_BITS)) } else { None });
                if found.is_some() {
                    return found;
                }
            }
            end -= used.min(end);
        }
        None
    }

    /// Entries that there is memory for.
    #[cfg(test)]
    pub(super) fn room(&self) -> usize {
        (self.full.len() + usize::from(self.last.is_some())) * PIECE
    }
}
