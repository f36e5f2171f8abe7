//! A turn from its arrival to its end.
//!
//! Phases, one module each: [`prepare`] (body, identity, edits), [`flight`] (hold, dispatch, retry, until there
//! is an answer; [`pd`] where two workers share it), [`stream`] (the answer on its way to the client), [`story`] (what
//! is told of it: trace row, metrics, log). [`prompt`] is what is known of its prompt's KV all the way, [`wishes`] what it asks of routing.
//!
//! Invariants: I-TRN-1 a turn that arrived ends exactly once, whatever becomes of its tasks: [`Turn`] is a
//! guard, and dropping it without an end means that the client is gone; I-TRN-2 each end gives one trace row;
//! I-TRN-3 nothing is sent to a second worker once a byte of an answer went to the client.

mod answer;
pub(crate) mod flight;
pub(crate) mod pd;
pub(crate) mod prepare;
mod prompt;
mod story;
mod stream;
mod wishes;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use http::{Request, Response};
use hyper::body::Incoming;
use tandem_dialect::AnswerFacts;
use tandem_scheduler::{Admission, Decision, DispatchFailure, HoldReason, Input, TurnOutcome, TurnResult};
use tandem_types::{Dialect, TenantId, TurnId, Usage, WorkerId};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::app::App;
use crate::body::Body;
use crate::metrics::Family;
use crate::owner::{LastWord, TurnEffect};
use crate::respond::RequestIdentity;

pub(crate) use story::{End, Story};
pub(crate) use stream::StreamBody;

/// Serves one call of an inference route.
pub(crate) async fn serve(
    app: &Arc<App>,
    dialect: Dialect,
    tenant: TenantId,
    ids: &RequestIdentity,
    request: Request<Incoming>,
) -> Response<Body> {
    let (turn, call) = match prepare::prepare(app, dialect, tenant, ids, request).await {
        Ok(ready) => ready,
        Err(refused) => return *refused,
    };
    answer::answer(turn, call).await
}

/// A turn under way. Ends as [`End::ClientGone`] when it is dropped.
pub(crate) struct Turn {
    app: Arc<App>,
    id: TurnId,
    effects: mpsc::UnboundedReceiver<TurnEffect>,
    last_word: Option<LastWord>,
    story: Story,
    /// What is known of a prefill leg.
    prefill: pd::PrefillLeg,
    /// When the call's whole time is over.
    deadline: Instant,
    /// Its share of the calls that are served at once.
    _slot: OwnedSemaphorePermit,
}

impl Turn {
    /// The turn waits for a worker.
    fn held(&mut self, reason: HoldReason, position: u32) {
        if self.story.held_since.is_none() {
            self.story.held_since = Some(Instant::now());
            self.app.metrics.inc(Family::Holds, &[("reason", reason.as_str())]);
            self.app.held.fetch_add(1, Ordering::Relaxed);
            self.app.metrics.shift(Family::TurnsHeld, 1.0);
            self.app.trace.held(&self.story, reason, position);
            self.story.kv.waits();
        }
        self.story.hold = Some((reason, position));
    }

    /// It waits no longer.
    fn let_go(&mut self) {
        if let Some(since) = self.story.held_since.take() {
            self.story.kv.leaves();
            self.story.held += since.elapsed();
            self.app.held.fetch_sub(1, Ordering::Relaxed);
            self.app.metrics.shift(Family::TurnsHeld, -1.0);
            self.app.metrics.lasted(Family::HoldSeconds, &[], since.elapsed());
        }
    }

    fn decided(&mut self, decision: Arc<Decision>) {
        self.app.trace.routed(&self.story, &decision);
        let before = self.story.decision.as_ref().map_or(Duration::ZERO, |last| last.held);
        // A retry was asked about anew; it is told of where it had to wait for that.
        let told = |admission: &&Admission| decision.attempt == 1 || admission.held.is_some();
        if let Some(admission) = decision.admission.as_deref().filter(told) {
            self.app.trace.admitted(&self.story, &decision, admission);
            if let Some(reason) = admission.held {
                let reason = [("reason", reason.as_str())];
                let waited = decision.held.saturating_sub(before);
                self.app.metrics.lasted(Family::AdmissionWaitSeconds, &reason, waited);
            }
        }
        self.story.decision = Some(decision);
    }

