//! Session records: the slab, parents and children, the order of expiry, who ended lately.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tandem_types::{ProgramKey, Time};

use crate::spread::Spread;

use super::ANCESTORS_MAX;
use super::holds::Home;
use super::published::SessionCell;

/// Where one of a session's branches ends.
#[derive(Debug, Clone, Copy)]
pub(super) struct End {
    /// Always at a run's last block.
    pub(super) run: u32,
    pub(super) home: Option<Home>,
    /// The home was told by whoever routed, not guessed from an event.
    pub(super) home_told: bool,
    /// Known blocks on its path.
    pub(super) depth: u64,
    /// When it was last used, in [`Records::clock`].
    pub(super) used: u64,
}

#[derive(Debug)]
pub(super) struct Session {
    pub(super) key: ProgramKey,
    pub(super) parent: Option<u32>,
    pub(super) children: BTreeSet<u32>,
    pub(super) ends: Vec<End>,
    /// Different blocks on its paths.
    pub(super) blocks: u64,
    /// Its lineage was told, not only heard.
    pub(super) told: bool,
    pub(super) last: Time,
    pub(super) idle: Option<Duration>,
    queued: Time,
    touched: bool,
    /// The drain for which a change of this was noted last.
    noted: u64,
    pub(super) cell: Arc<SessionCell>,
}

impl Session {
    /// The branch used last.
    pub(super) fn latest(&self) -> Option<&End> {
        self.ends.iter().max_by_key(|end| end.used)
    }
}

#[derive(Debug)]
pub(super) struct Records {
    slots: Vec<Option<Session>>,
    free: Vec<u32>,
    names: HashMap<ProgramKey, u32, Spread>,
    /// One entry per session, at or before its true deadline.
    queue: BTreeSet<(Time, u32)>,
    ended: HashMap<ProgramKey, Time, Spread>,
    ended_order: VecDeque<(ProgramKey, Time)>,
    clock: u64,
    /// Sessions whose numbers changed since they were last published.
    touched: Vec<u32>,
}

impl Records {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            names: HashMap::with_hasher(Spread::new(seed)),
            queue: BTreeSet::new(),
            ended: HashMap::with_hasher(Spread::new(seed)),
            ended_order: VecDeque::new(),
            clock: 0,
            touched: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    pub(super) fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    pub(super) fn slot(&self, key: &ProgramKey) -> Option<u32> {
        self.names.get(key).copied()
    }

