//! Faults that a mock engine commits on request.
//!
//! - Purpose: show a client every way in which an engine can fail, at a chosen moment and a chosen number of
//!   times.
//! - Inputs: [`FaultRule`]s (configured or set while running) and, where allowed, the request header
//!   `x-mock-fault`; output: at most one [`Fault`] per request. The header wins over the rules, the first
//!   matching rule over later ones.
//! - Invariants: I-MFL-1 a rule with `times: n` fires exactly n times, after letting `skip` matching requests
//!   pass; I-MFL-2 a request that a fault keeps from generating never reaches the modelled engine.
//! - Deliberately absent: random faults; a test that wants them draws its own rules.

use serde::{Deserialize, Serialize};

/// One way to fail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// The connection is closed before the first byte of an answer.
    Close,
    /// The connection is cut after this many events (chunks) of the answer's body; 0 = after the head.
    CutAfter(u32),
    /// An error event in the engine's own form follows this many events, then the stream ends properly.
    ErrorAfter(u32),
    /// No answer ever; the connection stays open.
    Hang,
    /// Head of a 200 answer, then silence.
    Stall,
    /// This many events of the answer, then silence.
    StallAfter(u32),
    /// Bytes that are not HTTP, then the connection is closed.
    Garbage,
    /// An error answer in the engine's own form.
    Status {
        /// HTTP status.
        status: u16,
        /// Value of `Retry-After`.
        #[serde(default)]
        retry_after: Option<String>,
    },
    /// This many real milliseconds before each event of the answer's body.
    Slow {
        /// Pause before each event.
        millis: u64,
    },
}

/// When a fault is committed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultRule {
    /// What happens.
    pub fault: Fault,
    /// Only for paths that begin so; `None` = the routes that generate.
    #[serde(default)]
    pub path: Option<String>,
    /// Only for requests with this engine session id (header or body).
    #[serde(default)]
    pub session: Option<String>,
    /// Matching requests that pass unharmed first.
    #[serde(default)]
    pub skip: u32,
    /// How often it fires; `None` = always.
    #[serde(default)]
    pub times: Option<u32>,
}

impl FaultRule {
    /// Every generating request fails so.
    #[must_use]
    pub const fn always(fault: Fault) -> Self {
        Self { fault, path: None, session: None, skip: 0, times: None }
    }

    /// The next `times` generating requests fail so.
    #[must_use]
    pub const fn next(fault: Fault, times: u32) -> Self {
        Self { fault, path: None, session: None, skip: 0, times: Some(times) }
    }
}

impl Fault {
    /// Reads the header `x-mock-fault`: `close`, `hang`, `stall`, `garbage`, `cut=N`, `error=N`, `stall=N`,
    /// `slow=MILLIS`, `status=CODE` or `status=CODE;retry-after=VALUE`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (word, value) = text.trim().split_once('=').unwrap_or((text.trim(), ""));
        let number = || value.trim().parse::<u32>().ok();
        Some(match word.trim() {
            "close" => Self::Close,
            "hang" => Self::Hang,
            "garbage" => Self::Garbage,
            "stall" if value.is_empty() => Self::Stall,
            "stall" => Self::StallAfter(number()?),
            "cut" => Self::CutAfter(number()?),
            "error" => Self::ErrorAfter(number()?),
            "slow" => Self::Slow { millis: number()?.into() },
            "status" => {
                let (status, rest) = value.split_once(';').unwrap_or((value, ""));
                let retry_after = rest.trim().strip_prefix("retry-after=").map(str::to_owned);
                let status = status.trim().parse().ok().filter(|s| (400..600).contains(s))?;
                Self::Status { status, retry_after }
            }
            _ => return None,
        })
    }
}

/// What a fault rule is matched against.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FaultSubject<'a> {
    pub(crate) path: &'a str,
    pub(crate) generates: bool,
    pub(crate) session: Option<&'a str>,
}

/// Rules with their counts.
#[derive(Debug, Default)]
pub(crate) struct FaultPlan {
    rules: Vec<(FaultRule, u32)>,
}

impl FaultPlan {
    pub(crate) fn new(rules: Vec<FaultRule>) -> Self {
        Self { rules: rules.into_iter().map(|rule| (rule, 0)).collect() }
    }

    /// The fault for this request, which counts.
    pub(crate) fn next(&mut self, subject: FaultSubject<'_>) -> Option<Fault> {
        for (rule, seen) in &mut self.rules {
            let path = match &rule.path {
                Some(path) => subject.path.starts_with(path.as_str()),
                None => subject.generates,
            };
            let session = rule.session.as_deref().is_none_or(|s| subject.session == Some(s));
            if !path || !session {
                continue;
            }
            let count = *seen;
            *seen = seen.saturating_add(1);
            let fired_before = count.saturating_sub(rule.skip);
            if count >= rule.skip && rule.times.is_none_or(|times| fired_before < times) {
                return Some(rule.fault.clone());
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_values() {
        let status =
            |status, retry: Option<&str>| Fault::Status { status, retry_after: retry.map(str::to_owned) };
        for (text, fault) in [
            ("close", Some(Fault::Close)),
            (" cut=3 ", Some(Fault::CutAfter(3))),
            ("stall", Some(Fault::Stall)),
            ("stall=2", Some(Fault::StallAfter(2))),
            ("slow=20", Some(Fault::Slow { millis: 20 })),
            ("status=503", Some(status(503, None))),
            ("status=429;retry-after=5", Some(status(429, Some("5")))),
            ("status=200", None),
            ("cut=x", None),
            ("explode", None),
        ] {
            assert_eq!(Fault::parse(text), fault, "{text}");
        }
    }

    /// I-MFL-1.
    #[test]
    fn rules_skip_fire_and_run_out() {
        let mut rule = FaultRule::next(Fault::Close, 2);
        rule.skip = 1;
        rule.session = Some("s".to_owned());
        let mut plan = FaultPlan::new(vec![rule]);
        let subject = |session| FaultSubject { path: "/v1/messages", generates: true, session };
        let mut next = |session| plan.next(subject(session));
        assert_eq!(next(None), None);
        let fired: Vec<bool> = (0..5).map(|_| next(Some("s")).is_some()).collect();
        assert_eq!(fired, [false, true, true, false, false]);
        let mut plan = FaultPlan::new(vec![FaultRule::always(Fault::Hang)]);
        let health = FaultSubject { path: "/health", generates: false, session: None };
        assert_eq!((plan.next(health), plan.next(subject(None))), (None, Some(Fault::Hang)));
    }
}