    fn dispatched(&mut self, worker: WorkerId, prefill: Option<WorkerId>, attempt: u32) {
        self.let_go();
        self.prefill = pd::PrefillLeg::default();
        // Where the prompt is computed, its KV is.
        self.story.kv.goes_to(prefill.unwrap_or(worker), self.app.clock.now());
        self.story.dispatched(worker, prefill, attempt, self.app.clock.now());
        let attempt = if attempt == 1 { "first" } else { "retry" };
        self.app.metrics.inc(Family::Dispatches, &[("attempt", attempt)]);
        self.changed();
        for worker in prefill.into_iter().chain([worker]) {
            self.app.metrics.inc(Family::WorkerTurns, &[("worker", &worker.to_string())]);
        }
    }

    /// A try failed before the first byte, through the worker that was to answer or the one for its prompt.
    async fn failed(&mut self, failure: DispatchFailure, at_prefill: bool) {
        if let Some(prefix) = self.story.kv.failed() {
            self.app.owner.tell(Input::PrefixFound { turn: self.id, prefix });
        }
        if at_prefill {
            self.app.owner.prefill_failed(self.id, failure).await;
        } else {
            self.app.owner.failed(self.id, failure).await;
        }
    }

    /// The first byte of the answer is on its way to the client.
    fn first_byte(&mut self) {
        // Behind a refusal nothing was computed.
        if self.story.status.is_none_or(|status| status < 400) {
            self.story.kv.computed();
        }
        self.app.owner.first_token(self.id);
        self.story.first_byte(self.app.clock.now());
    }

    /// The turn is over. Later calls, and dropping it, change nothing.
    fn end(&mut self, end: End, facts: Option<&AnswerFacts>) {
        let Some(last_word) = self.last_word.take() else { return };
        self.let_go();
        if end == End::Finished {
            self.prefill.detach();
        }
        let of_both = self.prefill.cached.and_then(|cached| Some(with_cached(facts?, cached)));
        let facts = of_both.as_ref().or(facts);
        match &end {
            End::Finished | End::Refused | End::Failed { .. } => {
                last_word.ended(self.id, outcome(&end, facts));
            }
            // The scheduler has ended these itself.
            End::Rejected { .. } | End::Superseded { .. } => drop(last_word),
            End::ClientGone | End::TimedOut => last_word.client_gone(self.id),
        }
        self.story.told(&self.app, end, facts);
        self.changed();
    }

    /// What is known of its program changed.
    fn changed(&self) {
        let prompt = &self.story.kv;
        let Some(program) = &prompt.program else { return };
        if prompt.last {
            self.app.notes.over(program);
        } else {
            self.app.notes.changed(program);
        }
        // A beginning that two programs sent is marked on both.
        let alike = prompt.found.arrival.as_ref().and_then(|arrival| arrival.alike.as_ref());
        alike.into_iter().for_each(|other| self.app.notes.changed(other));
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.end(End::ClientGone, None);
    }
}

/// What is known of the answer, with the prompt tokens that the prefill worker had cached: to the worker that answers
/// all that it fetched is cached.
fn with_cached(facts: &AnswerFacts, cached_tokens: Option<u64>) -> AnswerFacts {
    let usage = facts.usage.map(|usage| Usage { cached_tokens, ..usage });
    AnswerFacts { usage, ..facts.clone() }
}

fn outcome(end: &End, facts: Option<&AnswerFacts>) -> TurnOutcome {
    TurnOutcome {
        result: match end {
            End::Finished => TurnResult::Finished,
            End::Refused => TurnResult::Refused,
            _ => TurnResult::Failed,
        },
        usage: facts.and_then(|facts| facts.usage),
        tool_calls: facts.map_or(0, |facts| u32::try_from(facts.tool_call_count).unwrap_or(u32::MAX)),
    }
}
