//! A worker's events, taken in.

use tandem_kvindex::chain;
use tandem_kvindex::session::StoredBlocks;
use tandem_kvindex::worker::{Applied, HeldBlock, Stored};
use tandem_kvwire::hash::block::Shape;
use tandem_types::{
    BlockRemoved, BlockStored, GroupKind, KvBatch, KvEvent, ProgramKey, Tier, Time, WorkerId,
};

use crate::config::SHAPES_MAX;
use crate::lane::{Fit, Lane};
use crate::pages::Naming;
use crate::plane::Plane;
use crate::prompt::Space;
use crate::reader::heard_of;

impl Plane {
    /// Blocks of a worker came and went.
    pub fn batch(&mut self, worker: WorkerId, batch: &KvBatch, now: Time) {
        if !self.known(worker, now) {
            return;
        }
        for event in &batch.events {
            match event {
                KvEvent::Stored(event) => self.stored(worker, event, now),
                KvEvent::Removed(event) => self.removed(worker, event),
                KvEvent::Cleared => self.dropped(worker),
            }
        }
        if let Some(held) = self.workers.get_mut(&worker) {
            held.counts.batches += 1;
            // Before it was ever up to date, a batch is history.
            if held.stream.live && !held.stream.heard {
                held.stream.heard = true;
                held.stream.since = now;
            }
        }
        self.settle(worker, now);
    }

    /// The engine dropped its cache.
    fn dropped(&mut self, worker: WorkerId) {
        let Some(held) = self.workers.get_mut(&worker) else { return };
        held.counts.cleared += 1;
        self.changed |= std::mem::take(&mut held.hollow);
        held.stream.lost = None;
        let tier = if held.clears_all_tiers() { None } else { Some(Tier::Device) };
        for lane in &held.lanes {
            self.shared.index.cleared(lane.id(), tier);
        }
        self.sessions().cleared(worker, tier);
        self.unpredict(worker);
        self.disbelieve(worker);
    }

    fn stored(&mut self, worker: WorkerId, event: &BlockStored, now: Time) {
        let blocks = event.block_hashes.len() as u64;
        let Some(held) = self.workers.get_mut(&worker) else { return };
        if event.kind != GroupKind::Full {
            held.counts.ignored += blocks;
            held.sets_aside(event.group);
        } else if event.echo {
            held.counts.echoes += blocks;
            if event.describes() {
                self.echoed(worker, event);
            }
        } else if event.tier == Tier::Shared {
            held.counts.shared += blocks;
        } else if event.describes() {
            self.described(worker, event, now);
        } else {
            let copies = held.spec.copies;
            for lane in held.about(event.group) {
                let ids = &event.block_hashes;
                let stored = Stored { parent: None, ids, locals: &[], tier: event.tier, copies };
                let applied = self.shared.index.stored(lane.id(), &stored);
                self.count(worker, applied, false);
            }
        }
    }

    /// A store of which we know what the blocks hold.
    fn described(&mut self, worker: WorkerId, event: &BlockStored, now: Time) {
        let Some(lane) = self.lane(worker, event) else { return };
        let (space, inherited) = self.space(lane, event);
        if inherited || event.salt.is_some() && self.inherits_salt(worker) {
            event.block_hashes.iter().for_each(|id| self.salted.insert((lane.no, *id), space));
        }
        let locals = locals(space, event);
        let Some(held) = self.workers.get(&worker) else { return };
        let first = held.lanes.first().is_some_and(|first| first.no == lane.no);
        let before = event.parent.map(|parent| self.block(lane, parent).map(|block| block.content));
        let stored = Stored {
            parent: event.parent,
            ids: &event.block_hashes,
            locals: &locals,
            tier: event.tier,
            copies: held.spec.copies,
        };
        let applied = self.shared.index.stored(lane.id(), &stored);
        self.count(worker, applied, false);
        let after = match before {
            None => None,
            Some(Some(content)) => Some(content),
            Some(None) => {
                if let Some(held) = self.workers.get_mut(&worker).filter(|held| !held.hollow) {
                    held.hollow = true;
                    self.changed = true;
                }
                return;
            }
        };
        let contents = contents(after, &locals);
        if first {
            self.hear(worker, event, after, &contents, now);
            if event.tier == Tier::Device {
                self.confirm(worker, &contents);
            }
        }
        self.learn(worker, event, &contents);
    }

