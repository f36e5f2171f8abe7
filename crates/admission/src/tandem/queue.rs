//! Who waits, in which order they are let in, and what is done for those that have waited long.
//!
//! - A turn that fits passes one that does not; one that is overdue keeps the room of one worker for itself, and takes it
//!   from idle programs as far as the budget for computing again allows.

use std::time::Duration;

use tandem_types::{GroupId, TenantId, Time, TurnId, WorkerId};

use super::{FRESH, LOOK, Tandem};
use crate::contract::{Action, HoldReason};
use crate::rooms::float;
use crate::table::{Program, Turn};

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
            let Some((turn, program)) = self.known(id) else { continue };
            let group = new_in_group(program);
            if group.is_some() && begun.is_some() && group != begun.as_ref() {
                continue;
            }
            begun = begun.or_else(|| group.cloned());
            let free = *bound.get_or_insert_with(|| self.bound());
            let hopeless = self.is_hopeless(turn, program, free, reserved);
            let serves = reserved.is_none() && self.is_overdue(now, turn, program);
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

    /// Whether a turn that waits could fit somewhere.
    pub(super) fn may_fit(&mut self, now: Time, id: TurnId) -> bool {
        self.renew(now);
        let known = self.known(id);
        known.is_some_and(|(turn, program)| !self.is_hopeless(turn, program, self.bound(), None))
    }

    /// The first of those that wait.
    fn queue(&self, most: usize) -> Vec<TurnId> {
        let needs = |id| self.table.turn(id).map_or(0, |turn| turn.prompt);
        self.table.kin.queue(most, |tenant| self.share(tenant), needs)
    }

    fn share(&self, tenant: &TenantId) -> f64 {
        self.config.shares.get(tenant.as_str()).copied().unwrap_or(1.0)
    }

    /// A turn and its program.
    fn known(&self, id: TurnId) -> Option<(&Turn, &Program)> {
        let turn = self.table.turn(id)?;
        Some((turn, self.table.program(turn.slot)?))
    }

    /// Whether a turn opens a group although one that began before it is not whole.
    pub(super) fn is_early(&self, id: TurnId) -> bool {
        let opens = |id| self.known(id).and_then(|(_, program)| new_in_group(program));
        let Some(group) = opens(id) else { return false };
        let before = self.queue(TRIED_MAX).into_iter().take_while(|other| *other != id);
        before.filter_map(opens).any(|other| other != group)
    }

    fn is_overdue(&self, now: Time, turn: &Turn, program: &Program) -> bool {
        let share = |tenant: &TenantId| self.share(tenant);
        now.since(turn.arrived) >= self.config.overdue
            || self.table.kin.is_short(&program.tenant, turn.prompt, share)
    }

    /// The worker whose room is kept for the first turn that waits, if it is overdue and not the one that arrives.
    pub(super) fn reserved(&mut self, now: Time, arriving: TurnId) -> Option<WorkerId> {
        let id = self.queue(1).first().copied().filter(|first| *first != arriving)?;
        let (turn, program) = self.known(id)?;
        self.is_overdue(now, turn, program).then(|| self.roomiest(now, id)).flatten()
    }

    /// The worker whose room is kept for a turn.
    fn roomiest(&mut self, now: Time, id: TurnId) -> Option<WorkerId> {
        self.renew(now);
        self.table.turn(id).and_then(|turn| self.most_room(turn))
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
            return self.roomiest(now, id);
        }
        self.renew(now);
        let mut work = std::mem::take(&mut self.work);
        let best = self.cheapest(id, &mut work);
        self.work = work;
        match best {
            Some((cost, fit)) if cost <= self.credit => {
                self.credit -= cost;
                self.admit(now, id, fit, out);
                None
            }
            _ => {
                self.dear = Some((id, now, best.map_or(f64::INFINITY, |(cost, _)| cost)));
                self.roomiest(now, id)
            }
        }
    }
}

/// The group of a program that was never let in.
fn new_in_group(program: &Program) -> Option<&GroupId> {
    program.group.as_ref().filter(|_| !program.ran)
}
