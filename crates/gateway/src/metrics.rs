//! Every metric of the gateway in one table, which also makes the reference page.
//!
//! Invariants: I-MET-1 a name exists once, in [`Family`]; I-MET-2 label values come from fixed sets or
//! from operators (worker numbers), never from clients; I-MET-3 gateways in one process share nothing: each
//! has its own recorder.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Label, Level, Metadata, Recorder, SharedString};
use metrics_exporter_prometheus::{
    BuildError, Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder,
};

/// What a metric measures with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

macro_rules! families {
    ($($variant:ident, $kind:ident, $name:literal, $labels:literal, $help:literal;)*) => {
        /// A metric family.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Family {
            $(#[doc = $help] $variant,)*
        }

        impl Family {
            const ALL: &'static [Self] = &[$(Self::$variant,)*];

            const fn parts(self) -> (Kind, &'static str, &'static str, &'static str) {
                match self {
                    $(Self::$variant => (Kind::$kind, $name, $labels, $help),)*
                }
            }
        }
    };
}

families! {
    Requests, Counter, "tandem_requests_total", "route, status", "HTTP requests by route and status class.";
    Turns, Counter, "tandem_turns_total", "dialect, outcome", "Accepted turns by how they ended: finished, refused, failed, cancelled, rejected.";
    TurnsInFlight, Gauge, "tandem_turns_in_flight", "", "Turns accepted and not yet over, held ones included.";
    TurnsHeld, Gauge, "tandem_turns_held", "", "Turns that wait for a worker.";
    Holds, Counter, "tandem_holds_total", "reason", "Turns that had to wait for a worker.";
    HoldSeconds, Histogram, "tandem_hold_seconds", "", "Time that a turn waited for a worker before it was sent.";
    AdmissionHeld, Gauge, "tandem_admission_held_turns", "", "Turns that wait until their session has a place in KV memory.";
    AdmissionHeldTokens, Gauge, "tandem_admission_held_tokens", "", "KV tokens that these turns need: demand beyond what the workers hold, to scale by.";
    AdmissionPrograms, Gauge, "tandem_admission_programs", "", "Programs that admission knows.";
    AdmissionTokens, Gauge, "tandem_admission_tokens", "worker, of", "KV tokens that admission counts at a worker: of running turns, of idle programs (at full weight), and its capacity.";
    AdmissionPatience, Gauge, "tandem_admission_patience", "worker", "For how many times as long as computing them again takes idle sessions are kept at a worker: it begins at `patience` and follows `reprefill_target`. Policy `tandem` only.";
    AdmissionEvents, Counter, "tandem_admission_events_total", "event", "What admission did: turns admitted, forced, moved, left (by their client, while held); programs paused, marked, resumed, expired.";
    AdmissionWaitSeconds, Histogram, "tandem_admission_wait_seconds", "reason", "Time that a turn waited which admission held, by why it was held.";
    WeightSync, Gauge, "tandem_weight_sync", "", "1 while no turn is dispatched because weights are exchanged.";
    WeightSyncs, Counter, "tandem_weight_syncs_total", "", "Exchanges of weights that were begun.";
    WeightSyncsExpired, Counter, "tandem_weight_syncs_expired_total", "", "Exchanges of weights that nobody ended in time.";
    Early200, Counter, "tandem_early_200_total", "dialect", "Streams that were answered with an early 200 and keep-alive events.";
    Rejections, Counter, "tandem_rejections_total", "reason", "Turns refused by the scheduler.";
    Errors, Counter, "tandem_errors_total", "kind", "Errors that the gateway itself answered with.";
    Dispatches, Counter, "tandem_dispatches_total", "attempt", "Turns sent to a worker, first tries and retries.";
    DispatchFailures, Counter, "tandem_dispatch_failures_total", "kind", "Tries that failed before the first byte of an answer.";
    PrefillLost, Counter, "tandem_prefill_lost_total", "", "Prompts that a worker for prompts computed without saying where their KV lies, so that they were computed again.";
    StreamsCut, Counter, "tandem_streams_cut_total", "cause", "Answers that the engine cut or fell silent in.";
    Superseded, Counter, "tandem_superseded_total", "", "Turns that were replaced by their own repetition on a new connection.";
    ClientGone, Counter, "tandem_client_gone_total", "phase", "Clients that hung up before their answer was over.";
    FirstByteSeconds, Histogram, "tandem_first_byte_seconds", "dialect", "From the arrival of a turn to the first byte of its answer.";
    TurnSeconds, Histogram, "tandem_turn_seconds", "dialect", "From the arrival of a turn to the end of its answer.";
    PrepareSeconds, Histogram, "tandem_prepare_seconds", "", "From the arrival of a turn's last body byte until it is sent or held: the gateway's own work.";
    InputTokens, Counter, "tandem_input_tokens_total", "", "Prompt tokens as engines reported them, cached ones included.";
    CachedTokens, Counter, "tandem_cached_tokens_total", "", "Prompt tokens that engines took from their caches.";
    OutputTokens, Counter, "tandem_output_tokens_total", "", "Generated tokens as engines reported them.";
    UsageMissing, Counter, "tandem_usage_missing_total", "dialect", "Finished turns whose answer carried no usage.";
    CountTokens, Counter, "tandem_count_tokens_total", "source", "Token counts answered by an engine or by our estimate.";
    Identity, Counter, "tandem_identity_total", "source", "Turns by where their identity was found (none = no identity).";
    IdentityWarnings, Counter, "tandem_identity_warnings_total", "field, kind", "Unusable identity headers and fields.";
    Hygiene, Counter, "tandem_hygiene_total", "kind", "Volatile texts found at the head of prompts.";
    HygieneBytes, Counter, "tandem_hygiene_bytes_total", "", "Bytes of volatile text found at the head of prompts.";
    Routing, Counter, "tandem_routing_decisions_total", "reason", "Routing decisions in the policy's words.";
    Workers, Gauge, "tandem_workers", "state", "Workers that are ready, draining or down.";
    WorkerTurns, Counter, "tandem_worker_turns_total", "worker", "Turns sent to each worker.";
    Connections, Gauge, "tandem_connections", "", "Open client connections.";
    BodyMemory, Gauge, "tandem_body_memory_bytes", "", "Request bodies held in memory.";
    LimitHits, Counter, "tandem_limit_hits_total", "limit", "Requests that ran into a limit.";
    TraceRows, Counter, "tandem_trace_rows_total", "", "Trace rows handed to the writer.";
    TraceRowsLost, Counter, "tandem_trace_rows_lost_total", "", "Trace rows dropped because the writer was behind or failed.";
    ToolEvents, Counter, "tandem_tool_events_total", "outcome", "Tool events received: accepted, invalid or dropped.";
    OwnerQueue, Gauge, "tandem_scheduler_queue", "", "Messages that wait for the scheduler.";
    OwnerBatchSeconds, Histogram, "tandem_scheduler_batch_seconds", "", "Time that the scheduler took for one batch of messages.";
    RouteWishes, Counter, "tandem_route_wishes_total", "outcome", "Parts of x-tandem-route headers: taken, or ignored because they cannot be used.";
    KvPrompts, Counter, "tandem_kv_prompts_total", "source", "Prompts by where their blocks came from: client, local, lineage, engine, text, none.";
    KvSources, Counter, "tandem_kv_source_asked_total", "source, outcome", "Sources of prompt blocks that were asked, and what came of it: found, or why not.";
    KvSourceSeconds, Histogram, "tandem_kv_source_seconds", "source", "Time that a source of prompt blocks took.";
    KvTokenizerUsed, Gauge, "tandem_kv_tokenizer_used", "tokenizer", "1 while a tokenizer is used, 0 once its counts differed from the engine's too often.";
    KvMemoBytes, Gauge, "tandem_kv_memo_bytes", "", "Memory for what is remembered of the prompts of sessions.";
    KvPromptTokens, Counter, "tandem_kv_prompt_tokens_checked_total", "source, outcome", "Exact prompt lengths compared with the engine's: equal or different.";
    KvPredictions, Counter, "tandem_kv_predictions_total", "source, outcome, claim", "Predicted cached tokens compared with the engine's: equal, over or under; and how sure they were said to be: exact, approximate (one block apart) or estimated.";
    KvPredictionError, Histogram, "tandem_kv_prediction_error_tokens", "source", "Difference between predicted and reported cached tokens, in tokens.";
    KvRelooks, Counter, "tandem_kv_relooks_total", "cause", "Turns looked up again with another result: while held, before a retry, at dispatch.";
    KvDispatches, Counter, "tandem_kv_predicted_dispatches_total", "outcome", "Dispatches that count as cached at once: predicted, refused (no room) or withdrawn.";
    KvWorkers, Gauge, "tandem_kv_workers", "knowledge", "Workers by what is known of their caches: exact, stale, approximate, blind.";
    KvTransitions, Counter, "tandem_kv_transitions_total", "from, to", "Changes of what is known of a worker's cache.";
    KvStreams, Gauge, "tandem_kv_streams", "state", "Event streams by state: absent, stale, replaying, live.";
    KvBatches, Counter, "tandem_kv_batches_total", "worker", "Batches of cache events taken in.";
    KvEvents, Counter, "tandem_kv_events_total", "", "Cache events taken in.";
    KvClears, Counter, "tandem_kv_clears_total", "worker, cause", "Times that all that was known of a worker's cache became void: messages lost for good, its engine restarted, its publisher ended.";
    KvGaps, Counter, "tandem_kv_gaps_total", "worker", "Holes in event streams that could not be filled.";
    KvLost, Counter, "tandem_kv_lost_messages_total", "worker", "Messages lost in them.";
    KvReplays, Counter, "tandem_kv_replays_total", "worker", "Replays asked for.";
    KvRestarts, Counter, "tandem_kv_restarts_total", "worker", "Restarts of event publishers noticed.";
    KvDecodeErrors, Counter, "tandem_kv_decode_errors_total", "worker", "Event messages and events that could not be read.";
    KvLag, Gauge, "tandem_kv_lag_seconds", "worker", "Age of the last batch of events when it was read, by the engine's clock.";
    KvQueue, Gauge, "tandem_kv_queue", "of", "What waits for the task that applies cache events: events, events of the shared store, news of requests.";
    KvIndexLag, Gauge, "tandem_kv_index_lag_seconds", "", "Longest time that events waited to be taken in during the last half second.";
    KvIndexPace, Counter, "tandem_kv_index_pace_changes_total", "to", "Times that the task that applies cache events fell behind (workers are stale), far behind (workers are approximate), or was abreast again.";
    KvBlocks, Gauge, "tandem_kv_blocks", "worker", "Blocks that a worker is known to hold, in whatever tier.";
    KvBelieved, Gauge, "tandem_kv_believed_blocks", "", "Blocks with which workers are credited because of what was sent to them, before or without events.";
    KvIndexBytes, Gauge, "tandem_kv_index_bytes", "of", "Memory of the indexes of sessions and of the shared store.";
    KvSessions, Gauge, "tandem_kv_sessions", "", "Sessions whose blocks are known.";
    KvStoreConnected, Gauge, "tandem_kv_store_connected", "", "1 while the shared store's publisher is connected.";
    KvStoreObjects, Gauge, "tandem_kv_store_objects", "", "Objects that the shared store is known to hold.";
    KvStoreDoubted, Gauge, "tandem_kv_store_doubted", "", "1 while something of the shared store may have been missed since the last complete listing.";
    KvStoreListings, Counter, "tandem_kv_store_listings_total", "outcome", "Listings of the shared store: complete or partial.";
    KvStoreDoubts, Counter, "tandem_kv_store_doubts_total", "cause", "Times that events of the shared store may have been missed.";
    Divergence, Counter, "tandem_prefix_divergence_total", "cause", "Turns whose prompt left that of the session's last turn before its end, by cause.";
    Reprefill, Counter, "tandem_reprefill_tokens_total", "kind", "Prompt tokens that engines computed: new, or seen before in the session and diverged, moved, evicted; unknown.";
    StatePrograms, Gauge, "tandem_state_programs", "", "Programs kept in the state directory.";
    StateBytes, Gauge, "tandem_state_bytes", "", "Bytes of their keys and values.";
    StateQueue, Gauge, "tandem_state_queue", "", "Programs that changed and are not written yet.";
    StateDropped, Counter, "tandem_state_dropped_total", "", "Programs left out because too many waited to be written; all that is kept is compared with what is known afterwards.";
    StateWrites, Counter, "tandem_state_writes_total", "outcome", "Programs written to the state directory, and removed from it.";
    StateFailures, Counter, "tandem_state_write_failures_total", "", "Batches of programs that could not be written.";
    StateRestored, Counter, "tandem_state_restored_total", "outcome", "Programs found in the state directory at the start: with their worker (home), without it (homeless), or unreadable.";
    InputsTeeLost, Counter, "tandem_recorded_inputs_lost_total", "", "Scheduler inputs that could not be recorded; the recording ends at the first.";
}

