//! A cache without bounds, over the requests in the order in which they are sent.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, DefaultHasher};

use crate::body::Prompt;

/// Every block that a prompt ever had.
#[derive(Debug, Default)]
pub(crate) struct Unlimited {
    seen: HashSet<u64, BuildHasherDefault<DefaultHasher>>,
}

impl Unlimited {
    /// Tokens of the prompt that it has, by whole blocks and never the last token; from now on it has all.
    pub(crate) fn send(&mut self, prompt: &Prompt) -> u32 {
        let most = (prompt.tokens.saturating_sub(1) / prompt.block_size.max(1)) as usize;
        let known = prompt.blocks.iter().take(most).take_while(|block| self.seen.contains(*block)).count();
        self.seen.extend(&prompt.blocks);
        u32::try_from(known).unwrap_or(u32::MAX).saturating_mul(prompt.block_size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(blocks: &[u64], tokens: u32) -> Prompt {
        Prompt { blocks: blocks.to_vec(), block_size: 16, tokens, rest: 0 }
    }

    #[test]
    fn whole_leading_blocks_count_but_never_the_last_token() {
        // I-LDG-3
        let mut cache = Unlimited::default();
        assert_eq!(cache.send(&prompt(&[1, 2], 40)), 0);
        assert_eq!(cache.send(&prompt(&[1, 2, 3], 50)), 32);
        assert_eq!(cache.send(&prompt(&[1, 2], 32)), 16, "the last token is computed");
        assert_eq!(cache.send(&prompt(&[1, 9, 3], 50)), 16, "nothing behind a hole");
    }
}
