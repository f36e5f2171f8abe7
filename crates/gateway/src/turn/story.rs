//! What is told of a turn when it is over: trace row, metrics, log line.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tandem_dialect::{AnswerFacts, ErrorKind};
use tandem_identity::Identity;
use tandem_scheduler::{Decision, HoldReason};
use tandem_trace::Record;
use tandem_trace::record::{
    AgentContextRecord, ChoiceRecord, Extras, FinishReasonMetadata, HygieneFound, OutcomeRecord,
    OutcomeResult, RequestRecord, StopReason, WorkerRecord, finish_reason_word,
};
use tandem_trace::timing::{Moments, kv_hit_rate};
use tandem_types::{Dialect, RequestId, RouteWishes, TenantId, Time, TurnFacts, TurnId, Usage, WorkerId};

use super::prompt::TurnPrompt;
use crate::app::App;
use crate::metrics::Family;
use crate::trace_log::{Finished, Payload, PromptTokens};

/// How a turn ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// Answered, whole and well.
    Finished,
    /// The engine refused the request.
    Refused,
    /// The engine failed in its answer.
    Failed {
        /// `engine_error`, `cut`, `idle`, ...
        reason: &'static str,
    },
    /// The scheduler refused it.
    Rejected {
        /// The scheduler's reason.
        reason: &'static str,
        /// What the client was told.
        kind: ErrorKind,
    },
    /// Its repetition took over.
    Superseded {
        /// The repetition.
        by: TurnId,
    },
    /// The client left.
    ClientGone,
    /// The call's whole time was over before there was an answer.
    TimedOut,
}

/// All that is known of a turn, gathered on its way.
pub(crate) struct Story {
    /// Ours, unique.
    pub(crate) request_id: RequestId,
    /// The client's.
    pub(crate) x_request_id: Option<RequestId>,
    pub(crate) dialect: Dialect,
    pub(crate) model: Option<String>,
    pub(crate) agent: Option<AgentContextRecord>,
    pub(crate) extras: Extras,
    pub(crate) prompt: PromptTokens,
    pub(crate) queue_depth: u64,
    pub(crate) received_unix_ms: u64,
    pub(crate) received: Time,
    pub(crate) tenant: TenantId,
    pub(crate) early_200_after: Option<Duration>,
    pub(crate) keep_alive: Duration,
    pub(crate) held_since: Option<Instant>,
    pub(crate) held: Duration,
    pub(crate) hold: Option<(HoldReason, u32)>,
    pub(crate) decision: Option<Arc<Decision>>,
    /// What the request asks of routing.
    pub(crate) wishes: RouteWishes,
    pub(crate) worker: Option<WorkerId>,
    /// The worker that computed the prompt, where that is another.
    pub(crate) prefill: Option<WorkerId>,
    pub(crate) attempts: u32,
    pub(crate) failures: Vec<&'static str>,
    pub(crate) dispatched: Option<Time>,
    pub(crate) first_byte: Option<Time>,
    pub(crate) status: Option<u16>,
    /// Content, where the trace wants it.
    pub(crate) payload: Option<Box<Payload>>,
    /// What is known of its prompt.
    pub(crate) kv: TurnPrompt,
}

/// What a story begins with.
pub(crate) struct Beginning<'a> {
    pub(crate) tenant: TenantId,
    pub(crate) request_id: RequestId,
    pub(crate) x_request_id: Option<RequestId>,
    pub(crate) identity: &'a Identity,
    pub(crate) facts: &'a TurnFacts,
    pub(crate) hygiene: Vec<HygieneFound>,
    pub(crate) prompt: PromptTokens,
    pub(crate) queue_depth: u64,
    pub(crate) received_unix_ms: u64,
    pub(crate) received: Time,
    pub(crate) kv: TurnPrompt,
}

impl Story {
    pub(crate) fn begin(from: Beginning<'_>) -> Self {
        let Beginning { identity, facts, .. } = from;
        let agent = identity
            .context
            .as_ref()
            .map(|agent| AgentContextRecord::new(agent, &identity.facts, facts.input_trigger));
        let extras = Extras {
            hygiene: from.hygiene,
            ..Extras::arrived(
                identity.context.as_ref(),
                identity.class,
                identity.harness,
                &identity.facts,
                facts,
            )
        };
        Self {
            request_id: from.request_id,
            x_request_id: from.x_request_id,
            dialect: facts.dialect,
            model: facts.model.clone(),
            agent,
            extras,
            prompt: from.prompt,
            queue_depth: from.queue_depth,
            received_unix_ms: from.received_unix_ms,
            received: from.received,
            tenant: from.tenant,
            early_200_after: None,
            keep_alive: Duration::from_secs(10),
            held_since: None,
            held: Duration::ZERO,
            hold: None,
            decision: None,
            wishes: RouteWishes::none(),
            worker: None,
            prefill: None,
            attempts: 0,
            failures: Vec::new(),
            dispatched: None,
            first_byte: None,
            status: None,
            payload: None,
            kv: from.kv,
        }
    }

