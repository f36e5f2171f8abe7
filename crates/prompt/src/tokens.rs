//! From text to token ids, tokenizing only what a prompt has that the one before it had not.
//!
//! - Purpose: a long session's next turn costs its new tail, not its whole history.
//! - Invariant: I-PRM-5 the ids are those of tokenizing the whole text from scratch, whatever the memo.
//! - Why cutting is safe: a tokenizer first splits the raw text at its added tokens and treats the pieces
//!   between them on their own. So a prompt may be cut before an added token, provided that the token is looked
//!   for in the raw text (not the normalized one), takes in no whitespace before it, and no added token asks
//!   what letters stand around it. A match that decides such a cut lies within the longest added token of it,
//!   so the cut holds in any text that is the same up to there. Where a tokenizer has no such token, or the
//!   texts part earlier, the whole text is tokenized.

use std::collections::HashMap;
use std::sync::Arc;

use tokenizers::Tokenizer;

use crate::error::RenderError;
use crate::model::PromptModel;
use crate::render::{Prompt, Rendered};

/// Places to cut are kept at least this far apart, in bytes.
const CUT_EVERY: usize = 256;

/// What is kept of a tokenized prompt so that the next one of its session costs only its tail. Cheap to clone;
/// holds the prompt's text and ids.
#[derive(Debug, Clone)]
pub struct Memo(Arc<Kept>);

#[derive(Debug)]
struct Kept {
    text: Arc<str>,
    /// Ids of the text, without what the tokenizer puts around it.
    ids: Arc<[u32]>,
    /// Byte offsets in the text and the indexes of the tokens that begin there, ascending.
    cuts: Vec<(usize, usize)>,
}

impl Memo {
    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let Kept { text, ids, cuts } = &*self.0;
        text.len() + std::mem::size_of_val(&**ids) + std::mem::size_of_val(cuts.as_slice())
    }
}

/// A prompt's token ids.
#[derive(Debug, Clone)]
pub struct Tokenized {
    /// The ids, exactly as the engine computes them.
    pub ids: Arc<[u32]>,
    /// For the session's next prompt.
    pub memo: Memo,
    /// How many of `ids` were taken over from the memo.
    pub reused: usize,
}

impl PromptModel {
    /// The token ids of `rendered`. `memo`, from any earlier prompt of this model, only saves work: the ids
    /// never depend on it.
    ///
    /// # Errors
    /// [`RenderError::Tokenizer`] when the tokenizer cannot encode the text.
    pub fn tokens(&self, rendered: &Rendered, memo: Option<&Memo>) -> Result<Tokenized, RenderError> {
        let text = match &rendered.prompt {
            Prompt::Tokens(ids) => {
                let nothing = Kept { text: "".into(), ids: Arc::new([]), cuts: Vec::new() };
                return Ok(Tokenized { ids: Arc::clone(ids), memo: Memo(Arc::new(nothing)), reused: 0 });
            }
            Prompt::Text(text) => text,
        };
        let (kept, reused) = self.encoder.encode(text, memo.map(|memo| &*memo.0))?;
        let ids = if rendered.add_special_tokens {
            let around = self.encoder.around.as_ref();
            let (before, after) =
                around.ok_or(RenderError::Unsupported { why: "special tokens of this tokenizer" })?;
            before.iter().chain(&*kept.ids).chain(after).copied().collect()
        } else {
            Arc::clone(&kept.ids)
        };
        Ok(Tokenized { ids, memo: Memo(Arc::new(kept)), reused })
    }
}

/// A tokenizer and what is known of it.
#[derive(Debug)]
pub(crate) struct Encoder {
    tokenizer: Tokenizer,
    /// Ids of the added tokens before which a text may be cut, with the length of their text in bytes.
    cut_before: HashMap<u32, usize>,
    /// Length of the longest added token in bytes.
    longest: usize,
    /// What the tokenizer puts before and after a text; `None` where it is not of this kind.
    pub(crate) around: Option<(Vec<u32>, Vec<u32>)>,
}

impl Encoder {
    /// Takes a tokenizer as `tokenizer.json` describes it; truncation and padding are the engine's, not its.
    pub(crate) fn new(mut tokenizer: Tokenizer) -> Result<Self, String> {
        tokenizer.with_truncation(None).map_err(|e| e.to_string())?;
        tokenizer.with_padding(None);
        let added: Vec<_> = tokenizer.get_added_tokens_decoder().into_iter().collect();
        let safe = added.iter().all(|(_, token)| !token.single_word);
        let cut_before = added
            .iter()
            .filter(|(_, token)| safe && !token.normalized && !token.lstrip)
            .filter(|(_, token)| token.content.chars().next().is_some_and(|c| !c.is_whitespace()))
            .map(|(id, token)| (*id, token.content.len()))
            .collect();
        let longest = added.iter().map(|(_, token)| token.content.len()).max().unwrap_or(0);
        let around = around(&tokenizer);
        Ok(Self { tokenizer, cut_before, longest, around })
    }

    /// The id of a token, if the vocabulary has it.
    pub(crate) fn id(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token)
    }

    fn encode(&self, text: &Arc<str>, before: Option<&Kept>) -> Result<(Kept, usize), RenderError> {
        let shared = before.map_or(0, |kept| common_prefix(kept.text.as_bytes(), text.as_bytes()));
        let usable = shared.saturating_sub(self.longest);
        let kept_cuts = before.map_or(&[][..], |kept| {
            kept.cuts.get(..kept.cuts.partition_point(|(at, _)| *at <= usable)).unwrap_or_default()
        });
        let (from, reused) = kept_cuts.last().copied().unwrap_or((0, 0));
        let tail = text.get(from..).unwrap_or_default();
        let encoding =
            self.tokenizer.encode(tail, false).map_err(|e| RenderError::Tokenizer(e.to_string()))?;
        let mut cuts = kept_cuts.to_vec();
        for (index, (id, (start, end))) in encoding.get_ids().iter().zip(encoding.get_offsets()).enumerate() {
            let far = cuts.last().is_none_or(|(at, _)| from + start >= at + CUT_EVERY);
            if far && self.cut_before.get(id).is_some_and(|len| end - start == *len) {
                cuts.push((from + start, reused + index));
            }
        }
        let old = before.and_then(|kept| kept.ids.get(..reused)).unwrap_or_default();
        let ids = old.iter().chain(encoding.get_ids()).copied().collect();
        Ok((Kept { text: Arc::clone(text), ids, cuts }, reused))
    }
}

/// What the tokenizer's post-processor puts around a text, where it does no more than that.
fn around(tokenizer: &Tokenizer) -> Option<(Vec<u32>, Vec<u32>)> {
    let mut found = None;
    for text in ["a", "b c", "1\n2"] {
        let bare = tokenizer.encode_fast(text, false).ok()?;
        let full = tokenizer.encode_fast(text, true).ok()?;
        let (bare, full) = (bare.get_ids(), full.get_ids());
        let extra = full.len().checked_sub(bare.len())?;
        let at = (0..=extra).find(|at| full.get(*at..at + bare.len()) == Some(bare))?;
        let this = (full.get(..at)?.to_vec(), full.get(at + bare.len()..)?.to_vec());
        if found.as_ref().is_some_and(|before| *before != this) {
            return None;
        }
        found = Some(this);
    }
    found
}

fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let same = a.chunks_exact(64).zip(b.chunks_exact(64)).take_while(|(x, y)| x == y).count() * 64;
    let rest = a.iter().skip(same).zip(b.iter().skip(same));
    same + rest.take_while(|(x, y)| x == y).count()
}