    pub(super) fn get(&self, slot: u32) -> Option<&Session> {
        self.slots.get(slot as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut Session> {
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    pub(super) fn insert(&mut self, key: &ProgramKey, cell: Arc<SessionCell>, now: Time) -> u32 {
        let session = Session {
            key: key.clone(),
            parent: None,
            children: BTreeSet::new(),
            ends: Vec::new(),
            blocks: 0,
            told: false,
            last: now,
            idle: None,
            queued: now,
            touched: false,
            noted: 0,
            cell,
        };
        let slot = self.free.pop().unwrap_or_else(|| u32::try_from(self.slots.len()).unwrap_or(u32::MAX));
        if slot as usize == self.slots.len() {
            self.slots.push(Some(session));
        } else if let Some(place) = self.slots.get_mut(slot as usize) {
            *place = Some(session);
        }
        self.names.insert(key.clone(), slot);
        self.queue.insert((now, slot));
        slot
    }

    /// Takes a session out. Its children go to its own parent, so that a family stays one.
    pub(super) fn remove(&mut self, slot: u32) -> Option<Session> {
        let session = self.slots.get_mut(slot as usize)?.take()?;
        self.names.remove(&session.key);
        if self.names.capacity() > 1024 && self.names.len() < self.names.capacity() / 4 {
            self.names.shrink_to(self.names.len() * 2);
        }
        self.queue.remove(&(session.queued, slot));
        self.free.push(slot);
        if let Some(parent) = session.parent.and_then(|parent| self.get_mut(parent)) {
            parent.children.remove(&slot);
        }
        for child in &session.children {
            if let Some(child) = self.get_mut(*child) {
                child.parent = session.parent;
            }
            if let Some(parent) = session.parent.and_then(|parent| self.get_mut(parent)) {
                parent.children.insert(*child);
            }
        }
        Some(session)
    }

    /// Makes `parent` the parent of `child`; false if that would close a circle or reach too deep.
    pub(super) fn adopt(&mut self, child: u32, parent: u32) -> bool {
        if self.get(child).is_none_or(|session| session.parent == Some(parent)) {
            return true;
        }
        let mut at = Some(parent);
        for _ in 0..ANCESTORS_MAX {
            let Some(slot) = at else { break };
            if slot == child {
                return false;
            }
            at = self.get(slot).and_then(|session| session.parent);
        }
        if at.is_some() {
            return false;
        }
        let old = self.get_mut(child).and_then(|session| session.parent.replace(parent));
        if let Some(old) = old.and_then(|old| self.get_mut(old)) {
            old.children.remove(&child);
        }
        if let Some(parent) = self.get_mut(parent) {
            parent.children.insert(child);
        }
        true
    }

    /// Sets how long a session may be silent.
    pub(super) fn set_idle(&mut self, slot: u32, idle: Duration) {
        let Some(session) = self.get_mut(slot) else { return };
        session.idle = Some(idle);
        let (old, new) = (session.queued, session.queued.min(session.last + idle));
        session.queued = new;
        self.queue.remove(&(old, slot));
        self.queue.insert((new, slot));
    }

    pub(super) fn touch(&mut self, slot: u32) {
        if let Some(session) = self.get_mut(slot)
            && !std::mem::replace(&mut session.touched, true)
        {
            self.touched.push(slot);
        }
    }

    /// Takes one session whose numbers changed, and whether the change is yet to be noted for this drain.
    pub(super) fn take_touched(&mut self, drain: u64) -> Option<(u32, bool)> {
        loop {
            let slot = self.touched.pop()?;
            let Some(session) = self.slots.get_mut(slot as usize)?.as_mut() else { continue };
            if !std::mem::take(&mut session.touched) {
                continue;
            }
            let fresh = std::mem::replace(&mut session.noted, drain) != drain;
            return Some((slot, fresh));
        }
    }

    /// The session that has been silent longest, other than `but`.
    pub(super) fn oldest(&mut self, but: Option<u32>, idle: Duration) -> Option<u32> {
        let mut skipped = None;
        let found = loop {
            let Some((queued, slot)) = self.queue.pop_first() else { break None };
            let Some(session) = self.get_mut(slot) else { continue };
            let deadline = session.last + session.idle.unwrap_or(idle);
            session.queued = deadline.max(queued);
            let again = (session.queued, slot);
            if but == Some(slot) {
                skipped = Some(again);
                continue;
            }
            self.queue.insert(again);
            if deadline <= queued {
                break Some(slot);
            }
        };
        self.queue.extend(skipped);
        found
    }

    /// The next session whose time is up. One with live children waits for them.
    pub(super) fn overdue(&mut self, now: Time, idle: Duration) -> Option<u32> {
        loop {
            let (queued, slot) = *self.queue.first()?;
            if queued > now {
                return None;
            }
            self.queue.pop_first();
            let Some(session) = self.get_mut(slot) else { continue };
            let idle = session.idle.unwrap_or(idle);
            let mut deadline = session.last + idle;
            if deadline <= now && !session.children.is_empty() {
                deadline = now + idle.max(Duration::from_nanos(1));
            }
            session.queued = deadline;
            self.queue.insert((deadline, slot));
            if deadline <= now {
                return Some(slot);
            }
        }
    }

    /// When the next session may be overdue, at the earliest.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.queue.first().map(|(at, _)| *at)
    }

    pub(super) fn remember_end(&mut self, key: ProgramKey, now: Time, most: usize) {
        self.ended.insert(key.clone(), now);
        self.ended_order.push_back((key, now));
        while self.ended_order.len() > most {
            if let Some((key, at)) = self.ended_order.pop_front()
                && self.ended.get(&key) == Some(&at)
            {
                self.ended.remove(&key);
            }
        }
    }

    pub(super) fn ended_lately(&self, key: &ProgramKey, now: Time, grace: Duration) -> bool {
        self.ended.get(key).is_some_and(|at| now.since(*at) < grace)
    }

    pub(super) fn revive(&mut self, key: &ProgramKey) {
        self.ended.remove(key);
    }

    pub(super) fn bytes(&self) -> usize {
        let ends: usize =
            self.slots.iter().flatten().map(|session| session.ends.capacity() * size_of::<End>()).sum();
        ends + self.slots.capacity() * size_of::<Option<Session>>()
            + self.names.capacity() * (size_of::<ProgramKey>() + 5)
    }
}
