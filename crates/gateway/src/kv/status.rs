//! The numbers of the KV side, for metrics.

use std::collections::BTreeMap;

use tandem_engines::{KvState, KvStatus};
use tandem_kvplane::{Knowledge, PlaneStats};
use tandem_types::WorkerId;

use super::Kv;
use crate::metrics::{Family, Metrics};

/// What was published of the event streams so far: their counts begin anew with each publisher, counters do not.
#[derive(Default)]
pub(crate) struct Published {
    before: BTreeMap<WorkerId, KvStatus>,
}

impl Published {
    /// Brings the metrics of event streams and of the store up to date.
    pub(crate) fn publish(&mut self, kv: &Kv) {
        let metrics = &kv.metrics;
        metrics.set(Family::KvMemoBytes, &[], kv.tokenizers.bytes());
        let mut states = BTreeMap::from([("absent", 0), ("stale", 0), ("replaying", 0), ("live", 0)]);
        let streams = kv.events.as_ref().map(tandem_engines::KvEvents::status).unwrap_or_default();
        for status in &streams {
            *states.entry(state_word(status.state)).or_insert(0) += 1;
            self.stream(metrics, status);
        }
        for (state, count) in states {
            metrics.set(Family::KvStreams, &[("state", state)], count);
        }
        self.before = streams.into_iter().map(|status| (status.worker, status)).collect();
        if let Some(store) = &kv.store {
            let status = store.status();
            metrics.set(Family::KvStoreConnected, &[], usize::from(status.connected));
        }
    }

    fn stream(&self, metrics: &Metrics, status: &KvStatus) {
        let before = self.before.get(&status.worker);
        let worker = status.worker.to_string();
        let counts: [(Family, Count); 5] = [
            (Family::KvGaps, |status| status.gaps),
            (Family::KvLost, |status| status.lost),
            (Family::KvReplays, |status| status.replays),
            (Family::KvRestarts, |status| status.restarts),
            (Family::KvDecodeErrors, |status| status.decode_errors.saturating_add(status.skipped_events)),
        ];
        for (family, count) in counts {
            let (now, then) = (count(status), before.map_or(0, count));
            let more = if now >= then { now - then } else { now };
            metrics.count(family, &[("worker", &worker)], more);
        }
        if let Some(lag) = status.lag {
            metrics.gauge(Family::KvLag, &[("worker", &worker)], lag);
        }
    }
}

/// A number of a stream that only rises.
type Count = fn(&KvStatus) -> u64;

const fn state_word(state: KvState) -> &'static str {
    match state {
        KvState::Absent => "absent",
        KvState::Stale => "stale",
        KvState::Replaying => "replaying",
        KvState::Live => "live",
    }
}

/// Brings the metrics of the picture up to date.
pub(super) fn plane(metrics: &Metrics, stats: &PlaneStats) {
    for knowledge in [Knowledge::Exact, Knowledge::Stale, Knowledge::Approximate, Knowledge::Blind] {
        let count = stats.workers.iter().filter(|worker| worker.knowledge == knowledge).count();
        metrics.set(Family::KvWorkers, &[("knowledge", knowledge.as_str())], count);
    }
    for worker in &stats.workers {
        metrics.set(Family::KvBlocks, &[("worker", &worker.worker.to_string())], worker.blocks);
    }
    metrics.set(Family::KvBelieved, &[], stats.believed.saturating_add(stats.predicted));
    metrics.set(Family::KvSessions, &[], stats.sessions.sessions);
    let bytes = [("sessions", stats.sessions.bytes), ("store", stats.store.bytes)];
    for (of, bytes) in bytes {
        metrics.set(Family::KvIndexBytes, &[("of", of)], bytes);
    }
    metrics.set(Family::KvStoreObjects, &[], usize::try_from(stats.store.objects).unwrap_or(usize::MAX));
    metrics.set(Family::KvStoreDoubted, &[], usize::from(stats.store.doubted));
}

#[cfg(test)]
mod tests {
    use tandem_types::EngineId;

    use super::*;

    /// A stream with so many of everything that is counted.
    fn counted(count: u64) -> KvStatus {
        KvStatus {
            worker: WorkerId { engine: EngineId(1), rank: 0 },
            state: KvState::Live,
            endpoint: None,
            replay_endpoint: None,
            last_seq: None,
            whole: true,
            connects: 0,
            disconnects: 0,
            batches: 0,
            events: 0,
            skipped_events: count,
            decode_errors: count,
            gaps: count,
            lost: count,
            replays: count,
            replay_failures: 0,
            restarts: count,
            duplicates: 0,
            held: 0,
            lag: None,
            last_error: None,
        }
    }

    /// 5, then 7: 7 in all. Then 3 of another publisher: 10. Nothing new: 10 still.
    #[test]
    fn counts_that_begin_anew_are_added_to_those_before() {
        let metrics = Metrics::new().unwrap();
        let mut published = Published::default();
        for count in [5, 7, 3, 3] {
            let status = counted(count);
            published.stream(&metrics, &status);
            published.before.insert(status.worker, status);
        }
        let text = metrics.render();
        for (name, total) in
            [("gaps", 10), ("lost_messages", 10), ("replays", 10), ("restarts", 10), ("decode_errors", 20)]
        {
            let line = format!("tandem_kv_{name}_total{{worker=\"e1r0\"}} {total}\n");
            assert!(text.contains(&line), "{line}{text}");
        }
    }
}