    pub(crate) fn session_id(&self) -> Option<&str> {
        self.agent.as_ref().map(|agent| agent.session_id.as_str())
    }

    pub(crate) fn dispatched(
        &mut self,
        worker: WorkerId,
        prefill: Option<WorkerId>,
        attempt: u32,
        now: Time,
    ) {
        self.worker = Some(worker);
        self.prefill = prefill;
        self.attempts = attempt;
        self.dispatched = Some(now);
    }

    pub(crate) fn first_byte(&mut self, now: Time) {
        self.first_byte = Some(now);
    }

    /// The turn is over: everybody who listens is told.
    pub(super) fn told(&mut self, app: &App, end: End, facts: Option<&AnswerFacts>) {
        let ended = app.clock.now();
        let dialect = dialect_word(self.dialect);
        let (result, reason, status) = self.ending(app, &end);
        let metrics = &app.metrics;
        metrics.inc(Family::Turns, &[("dialect", dialect), ("outcome", end_word(&end))]);
        metrics.shift(Family::TurnsInFlight, -1.0);
        metrics.lasted(Family::TurnSeconds, &[("dialect", dialect)], ended.since(self.received));
        if let Some(first) = self.first_byte {
            metrics.lasted(Family::FirstByteSeconds, &[("dialect", dialect)], first.since(self.received));
        }
        if matches!(end, End::ClientGone) {
            let phase = match (self.first_byte, self.dispatched, &reason) {
                (Some(_), ..) => "answer",
                (None, Some(_), _) => "prefill",
                (None, None, _) => "held",
            };
            metrics.inc(Family::ClientGone, &[("phase", phase)]);
        }
        let usage = facts.and_then(|facts| facts.usage);
        self.count_tokens(app, &end, usage);
        let session = self.agent.as_ref().map(|agent| agent.session_id.clone());
        let prefix = self.kv.over(facts, (self.request_id.as_str(), session.as_deref()), ended);
        if let Some(prefix) = prefix {
            app.decisions.prompt(self.kv.turn, &prefix, &self.kv.found.prefix);
            app.trace.prefix(prefix);
        }
        if app.config.log_requests {
            self.log(end_word(&end), status, ended, usage);
        }
        if !app.trace.enabled() {
            return;
        }
        let error_type = match (&end, facts.and_then(|facts| facts.error.as_ref())) {
            (End::Rejected { kind, .. }, _) => Some(kind.name().to_owned()),
            (_, Some(error)) => error.kind.clone().or_else(|| error.code.clone()),
            _ => None,
        };
        self.extras.outcome = OutcomeRecord { result, reason, status, error_type };
        let record = self.record(ended, facts, usage);
        let prompt = match facts.and_then(|facts| facts.prompt_token_ids.clone()) {
            Some(tokens) => PromptTokens::Known(tokens),
            None => std::mem::replace(&mut self.prompt, PromptTokens::Unknown),
        };
        let output = facts.map(|facts| facts.output_token_ids.clone()).unwrap_or_default();
        if let Some(payload) = self.payload.take() {
            app.trace.payload(record.event_time_unix_ms, *payload);
        }
        app.trace.finished(Finished { record, prompt, output });
    }

    fn ending(&self, app: &App, end: &End) -> (OutcomeResult, Option<String>, Option<u16>) {
        let text = |text: &str| Some(text.to_owned());
        let cut_short = app.aborting.is_cancelled();
        match end {
            End::Finished => (OutcomeResult::Finished, None, self.status),
            End::Refused => (OutcomeResult::Failed, text("refused"), self.status),
            End::Failed { reason } => (OutcomeResult::Failed, text(reason), self.status),
            End::Rejected { reason, kind } => {
                (OutcomeResult::Rejected, text(reason), self.status.or(Some(kind.status())))
            }
            End::Superseded { .. } => (OutcomeResult::Cancelled, text("superseded"), None),
            End::ClientGone if cut_short => (OutcomeResult::Cancelled, text("shutdown"), self.status),
            End::ClientGone => (OutcomeResult::Cancelled, text("client_gone"), self.status),
            End::TimedOut => (OutcomeResult::Failed, text("deadline"), Some(504)),
        }
    }

    fn count_tokens(&self, app: &App, end: &End, usage: Option<Usage>) {
        match usage {
            Some(usage) => {
                app.metrics.count(Family::InputTokens, &[], usage.input_tokens);
                app.metrics.count(Family::OutputTokens, &[], usage.output_tokens);
                app.metrics.count(Family::CachedTokens, &[], usage.cached_tokens.unwrap_or(0));
            }
            None if *end == End::Finished => {
                app.metrics.inc(Family::UsageMissing, &[("dialect", dialect_word(self.dialect))]);
            }
            None => {}
        }
    }

