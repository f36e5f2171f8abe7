//! Whom a turn stands for: its tenant, its group, the program that spawned its own.
//!
//! - A tenant's load is what its turns and idle programs are charged with. Held turns of several tenants come up in the
//!   order of load over share, so that each gets room in proportion; within a tenant in their own order ([`Kin::rank`]).
//! - A group's turns take the place of the group's first one: who has begun is finished before others begin. A subagent's
//!   turns take the place of its parent's last one: the parent's cache lies idle until the subagent is done.
//! - I-KIN-1 a tenant's load is the sum of its charges, and it is remembered while it has programs.
//! - I-KIN-2 every held turn is in its tenant's queue, and nobody else is.
//! - Deliberately absent: who may do what. Shares are of room while there is a choice; an idle pool is anybody's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tandem_types::{GroupId, ProgramKey, TenantId, Time, TurnId};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Tenant {
    /// Tokens charged at all workers.
    pub(crate) charged: u64,
    /// Its held turns, by rank.
    pub(crate) waiting: BTreeSet<(Time, TurnId)>,
    pub(crate) programs: u32,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Kin {
    pub(crate) tenants: BTreeMap<TenantId, Tenant>,
    /// Of each group that has programs: when its first turn came, and how many programs.
    groups: BTreeMap<GroupId, (Time, u32)>,
    /// When the last group began. No two begin at once: their turns would mix.
    last_begun: Time,
    /// Of each program named as a parent: programs that it spawned, and their held turns.
    children: BTreeMap<Arc<ProgramKey>, (u32, u32)>,
}

impl Kin {
    pub(crate) fn came(
        &mut self,
        now: Time,
        tenant: &TenantId,
        group: Option<&GroupId>,
        parent: Option<&Arc<ProgramKey>>,
    ) {
        self.tenants.entry(tenant.clone()).or_default().programs += 1;
        if let Some(group) = group {
            if !self.groups.contains_key(group) {
                self.last_begun = now.max(self.last_begun + Duration::from_nanos(1));
                self.groups.insert(group.clone(), (self.last_begun, 0));
            }
            if let Some(entry) = self.groups.get_mut(group) {
                entry.1 += 1;
            }
        }
        if let Some(parent) = parent {
            self.children.entry(Arc::clone(parent)).or_default().0 += 1;
        }
    }

    pub(crate) fn left(&mut self, tenant: &TenantId, group: Option<&GroupId>, parent: Option<&ProgramKey>) {
        if let Some(entry) = self.tenants.get_mut(tenant) {
            entry.programs = entry.programs.saturating_sub(1);
            if entry.programs == 0 {
                self.tenants.remove(tenant);
            }
        }
        if let Some(group) = group
            && let Some(entry) = self.groups.get_mut(group)
        {
            entry.1 = entry.1.saturating_sub(1);
            if entry.1 == 0 {
                self.groups.remove(group);
            }
        }
        if let Some(parent) = parent
            && let Some(entry) = self.children.get_mut(parent)
        {
            entry.0 = entry.0.saturating_sub(1);
            if entry.0 == 0 {
                self.children.remove(parent);
            }
        }
    }

    /// When a turn that arrived then counts as having come.
    pub(crate) fn rank(&self, arrived: Time, group: Option<&GroupId>, parent_idle: Option<Time>) -> Time {
        let begun = group.and_then(|group| self.groups.get(group)).map(|(first, _)| *first);
        let own = begun.unwrap_or(arrived);
        parent_idle.map_or(own, |idle| own.min(idle))
    }

    pub(crate) fn charge(&mut self, tenant: &TenantId, tokens: u64) {
        self.tenants.entry(tenant.clone()).or_default().charged += tokens;
    }

    pub(crate) fn discharge(&mut self, tenant: &TenantId, tokens: u64) {
        if let Some(entry) = self.tenants.get_mut(tenant) {
            entry.charged = entry.charged.saturating_sub(tokens);
        }
    }

    pub(crate) fn held(&mut self, tenant: &TenantId, place: (Time, TurnId), parent: Option<&ProgramKey>) {
        self.tenants.entry(tenant.clone()).or_default().waiting.insert(place);
        if let Some(entry) = parent.and_then(|parent| self.children.get_mut(parent)) {
            entry.1 += 1;
        }
    }

    pub(crate) fn freed(&mut self, tenant: &TenantId, place: (Time, TurnId), parent: Option<&ProgramKey>) {
        let was = self.tenants.get_mut(tenant).is_some_and(|entry| entry.waiting.remove(&place));
        if let Some(entry) = parent.filter(|_| was).and_then(|parent| self.children.get_mut(parent)) {
            entry.1 = entry.1.saturating_sub(1);
        }
    }

    /// How many programs are known that this one spawned, and how many of their turns are held.
    pub(crate) fn children(&self, program: &ProgramKey) -> (u32, u32) {
        if self.children.is_empty() {
            (0, 0)
        } else {
            self.children.get(program).copied().unwrap_or_default()
        }
    }

    /// The first held turns: the tenant that has least for its share comes first, what its turns would take counted as
    /// they are named. `needs` tells that.
    #[expect(clippy::cast_precision_loss, reason = "token counts are far below 2^52")]
    pub(crate) fn queue(
        &self,
        most: usize,
        share: impl Fn(&TenantId) -> f64,
        needs: impl Fn(TurnId) -> u64,
    ) -> Vec<TurnId> {
        let waiting = || self.tenants.iter().filter(|(_, tenant)| !tenant.waiting.is_empty());
        if waiting().count() <= 1 {
            let only = waiting().next().into_iter().flat_map(|(_, tenant)| &tenant.waiting);
            return only.take(most).map(|(_, id)| *id).collect();
        }
        let mut lines: Vec<_> = waiting()
            .map(|(id, tenant)| (tenant.charged as f64, share(id), tenant.waiting.iter().peekable()))
            .collect();
        let mut queue = Vec::new();
        while queue.len() < most {
            let next = lines
                .iter_mut()
                .filter_map(|line| line.2.peek().copied().map(|place| (line.0 / line.1, *place, line)))
                .min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            let Some((_, (_, id), line)) = next else { break };
            line.0 += needs(id) as f64;
            line.2.next();
            queue.push(id);
        }
        queue
    }

    /// Whether a tenant has less than its share of what is charged, while another has more.
    #[expect(clippy::cast_precision_loss, reason = "token counts are far below 2^52")]
    pub(crate) fn is_short(&self, tenant: &TenantId, needs: u64, share: impl Fn(&TenantId) -> f64) -> bool {
        if self.tenants.len() < 2 {
            return false;
        }
        let all: f64 = self.tenants.keys().map(&share).sum();
        let charged: u64 = self.tenants.values().map(|tenant| tenant.charged).sum();
        let own = self.tenants.get(tenant).map_or(0, |tenant| tenant.charged) + needs;
        (own as f64) <= charged as f64 * share(tenant) / all
    }
}
