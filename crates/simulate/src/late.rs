//! What the scheduler knows of caches from events that come late, or never.
//!
//! - A pass's events are one message. It counts from its time plus the delay on, or, with the given probability, never;
//!   nobody asks for it again, as a live scheduler would.
//! - Copies of a block are counted, as engines announce each one's coming and going.
//! - I-LAT-1 nothing counts before its time, and what is lost never.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::time::Duration;

use tandem_types::{KvEvent, Tier, Time};
use tandem_workload::mix;

/// Copies of blocks. Nobody sees its order.
type Copies = HashMap<u64, u32, BuildHasherDefault<DefaultHasher>>;

/// Blocks of one worker, as events tell: on the device, in host memory, on disk.
#[derive(Debug, Default)]
struct View([Copies; 3]);

impl View {
    const fn tier(&mut self, tier: Tier) -> Option<&mut Copies> {
        let [device, host, disk] = &mut self.0;
        match tier {
            Tier::Device => Some(device),
            Tier::Host => Some(host),
            Tier::Disk => Some(disk),
            // That one belongs to no worker.
            Tier::Shared => None,
        }
    }

    fn apply(&mut self, event: &KvEvent) {
        match event {
            KvEvent::Stored(stored) => {
                if let Some(copies) = self.tier(stored.tier) {
                    stored.block_hashes.iter().for_each(|key| *copies.entry(*key).or_default() += 1);
                }
            }
            KvEvent::Removed(removed) => {
                let Some(copies) = self.tier(removed.tier) else { return };
                for key in &removed.block_hashes {
                    if let Some(count) = copies.get_mut(key) {
                        *count -= 1;
                        if *count == 0 {
                            copies.remove(key);
                        }
                    }
                }
            }
            KvEvent::Cleared => self.0[0].clear(),
        }
    }

    /// Leading blocks on the device; there or in host memory; there, in host memory or on disk.
    fn leading(&self, ids: &[u64]) -> [u32; 3] {
        let [device, host, disk] = &self.0;
        let count = |tiers: &[&Copies]| {
            let lies = |id: &&u64| tiers.iter().any(|copies| copies.contains_key(*id));
            u32::try_from(ids.iter().take_while(lies).count()).unwrap_or(u32::MAX)
        };
        [count(&[device]), count(&[device, host]), count(&[device, host, disk])]
    }
}

/// Messages under way and what came of those that arrived.
#[derive(Debug)]
pub(crate) struct Late {
    delay: Duration,
    /// Messages of 2^64 that are lost.
    lost: u64,
    seed: u64,
    sent: u64,
    under_way: VecDeque<(Time, u32, Vec<KvEvent>)>,
    views: BTreeMap<u32, View>,
}

impl Late {
    /// `loss` is the probability that a message is lost.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a part of 2^64, cut off there"
    )]
    pub(crate) fn new(delay: Duration, loss: f64, seed: u64) -> Self {
        let lost = (loss * u64::MAX as f64) as u64;
        Self { delay, lost, seed, sent: 0, under_way: VecDeque::new(), views: BTreeMap::new() }
    }

    /// A worker's pass ended with these events.
    pub(crate) fn sent(&mut self, worker: u32, now: Time, events: Vec<KvEvent>) {
        if events.is_empty() {
            return;
        }
        self.sent += 1;
        if mix(self.seed, self.sent) >= self.lost {
            self.under_way.push_back((now + self.delay, worker, events));
        }
    }

    /// So much time is skipped, of messages under way too.
    pub(crate) fn skip(&mut self, time: Duration) {
        self.under_way.iter_mut().for_each(|(at, ..)| *at = *at - time);
    }

    /// Leading blocks of a prompt at a worker by tier, each figure including the one before, as far as is known by now.
    pub(crate) fn leading(&mut self, worker: u32, ids: &[u64], now: Time) -> [u32; 3] {
        while self.under_way.front().is_some_and(|(at, _, _)| *at <= now) {
            let Some((_, worker, events)) = self.under_way.pop_front() else { break };
            let view = self.views.entry(worker).or_default();
            events.iter().for_each(|event| view.apply(event));
        }
        self.views.get(&worker).map_or([0; 3], |view| view.leading(ids))
    }
}

#[cfg(test)]
mod tests {
    use tandem_types::{BlockRemoved, BlockStored};

    use super::*;

    fn stored(ids: &[u64], tier: Tier) -> KvEvent {
        KvEvent::Stored(BlockStored { block_hashes: ids.to_vec(), tier, ..BlockStored::default() })
    }

    fn removed(ids: &[u64], tier: Tier) -> KvEvent {
        KvEvent::Removed(BlockRemoved { block_hashes: ids.to_vec(), tier, ..BlockRemoved::default() })
    }

    const fn at(seconds: u64) -> Time {
        Time::from_millis(seconds * 1_000)
    }

    /// I-LAT-1.
    #[test]
    fn a_message_counts_when_its_delay_has_passed() {
        let mut late = Late::new(Duration::from_secs(2), 0.0, 1);
        late.sent(0, at(10), vec![stored(&[1, 2, 3], Tier::Device)]);
        late.sent(0, at(11), vec![removed(&[3], Tier::Device), stored(&[3], Tier::Host)]);
        assert_eq!(late.leading(0, &[1, 2, 3, 4], at(11)), [0, 0, 0]);
        assert_eq!(late.leading(0, &[1, 2, 3, 4], at(12)), [3, 3, 3]);
        assert_eq!(late.leading(0, &[1, 2, 3, 4], at(13)), [2, 3, 3], "block 3 went to host memory");
        assert_eq!(late.leading(1, &[1], at(99)), [0, 0, 0], "another worker");
    }

    #[test]
    fn time_that_is_skipped_passes_for_messages_too() {
        let mut late = Late::new(Duration::from_secs(20), 0.0, 1);
        late.sent(0, at(10), vec![stored(&[1], Tier::Device)]);
        late.sent(0, at(15), vec![stored(&[2], Tier::Device)]);
        late.skip(Duration::from_secs(12));
        assert_eq!(late.leading(0, &[1, 2], at(17)), [0, 0, 0]);
        assert_eq!(late.leading(0, &[1, 2], at(18)), [1, 1, 1]);
        assert_eq!(late.leading(0, &[1, 2], at(23)), [2, 2, 2]);
    }

    #[test]
    fn of_two_copies_one_is_left_when_the_other_goes() {
        let mut late = Late::new(Duration::ZERO, 0.0, 1);
        late.sent(0, at(1), vec![stored(&[5], Tier::Device), stored(&[5], Tier::Device)]);
        late.sent(0, at(2), vec![removed(&[5, 6], Tier::Device)]);
        assert_eq!(late.leading(0, &[5], at(2)), [1, 1, 1]);
        late.sent(0, at(3), vec![removed(&[5], Tier::Device)]);
        assert_eq!(late.leading(0, &[5], at(3)), [0, 0, 0]);
    }

    /// I-LAT-1. 10,000 draws of one half: the standard deviation is 50.
    #[test]
    fn so_many_messages_are_lost_as_is_said() {
        let arrived = |loss: f64| {
            let mut late = Late::new(Duration::ZERO, loss, 7);
            (0..10_000).for_each(|id| late.sent(0, at(1), vec![stored(&[id], Tier::Device)]));
            (0..10_000).filter(|id| late.leading(0, &[*id], at(1)) == [1, 1, 1]).count()
        };
        assert_eq!((arrived(0.0), arrived(1.0)), (10_000, 0));
        assert!((4_800..5_200).contains(&arrived(0.5)), "{}", arrived(0.5));
    }
}
