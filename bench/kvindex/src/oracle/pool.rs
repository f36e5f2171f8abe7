//! The shared-pool index: a store that every worker writes to and evicts from, its wire, which now and then loses
//! batches, and listings of it.
//!
//! A page is four objects; of some pages one is never put, of some only two are removed. Answers are compared while
//! nothing is in doubt: from the start, and again from each listing that settled what was lost.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use tandem_kvindex::pool::{
    Layout, LayoutSpec, ListingOutcome, Object, PageHash, PoolEvent, PoolIndex, PoolLimits, RunStart,
};
use tandem_types::Time;

use super::{Counts, Replay};
use crate::workload::{Load, Op};

const NOW: Time = Time::ZERO;
const SLOTS: [&str; 4] = ["_0_k", "_0_v", "_1_k", "_1_v"];
const WHOLE: u8 = 0b1111;
/// Pages of a listing that are said, and pages that are swept, between two batches.
const LINES: usize = 4_096;
/// Disturbances of each kind in a pass.
const FAULTS: usize = 5;
/// Batches that are lost at a time.
const LOST: usize = 3;

fn object(content: u64, slot: usize) -> Object<'static> {
    let page = PageHash::from_digest(&content.to_be_bytes());
    Object { tenant: "", space: "m_", page, slot: SLOTS[slot % SLOTS.len()] }
}

/// The index and the store itself.
pub struct Pool {
    index: PoolIndex,
    layout: Option<Layout>,
    /// Which objects of a page are there.
    store: BTreeMap<u64, u8>,
    number: u64,
    /// Batches that will not arrive.
    losing: usize,
    /// None has arrived since: the index does not know yet.
    unnoticed: bool,
    doubted: bool,
    /// Pages not yet said by the listing under way.
    to_list: Option<Vec<u64>>,
}

impl Default for Pool {
    fn default() -> Self {
        let mut index = PoolIndex::new(PoolLimits::default());
        let spec = LayoutSpec {
            tenant: String::new(),
            space: "m_".to_owned(),
            every: SLOTS.map(str::to_owned).to_vec(),
            trailing: Vec::new(),
            foreign: Vec::new(),
            run: RunStart::LocalEnd,
        };
        let layout = index.claim(&spec, NOW).ok();
        Self {
            index,
            layout,
            store: BTreeMap::new(),
            number: 0,
            losing: 0,
            unnoticed: false,
            doubted: false,
            to_list: None,
        }
    }
}

