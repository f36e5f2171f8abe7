//! How a session's branches move when a chain of blocks is told or heard.

use super::forest::{Below, NONE, Spot};
use super::holds::Home;
use super::index::{Advance, Relation, SessionIndex};
use super::records::End;

/// One chain of blocks that a session builds on.
pub(super) struct Step<'a> {
    pub(super) session: u32,
    /// What the first block continues; `None` = it is a prompt's first.
    pub(super) after: Option<u64>,
    pub(super) blocks: &'a [u64],
    /// The worker where it runs or ran.
    pub(super) home: Option<u32>,
    /// We know it ourselves; otherwise an engine says so.
    pub(super) told: bool,
    pub(super) relation: Relation,
}

/// Where the unknown part of a chain begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    /// Nothing before it is known.
    Fresh(Below),
    /// After this known block.
    After(u64),
}

/// How one end of a session lies to the deepest known block of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lie {
    /// In another tree.
    Apart,
    /// The block lies on the end's path, or is its last; so many blocks before its end.
    Ahead(u64),
    /// The end lies on the block's path.
    Behind,
    /// The paths part, so many blocks before the end.
    Fork(u64),
}

impl SessionIndex {
    /// Moves the session's branches; the caller publishes.
    pub(super) fn advance(&mut self, step: &Step<'_>) -> Advance {
        if step.blocks.is_empty() {
            return Advance::Known;
        }
        if !self.make_room(step) {
            self.counters.refused += 1;
            return Advance::Refused;
        }
        let known = self.deepest(step.blocks);
        let advance = self.start(step, known).map_or_else(
            |refusal| refusal,
            |start| self.take_up(step, start, step.blocks.get(known..).unwrap_or(&[])),
        );
        match advance {
            Advance::Stale => self.counters.stale += 1,
            Advance::Conflict => self.counters.conflicts += 1,
            _ => {}
        }
        self.settle_grafts();
        advance
    }

    /// How many leading blocks of a chain end with one that is known. Equal hash is equal prefix: what lies
    /// before the deepest known block is implied.
    fn deepest(&self, blocks: &[u64]) -> usize {
        blocks.iter().rposition(|block| self.forest.find(*block).is_some()).map_or(0, |at| at + 1)
    }

    /// Evicts silent sessions until the unknown blocks fit.
    fn make_room(&mut self, step: &Step<'_>) -> bool {
        loop {
            let unknown = if self.forest.fragments() == 0 {
                step.blocks.len() - self.deepest(step.blocks)
            } else {
                step.blocks.iter().filter(|block| self.forest.find(**block).is_none()).count()
            };
            if self.forest.blocks() + unknown <= self.limits.blocks {
                return true;
            }
            if unknown > self.limits.blocks || !self.evict(Some(step.session)) {
                return false;
            }
        }
    }

    /// Checks the known part against what is known, and fills holes before it.
    fn start(&mut self, step: &Step<'_>, known: usize) -> Result<Start, Advance> {
        let Some(last) = known.checked_sub(1).and_then(|at| step.blocks.get(at)).copied() else {
            return match step.after {
                None => Ok(Start::Fresh(Below::Root)),
                Some(after) if self.forest.find(after).is_some() => Ok(Start::After(after)),
                Some(_) if self.records.get(step.session).is_some_and(|session| session.told) => {
                    Err(Advance::Stale)
                }
                Some(after) => {
                    self.counters.fragments += 1;
                    Ok(Start::Fresh(Below::Unknown(after)))
                }
            };
        };
        if !self.follows(step, known) {
            return Err(Advance::Conflict);
        }
        if self.forest.fragments() > 0 {
            self.fill(step, known)?;
        }
        Ok(Start::After(last))
    }

    /// Whether the last of the first `known` blocks is known after the same block as here.
    fn follows(&self, step: &Step<'_>, known: usize) -> bool {
        let here = match known.checked_sub(2) {
            Some(before) => step.blocks.get(before).copied(),
            None => step.after,
        };
        let last = known.checked_sub(1).and_then(|at| step.blocks.get(at));
        last.and_then(|block| self.forest.find(*block)).is_some_and(|spot| self.forest.previous(spot) == here)
    }

