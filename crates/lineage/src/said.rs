//! How far two texts of the model may be the same, told from hashes of how they begin.
//!
//! - Purpose: an answer that comes back otherwise shares at most the tokens of its common beginning with what was
//!   generated, and a token is a byte at least.
//! - Inputs: the beginning of an answer as the engine gave it; the text that stands in its place in the next prompt.
//!   Output: an upper bound of common bytes.
//! - I-SAID-1 the bound is never less than what the texts have in common. No text is kept.

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Beginnings that are hashed, in bytes, ascending.
const LENGTHS: [usize; 3] = [4, 16, 64];

/// Hashes of how a text begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Said([u64; LENGTHS.len()]);

impl Said {
    /// Of a text, or of its first 64 bytes.
    pub(crate) fn new(text: &[u8]) -> Self {
        Self(LENGTHS.map(|length| {
            let start = text.get(..length).unwrap_or(text);
            xxh3_64_with_seed(start, start.len() as u64)
        }))
    }

    /// The most bytes with which both begin; `None` = they may be the same.
    pub(crate) fn common_max(&self, other: &Self) -> Option<u64> {
        let differs = self.0.iter().zip(&other.0).position(|(one, two)| one != two)?;
        LENGTHS.get(differs).map(|length| *length as u64 - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// I-SAID-1.
    #[test]
    fn the_bound_is_the_first_beginning_that_differs() {
        let long = "x".repeat(64);
        for (one, two, most) in [
            ("", "", None),
            ("abc", "abc", None),
            ("abc", "abd", Some(3)),
            ("abc", "abcd", Some(3)),
            ("abcd", "abcde", Some(15)),
            ("abcd fghijklmno", "abcd fghijklmno!", Some(15)),
            (&long, &format!("{long}y"), None),
            (&format!("{}y", &long[..40]), &long, Some(63)),
        ] {
            let (one, two) = (Said::new(one.as_bytes()), Said::new(two.as_bytes()));
            assert_eq!((one.common_max(&two), two.common_max(&one)), (most, most));
        }
    }
}
