//! What a cache that knows the future would have found.
//!
//! - Purpose: bound how much of the prompts of a run any cache of that size can give, whatever it evicts and wherever
//!   requests go.
//! - Inputs: the blocks of each prompt in the order in which clients sent them, a capacity. Output: blocks found.
//! - Invariants: I-ORA-1 no cache of that capacity finds more of the same prompts in the same order: each block is
//!   kept or dropped by itself (a block may be found behind one that is not there), a block that comes back later
//!   than all that are kept is not taken in, and every prompt's blocks are there as soon as it is sent.
//! - Deliberately absent: other orders of requests, which a policy may bring about; blocks that running requests
//!   hold; time.
//! - Source: L. A. Belady, "A study of replacement algorithms for a virtual-storage computer", 1966: dropping what
//!   comes back last.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

/// One prompt.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    /// Blocks of prompt and answer.
    pub(crate) ids: Arc<[u64]>,
    /// How many of them may be found: the prompt's, but for the one with its last token.
    pub(crate) most: usize,
    /// Whether what is found counts.
    pub(crate) counts: bool,
}

/// Never asked for again.
const NEVER: u32 = u32::MAX;

/// Blocks found in the prompts that count.
pub(crate) fn belady(prompts: &[Asked], capacity: u64) -> u64 {
    let blocks: usize = prompts.iter().map(|prompt| prompt.ids.len()).sum();
    // From the last prompt on: which later one asks for each block first.
    let mut later: HashMap<u64, u32, BuildHasherDefault<DefaultHasher>> = HashMap::default();
    let mut next = Vec::with_capacity(blocks);
    for (index, prompt) in prompts.iter().enumerate().rev() {
        let index = u32::try_from(index).unwrap_or(NEVER);
        next.extend(prompt.ids.iter().rev().map(|id| later.get(id).copied().unwrap_or(NEVER)));
        later.extend(prompt.ids.iter().take(prompt.most).map(|id| (*id, index)));
    }
    next.reverse();
    let mut kept = Kept::default();
    let (mut found, mut at) = (0, 0);
    for prompt in prompts {
        for (place, id) in prompt.ids.iter().enumerate() {
            let next = next.get(at).copied().unwrap_or(NEVER);
            at += 1;
            let hit = kept.renew(*id, next);
            found += u64::from(hit && prompt.counts && place < prompt.most);
        }
        while kept.order.len() as u64 > capacity {
            kept.drop_last();
        }
    }
    found
}

/// The cache: when each block is asked for next.
#[derive(Default)]
struct Kept {
    blocks: HashMap<u64, u32, BuildHasherDefault<DefaultHasher>>,
    order: BTreeSet<(u32, u64)>,
}

impl Kept {
    /// A block is asked for, and again at `next`; whether it was there.
    fn renew(&mut self, id: u64, next: u32) -> bool {
        let known = self.blocks.remove(&id);
        if let Some(known) = known {
            self.order.remove(&(known, id));
        }
        if next != NEVER {
            self.blocks.insert(id, next);
            self.order.insert((next, id));
        }
        known.is_some()
    }

    fn drop_last(&mut self) {
        if let Some((_, id)) = self.order.pop_last() {
            self.blocks.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(texts: &[&[u64]]) -> Vec<Asked> {
        texts.iter().map(|ids| Asked { ids: (*ids).into(), most: ids.len(), counts: true }).collect()
    }

    // I-ORA-1: Belady's own example of a page string, 3 frames: 12 references, 7 faults with the optimal rule (9 with
    // FIFO).
    #[test]
    fn the_textbook_string_has_five_hits_in_three_frames() {
        let string: Vec<[u64; 1]> = [1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5].map(|page| [page]).into();
        let texts: Vec<&[u64]> = string.iter().map(<[u64; 1]>::as_slice).collect();
        assert_eq!(belady(&asked(&texts), 3), 5);
        assert_eq!(belady(&asked(&texts), 5), 7, "all but the first of each");
        assert_eq!(belady(&asked(&texts), 0), 0);
    }

    #[test]
    fn an_answers_blocks_are_found_by_the_next_prompt_and_last_blocks_are_not() {
        let mut prompts = asked(&[&[1, 2, 3], &[1, 2, 3, 4]]);
        if let [first, second] = prompts.as_mut_slice() {
            (first.most, second.most) = (1, 3);
        }
        assert_eq!(belady(&prompts, 10), 3, "block 2 and 3 were written by the answer");
        if let [_, second] = prompts.as_mut_slice() {
            second.counts = false;
        }
        assert_eq!(belady(&prompts, 10), 0);
    }
}
