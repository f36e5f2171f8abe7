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

    pub(super) const fn covers(self, position: u32) -> bool {
        self.start() <= position && position < self.end()
    }
}

/// All spans of one run, sorted; those of one worker and tier neither overlap nor touch. One alone, the common
/// case, needs no memory of its own.
#[derive(Debug, Default)]
pub(super) enum Spans {
    #[default]
    None,
    One(Span),
    Many(Vec<Span>),
}

impl Spans {
    pub(super) const fn is_empty(&self) -> bool {
        matches!(self, Self::None)
    }

    pub(super) fn as_slice(&self) -> &[Span] {
        match self {
            Self::None => &[],
            Self::One(span) => std::slice::from_ref(span),
            Self::Many(spans) => spans,
        }
    }

    /// The spans of one worker.
    pub(super) fn of(&self, worker: u32) -> &[Span] {
        let spans = self.as_slice();
        if let [one] = spans {
            return if one.worker() == worker { spans } else { &[] };
        }
        let from = spans.partition_point(|s| s.worker() < worker);
        let rest = spans.get(from..).unwrap_or(&[]);
        let count = rest.iter().take_while(|s| s.worker() == worker).count();
        rest.get(..count).unwrap_or(&[])
    }

    /// One more than the last block that anybody holds; looks no further once that is at least `enough`.
    pub(super) fn end(&self, enough: u32) -> u32 {
        let mut end = 0;
        for span in self.as_slice() {
            end = end.max(span.end());
            if end >= enough {
                break;
            }
        }
        end
    }

    /// Puts `new` in the place of the spans `from..from + count`, which are there.
    fn splice(&mut self, from: usize, count: usize, new: impl ExactSizeIterator<Item = Span>) {
        let left = self.as_slice().len() - count + new.len();
        if left < 2 {
            let before = self.as_slice().get(..from).unwrap_or(&[]).iter().copied();
            let after = self.as_slice().get(from + count..).unwrap_or(&[]).iter().copied();
            let only = before.chain(new).chain(after).next();
            *self = only.map_or(Self::None, Self::One);
            return;
        }
        let spans = match self {
            Self::Many(spans) => spans,
            Self::None | Self::One(_) => {
                let mut spans = Vec::with_capacity(left);
                spans.extend_from_slice(self.as_slice());
                *self = Self::Many(spans);
                return self.splice(from, count, new);
            }
        };
        if count == new.len() {
            for (slot, span) in spans.iter_mut().skip(from).zip(new) {
                *slot = span;
            }
            return;
        }
        if spans.capacity() < left {
            spans.reserve_exact((spans.len() / 4).max(1));
        }
        spans.splice(from..from + count, new);
        if spans.len() * 2 < spans.capacity() {
            spans.shrink_to_fit();
        }
    }

    /// Adds `start..end`; tells of each part that was there already.
    pub(super) fn add(&mut self, worker: u32, tier: u8, start: u32, end: u32, mut had: impl FnMut(u32, u32)) {
        let new = Span::new(worker, tier, start, end);
        let spans = self.as_slice();
        let mut from = spans.partition_point(|s| *s < Span::new(worker, tier, start, 0));
        if let Some(before) = from.checked_sub(1).and_then(|b| spans.get(b))
            && before.same_owner(new)
            && before.end() >= start
        {
            from -= 1;
        }
        let rest = spans.get(from..).unwrap_or(&[]);
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
        self.splice(from, count, std::iter::once(Span::new(worker, tier, low, high)));
    }

    /// Takes `start..end` out if one span has all of it; says whether that was so.
    pub(super) fn remove(&mut self, worker: u32, tier: u8, start: u32, end: u32) -> bool {
        let spans = self.as_slice();
        let after = spans.partition_point(|s| *s < Span::new(worker, tier, start + 1, 0));
        let Some(at) = after.checked_sub(1) else { return false };
        let Some(&span) = spans.get(at) else { return false };
        if !span.same_owner(Span::new(worker, tier, 0, 0)) || span.end() < end {
            return false;
        }
        let left = Span::new(worker, tier, span.start(), start);
        let right = Span::new(worker, tier, end, span.end());
        match (span.start() < start, end < span.end()) {
            (false, false) => self.splice(at, 1, std::iter::empty()),
            (true, false) => self.splice(at, 1, std::iter::once(left)),
            (false, true) => self.splice(at, 1, std::iter::once(right)),
            (true, true) => self.splice(at, 1, [left, right].into_iter()),
        }
        true
    }

    /// Takes out all spans of a worker, in one tier or in all.
    pub(super) fn remove_worker(&mut self, worker: u32, tier: Option<u8>) {
        let left = |s: &&Span| s.worker() != worker || tier.is_some_and(|t| s.tier() != t);
        let left: Vec<Span> = self.as_slice().iter().filter(left).copied().collect();
        *self = match left.as_slice() {
            [] => Self::None,
            [one] => Self::One(*one),
            _ => Self::Many(left),
        };
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
