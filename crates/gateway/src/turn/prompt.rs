//! What is known of a turn's prompt on its way: where its blocks came from, what was promised of it, what the
//! engine said afterwards.
//!
//! - A dispatch counts as cached from before its bytes leave until the next dispatch, a failure before the first byte,
//!   or the end.
//! - Each arrival that lineage was told of ends or is withdrawn.
//! - I-PMT-1 a promise is called exact only where its number follows from what is known: the prompt's own tokens, or
//!   bounds of how much of it repeats that end in one block, and events that tell what the engine holds. It is called
//!   approximate where the bounds are one block apart. I-PMT-2 hashes of the text promise nothing of what the engine
//!   has but never saw here: what they do not find is not known, not absent.

use std::sync::Arc;

use tandem_dialect::AnswerFacts;
use tandem_kvplane::{Dispatched, Knowledge, Relation as Told};
use tandem_lineage::{Basis, Cause, Ended, Relation, Split, SplitInput, ToolsChange, split};
use tandem_trace::record::{DivergenceRecord, PrefixEvent, SplitRecord};
use tandem_types::{MatchSource, PrefixMatch, ProgramKey, Time, TurnId, Usage, WorkerId};

use crate::kv::blocks::{Found, Seek, Source, seek};
use crate::kv::{Kv, News};
use crate::metrics::{Family, Metrics};

/// How sure a promise is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claim {
    /// So many tokens and no other number.
    Exact,
    /// That or one block more or less.
    Approximate,
    /// The likeliest number.
    Estimated,
}

impl Claim {
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Approximate => "approximate",
            Self::Estimated => "estimated",
        }
    }
}

