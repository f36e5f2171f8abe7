//! Layouts: which objects make up a page for a worker, and from where its engine looks up.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use tandem_types::Time;

use super::index::{PoolIndex, TenantState};
use super::{Doubt, tenant_name};

/// Where an engine's look-up in the store begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RunStart {
    /// At the end of what it holds itself (SGLang).
    LocalEnd,
    /// At the first page of the prompt, whatever it holds (vLLM): a hole anywhere ends the run.
    FirstPage,
}

/// Objects that must be there for the last pages of a run only: a sliding window, a state checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Trailing {
    /// How many of the run's last pages.
    pub pages: u32,
    /// Their slots.
    pub slots: Vec<String>,
}

/// What a worker's engine needs of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayoutSpec {
    /// The store's tenant; empty = `default`.
    pub tenant: String,
    /// The space in which the engine writes.
    pub space: String,
    /// Slots that every page of a run must have.
    pub every: Vec<String>,
    /// Slots that only the end of a run must have.
    pub trailing: Vec<Trailing>,
    /// Slots in the same space that only a worker of another layout writes: a page with one of them was not
    /// written in this layout, even if all names of this layout exist.
    pub foreign: Vec<String>,
    /// Where look-ups begin.
    pub run: RunStart,
}

/// Why a layout cannot be claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// No slot is needed of every page: any page would be a hit.
    #[error("layout needs no object of a page")]
    NoSlots,
    /// A slot is both needed and foreign.
    #[error("layout needs a slot that it calls foreign")]
    Contradiction,
    /// [`super::PoolLimits::spaces`] are claimed.
    #[error("too many spaces claimed")]
    TooManySpaces,
    /// The space has [`super::PoolLimits::slots_per_space`] slots.
    #[error("too many slots in one space")]
    TooManySlots,
}

/// What readers see of a tenant without asking the writer.
#[derive(Debug, Default)]
pub(super) struct TenantShared {
    /// Pages last touched before this generation are gone.
    pub(super) cleared_at: AtomicU32,
    /// Begin of the last complete listing, nanoseconds plus one; 0 = never.
    pub(super) listed_at: AtomicU64,
    /// Whether something may have been missed since.
    pub(super) doubted: AtomicBool,
}

/// Bits needed of one plane (64 slots) of a page.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Mask {
    pub(super) plane: u32,
    pub(super) need: u64,
    pub(super) foreign: u64,
}

/// A claimed layout, with which readers ask. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Layout {
    pub(super) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) tenant: Box<str>,
    pub(super) space: Box<str>,
    pub(super) every: Vec<Mask>,
    pub(super) trailing: Vec<(u32, Vec<Mask>)>,
    pub(super) run: RunStart,
    pub(super) shared: Arc<TenantShared>,
}

/// How far the index may be believed. Silent evictions make even an undoubted index age.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Freshness {
    /// Time since the last complete listing began; `None` = there was none.
    pub listed: Option<Duration>,
    /// Events may have been missed since.
    pub doubted: bool,
}

impl Layout {
    /// How far hits of this layout may be believed at `now`.
    #[must_use]
    pub fn freshness(&self, now: Time) -> Freshness {
        let at = self.inner.shared.listed_at.load(Ordering::Acquire);
        Freshness {
            listed: at.checked_sub(1).map(|at| now.since(Time(at))),
            doubted: self.inner.shared.doubted.load(Ordering::Acquire),
        }
    }

    /// Where look-ups of this layout begin.
    #[must_use]
    pub fn run(&self) -> RunStart {
        self.inner.run
    }
}

/// No limit may be higher: planes are numbered with room for this.
const SLOTS_MAX: usize = 1 << 16;

/// One claimed key prefix of a tenant.
#[derive(Debug, Default)]
pub(super) struct Space {
    /// Slot names, numbered in order of their first claim; never iterated.
    pub(super) slots: HashMap<Box<str>, u32>,
    /// Global plane number of each 64 slots.
    pub(super) planes: Vec<u32>,
    /// Layouts that are claimed.
    pub(super) claims: usize,
}

impl Space {
    /// The plane and bit of a slot.
    pub(super) fn place(&self, slot: &str) -> Option<(u32, u64)> {
        let number = *self.slots.get(slot)?;
        let plane = self.planes.get((number / 64) as usize)?;
        Some((*plane, 1 << (number % 64)))
    }
}

/// A number for each 64 slots of a space, by which pages are kept.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plane {
    pub(super) tenant: usize,
    /// Cleared when its space is released; pages of it are then reclaimed.
    pub(super) live: bool,
}

