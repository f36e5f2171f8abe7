//! Reconciliation with a listing of all keys: said line by line, then swept in steps.

use std::sync::atomic::Ordering;

use tandem_types::Time;

use super::index::{PoolIndex, Source};
use super::pages::{PARTS, SWEEP_LOCK_MAX, remove_at};
use super::{Object, tenant_name};

/// Why a listing cannot begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ListingError {
    /// Another one is under way, or there is something to sweep first ([`PoolIndex::step`]).
    #[error("a listing is under way or not yet swept")]
    Busy,
    /// No layout of that tenant is claimed.
    #[error("no layout of that tenant is claimed")]
    UnknownTenant,
}

/// What a listing came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListingOutcome {
    /// Complete: what it did not mention goes with the next steps.
    Sweeping,
    /// Only additions were taken: the listing was broken off.
    Partial,
    /// Of no use: the tenant was cleared under way, or more was removed under way than can be remembered. Its
    /// tenant is still due.
    Void,
    /// There was none.
    None,
}

/// What is left to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Pages looked at.
    pub visited: usize,
    /// Nothing is left to sweep.
    pub idle: bool,
}

#[derive(Debug)]
pub(super) struct Listing {
    pub(super) tenant: usize,
    pub(super) void: bool,
    began: Time,
    doubts: u64,
}

/// A walk over all pages, each table from its end to its start: whatever moves or comes in meanwhile lands
/// behind the walk having been judged, or before it.
#[derive(Debug)]
pub(super) struct Sweep {
    /// The tenant whose unmentioned objects go, with its doubts and the time at the listing's begin; `None`:
    /// only what is cleared, released or a tombstone goes.
    settle: Option<(usize, u64, Time)>,
    part: usize,
    /// Entries below this are to be judged; `None` = the table is new to us.
    below: Option<usize>,
    freeing: Vec<u32>,
}

impl PoolIndex {
    /// Opens a generation for a listing of all of a tenant's keys, to be fetched *after* this call. Events go on
    /// meanwhile and win over the listing.
    ///
    /// # Errors
    /// [`ListingError`]: another listing is not done, or nobody wants this tenant's keys.
    pub fn begin_listing(&mut self, tenant: &str, now: Time) -> Result<(), ListingError> {
        let at = *self.tenant_names.get(tenant_name(tenant)).ok_or(ListingError::UnknownTenant)?;
        if self.listing.is_some() || self.sweep.is_some() || self.reclaim_due {
            return Err(ListingError::Busy);
        }
        let state = self.tenants.get_mut(at).filter(|state| !state.spaces.is_empty());
        let state = state.ok_or(ListingError::UnknownTenant)?;
        state.generation = state.generation.saturating_add(1);
        state.truncated = false;
        self.listing = Some(Listing { tenant: at, void: false, began: now, doubts: state.doubts });
        Ok(())
    }

    /// One line of the listing: the object is there. Lines of other tenants, and lines without a listing under
    /// way, are ignored. Whether that was news.
    pub fn listed(&mut self, object: &Object<'_>) -> bool {
        self.say(object, true)
    }

    /// The answer to a question about one object (`/batch_query_keys`) while a listing is under way: it is not
    /// there. Whether that was news.
    pub fn listed_absent(&mut self, object: &Object<'_>) -> bool {
        self.say(object, false)
    }

    fn say(&mut self, object: &Object<'_>, there: bool) -> bool {
        let ours = self.listing.as_ref().is_some_and(|listing| {
            !listing.void && self.tenant_names.get(tenant_name(object.tenant)) == Some(&listing.tenant)
        });
        if !ours {
            return false;
        }
        let news = self.set(object, there, Source::Listing);
        if news && there {
            self.counters.learned += 1;
        } else if news {
            self.counters.ghosts += 1;
        }
        news
    }

    /// Ends the listing. `complete` = every key was listed, so that silence means absence; otherwise only what
    /// was said counts. [`PoolIndex::step`] does the rest.
    pub fn finish_listing(&mut self, complete: bool) -> ListingOutcome {
        let Some(listing) = self.listing.take() else { return ListingOutcome::None };
        let settle = (complete && !listing.void).then_some((listing.tenant, listing.doubts, listing.began));
        self.start_sweep(settle);
        if listing.void {
            self.counters.void_listings += 1;
            ListingOutcome::Void
        } else if complete {
            ListingOutcome::Sweeping
        } else {
            ListingOutcome::Partial
        }
    }

