//! The shared store: layouts, keys and what is told of objects.

use std::sync::Arc;

use tandem_kvindex::pool::{
    ClaimError, Doubt, Layout, LayoutSpec, Object, PageHash, PoolEvent, PoolIndex, RunStart, Trailing,
};
use tandem_kvwire::mooncake::sglang::SglangLayout;
use tandem_kvwire::mooncake::vllm::{VllmKey, VllmLayout};
use tandem_kvwire::mooncake::{ObjectChange, ObjectKey, StoreBatch};
use tandem_types::Time;

use crate::StoreUse;
use crate::pages::{Naming, vllm_page};

/// Pages looked at for one listing or clear in one tick.
const STEP_PAGES: usize = 65_536;

/// A change of what a store is known to hold.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum StoreChange<'a> {
    /// Objects came and went.
    Batch {
        /// The batch's number.
        seq: u64,
        /// What happened.
        batch: &'a StoreBatch,
    },
    /// Something may have been missed. What is known stands until the next listing.
    Doubt(StoreDoubt),
    /// A listing is about to be asked for.
    ListingBegins,
    /// These objects are there. Only within a listing.
    Listed(&'a [Arc<str>]),
    /// These objects are not there. Only within a listing.
    Absent(&'a [Arc<str>]),
    /// The listing is over.
    ListingEnds {
        /// Every key was listed: what was not mentioned is not there.
        complete: bool,
    },
}

/// Why something may have been missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreDoubt {
    /// Messages were lost.
    Gap,
    /// The master is another process than before.
    Restart,
    /// The connection was lost.
    Disconnected,
    /// The master dropped events, or published some that did not arrive.
    Dropped,
}

/// A claimed layout with the number of those who use it.
#[derive(Debug)]
struct Claim {
    no: u32,
    spec: LayoutSpec,
    layout: Layout,
    uses: usize,
}

/// The store's index and the layouts that are asked of it.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) index: PoolIndex,
    claims: Vec<Claim>,
    next_claim: u32,
    /// Keys of no form that we know.
    pub(crate) odd_keys: u64,
    /// Layouts that were refused.
    pub(crate) refused: u64,
    /// Stores of vLLM whose names are learned: tenant and space.
    scopes: Vec<(String, String)>,
}

/// A worker's hold on the store.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) layout: Layout,
    pub(crate) layout_no: u32,
    pub(crate) naming: Naming,
    pub(crate) lookahead: u32,
}

impl Store {
    pub(crate) fn new(index: PoolIndex) -> Self {
        Self { index, claims: Vec::new(), next_claim: 0, odd_keys: 0, refused: 0, scopes: Vec::new() }
    }

    /// A worker uses the store from now on; `None` = its layout cannot be kept.
    pub(crate) fn hold(&mut self, use_: &StoreUse, now: Time) -> Option<Hold> {
        let spec = layout_spec(use_);
        let claim = match self.claims.iter_mut().find(|claim| claim.spec == spec) {
            Some(claim) => claim,
            None => match self.claim(&spec, now) {
                Ok(()) => self.claims.last_mut()?,
                Err(_) => {
                    self.refused += 1;
                    return None;
                }
            },
        };
        claim.uses += 1;
        let (layout, layout_no) = (claim.layout.clone(), claim.no);
        let (naming, lookahead) = match use_ {
            StoreUse::Vllm { hash: Some(hashing), .. } => (Naming::Vllm(hashing.clone()), 0),
            StoreUse::Vllm { hash: None, .. } => (Naming::Learned(self.scope(&spec)), 0),
            StoreUse::Sglang { bigram, .. } => (Naming::Sglang, u32::from(*bigram)),
        };
        Some(Hold { layout, layout_no, naming, lookahead })
    }

    fn claim(&mut self, spec: &LayoutSpec, now: Time) -> Result<(), ClaimError> {
        let layout = self.index.claim(spec, now)?;
        self.claims.push(Claim { no: self.next_claim, spec: spec.clone(), layout, uses: 0 });
        self.next_claim += 1;
        Ok(())
    }

    fn scope(&mut self, spec: &LayoutSpec) -> u32 {
        let key = (spec.tenant.clone(), spec.space.clone());
        let known = self.scopes.iter().position(|scope| *scope == key);
        let at = known.unwrap_or_else(|| {
            self.scopes.push(key);
            self.scopes.len() - 1
        });
        u32::try_from(at).unwrap_or(u32::MAX)
    }

