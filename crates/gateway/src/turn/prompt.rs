//! What is known of a turn's prompt on its way: where its blocks came from, what was promised of it, what the
//! engine said afterwards.
//!
//! - A dispatch counts as cached from before its bytes leave until the next dispatch, a failure before the first byte,
//!   or the end.
//! - Each arrival that lineage was told of ends or is withdrawn.

use std::sync::Arc;

use tandem_dialect::AnswerFacts;
use tandem_kvplane::{Dispatched, Relation as Told};
use tandem_lineage::{Basis, Cause, Ended, Relation, Split, SplitInput, ToolsChange, split};
use tandem_trace::record::{DivergenceRecord, PrefixEvent, SplitRecord};
use tandem_types::{PrefixMatch, ProgramKey, Time, TurnId, Usage, WorkerId};

use crate::kv::blocks::{Found, Source, seek};
use crate::kv::{Kv, News};
use crate::metrics::{Family, Metrics};

/// What was promised of a dispatch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Promise {
    pub(crate) worker: WorkerId,
    /// Prompt tokens that the worker is expected to reuse; `None` = nothing is known of it.
    pub(crate) tokens: Option<u64>,
    /// Of these, in its own tiers.
    own: Option<u64>,
    /// All of them, where there is a shared store.
    shared: Option<u64>,
    /// Leading prompt tokens that another worker holds, at most.
    elsewhere: Option<u64>,
}

/// A turn's prompt.
pub(crate) struct TurnPrompt {
    pub(crate) kv: Option<Arc<Kv>>,
    pub(crate) turn: TurnId,
    pub(crate) program: Option<ProgramKey>,
    pub(crate) parent: Option<ProgramKey>,
    /// Whether it is a step of its program.
    pub(crate) is_turn: bool,
    /// Whether its client says that it is the last one.
    pub(crate) last: bool,
    pub(crate) found: Found,
    /// The answer's head is to tell all this.
    pub(crate) explain: bool,
    pub(crate) promise: Option<Promise>,
    dispatched: Option<Dispatched>,
    over: bool,
}

impl Drop for TurnPrompt {
    /// A turn that never reached the scheduler.
    fn drop(&mut self) {
        if let (Some(kv), Some(arrival), false) = (&self.kv, &self.found.arrival, self.over) {
            kv.lineage().withdrawn(arrival.ticket);
        }
    }
}

impl TurnPrompt {
    /// A prompt of which nothing was asked yet.
    pub(super) fn new(kv: Option<Arc<Kv>>, turn: TurnId, explain: bool) -> Self {
        Self {
            kv,
            turn,
            program: None,
            parent: None,
            is_turn: false,
            last: false,
            found: Found::default(),
            explain,
            promise: None,
            dispatched: None,
            over: false,
        }
    }

    /// The turn waits: it is looked up again now and then.
    pub(super) fn waits(&self) {
        if let (Some(kv), Some(wanted)) = (&self.kv, &self.found.seek) {
            kv.held.waits(self.turn, wanted.clone(), self.found.prefix.clone());
        }
    }

    /// It waits no longer.
    pub(super) fn leaves(&self) {
        if let (Some(kv), Some(_)) = (&self.kv, &self.found.seek) {
            kv.held.leaves(self.turn);
        }
    }

    /// The turn goes to a worker: its prompt counts as cached there from now on.
    pub(super) fn goes_to(&mut self, worker: WorkerId, now: Time) {
        self.withdraw();
        let Some(kv) = &self.kv else { return };
        let Some(wanted) = &self.found.seek else {
            self.promise = Some(Promise { worker, tokens: None, own: None, shared: None, elsewhere: None });
            return;
        };
        let prefix = seek(kv, wanted);
        if prefix.workers != self.found.prefix.workers {
            kv.metrics().inc(Family::KvRelooks, &[("cause", "dispatch")]);
        }
        self.found.prefix = prefix;
        self.promise = Some(promise(&self.found.prefix, worker));
        self.dispatched = kv.reader.dispatched(worker, &wanted.chain, now);
        let outcome = if self.dispatched.is_some() { "predicted" } else { "refused" };
        kv.metrics().inc(Family::KvDispatches, &[("outcome", outcome)]);
    }

    /// A try failed before the first byte. What the scheduler should know before it places the turn anew.
    pub(super) fn failed(&mut self) -> Option<PrefixMatch> {
        self.withdraw();
        let (kv, wanted) = (self.kv.as_ref()?, self.found.seek.as_ref()?);
        let prefix = seek(kv, wanted);
        self.found.prefix.clone_from(&prefix);
        kv.metrics().inc(Family::KvRelooks, &[("cause", "retry")]);
        Some(prefix)
    }

