//! The writer: numbered batches of events, doubts, counters.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tandem_types::Time;

use super::layout::{Plane, Space, TenantShared};
use super::listing::{Listing, Sweep};
use super::pages::{Page, PageKey, Pages, remove_at};
use super::reader::PoolReader;
use super::{Object, PAGES_MAX, SLOTS_PER_SPACE_MAX, SPACES_MAX, TOMBSTONES_MAX, tenant_name};

/// Bounds of a pool index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolLimits {
    /// Most pages (times planes of 64 slots).
    pub pages: usize,
    /// Most removals remembered while a listing is under way; beyond, the listing is void.
    pub tombstones: usize,
    /// Most spaces claimed at once, over all tenants.
    pub spaces: usize,
    /// Most different slots in one space.
    pub slots_per_space: usize,
}

impl Default for PoolLimits {
    fn default() -> Self {
        Self {
            pages: PAGES_MAX,
            tombstones: TOMBSTONES_MAX,
            spaces: SPACES_MAX,
            slots_per_space: SLOTS_PER_SPACE_MAX,
        }
    }
}

/// One change of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolEvent<'a> {
    /// An object was put (again, perhaps).
    Stored(Object<'a>),
    /// No replica of an object is left.
    Removed(Object<'a>),
    /// All objects of a tenant went.
    Cleared {
        /// The store's tenant; empty = `default`.
        tenant: &'a str,
    },
}

/// How a batch's number follows the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// The first batch heard. Only number 1 has nothing before it.
    First,
    /// The next number.
    Next,
    /// Numbers are missing.
    Gap {
        /// How many batches were missed.
        missed: u64,
    },
    /// The same number again, and nothing in it was news.
    Repeat,
    /// The number fell, or the same number came with news: the store's process is another one.
    Restart,
}

/// What a batch did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchNote {
    /// How it follows the last one.
    pub order: Order,
    /// Events that changed the index.
    pub changed: usize,
}

/// Why the index of a tenant may be wrong until its next complete listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Doubt {
    /// Batches were missed.
    Gap,
    /// The store's process is a new one.
    Restart,
    /// The connection was lost: what was sent meanwhile is unknown.
    Disconnected,
    /// The first batch heard was not the store's first.
    LateJoin,
    /// A layout asks for objects that were not kept before.
    NewLayout,
    /// The store itself counts dropped events, a segment or a client of it is gone, or the shell has other
    /// reasons.
    Reported,
}

/// What happened since the start; never reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Events that changed the index.
    pub changed: u64,
    /// Events of objects that no layout claims.
    pub unclaimed: u64,
    /// Objects refused because [`PoolLimits::pages`] are kept.
    pub refused: u64,
    /// Gaps between batches.
    pub gaps: u64,
    /// Batches missed in gaps.
    pub missed_batches: u64,
    /// Repeated batches.
    pub repeats: u64,
    /// Restarts of the store.
    pub restarts: u64,
    /// Complete listings swept to their end.
    pub listings: u64,
    /// Listings that were void: cleared under way, or too many removals under way.
    pub void_listings: u64,
    /// Objects that only a listing knew.
    pub learned: u64,
    /// Objects that a listing no longer knew: ghosts of evictions and deaths that nobody announced.
    pub ghosts: u64,
}

#[derive(Debug, Default)]
pub(super) struct TenantState {
    pub(super) spaces: BTreeMap<Box<str>, Space>,
    /// Planes in use or in limbo; at 0 and without spaces the tenant is forgotten.
    pub(super) planes: usize,
    /// Counts listings and clears; see I-POOL-5.
    pub(super) generation: u32,
    pub(super) objects: u64,
    pub(super) doubt: Option<(Doubt, Time)>,
    /// Counts doubts, so that a listing knows whether one was raised under way.
    pub(super) doubts: u64,
    /// Objects were refused since the last listing.
    pub(super) truncated: bool,
    pub(super) shared: Arc<TenantShared>,
}

/// Who says that an object is or is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Event,
    Listing,
}

/// The index of one store. One owner writes; [`PoolIndex::reader`] hands out readers.
#[derive(Debug)]
pub struct PoolIndex {
    pub(super) limits: PoolLimits,
    pub(super) pages: Arc<Pages>,
    pub(super) page_count: usize,
    pub(super) tombstones: usize,
    pub(super) tenant_names: BTreeMap<Box<str>, usize>,
    pub(super) tenants: Vec<TenantState>,
    pub(super) free_tenants: Vec<usize>,
    pub(super) space_count: usize,
    /// Planes of claimed spaces, and of released ones whose pages are not reclaimed yet.
    pub(super) planes: BTreeMap<u32, Plane>,
    pub(super) next_plane: u32,
    /// Planes of released spaces whose pages are not reclaimed yet.
    pub(super) limbo: Vec<u32>,
    pub(super) reclaim_due: bool,
    pub(super) listing: Option<Listing>,
    pub(super) sweep: Option<Sweep>,
    last_batch: Option<u64>,
    pub(super) counters: Counters,
}

