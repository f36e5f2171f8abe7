//! Routing decisions as rows of the trace.

use tandem_routing::CostTerms;
use tandem_scheduler::{Decision, LegDecision, PrefillDecision};
use tandem_trace::record::{
    CandidateScore, PrefillPlace, PrefillRecord, PrefixSeen, RoutingEvent, ScoreTerms,
};
use tandem_types::WorkerId;

use crate::turn::Story;

/// The row of a decision.
pub(crate) fn event(story: &Story, decision: &Decision) -> RoutingEvent {
    RoutingEvent {
        request_id: story.request_id.to_string(),
        session_id: story.session_id().map(str::to_owned),
        policy: decision.policy.clone(),
        worker: decision.worker.into(),
        reason: decision.reason.clone(),
        attempt: decision.attempt,
        held_ms: decision.held.as_secs_f64() * 1e3,
        candidates: scores(&decision.candidates),
        terms: decision.terms.iter().map(terms).collect(),
        prefill: decision.prefill.as_ref().map(prefill),
        prefix: PrefixSeen::of(&story.kv.found.prefix),
    }
}

fn prefill(decision: &PrefillDecision) -> PrefillRecord {
    match decision {
        PrefillDecision::Remote(LegDecision { worker, reason, candidates, terms: parts, .. }) => {
            PrefillRecord {
                worker: Some((*worker).into()),
                reason: Some(reason.clone()),
                candidates: scores(candidates),
                terms: parts.iter().map(terms).collect(),
                ..PrefillRecord::at(PrefillPlace::Remote)
            }
        }
        PrefillDecision::Local { tokens } => {
            PrefillRecord { tokens: Some(*tokens), ..PrefillRecord::at(PrefillPlace::Local) }
        }
        PrefillDecision::Alone => PrefillRecord::at(PrefillPlace::Alone),
    }
}

fn scores(candidates: &[(WorkerId, f64)]) -> Vec<CandidateScore> {
    let row = |(worker, score): &(WorkerId, f64)| CandidateScore {
        worker: (*worker).into(),
        score: score.is_finite().then_some(*score),
    };
    candidates.iter().map(row).collect()
}

/// All of them: a term that is added to the cost does not compile until it is in the row.
const fn terms(terms: &CostTerms) -> ScoreTerms {
    let CostTerms {
        device_blocks,
        host_blocks,
        disk_blocks,
        shared_blocks,
        assumed_tokens,
        prefill,
        queued,
        decode,
        left_behind,
        crowding,
        affinity,
        labels,
        transfer,
        adapter,
    } = *terms;
    ScoreTerms {
        device_blocks,
        host_blocks,
        disk_blocks,
        shared_blocks,
        assumed_tokens,
        prefill,
        queued,
        decode,
        left_behind,
        crowding,
        affinity,
        labels,
        transfer,
        adapter,
    }
}
