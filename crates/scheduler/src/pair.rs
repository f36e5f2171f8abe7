//! Which workers a turn goes to: one for all of it, or a pair, one for its prompt and one for its answer.
//!
//! - Purpose: serve a model whose workers are split into a pool for prompts and a pool for answers beside, or instead
//!   of, workers that do both.
//! - A pair is two workers of the same make, each chosen by the policy in its own pool: the one for answers by its load
//!   and by where the program's KV lies on that side, the one for prompts by overlap and queued prefill.
//! - The worker for answers computes the prompt itself where little of it is missing there
//!   ([`PdConfig::local_prefill`](crate::config::PdConfig)): a trip to another worker would take longer.
//! - I-PAIR-1 the legs of a pair are of the same make and serve the same model; each fits the turn's wishes.
//! - I-PAIR-2 a turn goes to a pair rather than to a worker that does both; to the latter only where no pair of the same
//!   rank has room, and where the configuration allows it. Nothing goes to a worker for prompts alone.
//! - I-PAIR-3 whether a turn can go is told by [`Scheduler::plan`] alone, which changes nothing: what is held, and why,
//!   follows from it.
//! - Order of preference (ranks), for each leg: well workers that have not failed this turn, well ones that have, then the
//!   same two among those behind an open breaker. A rank without a free slot is passed over only when it has no ready
//!   worker at all: a turn waits for a full well worker rather than go to one that is likely broken. A pair has the
//!   rank of its worse leg.
//! - Deliberately absent: how the KV travels; the driver speaks to the engines.

use tandem_routing::kv::expected_prefill;
use tandem_routing::{Choice, Fleet, Leg, Reason, RouteTurn};
use tandem_types::{EngineKind, TurnId, WorkerId, WorkerRole};

use crate::Scheduler;
use crate::config::PdFallback;
use crate::contract::HoldReason;
use crate::eligible::{Tier, Wanted};
use crate::on_turn::Legs;
use crate::place::TOKENS_MAX;
use crate::turns::Turn;
use crate::workers::Workers;

/// The four ranks: which tier, and whether workers that failed the turn are left out.
const RANKS: [(Tier, bool); 4] =
    [(Tier::Well, true), (Tier::Well, false), (Tier::LastResort, true), (Tier::LastResort, false)];

/// The makes whose workers can be paired: those of which it is known how KV travels between them.
const PAIRED: [EngineKind; 2] = [EngineKind::Vllm, EngineKind::Sglang];

/// Where a turn goes, and why.
#[derive(Debug)]
pub(crate) struct Placement {
    /// The worker that answers.
    pub(crate) choice: Choice,
    pub(crate) split: Split,
}

/// Who computes the prompt.
#[derive(Debug)]
pub(crate) enum Split {
    /// The work is not split.
    Whole,
    /// Another worker.
    Remote(Choice),
    /// The worker for answers, which lacks this many tokens of it.
    Local(u64),
    /// The worker for answers, since there is no worker for prompts.
    Alone,
}

impl Placement {
    /// The worker that computes the prompt for the other.
    pub(crate) const fn prefill(&self) -> Option<WorkerId> {
        match &self.split {
            Split::Remote(choice) => Some(choice.worker),
            Split::Whole | Split::Local(_) | Split::Alone => None,
        }
    }
}

/// Among which workers a turn's are to be chosen; the numbers are ranks.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Plan {
    /// One that does both.
    Whole(usize),
    /// A pair of one make, or of any.
    Pair { kind: Option<EngineKind>, prefill: usize, decode: usize },
    /// One for answers that computes the prompt itself.
    Alone(usize),
}

/// What there is of some kind of worker for a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Room {
    /// A free one, of this rank.
    Free(usize),
    /// Ready ones without a free slot.
    Full,
    /// None that is ready.
    Absent,
}

