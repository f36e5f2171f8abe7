//! Named bounds of what is read here.

/// Deepest nesting of arrays and objects in a request body. Python's own parser stops near 1,000, prompts and
/// tool schemas in the field stay below 40.
pub const JSON_DEPTH_MAX: usize = 256;

/// Members of one object whose order the digest ignores; those beyond count in the order in which they come.
pub const DIGEST_UNORDERED_MEMBERS_MAX: usize = 128;

/// Longest value kept of a body field that may carry an identity, in bytes; the rest is cut off.
pub const BODY_ID_BYTES_MAX: usize = 4096;

/// Most token ids kept of one prompt or one answer; longer lists are not kept at all.
pub const TOKEN_IDS_MAX: usize = 4 * 1024 * 1024;

/// Leading bytes kept of an answer's text while its turn lasts.
pub const ANSWER_START_MAX: usize = 64;

/// Largest event of a stream that is read, in bytes. Larger ones are passed on unread and counted.
pub const SSE_EVENT_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Most choices of one answer of which the end is kept; more are counted only.
pub const CHOICES_MAX: usize = 1024;
