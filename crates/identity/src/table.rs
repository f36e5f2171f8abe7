//! The header table.

/// One mapping.
#[derive(Debug)]
pub struct Mapping;

/// All mappings in order of trust.
pub const MAPPINGS: &[Mapping] = &[];