    fn withdraw(&mut self) {
        if let (Some(kv), Some(dispatched)) = (&self.kv, self.dispatched.take()) {
            kv.reader.withdrawn(dispatched);
            kv.metrics().inc(Family::KvDispatches, &[("outcome", "withdrawn")]);
        }
    }

    /// The first byte of the answer is there: the prompt is computed.
    pub(super) fn computed(&mut self) {
        self.dispatched = None;
        let (Some(kv), Some(program), Some(wanted)) = (&self.kv, &self.program, &self.found.seek) else {
            return;
        };
        let (Some(promise), true) = (self.promise, self.is_turn && says_more(self.found.source)) else {
            return;
        };
        let relation = match self.found.arrival.as_ref().map(|arrival| arrival.relation) {
            Some(Relation::Branch) => Told::Beside,
            Some(Relation::Compacted) => Told::Replaces,
            _ => Told::Continues,
        };
        kv.tell(News::Told {
            program: program.clone(),
            parent: self.parent.clone(),
            relation,
            chain: wanted.chain.clone(),
            worker: promise.worker,
        });
    }

    /// The turn is over. `facts`: what the engine said, if it answered.
    pub(super) fn over(
        &mut self,
        facts: Option<&AnswerFacts>,
        ids: (&str, Option<&str>),
        now: Time,
    ) -> Option<PrefixEvent> {
        self.withdraw();
        self.leaves();
        self.over = true;
        let kv = self.kv.clone()?;
        let usage = facts.and_then(|facts| facts.usage);
        if let Some(arrival) = &self.found.arrival {
            let mut lineage = kv.lineage();
            match facts.filter(|facts| facts.error.is_none()) {
                Some(facts) => {
                    let ids = &facts.output_token_ids;
                    let answer: Option<Arc<[u32]>> = (!ids.is_empty()).then(|| Arc::from(ids.as_slice()));
                    let block_size = Some(self.found.prefix.block_size).filter(|size| *size > 0);
                    let (tool_calls, answer) = (&*facts.tool_calls, answer.as_ref());
                    lineage.ended(arrival.ticket, &Ended { usage, tool_calls, answer, block_size }, now);
                }
                None => lineage.withdrawn(arrival.ticket),
            }
        }
        if let Some(program) = self.program.as_ref().filter(|_| self.last) {
            kv.session_end(program);
        }
        let split = usage.and_then(|usage| self.split(usage));
        self.count(&kv, usage, split);
        Some(self.event(ids, usage, split))
    }

    fn split(&self, usage: Usage) -> Option<Split> {
        let cached = usage.cached_tokens?;
        let arrival = self.found.arrival.as_ref()?;
        let expected = arrival.expected;
        let repeated = (expected.basis != Basis::Nothing || arrival.relation == Relation::First)
            .then_some(expected.tokens);
        Some(split(&SplitInput {
            prompt: usage.input_tokens,
            cached,
            block_size: self.found.prefix.block_size,
            repeated,
            history: arrival.history,
            displaced: arrival.displaced,
            held_here: self.promise.and_then(|promise| promise.own),
            held_elsewhere: self.promise.and_then(|promise| promise.elsewhere),
            shared: self.promise.and_then(|promise| promise.shared),
        }))
    }

    /// Compares what was promised with what came, for metrics and for the tokenizer.
    fn count(&self, kv: &Kv, usage: Option<Usage>, split: Option<Split>) {
        let metrics = kv.metrics();
        if let Some(divergence) = self.found.arrival.as_ref().and_then(|arrival| arrival.divergence) {
            metrics.inc(Family::Divergence, &[("cause", cause_word(divergence.cause))]);
        }
        if let Some(split) = split {
            count_split(metrics, split);
        }
        let Some(usage) = usage else { return };
        let source = ("source", self.found.source.word());
        if let Some(ours) = self.found.exact_tokens() {
            let outcome = if ours == usage.input_tokens { "equal" } else { "different" };
            metrics.inc(Family::KvPromptTokens, &[source, ("outcome", outcome)]);
            if let Some(model) = &self.found.tokenizer {
                kv.tokenizers.counted(model, ours, usage.input_tokens);
            }
        }
        let promised = self.promise.and_then(|promise| promise.tokens);
        if let (Some(promised), Some(cached)) = (promised, usage.cached_tokens) {
            let outcome = match promised.cmp(&cached) {
                std::cmp::Ordering::Less => "under",
                std::cmp::Ordering::Equal => "equal",
                std::cmp::Ordering::Greater => "over",
            };
            metrics.inc(Family::KvPredictions, &[source, ("outcome", outcome)]);
            metrics.tokens(Family::KvPredictionError, &[source], promised.abs_diff(cached));
        }
    }