    pub(super) fn void_listing(&mut self) {
        if let Some(listing) = self.listing.as_mut() {
            listing.void = true;
        }
    }

    fn start_sweep(&mut self, settle: Option<(usize, u64, Time)>) {
        self.reclaim_due = false;
        self.sweep = Some(Sweep { settle, part: 0, below: None, freeing: std::mem::take(&mut self.limbo) });
    }

    /// Sweeps at most `budget` pages (and at least looks at one table). To be called until idle, and after
    /// clears and releases.
    pub fn step(&mut self, budget: usize) -> Progress {
        if self.sweep.is_none() && self.reclaim_due && self.listing.is_none() {
            self.start_sweep(None);
        }
        let Some(mut sweep) = self.sweep.take() else {
            return Progress { visited: 0, idle: !self.reclaim_due };
        };
        let mut visited = 0;
        let mut looked = 0;
        while sweep.part < PARTS && (visited < budget || looked == 0) {
            visited += self.sweep_part(&mut sweep, (budget - visited).clamp(1, SWEEP_LOCK_MAX));
            looked += 1;
        }
        if sweep.part >= PARTS {
            self.end_sweep(sweep);
        } else {
            self.sweep = Some(sweep);
        }
        Progress { visited, idle: self.sweep.is_none() && !self.reclaim_due }
    }

    fn sweep_part(&mut self, sweep: &mut Sweep, budget: usize) -> usize {
        let Some(mut part) = self.pages.write_part(sweep.part) else {
            sweep.part = PARTS;
            return 0;
        };
        let mut at = sweep.below.unwrap_or(part.len()).min(part.len());
        let mut visited = 0;
        while at > 0 && visited < budget {
            at -= 1;
            visited += 1;
            let Some((_, page)) = part.get_index_mut(at) else { continue };
            let plane = self.planes.get(&page.plane).copied();
            let Some(plane) = plane.filter(|plane| plane.live) else {
                let hidden = plane.and_then(|plane| self.tenants.get_mut(plane.tenant));
                if let Some(state) = hidden
                    && page.seen_in >= state.shared.cleared_at.load(Ordering::Relaxed)
                {
                    state.objects = state.objects.saturating_sub(u64::from(page.present.count_ones()));
                }
                remove_at(&mut part, at);
                self.page_count -= 1;
                continue;
            };
            let Some(state) = self.tenants.get_mut(plane.tenant) else { continue };
            if page.seen_in < state.shared.cleared_at.load(Ordering::Relaxed) {
                page.present = 0;
            }
            if sweep.settle.is_some_and(|(tenant, ..)| tenant == plane.tenant) {
                let spoken = if page.seen_in == state.generation { page.spoken } else { 0 };
                let gone = (page.present & !spoken).count_ones();
                page.present &= spoken;
                state.objects = state.objects.saturating_sub(u64::from(gone));
                self.counters.ghosts += u64::from(gone);
            }
            if page.present == 0 {
                remove_at(&mut part, at);
                self.page_count -= 1;
            }
        }
        if at == 0 {
            sweep.part += 1;
            sweep.below = None;
        } else {
            sweep.below = Some(at);
        }
        visited
    }

    fn end_sweep(&mut self, sweep: Sweep) {
        if let Some((tenant, doubts, began)) = sweep.settle
            && let Some(state) = self.tenants.get_mut(tenant)
        {
            self.counters.listings += 1;
            state.shared.listed_at.store(began.0.saturating_add(1), Ordering::Release);
            // A doubt raised while the listing was under way may concern what it had already sampled.
            if state.doubts == doubts {
                state.doubt = None;
                state.shared.doubted.store(false, Ordering::Release);
            }
        }
        self.tombstones = 0;
        for plane in sweep.freeing {
            let Some(info) = self.planes.remove(&plane) else { continue };
            let Some(state) = self.tenants.get_mut(info.tenant) else { continue };
            state.planes -= 1;
            if state.planes == 0 && state.spaces.is_empty() {
                self.tenant_names.retain(|_, at| *at != info.tenant);
                self.free_tenants.push(info.tenant);
            }
        }
    }
}