/// Bucket bounds in tokens, for everything that counts them.
const TOKENS: &[f64] =
    &[0.0, 1.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16_384.0, 65_536.0, 262_144.0, 1_048_576.0];

const METADATA: Metadata<'static> = Metadata::new("tandem", Level::INFO, None);

/// Bucket bounds in seconds for everything that lasts: 100 us to 30 min.
const SECONDS: &[f64] = &[
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
    30.0, 60.0, 120.0, 300.0, 600.0, 1800.0,
];

/// One gateway's metrics. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Metrics {
    recorder: Arc<PrometheusRecorder>,
    handle: PrometheusHandle,
    /// By family: those without labels are looked up once, not once a request.
    plain: Arc<[Plain]>,
}

/// A family without labels, ready to use.
enum Plain {
    /// It has labels.
    No,
    Counter(Counter),
    Gauge(Gauge),
    Histogram(Histogram),
}

impl Metrics {
    /// An empty set with every family described.
    pub(crate) fn new() -> Result<Self, BuildError> {
        let mut builder = PrometheusBuilder::new();
        for family in Family::ALL {
            let (kind, name, ..) = family.parts();
            if kind == Kind::Histogram {
                let bounds = if name.ends_with("_tokens") { TOKENS } else { SECONDS };
                builder = builder.set_buckets_for_metric(Matcher::Full(name.to_owned()), bounds)?;
            }
        }
        let recorder = builder.build_recorder();
        for family in Family::ALL {
            let (kind, name, _, help) = family.parts();
            let (name, help) = (KeyName::from_const_str(name), SharedString::const_str(help));
            match kind {
                Kind::Counter => recorder.describe_counter(name, None, help),
                Kind::Gauge => recorder.describe_gauge(name, None, help),
                Kind::Histogram => recorder.describe_histogram(name, None, help),
            }
        }
        let handle = recorder.handle();
        // Families without labels show as zero from the start, so that alerts on them work.
        let plain = Family::ALL.iter().map(|family| Self::plain(&recorder, *family)).collect();
        Ok(Self { recorder: Arc::new(recorder), handle, plain })
    }

