//! What was recognised of one request, and how it could be recognised better.

use serde::Serialize;
use tandem_types::TurnFacts;

use crate::hygiene::HygienePlan;
use crate::identify::{Identity, RequestHead};

/// A report on one request, for people; also JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// Facts: what was found, where, and what was made of it. One sentence each.
    pub findings: Vec<String>,
    /// What the user can set in the harness so that it is recognised better. One sentence each.
    pub advice: Vec<String>,
}

/// Explains what [`crate::identify`] and [`crate::hygiene::plan`] made of a request.
#[must_use]
pub fn explain(
    head: &RequestHead<'_>,
    facts: Option<&TurnFacts>,
    identity: &Identity,
    plan: Option<&HygienePlan>,
) -> Explanation {
    let _ = (head, facts, identity, plan);
    Explanation { findings: Vec::new(), advice: Vec::new() }
}