    /// The worker uses it no longer.
    pub(crate) fn release(&mut self, hold: &Hold) {
        let Some(at) = self.claims.iter().position(|claim| claim.no == hold.layout_no) else { return };
        if let Some(claim) = self.claims.get_mut(at) {
            claim.uses = claim.uses.saturating_sub(1);
            if claim.uses == 0 {
                self.index.release(&claim.layout);
                self.claims.remove(at);
            }
        }
    }

    pub(crate) fn change(&mut self, change: StoreChange<'_>, now: Time) {
        match change {
            StoreChange::Batch { seq, batch } => self.batch(seq, batch, now),
            StoreChange::Doubt(StoreDoubt::Disconnected) => self.index.disconnected(now),
            StoreChange::Doubt(StoreDoubt::Gap) => self.index.doubt(Doubt::Gap, now),
            StoreChange::Doubt(StoreDoubt::Restart) => self.index.doubt(Doubt::Restart, now),
            StoreChange::Doubt(StoreDoubt::Dropped) => self.index.doubt(Doubt::Reported, now),
            StoreChange::ListingBegins => {
                // The last one's sweep must be over.
                while !self.index.step(STEP_PAGES).idle {}
                // Refused where nobody uses the store: the listing is then ignored.
                let _ = self.index.begin_listing("", now);
            }
            StoreChange::Listed(keys) => self.said(keys, true),
            StoreChange::Absent(keys) => self.said(keys, false),
            StoreChange::ListingEnds { complete } => {
                self.index.finish_listing(complete);
            }
        }
    }

    fn batch(&mut self, seq: u64, batch: &StoreBatch, now: Time) {
        let mut named = Vec::with_capacity(batch.events.len());
        for event in &batch.events {
            let tenant = event.tenant.as_deref().unwrap_or_default();
            let what = match &event.change {
                ObjectChange::Stored(key) => Named::of(key).map(|named| (tenant, true, Some(named))),
                ObjectChange::Removed(key) => Named::of(key).map(|named| (tenant, false, Some(named))),
                ObjectChange::Cleared => Some((tenant, false, None)),
            };
            self.odd_keys += u64::from(what.is_none());
            named.extend(what);
        }
        let events: Vec<PoolEvent<'_>> = named
            .iter()
            .map(|(tenant, stored, named)| match named {
                None => PoolEvent::Cleared { tenant },
                Some(named) if *stored => PoolEvent::Stored(named.object(tenant)),
                Some(named) => PoolEvent::Removed(named.object(tenant)),
            })
            .collect();
        self.index.apply(seq, &events, now);
    }

    fn said(&mut self, keys: &[Arc<str>], there: bool) {
        for key in keys {
            match Named::of(key) {
                None => self.odd_keys += 1,
                Some(named) if there => drop(self.index.listed(&named.object(""))),
                Some(named) => drop(self.index.listed_absent(&named.object(""))),
            }
        }
    }

    pub(crate) fn contains(&self, key: &str) -> bool {
        Named::of(key).is_some_and(|named| self.index.contains(&named.object("")))
    }

    pub(crate) fn step(&mut self) {
        self.index.step(STEP_PAGES);
    }
}

/// A key in the parts by which the pool index keeps objects.
struct Named {
    space: String,
    page: PageHash,
    slot: String,
}

impl Named {
    fn of(key: &str) -> Option<Self> {
        Some(match ObjectKey::parse(key)? {
            ObjectKey::Vllm(key) => {
                Self { space: vllm_space(&key.head), page: vllm_page(key.block_id()), slot: vllm_slot(&key) }
            }
            ObjectKey::Sglang(key) => Self {
                space: sglang_space(key.prefix.as_deref()),
                page: PageHash::from_digest(&key.page),
                slot: key.part.to_string(),
            },
        })
    }

    fn object<'a>(&'a self, tenant: &'a str) -> Object<'a> {
        Object { tenant, space: &self.space, page: self.page, slot: &self.slot }
    }
}

fn vllm_space(head: &str) -> String {
    format!("{head}@")
}

fn sglang_space(prefix: Option<&str>) -> String {
    prefix.map_or_else(String::new, |prefix| format!("{prefix}_"))
}

fn vllm_slot(key: &VllmKey) -> String {
    let VllmKey { tp_rank, pcp_rank, dcp_rank, pp_rank, group, .. } = key;
    format!("tp_rank:{tp_rank}@pcp{pcp_rank}@dcp{dcp_rank}@pp_rank:{pp_rank}@group:{group}")
}

fn vllm_slots(layout: &VllmLayout) -> Vec<String> {
    layout.keys(&[0; 32]).map(|key| vllm_slot(&key)).collect()
}

