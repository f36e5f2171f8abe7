//! Which blocks of a run a worker holds in a tier, as sorted intervals packed into one word each.

/// Most tiers that a span can tell apart.
const TIER_BITS: u32 = 4;
const POSITION_BITS: u32 = 18;
/// Worker numbers must stay below this.
pub(super) const WORKER_END: u32 = 1 << 24;

/// Blocks `start..end` of a run, held by a worker in a tier. Ordered by worker, tier, start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Span(u64);

impl Span {
    pub(super) const fn new(worker: u32, tier: u8, start: u32, end: u32) -> Self {
        let owner = (worker as u64) << TIER_BITS | tier as u64;
        Self((owner << POSITION_BITS | start as u64) << POSITION_BITS | end as u64)
    }

    pub(super) const fn worker(self) -> u32 {
        (self.0 >> (2 * POSITION_BITS + TIER_BITS)) as u32
    }

    pub(super) const fn tier(self) -> u8 {
        (self.0 >> (2 * POSITION_BITS)) as u8 & ((1 << TIER_BITS) - 1)
    }

    pub(super) const fn start(self) -> u32 {
        (self.0 >> POSITION_BITS) as u32 & ((1 << POSITION_BITS) - 1)
    }

    pub(super) const fn end(self) -> u32 {
        self.0 as u32 & ((1 << POSITION_BITS) - 1)
    }

    const fn same_owner(self, other: Self) -> bool {
        self.0 >> (2 * POSITION_BITS) == other.0 >> (2 * POSITION_BITS)
    }

    const fn covers(self, position: u32) -> bool {
        self.start() <= position && position < self.end()
    }
}

/// All spans of one run, sorted; those of one worker and tier neither overlap nor touch.
#[derive(Debug, Default)]
pub(super) struct Spans(Vec<Span>);

impl Spans {
    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn as_slice(&self) -> &[Span] {
        &self.0
    }

    /// The spans of one worker.
    pub(super) fn of(&self, worker: u32) -> &[Span] {
        let from = self.0.partition_point(|s| s.worker() < worker);
        let rest = self.0.get(from..).unwrap_or(&[]);
        let count = rest.iter().take_while(|s| s.worker() == worker).count();
        rest.get(..count).unwrap_or(&[])
    }

    pub(super) fn covers(&self, position: u32) -> bool {
        self.0.iter().any(|s| s.covers(position))
    }

    /// Adds `start..end`; tells of each part that was there already.
    pub(super) fn add(&mut self, worker: u32, tier: u8, start: u32, end: u32, mut had: impl FnMut(u32, u32)) {
        let new = Span::new(worker, tier, start, end);
        let mut from = self.0.partition_point(|s| *s < Span::new(worker, tier, start, 0));
        if let Some(before) = from.checked_sub(1).and_then(|b| self.0.get(b))
            && before.same_owner(new)
            && before.end() >= start
        {
            from -= 1;
        }
        let rest = self.0.get(from..).unwrap_or(&[]);
        let touched = rest.iter().take_while(|s| s.same_owner(new) && s.start() <= end);
        let (mut low, mut high, mut count) = (start, end, 0);
        for span in touched {
            low = low.min(span.start());
            high = high.max(span.end());
            let (a, b) = (span.start().max(start), span.end().min(end));
            if a < b {
                had(a, b);
            }
            count += 1;
        }
        let merged = Span::new(worker, tier, low, high);
        if count == 0 {
            if self.0.len() == self.0.capacity() {
                self.0.reserve_exact((self.0.len() / 4).max(1));
            }
            self.0.insert(from, merged);
        } else {
            if let Some(slot) = self.0.get_mut(from) {
                *slot = merged;
            }
            self.0.drain(from + 1..from + count);
        }
    }

    /// Takes one block out; says whether it was there.
    pub(super) fn remove(&mut self, worker: u32, tier: u8, position: u32) -> bool {
        let after = self.0.partition_point(|s| *s < Span::new(worker, tier, position + 1, 0));
        let Some(at) = after.checked_sub(1) else { return false };
        let Some(&span) = self.0.get(at) else { return false };
        if !(span.same_owner(Span::new(worker, tier, 0, 0)) && span.covers(position)) {
            return false;
        }
        let left = (span.start() < position).then(|| Span::new(worker, tier, span.start(), position));
        let right = (position + 1 < span.end()).then(|| Span::new(worker, tier, position + 1, span.end()));
        match (left, right) {
            (None, None) => {
                self.0.remove(at);
                if self.0.len() * 2 < self.0.capacity() {
                    self.0.shrink_to_fit();
                }
            }
            (Some(one), None) | (None, Some(one)) => {
                if let Some(slot) = self.0.get_mut(at) {
                    *slot = one;
                }
            }
            (Some(left), Some(right)) => {
                if let Some(slot) = self.0.get_mut(at) {
                    *slot = left;
                }
                self.0.insert(at + 1, right);
            }
        }
        true
    }

    /// Takes out all spans of a worker, in one tier or in all.
    pub(super) fn remove_worker(&mut self, worker: u32, tier: Option<u8>) {
        self.0.retain(|s| s.worker() != worker || tier.is_some_and(|t| s.tier() != t));
        self.0.shrink_to_fit();
    }
}

/// How far from block 0 the spans of one worker reach without a gap: in device memory, in device or host
/// memory, in any tier.
pub(super) fn reach(spans: &[Span]) -> [u32; 3] {
    if let [one] = spans {
        let end = if one.start() == 0 { one.end() } else { 0 };
        return match one.tier() {
            0 => [end; 3],
            1 => [0, end, end],
            _ => [0, 0, end],
        };
    }
    let up_to = |tier: u8, mut end: u32| {
        while let Some(s) = spans.iter().find(|s| s.tier() <= tier && s.start() <= end && s.end() > end) {
            end = s.end();
        }
        end
    };
    let device = up_to(0, 0);
    let host = up_to(1, device);
    [device, host, up_to(2, host)]
}
