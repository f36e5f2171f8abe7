//! What the prompts of a session have in common, told from the request bodies alone.
//!
//! - Purpose: know how much of a turn's prompt repeats what the session's last turn left in the cache, why it
//!   does not where it does not, whose next turn a request without identity is, and what the prompt tokens that
//!   were computed were computed for. None of it needs a tokenizer or engine events; both make it exact.
//! - Inputs: request bodies ([`outline()`]), token ids where known, the engines' usage reports. Outputs: [`Arrival`]
//!   (relation, [`Divergence`], [`Expected`]), [`Inferred`], [`Split`], block hashes of text.
//! - No content is kept: outlines are hashes and lengths. The same calls give the same answers: no clock, no
//!   chance, no iteration in hash order.
//! - Invariants: I-LIN-2 nothing from outside panics or grows anything beyond [`limits`]; I-LIN-3 a program is only
//!   ever compared with itself, and with another one of the same tenant only when it is new.
//! - Deliberately absent: tokens of any kind but those handed in, and floors to whole blocks: block sizes are
//!   the engines' business and the caller's to apply.
//! - Sources: recorded requests of twelve harnesses, named in the tests that read them.

mod compare;
mod divergence;
mod evidence;
mod json;
pub mod limits;
mod mask;
mod outline;
mod said;
mod split;
mod table;
mod text;

pub use divergence::{Cause, Divergence, Position, Relation, ToolsChange};
pub use outline::{Outline, OutlineError, RAW_BYTES, RAW_IDS, Segment, SegmentKind, outline};
pub use split::{Split, SplitInput, split};
pub use table::{
    Arrival, Arriving, Basis, Ended, Expected, Inferred, Learned, Lineage, LineageConfig, OUTLINES_VERSION,
    Remembered, Ticket,
};
pub use text::text_blocks;
