//! Push parser for server-sent events.

/// One event of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SseEvent<'a> {
    /// `event` field; empty = absent (a "message").
    pub event: &'a [u8],
    /// `data` lines, joined with line feeds.
    pub data: &'a [u8],
    /// `id` field; `None` = absent.
    pub id: Option<&'a [u8]>,
    /// `retry` field in milliseconds.
    pub retry_ms: Option<u64>,
}

/// Push parser: any way to cut the bytes gives the same events.
#[derive(Debug, Default)]
pub struct SseParser {}

impl SseParser {
    /// A parser that reads events of up to `event_bytes_max` bytes.
    #[must_use]
    pub fn new(event_bytes_max: usize) -> Self {
        let _ = event_bytes_max;
        Self {}
    }

    /// Takes the next bytes and hands each event that they complete to `sink`.
    pub fn push(&mut self, chunk: &[u8], sink: impl FnMut(SseEvent<'_>)) {
        let _ = (chunk, sink);
    }

    /// The stream is over: an event without its blank line is handed out, too.
    pub fn finish(&mut self, sink: impl FnMut(SseEvent<'_>)) {
        let _ = sink;
    }

    /// Events that were larger than the limit and so not read.
    #[must_use]
    pub const fn oversized(&self) -> u64 {
        0
    }
}