    /// Where the known part is a fragment, adds what lies before it; the fragment is grafted by that.
    fn fill(&mut self, step: &Step<'_>, known: usize) -> Result<(), Advance> {
        let mut holes = Vec::new();
        let mut upto = known;
        while let Some(spot) =
            upto.checked_sub(1).and_then(|at| step.blocks.get(at)).and_then(|block| self.forest.find(*block))
        {
            let (root, before) = self.forest.root_of(spot.run);
            let Some(above) = self.forest.unknown_above(root) else { break };
            let Some(end) = upto.checked_sub(before + spot.index + 1).filter(|end| *end > 0) else { break };
            if end.checked_sub(1).and_then(|at| step.blocks.get(at)) != Some(&above) {
                return Err(Advance::Conflict);
            }
            upto = self.deepest(step.blocks.get(..end).unwrap_or(&[]));
            if upto > 0 && !self.follows(step, upto) {
                return Err(Advance::Conflict);
            }
            holes.push(upto..end);
        }
        for hole in holes.into_iter().rev() {
            let before = match hole.start.checked_sub(1) {
                Some(at) => step.blocks.get(at).copied(),
                None => step.after,
            };
            let below = match before {
                None => Below::Root,
                Some(block) => match self.forest.find(block) {
                    Some(spot) => Below::Run(self.forest.ending_at(spot)),
                    None => Below::Unknown(block),
                },
            };
            let run = self.forest.grow(below, step.blocks.get(hole).unwrap_or(&[]));
            self.forest.tidy(run);
        }
        Ok(())
    }

    /// Puts a branch's end at the last of `new`, which follow `start`: a branch that leads there, or a new one.
    fn take_up(&mut self, step: &Step<'_>, start: Start, new: &[u64]) -> Advance {
        let spot = match start {
            Start::After(block) => self.forest.find(block),
            Start::Fresh(_) => None,
        };
        let Some(session) = self.records.get(step.session) else { return Advance::Refused };
        let told = session.told;
        // The plain case, without a walk: a branch ends exactly here.
        let exact = spot
            .filter(|spot| self.forest.is_end(*spot))
            .and_then(|spot| session.ends.iter().position(|end| end.run == spot.run));
        let lies = match (exact, spot) {
            (Some(_), _) | (_, None) => Vec::new(),
            (None, Some(spot)) => self.lies(step.session, spot),
        };
        let behind = exact.or_else(|| lies.iter().position(|lie| *lie == Lie::Behind));
        let ends = self.records.get(step.session).map_or(&[][..], |session| &session.ends);
        let ahead = (ends.iter().zip(&lies).enumerate())
            .filter(|(_, (_, lie))| matches!(lie, Lie::Ahead(_)))
            .max_by_key(|(_, (end, _))| end.used)
            .map(|(at, _)| at);
        let replaces = step.relation == Relation::Replaces;
        if new.is_empty()
            && let Some(end) = exact.or(ahead)
            && !(replaces && exact.is_none())
        {
            self.use_end(step, end);
            if replaces {
                self.drop_others(step.session, end);
            }
            return Advance::Known;
        }
        if behind.is_none() && !step.told && told {
            return Advance::Stale;
        }
        let moved = behind.or_else(|| match step.relation {
            Relation::Continues => self.rewritten(step.session, &lies),
            Relation::Beside => None,
            Relation::Replaces => self.last_used(step.session),
        });
        let at = self.put(step, moved, start, new);
        if replaces {
            self.drop_others(step.session, at);
        } else if exact.is_none() {
            self.recount(step.session);
            self.drop_surplus(step.session);
        }
        match moved {
            Some(_) => Advance::Moved { new: new.len() },
            None => Advance::Branched { new: new.len() },
        }
    }