impl PoolIndex {
    /// An empty index that knows no layout.
    #[must_use]
    pub fn new(limits: PoolLimits) -> Self {
        Self {
            limits,
            pages: Arc::new(Pages::new()),
            page_count: 0,
            tombstones: 0,
            tenant_names: BTreeMap::new(),
            tenants: Vec::new(),
            free_tenants: Vec::new(),
            space_count: 0,
            planes: BTreeMap::new(),
            next_plane: 0,
            limbo: Vec::new(),
            reclaim_due: false,
            listing: None,
            sweep: None,
            last_batch: None,
            counters: Counters::default(),
        }
    }

    /// A handle for questions from other threads.
    #[must_use]
    pub fn reader(&self) -> PoolReader {
        PoolReader { pages: Arc::clone(&self.pages) }
    }

    /// Applies one batch of the store's event stream. Events say what is, not what changes, so a batch is
    /// applied whatever its number; the number only decides whether to doubt what is known besides.
    pub fn apply(&mut self, number: u64, events: &[PoolEvent<'_>], now: Time) -> BatchNote {
        let mut changed = 0;
        for event in events {
            changed += usize::from(match event {
                PoolEvent::Stored(object) => self.set(object, true, Source::Event),
                PoolEvent::Removed(object) => self.set(object, false, Source::Event),
                PoolEvent::Cleared { tenant } => self.clear(tenant),
            });
        }
        self.counters.changed += changed as u64;
        let order = match self.last_batch {
            None => Order::First,
            Some(last) if number == last && changed == 0 => Order::Repeat,
            Some(last) if number <= last => Order::Restart,
            Some(last) if number - last == 1 => Order::Next,
            Some(last) => Order::Gap { missed: number - last - 1 },
        };
        self.last_batch = Some(number);
        match order {
            Order::First if number > 1 => self.doubt(Doubt::LateJoin, now),
            Order::First | Order::Next => {}
            Order::Repeat => self.counters.repeats += 1,
            Order::Gap { missed } => {
                self.counters.gaps += 1;
                self.counters.missed_batches = self.counters.missed_batches.saturating_add(missed);
                self.doubt(Doubt::Gap, now);
            }
            Order::Restart => {
                self.counters.restarts += 1;
                self.doubt(Doubt::Restart, now);
            }
        }
        BatchNote { order, changed }
    }

    /// The connection to the event stream was lost or made anew: numbers start afresh, and all is in doubt.
    pub fn disconnected(&mut self, now: Time) {
        self.last_batch = None;
        self.doubt(Doubt::Disconnected, now);
    }

    /// Raises a doubt about every tenant; the first one is kept until a complete listing that began after the
    /// last one has settled it.
    pub fn doubt(&mut self, doubt: Doubt, now: Time) {
        for tenant in 0..self.tenants.len() {
            self.doubt_tenant(tenant, doubt, now);
        }
    }

    /// Why a tenant's pages are in doubt, and since when.
    #[must_use]
    pub fn doubted(&self, tenant: &str) -> Option<(Doubt, Time)> {
        self.tenant(tenant)?.doubt
    }

    /// Tenants that want a listing: those in doubt, those never listed, those last listed `every` ago or
    /// longer, and those of which objects were refused for which there is room now.
    #[must_use]
    pub fn due(&self, now: Time, every: Duration) -> Vec<&str> {
        let room = self.page_count < self.limits.pages - self.limits.pages / 10;
        let due = |state: &TenantState| {
            let listed = state.shared.listed_at.load(Ordering::Acquire).checked_sub(1);
            if state.spaces.is_empty() {
                return false;
            }
            state.doubt.is_some()
                || listed.is_none_or(|at| now.since(Time(at)) >= every)
                || (state.truncated && room)
        };
        self.tenant_names
            .iter()
            .filter(|(_, at)| self.tenants.get(**at).is_some_and(due))
            .map(|(name, _)| name.as_ref())
            .collect()
    }

    /// Whether an object is known to be there.
    #[must_use]
    pub fn contains(&self, object: &Object<'_>) -> bool {
        let Some((tenant, plane, bit)) = self.locate(object) else { return false };
        let cleared_at =
            self.tenants.get(tenant).map_or(0, |state| state.shared.cleared_at.load(Ordering::Relaxed));
        self.pages.read(object.page).is_some_and(|part| {
            part.get(&PageKey::new(object.page, plane)).is_some_and(|page| {
                page.plane == plane && page.seen_in >= cleared_at && page.present & bit != 0
            })
        })
    }

    /// Objects of a tenant that are known to be there (those of a released space until they are reclaimed).
    #[must_use]
    pub fn objects(&self, tenant: &str) -> u64 {
        self.tenant(tenant).map_or(0, |state| state.objects)
    }

    /// Pages (times planes of 64 slots) kept, tombstones and pages not yet reclaimed included.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.page_count
    }

