//! Named bounds of everything that is read or remembered here, beside [`crate::LineageConfig`].

/// Most segments of one outline. What comes behind is folded into the last one.
pub const SEGMENTS_MAX: usize = 32 * 1024;

/// Most values (texts, numbers, lists, objects) of a body that is read.
pub const VALUES_MAX: usize = 256 * 1024;

/// Most turns of one program that are remembered while they are not answered.
pub const OPEN_TURNS_MAX: usize = 64;

/// Ends of earlier prompts that are remembered of one line of conversation, the latest ones.
pub const MARKS_MAX: usize = 32;

/// Most tokens with which a chat template opens an answer; those in use write fewer than twenty.
pub const OPENING_TOKENS_MAX: u64 = 64;

/// Texts of the model at the end of a prompt of which is noted how they begin.
pub const SAID_MAX: usize = 8;

/// Most pairs of model and harness of which is remembered how answers come back.
pub const FAMILIES_MAX: usize = 1024;
