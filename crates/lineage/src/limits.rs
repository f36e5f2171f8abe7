//! Named bounds of everything that is read or remembered here.

/// Most segments of one outline. What comes behind is folded into the last one.
pub const SEGMENTS_MAX: usize = 32 * 1024;

/// Most values (texts, numbers, lists, objects, names) of a body that is read.
pub const VALUES_MAX: usize = 1024 * 1024;