impl Scheduler {
    /// Chooses where the turn can go now.
    pub(crate) fn choose(&mut self, id: TurnId) -> Option<Placement> {
        let turn = self.turns.get(id)?;
        if !turn.pass.is_open()
            || self.holds_for_sync(turn)
            || turn.arrival.class.is_turn() && !self.workers.has_free()
        {
            return None;
        }
        match self.plan(turn)? {
            Plan::Whole(rank) => {
                let choice = self.ask(id, WorkerRole::Both, None, rank, Leg::Whole)?;
                Some(Placement { choice, split: Split::Whole })
            }
            Plan::Alone(rank) => {
                let kind = Some(EngineKind::Vllm);
                let choice = self.ask(id, WorkerRole::Decode, kind, rank, Leg::Whole)?;
                Some(Placement { choice, split: Split::Alone })
            }
            Plan::Pair { kind, prefill, decode } => {
                let choice = self.ask(id, WorkerRole::Decode, kind, decode, Leg::Decode)?;
                if let Some(tokens) = self.lacks_little(id, choice.worker) {
                    return Some(Placement { choice, split: Split::Local(tokens) });
                }
                let kind = self.workers.get(choice.worker).and_then(|worker| worker.kind());
                let other = self.ask(id, WorkerRole::Prefill, kind, prefill, Leg::Prefill)?;
                Some(Placement { choice, split: Split::Remote(other) })
            }
        }
    }

    /// The policy's choice among the workers of a role and rank.
    fn ask(
        &mut self,
        id: TurnId,
        role: WorkerRole,
        kind: Option<EngineKind>,
        rank: usize,
        leg: Leg,
    ) -> Option<Choice> {
        let turn = self.turns.get(id)?;
        let route = self.route(turn, leg);
        let wanted = wanted(&self.workers, turn, role, kind, rank)?;
        let fleet = self.workers.eligible(wanted, self.programs.at_home());
        // Where admission kept room for it.
        if let Some(kept) = turn.pass.kept().filter(|_| leg != Leg::Prefill).and_then(|id| fleet.get(id)) {
            return Some(Choice::among(kept, Reason::Admitted, &[kept]));
        }
        let policy = if leg == Leg::Prefill { &mut self.prefill_policy } else { &mut self.policy };
        policy.choose(&route, &fleet, &mut self.route_rng)
    }

    /// Tokens of the prompt that a worker for answers lacks, where they are so few that it computes them itself. What
    /// it has been sent to compute already counts: a pool for answers must not become one for prompts.
    fn lacks_little(&self, id: TurnId, worker: WorkerId) -> Option<u64> {
        let most = self.config.pd.local_prefill.tokens();
        let at = self.workers.get(worker).filter(|at| at.kind() == Some(EngineKind::Vllm) && most > 0)?;
        let tokens =
            self.turns.get(id).map(|turn| expected_prefill(&self.route(turn, Leg::Decode), worker))?;
        (tokens.saturating_add(at.queued_prefill) <= most).then_some(tokens)
    }

    /// Where the turn can go now; `None` = nowhere.
    pub(crate) fn plan(&self, turn: &Turn) -> Option<Plan> {
        let split = self.splits(turn);
        let whole = match (split, self.config.pd.fallback) {
            (true, PdFallback::Hold) => Room::Absent,
            (true, PdFallback::Aggregated | PdFallback::Alone) | (false, _) => {
                self.room(turn, WorkerRole::Both, None)
            }
        };
        if !split {
            return whole.rank().map(Plan::Whole);
        }
        let pair = self.pair(turn);
        match (pair, whole) {
            (Pair::Free { rank, .. }, Room::Free(other)) if other < rank => Some(Plan::Whole(other)),
            // A full well worker is waited for rather than that a turn goes to one that is likely broken.
            (Pair::Free { rank, .. }, Room::Full) if is_last_resort(rank) => None,
            (Pair::Free { kind, prefill, decode, .. }, _) => Some(Plan::Pair { kind, prefill, decode }),
            (Pair::Full, Room::Free(rank)) if is_last_resort(rank) => None,
            (_, Room::Free(rank)) => Some(Plan::Whole(rank)),
            (Pair::Full, _) | (_, Room::Full) => None,
            (Pair::NoPrefill, Room::Absent) if self.config.pd.fallback == PdFallback::Alone => {
                self.room(turn, WorkerRole::Decode, Some(EngineKind::Vllm)).rank().map(Plan::Alone)
            }
            (Pair::NoPrefill | Pair::NoDecode | Pair::Neither, Room::Absent) => None,
        }
    }

