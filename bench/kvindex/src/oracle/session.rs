//! The session index: every branch as a whole list of blocks, and how many of them have each block.
//!
//! Each prompt is told before the events that its worker makes of it, which echo its session. A session ends after
//! its last prompt; prompts without a session are one each, and the last [`ALIVE`] of those live.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::Duration;

use anyhow::{Result, ensure};
use tandem_kvindex::session::{
    Advance, BRANCHES_MAX, Resident, SessionIndex, SessionLimits, StoredBlocks, Told,
};
use tandem_types::{ProgramKey, SessionId, TenantId, Tier, Time};

use super::{Counts, Replay, worker};
use crate::workload::{Load, Op, Prompt};

const NOW: Time = Time::ZERO;
/// Sessions of one prompt each that live at a time.
const ALIVE: usize = 256;
/// Prompts between two comparisons of what a session alone makes its worker keep.
const EVERY: u64 = 16;

#[derive(Debug, Clone)]
struct End {
    chain: Vec<u64>,
    home: u32,
    used: u64,
}

type Counted = HashMap<u64, u32>;

fn less(counts: &mut Counted, block: u64) -> bool {
    let Some(count) = counts.get_mut(&block) else { return false };
    *count -= 1;
    let none = *count == 0;
    if none {
        counts.remove(&block);
    }
    none
}

#[derive(Default)]
struct Naive {
    sessions: HashMap<u32, Vec<End>>,
    /// Ends whose path has a block: of a session, at home at a worker, of all.
    own: HashMap<u32, Counted>,
    at_home: HashMap<u32, Counted>,
    all: Counted,
    /// Workers at which a block on some path lies, and how many such blocks a worker has.
    resident: HashMap<u64, HashSet<u32>>,
    lying: HashMap<u32, u64>,
    clock: u64,
}

impl Naive {
    fn put(&mut self, session: u32, end: End) {
        let (own, home) = (self.own.entry(session).or_default(), self.at_home.entry(end.home).or_default());
        for block in &end.chain {
            for counts in [&mut *own, &mut *home, &mut self.all] {
                *counts.entry(*block).or_default() += 1;
            }
        }
        self.sessions.entry(session).or_default().push(end);
    }

    fn take(&mut self, session: u32, at: usize) {
        let Some(ends) = self.sessions.get_mut(&session) else { return };
        let end = ends.remove(at);
        let (own, home) = (self.own.entry(session).or_default(), self.at_home.entry(end.home).or_default());
        for block in &end.chain {
            less(own, *block);
            less(home, *block);
            if less(&mut self.all, *block) {
                for worker in self.resident.remove(block).unwrap_or_default() {
                    *self.lying.entry(worker).or_default() -= 1;
                }
            }
        }
    }

    fn end(&mut self, session: u32) {
        while self.sessions.get(&session).is_some_and(|ends| !ends.is_empty()) {
            self.take(session, 0);
        }
        self.sessions.remove(&session);
        self.own.remove(&session);
    }

    /// A session's path, told or (of a session that was told before) echoed.
    fn advance(&mut self, session: u32, path: &[u64], home: u32, told: bool) -> Advance {
        let known = path.iter().take_while(|block| self.all.contains_key(block)).count();
        self.clock += 1;
        let used = self.clock;
        let ends = self.sessions.entry(session).or_default();
        let exact = ends.iter().position(|end| end.chain == path[..known]);
        let ahead = (0..ends.len())
            .filter(|at| known > 0 && ends[*at].chain.starts_with(&path[..known]))
            .max_by_key(|at| ends[*at].used);
        if known == path.len()
            && let Some(at) = exact.or(ahead)
        {
            let moved = End { home: if told { home } else { ends[at].home }, used, ..ends[at].clone() };
            if moved.home == ends[at].home {
                ends[at] = moved;
            } else {
                self.put(session, moved);
                self.take(session, at);
            }
            return Advance::Known;
        }
        let behind = ends.iter().position(|end| path[..known].starts_with(&end.chain));
        if behind.is_none() && !told {
            return Advance::Stale;
        }
        let common = |end: &End| end.chain.iter().zip(path).take_while(|(a, b)| a == b).count();
        let rewritten = (0..ends.len())
            .map(|at| (common(&ends[at]), ends[at].used, at))
            .filter(|(shared, _, at)| *shared > 0 && shared * 2 >= ends[*at].chain.len())
            .max()
            .map(|(.., at)| at);
        let moved = behind.or(rewritten);
        let home = moved.map_or(home, |at| if told { home } else { ends[at].home });
        // The new path is there before the old one goes: what both have stays.
        self.put(session, End { chain: path.to_vec(), home, used });
        if let Some(at) = moved {
            self.take(session, at);
        }
        while let Some(ends) = self.sessions.get(&session).filter(|ends| ends.len() > BRANCHES_MAX) {
            let oldest = (0..ends.len()).min_by_key(|at| ends[*at].used).unwrap_or(0);
            self.take(session, oldest);
        }
        let new = path.len() - known;
        if moved.is_some() { Advance::Moved { new } } else { Advance::Branched { new } }
    }