    fn plain(recorder: &PrometheusRecorder, family: Family) -> Plain {
        let (kind, name, labels, _) = family.parts();
        let key = Key::from_static_name(name);
        match kind {
            _ if !labels.is_empty() => Plain::No,
            Kind::Counter => Plain::Counter(recorder.register_counter(&key, &METADATA)),
            Kind::Gauge => Plain::Gauge(recorder.register_gauge(&key, &METADATA)),
            Kind::Histogram => Plain::Histogram(recorder.register_histogram(&key, &METADATA)),
        }
    }

    fn key(family: Family, labels: &[(&'static str, &str)]) -> Key {
        let (_, name, ..) = family.parts();
        if labels.is_empty() {
            return Key::from_static_name(name);
        }
        let labels: Vec<Label> = labels.iter().map(|(k, v)| Label::new(*k, (*v).to_owned())).collect();
        Key::from_parts(name, labels)
    }

    /// Adds one.
    pub(crate) fn inc(&self, family: Family, labels: &[(&'static str, &str)]) {
        self.count(family, labels, 1);
    }

    /// Adds `n`.
    pub(crate) fn count(&self, family: Family, labels: &[(&'static str, &str)], n: u64) {
        match self.plain.get(family as usize) {
            Some(Plain::Counter(counter)) => counter.increment(n),
            _ => self.recorder.register_counter(&Self::key(family, labels), &METADATA).increment(n),
        }
    }

    /// Sets a gauge.
    #[expect(clippy::cast_precision_loss, reason = "gauges are floats in the exposition format")]
    pub(crate) fn set(&self, family: Family, labels: &[(&'static str, &str)], value: usize) {
        self.gauge(family, labels, value as f64);
    }

    /// Sets a gauge to a number that is no count.
    pub(crate) fn gauge(&self, family: Family, labels: &[(&'static str, &str)], value: f64) {
        match self.plain.get(family as usize) {
            Some(Plain::Gauge(gauge)) => gauge.set(value),
            _ => self.recorder.register_gauge(&Self::key(family, labels), &METADATA).set(value),
        }
    }

    /// Moves a gauge without labels up or down.
    pub(crate) fn shift(&self, family: Family, delta: f64) {
        if let Some(Plain::Gauge(gauge)) = self.plain.get(family as usize) {
            gauge.increment(delta);
        }
    }

    /// Records how long something lasted.
    pub(crate) fn lasted(&self, family: Family, labels: &[(&'static str, &str)], time: Duration) {
        self.record(family, labels, time.as_secs_f64());
    }

    /// Records a number of tokens.
    #[expect(clippy::cast_precision_loss, reason = "histograms are made of floats")]
    pub(crate) fn tokens(&self, family: Family, labels: &[(&'static str, &str)], tokens: u64) {
        self.record(family, labels, tokens as f64);
    }

    fn record(&self, family: Family, labels: &[(&'static str, &str)], value: f64) {
        match self.plain.get(family as usize) {
            Some(Plain::Histogram(histogram)) => histogram.record(value),
            _ => self.recorder.register_histogram(&Self::key(family, labels), &METADATA).record(value),
        }
    }

    /// Moves histogram samples into their buckets; must run now and then even when nobody scrapes.
    pub(crate) fn upkeep(&self) {
        self.handle.run_upkeep();
    }

    /// The text for a scrape.
    pub(crate) fn render(&self) -> String {
        let mut text = self.handle.render();
        process(&mut text);
        text
    }
}

/// The usual `process_*` metrics, from the operating system; a value that it does not give is left out.
fn process(text: &mut String) {
    let mut put = |name: &str, kind: &str, help: &str, value: Option<u64>| {
        if let Some(value) = value {
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n");
        }
    };
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| -> Option<u64> {
        let line = status.lines().find(|line| line.starts_with(name))?;
        line.split_ascii_whitespace().nth(1)?.parse().ok()
    };
    put(
        "process_resident_memory_bytes",
        "gauge",
        "Resident memory size in bytes.",
        field("VmRSS:").map(|kib| kib << 10),
    );
    put(
        "process_virtual_memory_bytes",
        "gauge",
        "Virtual memory size in bytes.",
        field("VmSize:").map(|kib| kib << 10),
    );
    put("process_threads", "gauge", "Number of threads.", field("Threads:"));
    let open = std::fs::read_dir("/proc/self/fd").ok().map(|dir| dir.count() as u64);
    put("process_open_fds", "gauge", "Number of open file descriptors.", open);
}

/// The reference page of all metrics, in Markdown.
#[must_use]
pub fn reference_page() -> String {
    let mut page = String::from(
        "# Metrics\n\nServed as `/metrics` on the Prometheus port (29000 by default). Label values come from \
         fixed sets; no session, tenant or request id is ever a label.\n\n| name | type | labels | meaning |\n\
         |---|---|---|---|\n",
    );
    for family in Family::ALL {
        let (kind, name, labels, help) = family.parts();
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let labels = if labels.is_empty() { "-" } else { labels };
        let _ = writeln!(page, "| `{name}` | {kind} | {labels} | {help} |");
    }
    page.push_str(
        "\nBeside these: `process_resident_memory_bytes`, `process_virtual_memory_bytes`, `process_threads`, \
         `process_open_fds`.\n",
    );
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    // I-MET-3.
    #[test]
    fn two_sets_in_one_process_do_not_mix() {
        let (a, b) = (Metrics::new().expect("buckets"), Metrics::new().expect("buckets"));
        a.inc(Family::Turns, &[("dialect", "chat"), ("outcome", "finished")]);
        a.lasted(Family::HoldSeconds, &[], Duration::from_millis(3));
        a.upkeep();
        let text = a.render();
        assert!(text.contains("tandem_turns_total{dialect=\"chat\",outcome=\"finished\"} 1"), "{text}");
        assert!(text.contains("tandem_hold_seconds_bucket{le=\"0.005\"} 1"), "{text}");
        assert!(!b.render().contains("tandem_turns_total{"));
        assert!(b.render().contains("tandem_superseded_total 0"));
    }

    // I-MET-1.
    #[test]
    fn names_are_unique_and_in_the_reference() {
        let page = reference_page();
        for family in Family::ALL {
            let (_, name, ..) = family.parts();
            assert!(name.starts_with("tandem_"), "{name}");
            assert_eq!(page.matches(&format!("| `{name}` |")).count(), 1, "{name}");
        }
    }
}