fn sglang_slots(layout: &SglangLayout) -> Vec<String> {
    let page = layout.page_key(&[0; 32]);
    layout.keys(&[0; 32]).iter().filter_map(|key| key.strip_prefix(&page).map(str::to_owned)).collect()
}

/// What is needed of the store. Foreign are the objects that a worker with one rank or stage more would write: a
/// larger worker's page has all the names of a smaller one's.
fn layout_spec(use_: &StoreUse) -> LayoutSpec {
    let (tenant, space, every, others, trailing, run) = match use_ {
        StoreUse::Vllm { tenant, layout, .. } => {
            let others = [
                VllmLayout { tp_size: layout.tp_size.saturating_add(1), ..layout.clone() },
                VllmLayout { pcp_size: layout.pcp_size.saturating_add(1), ..layout.clone() },
                VllmLayout { dcp_size: layout.dcp_size.saturating_add(1), ..layout.clone() },
                VllmLayout { pp_size: layout.pp_size.saturating_add(1), ..layout.clone() },
            ];
            let others: Vec<String> = others.iter().flat_map(vllm_slots).collect();
            let space = vllm_space(&layout.head);
            (tenant, space, vllm_slots(layout), others, Vec::new(), RunStart::FirstPage)
        }
        StoreUse::Sglang { tenant, layout, trailing, .. } => {
            let wider = SglangLayout {
                tp_size: layout.tp_size.saturating_add(1),
                tp_lcm_size: layout.tp_lcm_size.map(|size| size.saturating_add(1)),
                ..layout.clone()
            };
            let longer = SglangLayout { pp_size: layout.pp_size.saturating_add(1), ..layout.clone() };
            // With one stage more than one, names change altogether.
            let staged = if layout.pp_size > 1 { sglang_slots(&longer) } else { Vec::new() };
            let others = sglang_slots(&wider).into_iter().chain(staged).collect();
            let space = sglang_space(layout.prefix.as_deref());
            (tenant, space, sglang_slots(layout), others, trailing.clone(), RunStart::LocalEnd)
        }
    };
    let needed =
        |slot: &String| every.contains(slot) || trailing.iter().any(|t: &Trailing| t.slots.contains(slot));
    let mut foreign: Vec<String> = others.into_iter().filter(|slot| !needed(slot)).collect();
    foreign.sort_unstable();
    foreign.dedup();
    LayoutSpec { tenant: tenant.clone(), space, every, trailing, foreign, run }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_needs_its_own_objects_and_none_of_a_larger_worker() {
        let spec = |layout| {
            let tenant = String::new();
            layout_spec(&StoreUse::Sglang { tenant, layout, bigram: false, trailing: Vec::new() })
        };
        let two = spec(SglangLayout::new(2, 1, false).with_prefix(None, Some("org/m"), None));
        assert_eq!(two.space, "org-m_");
        assert_eq!(two.every, ["_0_k", "_0_v", "_1_k", "_1_v"]);
        assert_eq!(two.foreign, ["_2_k", "_2_v"]);
        let staged = spec(SglangLayout::new(1, 2, false));
        assert_eq!(staged.every, ["_0_0_k", "_0_0_v", "_0_1_k", "_0_1_v"]);
        assert!(
            staged.foreign.contains(&"_0_2_k".to_owned()) && staged.foreign.contains(&"_1_0_k".to_owned())
        );
        let latent = spec(SglangLayout::new(8, 1, true));
        assert_eq!((latent.every, latent.foreign), (vec!["__k".to_owned()], Vec::new()));
    }

    #[test]
    fn keys_lead_to_the_objects_that_layouts_ask_for() {
        let layout = VllmLayout { tp_size: 2, ..VllmLayout::single("cache@model") };
        let spec = layout_spec(&StoreUse::Vllm { tenant: String::new(), layout: layout.clone(), hash: None });
        let digest = [7; 32];
        for key in layout.keys(&digest) {
            let named = Named::of(&key.to_string()).expect("a key");
            assert_eq!(named.space, spec.space);
            assert!(spec.every.contains(&named.slot));
            assert_eq!(named.page, vllm_page(0x0707_0707_0707_0707));
        }
        let other = VllmLayout { tp_size: 3, ..layout };
        let last = other.keys(&digest).find(|key| key.tp_rank == 2).expect("rank 2");
        assert!(spec.foreign.contains(&vllm_slot(&last)));
        assert!(Named::of("somebody-elses-object").is_none());
    }
}
