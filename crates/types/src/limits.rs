//! Named bounds of everything that comes from outside. Each has a counter where it is enforced.

/// Longest id, in bytes. The reference system's session index ignores longer ones.
pub const ID_BYTES_MAX: usize = 256;

/// Most values of opaque harness headers kept per request (the reference system's bound).
pub const AGENT_HEADER_VALUES_MAX: usize = 64;

/// Longest single opaque harness header value kept, in bytes.
pub const AGENT_HEADER_VALUE_BYTES_MAX: usize = 16 * 1024;

/// Total bytes (names and values) of opaque harness headers kept per request.
pub const AGENT_HEADER_TOTAL_BYTES_MAX: usize = 32 * 1024;

/// Most tool calls of one turn of which names and ids are kept; more are counted only.
pub const TOOL_CALLS_PER_TURN_MAX: usize = 256;

/// Most tool durations read from one request's headers.
pub const TOOL_DURATIONS_MAX: usize = 256;
