//! Who waits, in which order they are let in, and what is done for those that have waited long.
//!
//! - A turn that fits passes one that does not; one that is overdue keeps the room of one worker for itself, and takes it
//!   from idle programs as far as the budget for computing again allows.

use std::time::Duration;

use tandem_types::{GroupId, TenantId, Time, TurnId, WorkerId};

use super::{FRESH, LOOK, Tandem};
use crate::contract::{Action, HoldReason};
use crate::rooms::float;

/// Most waiting turns tried after one event.
const TRIED_MAX: usize = 64;

/// The budget for re-prefill does not pile up for longer.
const CREDIT_MAX: Duration = Duration::from_secs(300);

impl Tandem {
    /// Lets waiting turns in that fit, in their order. An overdue one keeps room for itself.
    pub(super) fn pump(&mut self, now: Time, out: &mut Vec<Action>) {
        self.earn(now);
        self.renew(now);
        let mut reserved = None;
        let mut bound = None;
        let mut begun = None;
        for id in self.queue(TRIED_MAX) {
            let overdue = self.is_overdue(now, id);
            let group = self.new_in_group(id);
            if group.is_some() && begun.is_some() && group != begun {
                continue;
            }
            begun = begun.or(group);
            let free = *bound.get_or_insert_with(|| self.bound());
            let hopeless = self.is_hopeless(id, free, reserved);
            let serves = overdue && reserved.is_none();
            if hopeless && !serves {
                continue;
            }
            let placed = if hopeless { Err(HoldReason::NoRoom) } else { self.place(now, id, reserved) };
            match placed {
                Ok(fit) => self.admit(now, id, fit, out),
                Err(_) if serves => {
                    reserved = self.serve_overdue(now, id, out);
                    if reserved.is_some() {
                        continue;
                    }
                }
                Err(_) => continue,
            }
            self.renew(now);
            bound = None;
        }
        self.next_look = (!self.table.waiting.is_empty()).then(|| now + LOOK);
    }

    /// The first of those that wait.
    fn queue(&self, most: usize) -> Vec<TurnId> {
        let needs = |id| self.table.turn(id).map_or(0, |turn| turn.prompt);
        self.table.kin.queue(most, |tenant| self.share(tenant), needs)
    }

    fn share(&self, tenant: &TenantId) -> f64 {
        self.config.shares.get(tenant.as_str()).copied().unwrap_or(1.0)
    }

    /// The group of a turn that is its program's first.
    fn new_in_group(&self, id: TurnId) -> Option<GroupId> {
        let program = self.table.program(self.table.turn(id)?.slot)?;
        program.group.clone().filter(|_| !program.ran)
    }

    /// Whether a turn opens a group although one that began before it is not whole.
    pub(super) fn is_early(&self, id: TurnId) -> bool {
        let Some(group) = self.new_in_group(id) else { return false };
        let before = self.queue(TRIED_MAX).into_iter().take_while(|other| *other != id);
        before.filter_map(|other| self.new_in_group(other)).any(|other| other != group)
    }

    fn is_overdue(&self, now: Time, id: TurnId) -> bool {
        let Some(turn) = self.table.turn(id) else { return false };
        let tenant = self.table.program(turn.slot).map(|program| &program.tenant);
        now.since(turn.arrived) >= self.config.overdue
            || tenant.is_some_and(|t| self.table.kin.is_short(t, turn.prompt, |tenant| self.share(tenant)))
    }

    /// The worker whose room is kept for the first turn that waits, if it is overdue and not the one that arrives.
    pub(super) fn reserved(&mut self, now: Time, arriving: TurnId) -> Option<WorkerId> {
        let id = self.queue(1).first().copied().filter(|first| *first != arriving)?;
        self.is_overdue(now, id).then(|| self.roomiest(now)).flatten()
    }

    fn roomiest(&mut self, now: Time) -> Option<WorkerId> {
        self.renew(now);
        self.most_room()
    }

    fn earn(&mut self, now: Time) {
        self.follow();
        let workers = float(self.rooms.ready as u64);
        let earned = |time: Duration| time.as_secs_f64() * workers * self.config.reprefill_share;
        self.credit = (self.credit + earned(now.since(self.credit_at))).min(earned(CREDIT_MAX));
        self.credit_at = now;
    }

    /// Takes room for an overdue turn from idle programs that have had their turns, as long as the budget pays for what
    /// they lose. The worker whose room is kept for it if it could not be let in.
    fn serve_overdue(&mut self, now: Time, id: TurnId, out: &mut Vec<Action>) -> Option<WorkerId> {
        // What was too dear a moment ago is so still, until the budget has grown.
        let dear = self.dear.is_some_and(|(turn, at, cost)| {
            turn == id && now.since(at) < FRESH && now >= at && self.credit < cost
        });
        if dear {
            return self.roomiest(now);
        }
        self.renew(now);
        let best = self.cheapest(id);
        match best {
            Some((cost, fit)) if cost <= self.credit => {
                self.credit -= cost;
                self.admit(now, id, fit, out);
                None
            }
            _ => {
                self.dear = Some((id, now, best.map_or(f64::INFINITY, |(cost, _)| cost)));
                self.roomiest(now)
            }
        }
    }
}