    fn lie(&mut self, at: u32, blocks: &[u64]) {
        for block in blocks.iter().filter(|block| self.all.contains_key(block)) {
            if self.resident.entry(*block).or_default().insert(at) {
                *self.lying.entry(at).or_default() += 1;
            }
        }
    }

    fn leave(&mut self, at: u32, blocks: &[u64]) {
        for block in blocks {
            if self.resident.get_mut(block).is_some_and(|workers| workers.remove(&at)) {
                *self.lying.entry(at).or_default() -= 1;
            }
        }
    }

    /// What of the branch used last lies at a worker.
    fn lies(&self, session: u32, at: u32) -> (Resident, usize) {
        let Some(end) = self.sessions.get(&session).and_then(|ends| ends.iter().max_by_key(|e| e.used))
        else {
            return (Resident::default(), 0);
        };
        let here = |block: &&u64| self.resident.get(block).is_some_and(|workers| workers.contains(&at));
        let prefix = end.chain.iter().take_while(here).count() as u64;
        let blocks = [end.chain.iter().filter(here).count() as u64, 0, 0];
        (Resident { device_prefix: prefix, local_prefix: prefix, blocks }, end.chain.len())
    }

    /// Blocks that a session alone makes a worker keep, and those that it would add there.
    fn alone(&self, session: u32, at: u32) -> (u64, u64) {
        let mut own = Counted::new();
        let ends = self.sessions.get(&session).into_iter().flatten().filter(|end| end.home == at);
        for block in ends.flat_map(|end| &end.chain) {
            *own.entry(*block).or_default() += 1;
        }
        let none = Counted::new();
        let home = self.at_home.get(&at).unwrap_or(&none);
        let exclusive = own.iter().filter(|(block, count)| home.get(block) == Some(count)).count() as u64;
        let all = self.own.get(&session).unwrap_or(&none);
        (exclusive, all.keys().filter(|block| !home.contains_key(block)).count() as u64)
    }
}

/// The index and lists of lists.
pub struct Session {
    index: SessionIndex,
    naive: Naive,
    keys: BTreeMap<u32, ProgramKey>,
}

impl Default for Session {
    fn default() -> Self {
        let limits = SessionLimits { ended_grace: Duration::ZERO, ..SessionLimits::default() };
        Self { index: SessionIndex::new(limits, 1), naive: Naive::default(), keys: BTreeMap::new() }
    }
}

impl Session {
    fn key(&mut self, session: u32) -> Result<ProgramKey> {
        if let Some(key) = self.keys.get(&session) {
            return Ok(key.clone());
        }
        let key = ProgramKey::root(TenantId::default(), SessionId::new(&format!("s{session}"))?);
        self.keys.insert(session, key.clone());
        Ok(key)
    }

    fn end(&mut self, session: u32) -> Result<()> {
        let key = self.key(session)?;
        ensure!(self.index.end(&key, NOW), "session {session} is not known");
        self.naive.end(session);
        self.keys.remove(&session);
        Ok(())
    }

