//! Named bounds of everything that is read or remembered here, beside [`crate::LineageConfig`].

/// Most segments of one outline. What comes behind is folded into the last one.
pub const SEGMENTS_MAX: usize = 32 * 1024;

/// Most values (texts, numbers, lists, objects) of a body that is read.
pub const VALUES_MAX: usize = 256 * 1024;

/// Most turns of one program that are remembered while they are not answered.
pub const OPEN_TURNS_MAX: usize = 64;

/// Most pairs of model and harness of which is remembered how answers come back.
pub const FAMILIES_MAX: usize = 1024;