    fn log(&self, outcome: &str, status: Option<u16>, ended: Time, usage: Option<Usage>) {
        tracing::info!(
            request_id = %self.request_id,
            x_request_id = self.x_request_id.as_ref().map(RequestId::as_str),
            tenant = %self.tenant,
            dialect = dialect_word(self.dialect),
            model = self.model.as_deref(),
            session = self.session_id(),
            worker = self.worker.map(tracing::field::display),
            prefill = self.prefill.map(tracing::field::display),
            reason = self.decision.as_ref().map(|decision| decision.reason.as_str()),
            outcome,
            status,
            attempts = self.attempts,
            held_ms = self.held.as_millis() as u64,
            ttft_ms = self.first_byte.map(|first| first.since(self.received).as_millis() as u64),
            total_ms = ended.since(self.received).as_millis() as u64,
            input_tokens = usage.map(|usage| usage.input_tokens),
            cached_tokens = usage.and_then(|usage| usage.cached_tokens),
            output_tokens = usage.map(|usage| usage.output_tokens),
            "turn"
        );
    }

    fn record(&mut self, ended: Time, facts: Option<&AnswerFacts>, usage: Option<Usage>) -> Record {
        let mut request = RequestRecord::new(self.request_id.as_str());
        request.x_request_id = self.x_request_id.as_ref().map(ToString::to_string);
        request.model.clone_from(&self.model);
        request.queue_depth = Some(self.queue_depth);
        request.worker =
            self.worker.map(|worker| WorkerRecord::of_legs(self.prefill.unwrap_or(worker), worker));
        if let Some(usage) = usage {
            request.input_tokens = Some(usage.input_tokens);
            request.output_tokens = Some(usage.output_tokens);
            request.cached_tokens = usage.cached_tokens;
            request.kv_hit_rate =
                usage.cached_tokens.and_then(|cached| kv_hit_rate(cached, usage.input_tokens, None));
            self.extras.reasoning_tokens = usage.reasoning_tokens;
        }
        let moments = Moments {
            received_unix_ms: self.received_unix_ms,
            received: self.received,
            dispatched: self.dispatched,
            first_token: self.first_byte,
            last_token: None,
            ended,
        };
        moments.fill(&mut request);
        request.finish_reason_metadata = facts.and_then(finish_metadata);
        let named = facts.map_or(0, |facts| facts.tool_calls.len() as u64);
        self.extras.tool_calls = facts
            .map(|facts| facts.tool_call_count)
            .filter(|count| *count > named)
            .map(|count| u32::try_from(count).unwrap_or(u32::MAX));
        self.extras.held_ms = (!self.held.is_zero()).then_some(self.held.as_secs_f64() * 1e3);
        self.extras.attempts = self.attempts;
        let extras = std::mem::take(&mut self.extras);
        Record::request_end(moments.event_time_unix_ms(), self.agent.clone(), request, extras)
    }
}

fn finish_metadata(facts: &AnswerFacts) -> Option<FinishReasonMetadata> {
    if facts.choices.is_empty() && facts.tool_calls.is_empty() && facts.finish_reason().is_none() {
        return None;
    }
    let first = facts.choices.first();
    let stop = |text: &String| StopReason::Text(text.clone());
    Some(FinishReasonMetadata {
        finish_reason: facts.finish_reason().as_ref().map(|reason| finish_reason_word(reason).to_owned()),
        backend_finish_reason: first.and_then(|choice| choice.backend_finish_reason.clone()),
        stop_reason: first.and_then(|choice| choice.stop_reason.as_ref()).map(stop),
        tool_calls: facts.tool_calls.iter().map(Into::into).collect(),
        choices: facts
            .choices
            .iter()
            .map(|choice| ChoiceRecord {
                choice_index: choice.index,
                finish_reason: choice.finish_reason.as_ref().map(|r| finish_reason_word(r).to_owned()),
                backend_finish_reason: choice.backend_finish_reason.clone(),
                stop_reason: choice.stop_reason.as_ref().map(stop),
            })
            .collect(),
    })
}

pub(crate) const fn dialect_word(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Chat => "chat",
        Dialect::Completions => "completions",
        Dialect::Responses => "responses",
        Dialect::Messages => "messages",
    }
}

const fn end_word(end: &End) -> &'static str {
    match end {
        End::Finished => "finished",
        End::Refused => "refused",
        End::Failed { .. } | End::TimedOut => "failed",
        End::Rejected { .. } => "rejected",
        End::Superseded { .. } | End::ClientGone => "cancelled",
    }
}