    /// What a store connector says of blocks that it wrote: no residency, but names of objects.
    fn echoed(&mut self, worker: WorkerId, event: &BlockStored) {
        let held = self.workers.get(&worker);
        let lanes = held.map(|held| held.about(event.group)).unwrap_or_default();
        let Some(lane) = lanes.first().copied() else { return };
        let after = match event.parent {
            None => None,
            Some(parent) => match self.block(lane, parent) {
                Some(block) => Some(block.content),
                None => return,
            },
        };
        let (space, _) = self.space(lane, event);
        let contents = contents(after, &locals(space, event));
        self.learn(worker, event, &contents);
    }

    /// The namespace of a store's blocks, and whether the parent told it: vLLM states a prompt's salt with its first
    /// block only.
    fn space(&mut self, lane: Lane, event: &BlockStored) -> (Space, bool) {
        let parent = event.parent.filter(|_| event.salt.is_none());
        match parent.and_then(|parent| self.salted.touch(&(lane.no, parent))) {
            Some(space) => (space, true),
            None => (Space::new(event.lora.as_deref(), event.salt.as_deref()), false),
        }
    }

    /// Whether the engine leaves it to the parents to tell a block's salt.
    fn inherits_salt(&self, worker: WorkerId) -> bool {
        self.workers.get(&worker).is_some_and(|held| held.spec.kind != tandem_types::EngineKind::Sglang)
    }

    fn block(&self, lane: Lane, id: u64) -> Option<HeldBlock> {
        let mut found = Vec::with_capacity(1);
        self.shared.index.blocks(lane.id(), &[id], &mut found);
        found.pop().flatten()
    }

    /// The lane into which a store's blocks go.
    fn lane(&mut self, worker: WorkerId, event: &BlockStored) -> Option<Lane> {
        let blocks = event.block_hashes.len();
        let size = event.block_size;
        let fit = self.workers.get(&worker)?.fit(event.group, size, blocks);
        let lookahead = event.lookahead.first().map_or(0, |ahead| u32::try_from(ahead.len()).unwrap_or(0));
        let shape = Shape { block_size: size, lookahead };
        let crowded = matches!(fit, Fit::New | Fit::Resized(_)) && !self.has_room_for(shape);
        let held = self.workers.get_mut(&worker)?;
        let counts = &mut held.counts;
        match fit {
            Fit::Lane(at) => return held.lanes.get(at).copied(),
            Fit::Partial => counts.partial += blocks as u64,
            Fit::Full => counts.refused += blocks as u64,
            Fit::New | Fit::Resized(_) if crowded => counts.refused += blocks as u64,
            Fit::New => {
                let lane = Lane { group: event.group, no: self.next_lane, shape };
                self.next_lane += 1;
                held.lanes.push(lane);
                self.changed = true;
                self.bound(worker);
                return Some(lane);
            }
            Fit::Resized(at) => {
                counts.resized += 1;
                let lane = Lane { group: event.group, no: self.next_lane, shape };
                self.next_lane += 1;
                self.changed = true;
                if let Some(old) = held.lanes.get_mut(at) {
                    let old = std::mem::replace(old, lane);
                    self.shared.index.remove_worker(old.id());
                }
                if at == 0 {
                    self.sessions().cleared(worker, None);
                    self.unpredict(worker);
                }
                return Some(lane);
            }
        }
        None
    }

    /// Whether one more way of cutting prompts may come into use.
    fn has_room_for(&self, shape: Shape) -> bool {
        let mut shapes: Vec<Shape> =
            self.workers.values().flat_map(|held| held.lanes.iter().map(|lane| lane.shape)).collect();
        shapes.sort_unstable();
        shapes.dedup();
        shapes.contains(&shape) || shapes.len() < SHAPES_MAX
    }

    /// Tells the session forest of blocks that became resident.
    fn hear(&mut self, worker: WorkerId, event: &BlockStored, after: Option<u64>, blocks: &[u64], now: Time) {
        let session = event.session.as_deref().and_then(|text| self.program(worker, text));
        let mut sessions = self.sessions();
        if session.is_none() && sessions.sessions() == 0 {
            return;
        }
        let stored = StoredBlocks { worker, tier: event.tier, session: session.as_ref(), after, blocks };
        sessions.stored(&stored, now);
    }

    /// The program that a worker's engine calls by this text.
    fn program(&mut self, worker: WorkerId, text: &str) -> Option<ProgramKey> {
        self.texts.touch(&(worker, text.into())).or_else(|| heard_of(text))
    }

    /// Events tell now what was predicted.
    fn confirm(&self, worker: WorkerId, blocks: &[u64]) {
        let over = {
            let mut pending = self.shared.pending();
            if !pending.awaits(worker) {
                return;
            }
            let over = blocks.iter().flat_map(|block| pending.confirm(worker, *block));
            over.collect::<Vec<_>>()
        };
        for routed in over {
            self.shared.predicted.withdraw(worker, routed.hashes(), routed.route);
        }
    }