impl Pool {
    /// One batch goes out, and arrives or not.
    fn publish(&mut self, events: &[PoolEvent<'_>]) {
        self.number += 1;
        if self.losing > 0 {
            self.losing -= 1;
        } else {
            self.index.apply(self.number, events, NOW);
            self.unnoticed = false;
        }
    }

    fn put(&mut self, contents: &[u64]) {
        let mut events = Vec::with_capacity(contents.len() * SLOTS.len());
        for content in contents {
            let slots = if content % 16 == 0 { 3 } else { SLOTS.len() };
            for slot in 0..slots {
                *self.store.entry(*content).or_default() |= 1 << slot;
                events.push(PoolEvent::Stored(object(*content, slot)));
            }
        }
        self.publish(&events);
    }

    fn remove(&mut self, contents: &[u64]) {
        let mut events = Vec::new();
        for content in contents {
            let Some(there) = self.store.get_mut(content) else { continue };
            let going = if content % 8 == 1 { *there & 0b0101 } else { *there };
            *there &= !going;
            if *there == 0 {
                self.store.remove(content);
            }
            let slots = (0..SLOTS.len()).filter(|slot| going >> slot & 1 != 0);
            events.extend(slots.map(|slot| PoolEvent::Removed(object(*content, slot))));
        }
        self.publish(&events);
    }

    /// Disturbances of each kind in turn; the listing under way would not find what changes silently now.
    fn disturb(&mut self, kind: usize) {
        match kind % 4 {
            0 => (self.losing, self.unnoticed) = (LOST, true),
            1 => {
                // Watermark eviction publishes nothing.
                let gone: Vec<u64> = self.store.keys().copied().step_by(5).collect();
                for content in gone {
                    self.store.remove(&content);
                }
                self.index.disconnected(NOW);
            }
            2 => {
                self.store.clear();
                self.publish(&[PoolEvent::Cleared { tenant: "default" }]);
                return;
            }
            _ => self.index.disconnected(NOW),
        }
        self.doubted = true;
    }

    /// A part of what makes the index sure again: the listing, then its sweep.
    fn settle(&mut self) -> Result<()> {
        if let Some(left) = &mut self.to_list {
            for content in left.drain(left.len().saturating_sub(LINES)..) {
                let there = self.store.get(&content).copied().unwrap_or_default();
                for slot in (0..SLOTS.len()).filter(|slot| there >> slot & 1 != 0) {
                    self.index.listed(&object(content, slot));
                }
            }
            if left.is_empty() {
                self.to_list = None;
                let outcome = self.index.finish_listing(true);
                ensure!(matches!(outcome, ListingOutcome::Sweeping | ListingOutcome::Void), "{outcome:?}");
            }
            return Ok(());
        }
        if !self.index.step(LINES).idle || self.unnoticed {
            return Ok(());
        }
        if self.index.due(NOW, Duration::MAX).is_empty() {
            if self.doubted {
                self.doubted = false;
                let objects = self.store.values().map(|there| u64::from(there.count_ones())).sum::<u64>();
                let got = self.index.objects("");
                ensure!(got == objects, "{got} objects instead of {objects}");
            }
        } else if self.index.begin_listing("", NOW).is_ok() {
            self.to_list = Some(self.store.keys().copied().collect());
        }
        Ok(())
    }

    fn compare(&self, contents: &[u64], counts: &mut Counts) -> Result<()> {
        let Some(layout) = &self.layout else { anyhow::bail!("the layout was refused") };
        let whole = |content: &u64| self.store.get(content) == Some(&WHOLE);
        let pages: Vec<PageHash> =
            contents.iter().map(|content| PageHash::from_digest(&content.to_be_bytes())).collect();
        let hits = self.index.reader().hits(layout, &pages);
        let got: Vec<usize> = hits.ranges.into_iter().flatten().collect();
        let expected: Vec<usize> = (0..contents.len()).filter(|at| whole(&contents[*at])).collect();
        ensure!(got == expected && hits.total == expected.len(), "hits: {got:?} instead of {expected:?}");
        let local = contents.len() / 3;
        let run = contents[local..].iter().take_while(|content| whole(content)).count();
        let got = self.index.reader().shared_beyond_device(layout, local, &pages);
        ensure!(got == run, "{got} pages to credit instead of {run}");
        counts.matches += 1;
        counts.compared += expected.len() as u64;
        Ok(())
    }
}

impl Replay for Pool {
    const NAME: &'static str = "pool index";

    fn pass(&mut self, load: &Load, _: u32, counts: &mut Counts) -> Result<()> {
        let pace = load.ops.len() / (FAULTS * 4) + 1;
        for (at, op) in load.ops.iter().enumerate() {
            // While a listing runs and batches are lost, nothing more happens to the store in silence.
            if at % pace == pace / 2 && self.to_list.is_none() && !self.doubted {
                self.disturb(at / pace);
                counts.disturbances += 1;
            }
            match op {
                Op::Find(n) if !self.doubted => self.compare(&load.prompts[*n as usize].contents, counts)?,
                Op::Find(_) => {}
                Op::Stored { prompt, from, to, .. } => {
                    self.put(&load.prompts[*prompt as usize].contents[*from as usize..*to as usize]);
                    counts.events += 1;
                    counts.blocks += u64::from(to - from);
                }
                Op::Removed { contents, .. } => {
                    self.remove(contents);
                    counts.events += 1;
                    counts.blocks += contents.len() as u64;
                }
            }
            self.settle()?;
        }
        Ok(())
    }
}
