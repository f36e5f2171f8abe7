//! What a program's first prompt has in common with those of other programs of its tenant.
//!
//! - Best first: the very prompt of another one's last turn, or one that goes on from it (then all is as in a program's
//!   own next turn); system prompt and tools of another one (then the common beginning is an estimate, or what the
//!   engine reused for the last such prompt).
//! - A beginning that two programs sent is marked on both lines: either may leave in the cache what the other asks next.

use tandem_types::ProgramKey;

use super::judge::{self, Judged};
use super::{Arriving, Basis, Expected, Lineage};
use crate::divergence::Relation;
use crate::evidence::Resends;

impl Lineage {
    /// A program's first prompt: whether another program's last one, or its head, is its beginning.
    pub(super) fn first(
        &mut self,
        program: &ProgramKey,
        arriving: &Arriving<'_>,
        learned: &Resends,
    ) -> Judged {
        let segments = &arriving.outline.segments;
        let Some((other, id)) = self.fork_of(program, arriving.outline) else {
            return self.with_head(program, arriving).unwrap_or_else(Judged::first);
        };
        let known = self.programs.get_mut(&other);
        let Some((settled, line)) = known.and_then(|known| {
            let settled = known.settled(id);
            Some((settled, known.branch_mut(id)?.line.as_mut()?))
        }) else {
            return Judged::first();
        };
        let judged = judge::against(line, arriving, Relation::Appends, learned, settled);
        line.shared = true;
        if line.segments.len() == segments.len() {
            // The same prompt of another session: nothing of it is this one's history.
            let expected = judged.expected;
            return Judged { alike: Some(other), shared: true, expected, ..Judged::first() };
        }
        Judged {
            relation: Relation::First,
            forked_from: Some(other.clone()),
            alike: Some(other),
            branch: None,
            follows: None,
            shared: true,
            ..judged
        }
    }

    /// A first prompt that has system prompt and tools of another one.
    fn with_head(&self, program: &ProgramKey, arriving: &Arriving<'_>) -> Option<Judged> {
        let (head, length) = self.index.head(&program.tenant, &arriving.outline.segments)?;
        let line = self.programs.get(&head.program)?.branch(head.branch)?.line.as_ref()?;
        let tokens = head.cached.filter(|cached| *cached > 0).or_else(|| judge::estimate(line, length))?;
        let expected = Expected::open(tokens, Basis::Estimated);
        Some(Judged { alike: Some(head.program.clone()), expected, ..Judged::first() })
    }
}