    /// Whether the turn's model is served by workers that do only a part of the work.
    fn splits(&self, turn: &Turn) -> bool {
        self.workers.has_split() && self.workers.splits(self.workers.asked(turn.arrival.model.as_deref()))
    }

    /// What there is of pairs: of the makes with the best rank.
    fn pair(&self, turn: &Turn) -> Pair {
        let of = PAIRED.map(|kind| {
            let decode = self.room(turn, WorkerRole::Decode, Some(kind));
            (kind, self.room(turn, WorkerRole::Prefill, Some(kind)), decode)
        });
        let mut best: Option<(usize, Option<EngineKind>, usize, usize)> = None;
        let (mut full, mut prefill, mut decode) = (false, false, false);
        for (kind, p, d) in of {
            prefill |= p != Room::Absent;
            decode |= d != Room::Absent;
            match (p, d) {
                (Room::Free(p), Room::Free(d)) => {
                    best = match best {
                        // Of equal makes the policy chooses among all, and the second leg follows the first.
                        Some((rank, _, bp, bd)) if rank == p.max(d) && (bp, bd) == (p, d) => {
                            Some((rank, None, p, d))
                        }
                        Some(better) if better.0 <= p.max(d) => Some(better),
                        Some(_) | None => Some((p.max(d), Some(kind), p, d)),
                    };
                }
                (Room::Absent, _) | (_, Room::Absent) => {}
                (Room::Full, _) | (_, Room::Full) => full = true,
            }
        }
        match best {
            Some((rank, kind, prefill, decode)) => Pair::Free { rank, kind, prefill, decode },
            None if full => Pair::Full,
            None => match (prefill, decode) {
                (false, true) => Pair::NoPrefill,
                (true, false) => Pair::NoDecode,
                // Both pools are there, but of different makes.
                (true, true) | (false, false) => Pair::Neither,
            },
        }
    }

    fn room(&self, turn: &Turn, role: WorkerRole, kind: Option<EngineKind>) -> Room {
        for (rank, (_, spare_failed)) in RANKS.into_iter().enumerate() {
            if !spare_failed && turn.failed_on.is_empty() {
                continue;
            }
            let Some(wanted) = wanted(&self.workers, turn, role, kind, rank) else { continue };
            if self.workers.eligible(wanted, self.programs.at_home()).lightest().is_some() {
                return Room::Free(rank);
            }
            if self.workers.any_ready(wanted) {
                return Room::Full;
            }
        }
        Room::Absent
    }

    /// Why the turn cannot go now.
    pub(crate) fn hold_reason(&self, turn: &Turn) -> HoldReason {
        if let Some(reason) = self.gate_reason(turn) {
            return reason;
        }
        let split = self.splits(turn);
        let whole = !split || self.config.pd.fallback != PdFallback::Hold;
        if whole && self.room(turn, WorkerRole::Both, None) != Room::Absent {
            return HoldReason::WorkersFull;
        }
        if !split {
            return HoldReason::NoWorker;
        }
        match self.pair(turn) {
            Pair::Free { .. } | Pair::Full => HoldReason::WorkersFull,
            Pair::NoPrefill => HoldReason::NoPrefillWorker,
            Pair::NoDecode => HoldReason::NoDecodeWorker,
            Pair::Neither => HoldReason::NoWorker,
        }
    }