/// What was promised of a dispatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Promise {
    pub(crate) worker: WorkerId,
    /// Prompt tokens that the worker is expected to reuse; `None` = nothing is known of it.
    pub(crate) tokens: Option<u64>,
    /// How sure that is.
    pub(crate) claim: Claim,
    /// The worker is known to have lost a part of what was to repeat.
    lost: bool,
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
            self.promise = Some(Promise::nothing(worker));
            return;
        };
        let prefix = seek(kv, wanted);
        if prefix.workers != self.found.prefix.workers {
            kv.metrics().inc(Family::KvRelooks, &[("cause", "dispatch")]);
        }
        self.found.prefix = prefix;
        let exact = self.found.source != Source::Text && kv.reader.knowledge(worker) == Knowledge::Exact;
        let promise = promise(&self.found.prefix, worker, wanted, exact);
        self.promise = Some(if self.found.source == Source::Text { of_text(promise) } else { promise });
        // What the chain goes on with is not known to be in the prompt: no event would ever confirm it.
        let sure = wanted.reach.map(|reach| wanted.chain.leading(reach.low));
        if sure.as_ref().is_some_and(|sure| sure.tokens() == 0) {
            return;
        }
        self.dispatched = kv.reader.dispatched(worker, sure.as_ref().unwrap_or(&wanted.chain), now);
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
                    let low = u64::from(block_size.unwrap_or(1));
                    let low = arrival.expected.low / low * low;
                    let less = |promise: Promise| promise.lost || promise.own.is_some_and(|own| own < low);
                    let lost = self.promise.is_some_and(less);
                    let text = (!facts.reasoned).then_some(&*facts.text_start);
                    let ended = Ended { usage, tool_calls, answer, block_size, text, lost };
                    lineage.ended(arrival.ticket, &ended, now);
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
        let repeated = if arrival.relation == Relation::First && arrival.forked_from.is_none() {
            // What it has in common with other sessions' prompts it computes for the first time all the same.
            Some(0)
        } else {
            (expected.basis != Basis::Nothing).then_some(expected.tokens)
        };
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
        let promised = self.promise.and_then(|promise| Some((promise.tokens?, promise.claim)));
        if let (Some((promised, claim)), Some(cached)) = (promised, usage.cached_tokens) {
            let outcome = match promised.cmp(&cached) {
                std::cmp::Ordering::Less => "under",
                std::cmp::Ordering::Equal => "equal",
                std::cmp::Ordering::Greater => "over",
            };
            metrics.inc(Family::KvPredictions, &[source, ("outcome", outcome), ("claim", claim.word())]);
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
            prediction: self.promise.filter(|p| p.tokens.is_some()).map(|p| p.claim.word().to_owned()),
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

impl Promise {
    /// Nothing is known.
    const fn nothing(worker: WorkerId) -> Self {
        let claim = Claim::Estimated;
        Self { worker, tokens: None, claim, lost: false, own: None, shared: None, elsewhere: None }
    }
}

/// What a worker is expected to reuse of a prompt, and who else holds how much of it.
/// `exact`: all that the worker holds of such a prompt is known.
fn promise(prefix: &PrefixMatch, worker: WorkerId, wanted: &Seek, exact: bool) -> Promise {
    let tokens = |blocks: u32| u64::from(blocks) * u64::from(prefix.block_size);
    let held = prefix.of(worker);
    let others = prefix.workers.iter().filter(|other| other.worker != worker);
    let elsewhere = others.map(|other| tokens(other.disk)).max();
    let usable = held.map(|held| tokens(held.disk.saturating_add(prefix.shared_beyond(held))));
    let own = held.map(|held| tokens(held.disk));
    let store = prefix.loadable.is_some() || !prefix.shared.is_empty();
    let block = u64::from(prefix.block_size).max(1);
    // What a store holds is checked now and then only.
    let told = exact && usable == own && held.is_some_and(|held| held.source == MatchSource::Exact);
    Promise {
        worker,
        tokens: usable,
        claim: usable.filter(|_| told).map_or(Claim::Estimated, |usable| claim(usable, wanted, block)),
        lost: wanted.reach.zip(own).is_some_and(|(reach, own)| own < reach.tokens / block * block),
        shared: usable.filter(|_| store),
        own,
        elsewhere: if prefix.is_unknown() { None } else { Some(elsewhere.unwrap_or(0)) },
    }
}

/// What hashes of the text promise: what they do not find is not known, not absent.
fn of_text(promise: Promise) -> Promise {
    if promise.tokens > Some(0) { promise } else { Promise::nothing(promise.worker) }
}

/// How sure it is that a worker reuses `usable` tokens of what was looked up, where all that it holds is known.
fn claim(usable: u64, wanted: &Seek, block: u64) -> Claim {
    let Some(reach) = wanted.reach else { return Claim::Exact };
    let whole = |tokens: u64| tokens / block * block;
    let looked_up = whole(reach.tokens).min(whole(wanted.chain.tokens() as u64));
    // Less than was looked up: there the worker's blocks end, whatever comes behind in the prompt.
    let high = if usable < looked_up { usable } else { whole(reach.high).max(usable) };
    let low = whole(reach.low).min(usable);
    match high - low {
        0 => Claim::Exact,
        apart if apart <= block => Claim::Approximate,
        _ => Claim::Estimated,
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

#[cfg(test)]
mod tests {
    use tandem_kvplane::{Plane, PlaneConfig};
    use tandem_types::{EngineId, SharedPrefix, WorkerPrefix};

    use super::*;
    use crate::kv::blocks::Reach;

    const WORKER: WorkerId = WorkerId { engine: EngineId(1), rank: 0 };

    /// What is wanted of a chain of 160 tokens, and what a worker holds of it in blocks of 16.
    fn wanted(reach: Option<(u64, u64, u64)>) -> Seek {
        let tokens: Vec<u32> = (0..160).collect();
        let chain = Plane::new(PlaneConfig::default()).reader().chain(&tokens, None, None, None);
        let reach = reach.map(|(low, tokens, high)| Reach { tokens, low, high });
        Seek { chain, reach }
    }

    fn holding(blocks: u32, source: MatchSource) -> PrefixMatch {
        let held = WorkerPrefix { worker: WORKER, device: blocks, host: blocks, disk: blocks, source };
        PrefixMatch {
            block_size: 16,
            blocks: 10,
            workers: [held].into_iter().collect(),
            ..PrefixMatch::unknown()
        }
    }

    fn told(blocks: u32, reach: Option<(u64, u64, u64)>) -> (Option<u64>, Claim) {
        let promise = promise(&holding(blocks, MatchSource::Exact), WORKER, &wanted(reach), true);
        (promise.tokens, promise.claim)
    }

    /// I-PMT-1. 100 tokens are 6 blocks of 16 and 4 tokens.
    #[test]
    fn a_promise_says_how_sure_it_is() {
        assert_eq!(told(7, None), (Some(112), Claim::Exact));
        // The bounds 97 and 111 lie in one block, 96 and 112 are a block apart, 95 and 112 are two.
        assert_eq!(told(6, Some((97, 100, 111))), (Some(96), Claim::Exact));
        assert_eq!(told(6, Some((96, 100, 112))), (Some(96), Claim::Approximate));
        assert_eq!(told(6, Some((95, 100, 112))), (Some(96), Claim::Estimated));
        // The worker's blocks end before the lower bound, or between it and what was looked up.
        assert_eq!(told(5, Some((95, 100, u64::MAX))), (Some(80), Claim::Exact));
        assert_eq!(told(5, Some((64, 100, u64::MAX))), (Some(80), Claim::Approximate));
        assert_eq!(told(5, Some((0, 100, u64::MAX))), (Some(80), Claim::Estimated));
        // The chain ends before what is reckoned with: what comes behind is not known to be missing.
        assert_eq!(told(10, Some((175, 180, 181))), (Some(160), Claim::Approximate));
        assert_eq!(told(0, Some((0, 100, 100))), (Some(0), Claim::Exact));
    }

    /// I-PMT-1: nothing is exact of a worker whose events are late, of blocks that were only sent there, or of a store.
    #[test]
    fn a_guess_is_never_exact() {
        let wanted = wanted(None);
        for (source, exact) in [(MatchSource::Exact, false), (MatchSource::Approximate, true)] {
            let promise = promise(&holding(3, source), WORKER, &wanted, exact);
            assert_eq!((promise.tokens, promise.claim), (Some(48), Claim::Estimated));
        }
        let mut stored = holding(3, MatchSource::Exact);
        stored.loadable = Some(vec![SharedPrefix { worker: WORKER, blocks: 2 }]);
        let stored = promise(&stored, WORKER, &wanted, true);
        assert_eq!((stored.tokens, stored.claim), (Some(80), Claim::Estimated));
        let unknown = promise(&PrefixMatch::unknown(), WORKER, &wanted, true);
        assert_eq!((unknown.tokens, unknown.lost), (None, false));
    }

    /// I-PMT-2.
    #[test]
    fn a_text_that_finds_nothing_promises_nothing() {
        let of =
            |blocks| of_text(promise(&holding(blocks, MatchSource::Exact), WORKER, &wanted(None), false));
        assert_eq!((of(0).tokens, of(0).elsewhere), (None, None));
        assert_eq!((of(3).tokens, of(3).claim), (Some(48), Claim::Estimated));
    }

    /// What a worker is known to have lost teaches nothing of how answers come back.
    #[test]
    fn a_worker_that_holds_less_than_was_looked_up_has_lost_it() {
        let lost =
            |blocks, reach| promise(&holding(blocks, MatchSource::Exact), WORKER, &wanted(reach), true).lost;
        assert!(lost(5, Some((90, 100, 130))));
        assert!(!lost(6, Some((90, 100, 130))));
        assert!(!lost(5, None));
    }
}