impl PoolIndex {
    /// Starts to keep what workers of this layout need. Objects that were put before are learned from the next
    /// listing, which the claim asks for if it brings anything new. Each claim needs a [`PoolIndex::release`].
    ///
    /// # Errors
    /// [`ClaimError`]: the layout makes no sense, or a limit is reached; nothing changes then.
    pub fn claim(&mut self, spec: &LayoutSpec, now: Time) -> Result<Layout, ClaimError> {
        if spec.every.is_empty() {
            return Err(ClaimError::NoSlots);
        }
        let needed = || spec.every.iter().chain(spec.trailing.iter().flat_map(|t| &t.slots));
        if needed().any(|slot| spec.foreign.contains(slot)) {
            return Err(ClaimError::Contradiction);
        }
        let tenant_name = tenant_name(&spec.tenant);
        let known = self.space(tenant_name, &spec.space);
        let planes_left = u32::MAX - self.next_plane > 1 << 16;
        if known.is_none() && (self.space_count >= self.limits.spaces || !planes_left) {
            return Err(ClaimError::TooManySpaces);
        }
        let mut fresh: Vec<&str> = needed()
            .chain(&spec.foreign)
            .map(String::as_str)
            .filter(|slot| known.is_none_or(|space| !space.slots.contains_key(*slot)))
            .collect();
        fresh.sort_unstable();
        fresh.dedup();
        let before = known.map_or(0, |space| space.slots.len());
        if before + fresh.len() > self.limits.slots_per_space.min(SLOTS_MAX) {
            return Err(ClaimError::TooManySlots);
        }
        let tenant = self.tenant_or_new(tenant_name);
        self.grow_space(tenant, &spec.space, &fresh);
        if !fresh.is_empty() {
            self.doubt_tenant(tenant, Doubt::NewLayout, now);
        }
        Ok(self.handle(tenant, spec))
    }

    /// Ends one claim. Pages of a space without claims vanish at once and are reclaimed by [`PoolIndex::step`].
    pub fn release(&mut self, layout: &Layout) {
        let Some(tenant) = self.tenant_names.get(&layout.inner.tenant).copied() else { return };
        let Some(state) = self.tenants.get_mut(tenant) else { return };
        let Some(space) = state.spaces.get_mut(&layout.inner.space) else { return };
        let ours = layout.inner.every.first().is_some_and(|mask| space.planes.contains(&mask.plane));
        if !ours {
            return;
        }
        space.claims = space.claims.saturating_sub(1);
        if space.claims > 0 {
            return;
        }
        if let Some(space) = state.spaces.remove(&layout.inner.space) {
            self.space_count -= 1;
            for plane in space.planes {
                if let Some(info) = self.planes.get_mut(&plane) {
                    info.live = false;
                }
                self.limbo.push(plane);
            }
            self.reclaim_due = true;
        }
    }

    fn grow_space(&mut self, tenant: usize, name: &str, fresh: &[&str]) {
        let Some(state) = self.tenants.get_mut(tenant) else { return };
        if !state.spaces.contains_key(name) {
            state.spaces.insert(name.into(), Space::default());
            self.space_count += 1;
        }
        let Some(space) = state.spaces.get_mut(name) else { return };
        space.claims += 1;
        for slot in fresh {
            let number = u32::try_from(space.slots.len()).unwrap_or(u32::MAX);
            if number.is_multiple_of(64) {
                // Numbers are never used again, so that a handle of a released layout finds nothing.
                self.planes.insert(self.next_plane, Plane { tenant, live: true });
                space.planes.push(self.next_plane);
                self.next_plane += 1;
                state.planes += 1;
            }
            space.slots.insert((*slot).into(), number);
        }
    }

    fn handle(&self, tenant: usize, spec: &LayoutSpec) -> Layout {
        let state = self.tenants.get(tenant);
        let space = state.and_then(|state| state.spaces.get(spec.space.as_str()));
        let masks = |need: &[String], foreign: &[String]| {
            let mut out: Vec<Mask> = Vec::new();
            let sides = need.iter().map(|slot| (slot, true)).chain(foreign.iter().map(|slot| (slot, false)));
            for (slot, needed) in sides {
                let Some((plane, bit)) = space.and_then(|space| space.place(slot)) else { continue };
                let at = out.iter().position(|mask| mask.plane == plane).unwrap_or_else(|| {
                    out.push(Mask { plane, ..Mask::default() });
                    out.len() - 1
                });
                if let Some(mask) = out.get_mut(at) {
                    *if needed { &mut mask.need } else { &mut mask.foreign } |= bit;
                }
            }
            out
        };
        Layout {
            inner: Arc::new(Inner {
                tenant: tenant_name(&spec.tenant).into(),
                space: spec.space.as_str().into(),
                every: masks(&spec.every, &spec.foreign),
                trailing: spec.trailing.iter().map(|t| (t.pages, masks(&t.slots, &[]))).collect(),
                run: spec.run,
                shared: state.map(|state: &TenantState| Arc::clone(&state.shared)).unwrap_or_default(),
            }),
        }
    }
}
