//! What had to be mended to make sense of a file.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::import::ImportError;

/// A kind of mending.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Repair {
    /// A line that is no row of the format was left out.
    BadRow,
    /// A turn started before the one that it follows had ended: its pause is taken as zero.
    NegativePause,
    /// A row's prompt is longer than its block ids cover, by more than one block: the rest is unique text.
    UncoveredTokens,
    /// A row has more block ids than its prompt has blocks: the rest is left out.
    SurplusIds,
    /// A request's model is not in the session's list of models.
    UnlistedModel,
    /// A session names a parent of which nothing is recorded.
    UnknownParent,
    /// A request waits for one that is not recorded.
    UnknownDependency,
    /// The same request id again: left out.
    DuplicateRequest,
    /// A request without output is given one token.
    EmptyOutput,
    /// A request without a prompt was left out.
    EmptyPrompt,
    /// Rows with and without a session in one file: those without are sessions of one turn.
    MixedIdentity,
    /// A request of which the trace holds no block ids: all of its prompt is unique text.
    NoIds,
    /// A list of turns is shorter than the row says.
    ShortList,
    /// Whether nested times count from their marker or from the session's start was guessed.
    GuessedTimeBasis,
}

/// How often each kind of mending was needed, with the first place of each.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Repairs {
    #[serde(skip)]
    strict: bool,
    counts: BTreeMap<Repair, (u64, String)>,
}

impl Repairs {
    pub(crate) fn new(strict: bool) -> Self {
        Self { strict, counts: BTreeMap::new() }
    }

    /// Notes one; in strict mode it is an error.
    pub(crate) fn note(&mut self, repair: Repair, place: impl fmt::Display) -> Result<(), ImportError> {
        if self.strict && repair != Repair::GuessedTimeBasis {
            return Err(ImportError::Strict { repair, place: place.to_string() });
        }
        let entry = self.counts.entry(repair).or_insert_with(|| (0, place.to_string()));
        entry.0 += 1;
        Ok(())
    }

    /// How often.
    #[must_use]
    pub fn count(&self, repair: Repair) -> u64 {
        self.counts.get(&repair).map_or(0, |(count, _)| *count)
    }

    /// Whether nothing was mended.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.counts.is_empty()
    }

    /// Kinds with their counts and the place where each was needed first, in a stable order.
    pub fn iter(&self) -> impl Iterator<Item = (Repair, u64, &str)> {
        self.counts.iter().map(|(repair, (count, place))| (*repair, *count, place.as_str()))
    }
}