    /// How each of a session's ends lies to a known block.
    fn lies(&mut self, session: u32, spot: Spot) -> Vec<Lie> {
        let mark = self.forest.next_mark();
        let mut at = spot.run;
        while at != NONE {
            self.forest.set_mark(at, mark);
            at = self.forest.parent(at);
        }
        let Some(session) = self.records.get(session) else { return Vec::new() };
        let lie = |end: &End| {
            let (mut at, mut tail) = (end.run, 0);
            while self.forest.run(at).is_some_and(|run| run.mark != mark) {
                tail += self.forest.len(at);
                at = self.forest.parent(at);
            }
            if at == NONE {
                Lie::Apart
            } else if at == spot.run {
                Lie::Ahead((tail + self.forest.len(at) - (spot.index + 1)) as u64)
            } else if at == end.run {
                Lie::Behind
            } else {
                Lie::Fork(tail as u64)
            }
        };
        session.ends.iter().map(lie).collect()
    }

    /// The branch that a chain continues with a rewritten end: the one that shares most with it, if that is at
    /// least half of the branch.
    fn rewritten(&self, session: u32, lies: &[Lie]) -> Option<usize> {
        let session = self.records.get(session)?;
        let shared = |(at, (end, lie)): (usize, (&End, &Lie))| match lie {
            Lie::Ahead(tail) | Lie::Fork(tail) => {
                let shared = end.depth.saturating_sub(*tail);
                (shared > 0 && shared * 2 >= end.depth).then_some((shared, end.used, at))
            }
            Lie::Apart | Lie::Behind => None,
        };
        session.ends.iter().zip(lies).enumerate().filter_map(shared).max().map(|(.., at)| at)
    }

    fn last_used(&self, session: u32) -> Option<usize> {
        let ends = &self.records.get(session)?.ends;
        ends.iter().enumerate().max_by_key(|(_, end)| end.used).map(|(at, _)| at)
    }

    /// The home of a branch after a step: told homes yield to told ones only.
    fn home_after(&self, step: &Step<'_>, end: Option<&End>) -> (Option<Home>, bool) {
        let workers = &self.forest.workers;
        let old = end.and_then(|end| end.home).filter(|home| workers.alive(*home).is_some());
        let old_told = old.is_some() && end.is_some_and(|end| end.home_told);
        match step.home.and_then(|slot| workers.home(slot)) {
            Some(home) if step.told || !old_told => (Some(home), step.told),
            _ => (old, old_told),
        }
    }

    fn slot_of(&self, home: Option<Home>) -> Option<u32> {
        home.and_then(|home| self.forest.workers.alive(home))
    }

    /// A branch is used again where it ends.
    fn use_end(&mut self, step: &Step<'_>, at: usize) {
        let used = self.records.tick();
        let Some(old) = self.records.get(step.session).and_then(|session| session.ends.get(at)).copied()
        else {
            return;
        };
        let (home, home_told) = self.home_after(step, Some(&old));
        let (from, to) = (self.slot_of(old.home), self.slot_of(home));
        if from != to {
            self.forest.end_branch(old.run, to);
            self.forest.lift_branch(old.run, from);
        }
        if let Some(end) = self.records.get_mut(step.session).and_then(|session| session.ends.get_mut(at)) {
            *end = End { home, home_told, used, ..old };
        }
        self.records.touch(step.session);
    }