    fn event(
        &self,
        (request_id, session_id): (&str, Option<&str>),
        usage: Option<Usage>,
        split: Option<Split>,
    ) -> PrefixEvent {
        let arrival = self.found.arrival.as_ref();
        PrefixEvent {
            request_id: request_id.to_owned(),
            session_id: session_id.map(str::to_owned),
            source: self.found.source.word().to_owned(),
            prompt_tokens: self.found.exact_tokens(),
            predicted_tokens: self.promise.and_then(|promise| promise.tokens),
            input_tokens: usage.map(|usage| usage.input_tokens),
            cached_tokens: usage.and_then(|usage| usage.cached_tokens),
            relation: arrival.map(|arrival| relation_word(arrival.relation).to_owned()),
            divergence: arrival.and_then(|arrival| arrival.divergence).map(|divergence| DivergenceRecord {
                cause: cause_word(divergence.cause).to_owned(),
                segment: u64::from(divergence.segment),
                token: divergence.position.map(|position| position.tokens),
                exact: divergence.position.is_some_and(|position| position.exact),
            }),
            split: split.map(|split| SplitRecord {
                new: split.new,
                diverged: split.diverged,
                moved: split.moved,
                evicted: split.evicted,
                unknown: split.unknown,
            }),
        }
    }
}

/// Whether a prompt's blocks say more of the session than is known: those of lineage are the session's last ones,
/// those of text are of another kind.
const fn says_more(source: Source) -> bool {
    matches!(source, Source::Client | Source::Local | Source::Engine)
}

/// What a worker is expected to reuse of a prompt, and who else holds how much of it.
fn promise(prefix: &PrefixMatch, worker: WorkerId) -> Promise {
    let tokens = |blocks: u32| u64::from(blocks) * u64::from(prefix.block_size);
    let held = prefix.of(worker);
    let others = prefix.workers.iter().filter(|other| other.worker != worker);
    let elsewhere = others.map(|other| tokens(other.disk)).max();
    let usable = held.map(|held| tokens(held.disk.saturating_add(prefix.shared_beyond(held))));
    let store = prefix.loadable.is_some() || !prefix.shared.is_empty();
    Promise {
        worker,
        tokens: usable,
        shared: usable.filter(|_| store),
        own: held.map(|held| tokens(held.disk)),
        elsewhere: if prefix.is_unknown() { None } else { Some(elsewhere.unwrap_or(0)) },
    }
}

fn count_split(metrics: &Metrics, split: Split) {
    for (kind, tokens) in [
        ("new", split.new),
        ("diverged", split.diverged),
        ("moved", split.moved),
        ("evicted", split.evicted),
        ("unknown", split.unknown),
    ] {
        metrics.count(Family::Reprefill, &[("kind", kind)], tokens);
    }
}

const fn relation_word(relation: Relation) -> &'static str {
    match relation {
        Relation::First => "first",
        Relation::Appends => "appends",
        Relation::Rewrites => "rewrites",
        Relation::Compacted => "compacted",
        Relation::Branch => "branch",
        Relation::Repeat => "repeat",
    }
}

const fn cause_word(cause: Cause) -> &'static str {
    match cause {
        Cause::VolatileText => "volatile_text",
        Cause::SystemChanged => "system_changed",
        Cause::ToolsChanged(ToolsChange::Added) => "tools_added",
        Cause::ToolsChanged(ToolsChange::Removed) => "tools_removed",
        Cause::ToolsChanged(ToolsChange::Reordered) => "tools_reordered",
        Cause::ToolsChanged(ToolsChange::Changed) => "tools_changed",
        Cause::ParametersChanged => "parameters_changed",
        Cause::Compaction => "compaction",
        Cause::EditedHistory => "edited_history",
        Cause::MovedTail => "moved_tail",
        Cause::DroppedReasoning => "dropped_reasoning",
        Cause::TemplateArtefact => "template_artefact",
        Cause::TruncatedHistory => "truncated_history",
        Cause::Other => "other",
    }
}
