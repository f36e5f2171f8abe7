//! Telling tool calls apart.
//!
//! A piece with a new id is a new call, whatever its index, as long as it names a tool or its index is new: an
//! id that changes on nameless pieces is an engine's slip. A piece without an id is a new call when its index is
//! new in its choice, or when the same delta already brought a named call with that index.

use tandem_types::ToolCall;
use tandem_types::limits::TOOL_CALLS_PER_TURN_MAX;

/// One tool call, or a piece of it, as the engine wrote it.
#[derive(Debug, Default)]
pub(super) struct Piece {
    /// The engine's index.
    pub(super) index: Option<u64>,
    pub(super) id: Option<String>,
    pub(super) name: Option<String>,
}

/// A call that is known.
#[derive(Debug)]
struct Known {
    choice: u32,
    index: u64,
    /// Number of the delta that brought it.
    delta: u64,
    /// It will get no further id or name (Responses: its item is done).
    done: bool,
}

/// The tool calls of an answer so far.
#[derive(Debug, Default)]
pub(super) struct ToolTracker {
    /// Parallel to the calls kept in the facts.
    known: Vec<Known>,
    count: u64,
    delta: u64,
}

impl ToolTracker {
    pub(super) const fn count(&self) -> u64 {
        self.count
    }

    /// Calls kept of one choice.
    pub(super) fn of_choice(&self, choice: u32) -> usize {
        self.known.iter().filter(|known| known.choice == choice).count()
    }

    /// A new delta, message or event begins.
    pub(super) const fn next_delta(&mut self) {
        self.delta += 1;
    }

    /// Takes one piece of `choice` and adds the call to `calls` if it is new.
    pub(super) fn piece(&mut self, calls: &mut Vec<ToolCall>, choice: u32, piece: Piece) {
        let index = piece.index.unwrap_or(0);
        let of_index = self
            .known
            .iter()
            .rposition(|known| known.choice == choice && known.index == index && piece.index.is_some());
        let of_id = piece.id.as_deref().and_then(|id| by_id(calls, choice, id));
        let same = match (&piece.id, of_id, of_index) {
            (Some(_), Some(at), _) => Some(at),
            (Some(_), None, Some(at)) if piece.name.is_none() => Some(at),
            (None, _, Some(at)) if piece.name.is_none() || self.known[at].delta != self.delta => Some(at),
            _ => None,
        };
        match same.and_then(|at| calls.get_mut(at)) {
            Some(call) => {
                call.name = call.name.take().or(piece.name);
                call.id = call.id.take().or(piece.id);
            }
            None => self.add(calls, choice, index, piece),
        }
    }

    /// Takes one item of a Responses answer: its place is `index`, and `done` tells that it is whole.
    pub(super) fn item(&mut self, calls: &mut Vec<ToolCall>, index: u64, piece: Piece, done: bool) {
        let of_id = piece.id.as_deref().and_then(|id| by_id(calls, 0, id));
        // Some engines give an item another id when it is done; one that is added is new.
        let open = || self.known.iter().position(|known| done && known.index == index && !known.done);
        let Some(at) = of_id.or_else(open) else {
            self.add(calls, 0, index, piece);
            if let Some(known) = self.known.last_mut() {
                known.done |= done;
            }
            return;
        };
        self.known[at].done |= done;
        calls[at].name = piece.name.or(calls[at].name.take());
        calls[at].id = piece.id.or(calls[at].id.take());
    }

    fn add(&mut self, calls: &mut Vec<ToolCall>, choice: u32, index: u64, piece: Piece) {
        self.count += 1;
        if calls.len() >= TOOL_CALLS_PER_TURN_MAX {
            return;
        }
        let place = u32::try_from(self.of_choice(choice)).unwrap_or(u32::MAX);
        calls.push(ToolCall { choice_index: choice, tool_call_index: place, id: piece.id, name: piece.name });
        self.known.push(Known { choice, index, delta: self.delta, done: false });
    }
}

fn by_id(calls: &[ToolCall], choice: u32, id: &str) -> Option<usize> {
    calls.iter().position(|call| call.choice_index == choice && call.id.as_deref() == Some(id))
}