    /// Bytes held by the tables of pages.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.pages.bytes()
    }

    /// What happened since the start.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    pub(super) fn tenant(&self, name: &str) -> Option<&TenantState> {
        self.tenants.get(*self.tenant_names.get(tenant_name(name))?)
    }

    pub(super) fn space(&self, tenant: &str, space: &str) -> Option<&Space> {
        self.tenant(tenant)?.spaces.get(space)
    }

    pub(super) fn tenant_or_new(&mut self, name: &str) -> usize {
        if let Some(at) = self.tenant_names.get(name) {
            return *at;
        }
        let at = self.free_tenants.pop().unwrap_or(self.tenants.len());
        if at == self.tenants.len() {
            self.tenants.push(TenantState::default());
        } else if let Some(state) = self.tenants.get_mut(at) {
            *state = TenantState::default();
        }
        self.tenant_names.insert(name.into(), at);
        at
    }

    pub(super) fn doubt_tenant(&mut self, tenant: usize, doubt: Doubt, now: Time) {
        if let Some(state) = self.tenants.get_mut(tenant) {
            state.doubt.get_or_insert((doubt, now));
            state.doubts += 1;
            state.shared.doubted.store(true, Ordering::Release);
        }
    }

    /// Tenant, plane and bit of an object that some layout claims.
    fn locate(&self, object: &Object<'_>) -> Option<(usize, u32, u64)> {
        let tenant = *self.tenant_names.get(tenant_name(object.tenant))?;
        let space = self.tenants.get(tenant)?.spaces.get(object.space)?;
        let (plane, bit) = space.place(object.slot)?;
        Some((tenant, plane, bit))
    }

    /// Records what `source` says of an object; whether that changed anything.
    pub(super) fn set(&mut self, object: &Object<'_>, there: bool, source: Source) -> bool {
        let Some((tenant, plane, bit)) = self.locate(object) else {
            self.counters.unclaimed += 1;
            return false;
        };
        let listing_open =
            self.listing.as_ref().is_some_and(|listing| listing.tenant == tenant && !listing.void);
        let Some(state) = self.tenants.get_mut(tenant) else { return false };
        let cleared_at = state.shared.cleared_at.load(Ordering::Relaxed);
        let key = PageKey::new(object.page, plane);
        let Some(mut part) = self.pages.write(object.page) else { return false };
        let Some((at, _, page)) = part.get_full_mut(&key) else {
            // A removal of what is unknown matters only to a listing that may still name it.
            if !there && !listing_open {
                return false;
            }
            if there && self.page_count >= self.limits.pages {
                self.counters.refused += 1;
                state.truncated = true;
                return false;
            }
            if !there && self.tombstones >= self.limits.tombstones {
                drop(part);
                self.void_listing();
                return false;
            }
            let present = if there { bit } else { 0 };
            part.insert(key, Page { present, spoken: bit, plane, seen_in: state.generation });
            self.page_count += 1;
            self.tombstones += usize::from(!there);
            state.objects += u64::from(there);
            return there;
        };
        if page.plane != plane {
            return false;
        }
        if page.seen_in < cleared_at {
            page.present = 0;
        }
        if page.seen_in < state.generation {
            page.spoken = 0;
            page.seen_in = state.generation;
        }
        if source == Source::Listing && page.spoken & bit != 0 {
            return false;
        }
        page.spoken |= bit;
        let was = page.present & bit != 0;
        if there {
            page.present |= bit;
        } else {
            page.present &= !bit;
        }
        let (empty, changed) = (page.present == 0, was != there);
        if changed {
            state.objects = if there { state.objects + 1 } else { state.objects.saturating_sub(1) };
        }
        if empty && !listing_open {
            remove_at(&mut part, at);
            self.page_count -= 1;
        }
        changed
    }

    /// All of a tenant's pages are gone from now on; the tables are tidied by [`PoolIndex::step`].
    fn clear(&mut self, tenant: &str) -> bool {
        let Some(at) = self.tenant_names.get(tenant_name(tenant)).copied() else {
            self.counters.unclaimed += 1;
            return false;
        };
        if self.listing.as_ref().is_some_and(|listing| listing.tenant == at) {
            self.void_listing();
        }
        let Some(state) = self.tenants.get_mut(at) else { return false };
        state.generation = state.generation.saturating_add(1);
        state.shared.cleared_at.store(state.generation, Ordering::Release);
        self.reclaim_due = true;
        std::mem::take(&mut state.objects) > 0
    }
}