    /// Remembers the names of blocks in the store, where they cannot be computed.
    fn learn(&self, worker: WorkerId, event: &BlockStored, contents: &[u64]) {
        let naming = self.workers.get(&worker).and_then(|held| held.hold.as_ref()).map(|hold| &hold.naming);
        if let Some(Naming::Learned(scope)) = naming {
            for (content, id) in contents.iter().zip(&event.block_hashes) {
                self.shared.names.learn(*scope, *content, *id);
            }
        }
    }

    fn removed(&mut self, worker: WorkerId, event: &BlockRemoved) {
        let ids = &event.block_hashes;
        let Some(held) = self.workers.get_mut(&worker) else { return };
        let lanes = held.about(event.group);
        if lanes.is_empty() {
            held.counts.ignored += ids.len() as u64;
            return;
        }
        let first = held.lanes.first().map(|lane| lane.no);
        for lane in lanes {
            let heard = Some(lane.no) == first && self.sessions().sessions() > 0;
            let mut before = Vec::new();
            if heard {
                self.shared.index.blocks(lane.id(), ids, &mut before);
            }
            let applied = self.remove(lane, event);
            self.count(worker, applied, true);
            if heard && applied.changed > 0 {
                self.forget(worker, lane, event, &before, applied.changed == ids.len());
            }
        }
    }

    fn remove(&self, lane: Lane, event: &BlockRemoved) -> Applied {
        let index = &self.shared.index;
        if event.remaining.is_empty() {
            return index.removed(lane.id(), event.tier, &event.block_hashes);
        }
        let mut sum = Applied::default();
        for (at, id) in event.block_hashes.iter().enumerate() {
            let one = match event.remaining.get(at) {
                Some(copies) => index.remaining(lane.id(), event.tier, *id, *copies),
                None => index.removed(lane.id(), event.tier, &[*id]),
            };
            sum.changed += one.changed;
            sum.copies += one.copies;
            sum.unknown += one.unknown;
        }
        sum
    }

    /// Tells the session forest of blocks whose last copy left a tier.
    fn forget(
        &self,
        worker: WorkerId,
        lane: Lane,
        event: &BlockRemoved,
        before: &[Option<HeldBlock>],
        all: bool,
    ) {
        let Some(tier) = tier_index(event.tier) else { return };
        let mut now = Vec::new();
        if !all {
            self.shared.index.blocks(lane.id(), &event.block_hashes, &mut now);
        }
        let there = |block: Option<&Option<HeldBlock>>| {
            block.copied().flatten().is_some_and(|block| block.tiers.get(tier) == Some(&true))
        };
        let gone = before.iter().enumerate().filter(|(at, old)| there(Some(old)) && !there(now.get(*at)));
        let gone: Vec<u64> = gone.filter_map(|(_, old)| old.map(|block| block.content)).collect();
        self.sessions().removed(worker, event.tier, &gone);
    }

    fn count(&mut self, worker: WorkerId, applied: Applied, removal: bool) {
        let Some(held) = self.workers.get_mut(&worker) else { return };
        let counts = &mut held.counts;
        *if removal { &mut counts.removed } else { &mut counts.stored } += applied.changed as u64;
        counts.copies += applied.copies as u64;
        counts.parked += applied.parked as u64;
        counts.unknown += applied.unknown as u64;
        counts.refused += applied.refused as u64;
    }
}

const fn tier_index(tier: Tier) -> Option<usize> {
    match tier {
        Tier::Device => Some(0),
        Tier::Host => Some(1),
        Tier::Disk => Some(2),
        Tier::Shared => None,
    }
}

/// Local hashes of the blocks of a store that describes content.
fn locals(space: Space, event: &BlockStored) -> Vec<u64> {
    let blocks = event.tokens.chunks_exact(event.block_size.max(1) as usize).enumerate();
    blocks
        .map(|(at, tokens)| {
            let keys = event.extra_keys.get(at).map_or(&[][..], Vec::as_slice);
            let ahead = event.lookahead.get(at).map_or(&[][..], Vec::as_slice);
            space.local(tokens, keys, ahead)
        })
        .collect()
}

/// Content hashes of blocks behind `after`.
fn contents(after: Option<u64>, locals: &[u64]) -> Vec<u64> {
    let mut last = after;
    locals
        .iter()
        .map(|local| {
            let content = chain::next(last, *local);
            last = Some(content);
            content
        })
        .collect()
}