    /// Adds the new blocks and ends a branch there, moved from where it ended or new. Which end it is.
    /// Depths and blocks are right only if the branch ended at the start.
    fn put(&mut self, step: &Step<'_>, moved: Option<usize>, start: Start, new: &[u64]) -> usize {
        let ends = self.records.get(step.session).map_or(0, |session| session.ends.len());
        let at = moved.unwrap_or(ends);
        let old = self.records.get(step.session).and_then(|session| session.ends.get(at)).copied();
        let (home, home_told) = self.home_after(step, old.as_ref());
        let used = self.records.tick();
        let mut rest = new;
        let anchor = match start {
            Start::Fresh(below) => below,
            Start::After(block) => match self.forest.find(block) {
                Some(spot) => Below::Run(self.forest.ending_at(spot)),
                None => Below::Root,
            },
        };
        if let (Below::Run(run), Some(old)) = (anchor, old)
            && old.run == run
            && self.forest.only_end_below(run)
        {
            let pushed = self.forest.push(run, rest);
            rest = rest.get(pushed..).unwrap_or(&[]);
        }
        let run = match anchor {
            Below::Run(run) if rest.is_empty() => run,
            anchor => self.forest.grow(anchor, rest),
        };
        self.forest.end_branch(run, self.slot_of(home));
        if let Some(old) = &old {
            self.lift(old);
        }
        let depth = old.map_or(0, |old| old.depth) + new.len() as u64;
        if let Some(session) = self.records.get_mut(step.session) {
            let end = End { run, home, home_told, depth, used };
            match session.ends.get_mut(at) {
                Some(slot) => *slot = end,
                None => session.ends.push(end),
            }
            session.blocks += new.len() as u64;
        }
        if self.forest.fragments() > 0 {
            let (root, _) = self.forest.root_of(run);
            self.forest.note_in_fragment(root, step.session);
        }
        self.records.touch(step.session);
        at
    }

    /// A branch ends here no longer.
    pub(super) fn lift(&mut self, end: &End) {
        self.forest.lift_branch(end.run, self.slot_of(end.home));
        self.forest.tidy(end.run);
    }

    fn drop_others(&mut self, session: u32, keep: usize) {
        let Some(record) = self.records.get_mut(session) else { return };
        if keep >= record.ends.len() {
            return;
        }
        let kept = record.ends.swap_remove(keep);
        let dropped = std::mem::replace(&mut record.ends, vec![kept]);
        for end in &dropped {
            self.lift(end);
        }
        self.recount(session);
    }

    fn drop_surplus(&mut self, session: u32) {
        let most = self.limits.branches.max(1);
        while let Some(record) = self.records.get_mut(session).filter(|record| record.ends.len() > most) {
            let oldest = record.ends.iter().enumerate().min_by_key(|(_, end)| end.used).map(|(at, _)| at);
            let Some(end) = oldest.map(|at| record.ends.swap_remove(at)) else { return };
            self.lift(&end);
            self.counters.branches_dropped += 1;
            self.recount(session);
        }
    }

    /// Counts a session's blocks and depths anew, and drops ends that lie on the path of another.
    fn recount(&mut self, session: u32) {
        let Some(record) = self.records.get_mut(session) else { return };
        let mut ends = std::mem::take(&mut record.ends);
        let mark = self.forest.next_mark();
        let mut blocks = 0;
        let mut covered = Vec::new();
        for end in &mut ends {
            let (mut at, mut depth) = (end.run, 0);
            while at != NONE {
                let len = self.forest.len(at) as u64;
                depth += len;
                if self.forest.run(at).is_some_and(|run| run.mark != mark) {
                    self.forest.set_mark(at, mark);
                    blocks += len;
                }
                at = self.forest.parent(at);
                covered.push(at);
            }
            end.depth = depth;
        }
        let mut kept: Vec<End> = Vec::with_capacity(ends.len());
        ends.sort_by_key(|end| std::cmp::Reverse(end.used));
        let mut dropped = Vec::new();
        for end in ends {
            let doubled = covered.contains(&end.run) || kept.iter().any(|other| other.run == end.run);
            if doubled { &mut dropped } else { &mut kept }.push(end);
        }
        for end in &dropped {
            self.lift(end);
        }
        if let Some(record) = self.records.get_mut(session) {
            record.ends = kept;
            record.blocks = blocks;
        }
        self.records.touch(session);
    }

    /// After grafts: merges, and counts the sessions anew whose paths grew.
    fn settle_grafts(&mut self) {
        self.forest.tidy_grafts();
        for session in std::mem::take(&mut self.forest.grafted) {
            self.recount(session);
        }
    }
}