    fn told(&mut self, session: u32, prompt: &Prompt, counts: &mut Counts) -> Result<()> {
        let (key, at) = (self.key(session)?, worker(prompt.worker));
        let told = Told { chain: &prompt.contents, worker: Some(at), ..Told::default() };
        let (got, expected) = (
            self.index.told(&key, &told, NOW),
            self.naive.advance(session, &prompt.contents, prompt.worker, true),
        );
        ensure!(got == expected, "told {session}: {got:?} instead of {expected:?}");
        let (lies, len) = self.naive.lies(session, prompt.worker);
        let got = self.index.resident(&key, at);
        ensure!(got == lies, "resident of {session}: {got:?} instead of {lies:?}");
        let count = |counted: Option<&Counted>| counted.map_or(0, HashMap::len) as u64;
        let expected = (
            self.naive.all.len(),
            count(self.naive.own.get(&session)),
            count(self.naive.at_home.get(&prompt.worker)),
            self.naive.lying.get(&prompt.worker).copied().unwrap_or_default(),
        );
        let (own, home) = (self.index.session(&key), self.index.worker(at));
        let got = (
            self.index.blocks(),
            own.map_or(0, |s| s.blocks),
            home.map_or(0, |w| w.working_set),
            home.map_or(0, |w| w.resident[0]),
        );
        ensure!(got == expected, "sizes at {session}: {got:?} instead of {expected:?}");
        if counts.matches.is_multiple_of(EVERY) {
            let expected = self.naive.alone(session, prompt.worker);
            let got = (self.index.exclusive(&key, at), self.index.added(&key, at));
            ensure!(got == expected, "share of {session}: {got:?} instead of {expected:?}");
        }
        counts.matches += 1;
        counts.compared += len as u64;
        Ok(())
    }
}

impl Replay for Session {
    const NAME: &'static str = "session index";

    fn pass(&mut self, load: &Load, _: u32, counts: &mut Counts) -> Result<()> {
        let number = |n: u32| load.prompts[n as usize].session.unwrap_or(n);
        let mut last: HashMap<u32, u32> = HashMap::new();
        for n in 0..load.prompts.len() as u32 {
            last.insert(number(n), n);
        }
        let mut ending: VecDeque<u32> = VecDeque::new();
        let mut now = 0;
        for op in &load.ops {
            match op {
                Op::Find(n) => {
                    let alive = if load.prompts[*n as usize].session.is_some() { 0 } else { ALIVE };
                    while ending.len() > alive {
                        self.end(ending.pop_front().unwrap_or_default())?;
                        counts.disturbances += 1;
                    }
                    now = number(*n);
                    self.told(now, &load.prompts[*n as usize], counts)?;
                    if last.get(&now) == Some(n) {
                        ending.push_back(now);
                    }
                }
                Op::Stored { worker: at, prompt, from, to } => {
                    let contents = &load.prompts[*prompt as usize].contents;
                    let (from, to) = (*from as usize, *to as usize);
                    let key = self.key(now)?;
                    let event = StoredBlocks {
                        worker: worker(*at),
                        tier: Tier::Device,
                        session: Some(&key),
                        after: from.checked_sub(1).map(|b| contents[b]),
                        blocks: &contents[from..to],
                    };
                    let got = self.index.stored(&event, NOW);
                    let expected = self.naive.advance(now, &contents[..to], *at, false);
                    ensure!(got == expected, "echo of {now}: {got:?} instead of {expected:?}");
                    self.naive.lie(*at, &contents[from..to]);
                    counts.events += 1;
                    counts.blocks += (to - from) as u64;
                }
                Op::Removed { worker: at, contents } => {
                    self.index.removed(worker(*at), Tier::Device, contents);
                    self.naive.leave(*at, contents);
                    counts.events += 1;
                    counts.blocks += contents.len() as u64;
                }
            }
        }
        for session in ending {
            self.end(session)?;
            counts.disturbances += 1;
        }
        ensure!(
            (self.index.blocks(), self.index.runs(), self.index.sessions()) == (0, 0, 0),
            "something is left"
        );
        Ok(())
    }
}
