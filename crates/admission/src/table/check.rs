//! A recount of everything, for tests and invariants.

use std::collections::BTreeMap;

use tandem_types::{TenantId, WorkerId};

use super::{Idler, Program, Slot, Table};
use crate::kin::Tenant;

impl Table {
    /// Counts everything again.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut found: BTreeMap<WorkerId, (u64, u32, u64, Vec<Idler>)> = BTreeMap::new();
        for (id, turn) in &self.turns {
            let program = self.program(turn.slot).ok_or(format!("{id} belongs to nobody"))?;
            if !program.live.contains(id) || turn.waiting != self.waiting.contains(&(turn.rank, *id)) {
                return Err(format!("{id} is lost"));
            }
            if let Some((worker, tokens)) = turn.charge {
                let sums = found.entry(worker).or_default();
                (sums.0, sums.1) = (sums.0 + tokens, sums.1 + 1);
            }
        }
        for (slot, program) in self.programs() {
            if program.live.iter().any(|id| self.turns.get(id).is_none_or(|turn| turn.slot != slot)) {
                return Err(format!("program {slot} has turns that are gone"));
            }
            if program.is_idle() != program.idle_since.is_some_and(|since| self.idle.contains(&(since, slot)))
            {
                return Err(format!("program {slot} is idle and not listed, or the other way round"));
            }
            if let Some((worker, tokens)) = program.charge {
                let sums = found.entry(worker).or_default();
                sums.2 += tokens;
                let since =
                    program.idle_since.ok_or(format!("program {slot} is charged as idle and is not"))?;
                sums.3.push(Idler::new(slot, program, since, tokens));
            }
        }
        self.check_homes()?;
        let paused = |(slot, p): (Slot, &Program)| (p.is_idle() && !p.active) == self.paused.contains(&slot);
        if !self.programs().all(paused) {
            return Err("a paused program is not listed, or another one is".to_owned());
        }
        let listed = (self.waiting.len() <= self.turns.len(), self.idle.len() <= self.programs.len());
        if listed != (true, true) || self.by_key.len() > self.programs_max {
            return Err("more is listed than there is".to_owned());
        }
        self.check_kin()?;
        for (id, worker) in &self.workers {
            let counted = (worker.running_tokens, worker.running, worker.idle_tokens, worker.idle.clone());
            let sums = found.remove(id).unwrap_or_default();
            if counted != sums {
                return Err(format!("{id} is charged {counted:?}, has {sums:?}"));
            }
            let heads: u64 =
                worker.heads.values().filter_map(|h| h.last_key_value()).map(|(head, _)| *head).sum();
            if heads != worker.shared {
                return Err(format!("{id} counts heads of {}, has {heads}", worker.shared));
            }
        }
        if found.is_empty() { Ok(()) } else { Err(format!("charges at unknown workers: {found:?}")) }
    }

    fn check_kin(&self) -> Result<(), String> {
        let mut found: BTreeMap<TenantId, Tenant> = BTreeMap::new();
        for (_, program) in self.programs() {
            let entry = found.entry(program.tenant.clone()).or_default();
            entry.programs += 1;
            entry.charged += program.charge.map_or(0, |(_, tokens)| tokens);
            for (id, turn) in program.live.iter().filter_map(|id| Some((*id, self.turns.get(id)?))) {
                entry.charged += turn.charge.map_or(0, |(_, tokens)| tokens);
                if turn.waiting {
                    entry.waiting.insert((turn.rank, id));
                }
            }
        }
        if found == self.kin.tenants {
            Ok(())
        } else {
            Err(format!("tenants have {found:?}, and {:?} is counted", self.kin.tenants))
        }
    }

    fn check_homes(&self) -> Result<(), String> {
        for (slot, program) in self.programs() {
            let told = program.key.as_ref().map_or((0, 0), |key| self.kin.children(key));
            if program.children != told {
                return Err(format!(
                    "program {slot} has {:?} children, {told:?} are known",
                    program.children
                ));
            }
            let home = program.home.and_then(|home| self.workers.get(&home));
            if home.is_some_and(|home| !home.residents.contains(&slot)) {
                return Err(format!("program {slot} is not listed at its home"));
            }
        }
        let known = |home: WorkerId| self.workers.contains_key(&home);
        let at_home = self.programs().filter(|(_, program)| program.home.is_some_and(known)).count();
        if self.workers.values().map(|worker| worker.residents.len()).sum::<usize>() != at_home {
            return Err("a program is listed at a worker that is not its home".to_owned());
        }
        Ok(())
    }
}