    /// Whether well workers are there that have not failed the turn.
    pub(crate) fn ready_elsewhere(&self, turn: &Turn) -> bool {
        let any = |role, kind| {
            wanted(&self.workers, turn, role, kind, 0).is_some_and(|wanted| self.workers.any_ready(wanted))
        };
        let pair = |kind| any(WorkerRole::Prefill, Some(kind)) && any(WorkerRole::Decode, Some(kind));
        any(WorkerRole::Both, None) || self.workers.has_split() && PAIRED.into_iter().any(pair)
    }

    /// The placement at given workers, if they are well and can take the turn now.
    pub(crate) fn choose_same(&self, id: TurnId, (worker, prefill): Legs) -> Option<Placement> {
        let turn = self.turns.get(id).filter(|turn| !self.holds_for_sync(turn))?;
        let same = |worker, role| {
            let wanted = wanted(&self.workers, turn, role, None, 0)?;
            let same = self.workers.eligible(wanted, self.programs.at_home()).get(worker)?;
            Some(Choice::among(same, Reason::Repeated, &[same]))
        };
        match prefill {
            None => same(worker, WorkerRole::Both).map(|choice| Placement { choice, split: Split::Whole }),
            Some(prefill) => {
                let other = same(prefill, WorkerRole::Prefill)?;
                let choice = same(worker, WorkerRole::Decode)?;
                Some(Placement { choice, split: Split::Remote(other) })
            }
        }
    }

    /// What the policy may know of the turn, for a part of it.
    pub(crate) fn route<'a>(&self, turn: &'a Turn, leg: Leg) -> RouteTurn<'a> {
        let program = turn.arrival.program.as_ref().and_then(|key| self.programs.get(key));
        let parent = program.and_then(|p| p.parent.as_ref()).or(turn.arrival.parent.as_ref());
        let parent = parent.and_then(|key| self.programs.get(key));
        let (home, parent_home) = match leg {
            Leg::Whole | Leg::Decode => (program.map(|p| p.last_worker), parent.map(|p| p.last_worker)),
            Leg::Prefill => (program.map(|p| p.last_prefill), parent.map(|p| p.last_prefill)),
        };
        RouteTurn {
            leg,
            home: home.flatten(),
            parent_home: parent_home.flatten(),
            input_tokens: turn.arrival.input_tokens_estimate.min(TOKENS_MAX),
            program_tokens: program.map(|p| p.known_tokens.min(TOKENS_MAX)),
            prefix: Some(&turn.arrival.prefix).filter(|prefix| !prefix.is_unknown()),
            wishes: Some(&turn.arrival.wishes),
        }
    }
}

/// What a turn asks of workers of a role and rank.
fn wanted<'a>(
    workers: &'a Workers,
    turn: &'a Turn,
    role: WorkerRole,
    kind: Option<EngineKind>,
    rank: usize,
) -> Option<Wanted<'a>> {
    let &(tier, spare_failed) = RANKS.get(rank)?;
    Some(Wanted {
        asked: workers.asked(turn.arrival.model.as_deref()),
        role,
        kind,
        tier,
        except: if spare_failed { &turn.failed_on } else { &[] },
        slot: turn.arrival.class.is_turn(),
        wishes: &turn.arrival.wishes,
    })
}

/// What there is of pairs for a turn.
#[derive(Debug, Clone, Copy)]
enum Pair {
    /// A free one, of this rank; the ranks of its legs.
    Free { rank: usize, kind: Option<EngineKind>, prefill: usize, decode: usize },
    /// Both pools have ready workers; one has no free slot.
    Full,
    /// Nobody for prompts is ready.
    NoPrefill,
    /// Nobody for answers is ready.
    NoDecode,
    /// Neither, or none that fit each other.
    Neither,
}

impl Room {
    const fn rank(self) -> Option<usize> {
        match self {
            Self::Free(rank) => Some(rank),
            Self::Full | Self::Absent => None,
        }
    }
}

fn is_last_resort(rank: usize) -> bool {
    RANKS.get(rank).is_some_and(|(tier, _)| *tier == Tier::LastResort)
}
