//! Questions, asked by many threads beside the one that applies events.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::PageHash;
use super::layout::{Layout, Mask, RunStart};
use super::pages::{PageKey, Pages, Part};

/// A handle for readers. A question waits for a writer for one object's change at most, page by page; a page is
/// judged at one instant, a run of pages is not.
#[derive(Debug, Clone)]
pub struct PoolReader {
    pub(super) pages: Arc<Pages>,
}

/// Pages of a prompt that the store holds whole.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hits {
    /// Positions, ascending, half open, with a hole between any two.
    pub ranges: Vec<Range<usize>>,
    /// How many pages that is.
    pub total: usize,
}

fn has(part: &Part, page: PageHash, mask: Mask, cleared_at: u32) -> bool {
    let found = part
        .get(&PageKey::new(page, mask.plane))
        .filter(|found| found.plane == mask.plane && found.seen_in >= cleared_at);
    let present = found.map_or(0, |found| found.present);
    present & mask.need == mask.need && present & mask.foreign == 0
}

impl PoolReader {
    /// Which of a prompt's pages are there with every object that each page needs, as contiguous ranges. Slots
    /// that only the end of a run needs are not asked for here.
    #[must_use]
    pub fn hits(&self, layout: &Layout, pages: &[PageHash]) -> Hits {
        let cleared_at = layout.inner.shared.cleared_at.load(Ordering::Acquire);
        let mut hits = Hits::default();
        for (at, page) in pages.iter().enumerate() {
            if !self.all(*page, &layout.inner.every, cleared_at) {
                continue;
            }
            hits.total += 1;
            match hits.ranges.last_mut() {
                Some(last) if last.end == at => last.end = at + 1,
                _ => hits.ranges.push(at..at + 1),
            }
        }
        hits
    }

    /// How many pages a worker could load from the store beyond the first `local` pages, which it holds itself:
    /// `|hits ∩ [local, pages)|` for the run that the engine can use, up to the first hole. `local` must count
    /// whatever is credited already, lower tiers of the worker's own included; then nothing is credited twice.
    #[must_use]
    pub fn shared_beyond_device(&self, layout: &Layout, local: usize, pages: &[PageHash]) -> usize {
        let cleared_at = layout.inner.shared.cleared_at.load(Ordering::Acquire);
        let start = match layout.inner.run {
            RunStart::LocalEnd => local,
            RunStart::FirstPage => 0,
        };
        let Some(asked) = pages.get(start..).filter(|_| local < pages.len()) else { return 0 };
        // How many pages up to here, without a hole, have each trailing pool's objects.
        let mut streaks = vec![0usize; layout.inner.trailing.len()];
        let mut usable = start;
        for (done, page) in asked.iter().enumerate() {
            if !self.all(*page, &layout.inner.every, cleared_at) {
                break;
            }
            let mut complete = true;
            for (streak, (window, masks)) in streaks.iter_mut().zip(&layout.inner.trailing) {
                *streak = if self.all(*page, masks, cleared_at) { *streak + 1 } else { 0 };
                complete &= *streak >= (*window as usize).min(done + 1);
            }
            if complete {
                usable = start + done + 1;
            }
        }
        usable.saturating_sub(local)
    }

    /// As [`PoolReader::shared_beyond_device`] in tokens, for a local prefix that may end inside a page: the
    /// engine looks up from the page in which it ends, and only the rest of that page counts.
    #[must_use]
    pub fn shared_tokens_beyond(
        &self,
        layout: &Layout,
        local_tokens: usize,
        page_tokens: usize,
        pages: &[PageHash],
    ) -> usize {
        let Some(whole) = local_tokens.checked_div(page_tokens) else { return 0 };
        let run = self.shared_beyond_device(layout, whole, pages);
        ((whole + run) * page_tokens).saturating_sub(local_tokens)
    }

    fn all(&self, page: PageHash, masks: &[Mask], cleared_at: u32) -> bool {
        self.pages.read(page).is_some_and(|part| masks.iter().all(|mask| has(&part, page, *mask, cleared_at)))
    }
}
