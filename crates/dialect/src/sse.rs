//! Push parser for server-sent events.
//!
//! - Inputs: pieces of a byte stream, cut anywhere. Outputs: events, and for the module's own users the borders
//!   of events in the bytes.
//! - Invariants: I-DIA-SSE-1 the pieces' borders do not matter. I-DIA-SSE-2 each byte is searched once when it
//!   comes and once when its event ends, however large the event. I-DIA-SSE-3 an event ends at the first byte of
//!   its blank line's end, so a stream with CR line ends is not kept waiting for a possible LF. I-DIA-SSE-4 at
//!   most the given number of bytes is held; a larger event is not read but counted, and what follows is.
//! - Beyond the standard: an event whose blank line never comes is handed out at the end of the stream (engines
//!   that close right after the last line exist). Without data there is no event, as in the standard.
//! - Deliberately absent: reconnection (ids and retry times are handed out, not acted on).
//! - Source: WHATWG HTML, "Server-sent events", sections on parsing and interpreting an event stream.

use memchr::{memchr, memchr2};

use crate::limits::SSE_EVENT_BYTES_MAX;

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
#[derive(Debug)]
pub struct SseParser {
    segments: Segments,
    joined: Vec<u8>,
    oversized: u64,
}

impl Default for SseParser {
    fn default() -> Self {
        Self::new(SSE_EVENT_BYTES_MAX)
    }
}

impl SseParser {
    /// A parser that reads events of up to `event_bytes_max` bytes.
    #[must_use]
    pub const fn new(event_bytes_max: usize) -> Self {
        Self { segments: Segments::new(event_bytes_max), joined: Vec::new(), oversized: 0 }
    }

    /// Takes the next bytes and hands each event that they complete to `sink`.
    pub fn push(&mut self, chunk: &[u8], mut sink: impl FnMut(SseEvent<'_>)) {
        let Self { segments, joined, oversized } = self;
        segments.push(chunk, |_, raw| hand_out(raw, joined, oversized, &mut sink));
    }

    /// The stream is over: an event without its blank line is handed out, too.
    pub fn finish(&mut self, mut sink: impl FnMut(SseEvent<'_>)) {
        let Self { segments, joined, oversized } = self;
        segments.finish(|raw| hand_out(raw, joined, oversized, &mut sink));
    }

    /// Events that were larger than the limit and so not read.
    #[must_use]
    pub const fn oversized(&self) -> u64 {
        self.oversized
    }
}

fn hand_out(raw: Raw<'_>, joined: &mut Vec<u8>, oversized: &mut u64, sink: &mut impl FnMut(SseEvent<'_>)) {
    match raw {
        Raw::Whole(raw) => {
            if let Some(event) = read_event(raw, joined) {
                sink(event);
            }
        }
        Raw::Head(_) => *oversized += 1,
        Raw::LateLineFeed => {}
    }
}

/// Bytes kept of an event that is too large: enough for its `event` line.
const HEAD_BYTES: usize = 128;

/// A part of the stream that ends here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Raw<'a> {
    /// All bytes of an event with its blank line, of a comment line, or of a blank line alone.
    Whole(&'a [u8]),
    /// The first bytes of an event that is too large.
    Head(&'a [u8]),
    /// The LF of a CRLF whose CR ended the part before.
    LateLineFeed,
}

/// Finds the ends of events in a stream.
#[derive(Debug)]
pub(crate) struct Segments {
    limit: usize,
    /// The unfinished segment, without what a later push will bring.
    pending: Vec<u8>,
    /// Bytes of the unfinished segment, those not kept included.
    length: usize,
    /// The next byte is the first of a line.
    line_start: bool,
    /// The unfinished line is a comment that is a segment of its own.
    comment: bool,
    /// The last byte was a CR; an LF now belongs to it.
    after_cr: bool,
    /// No segment has ended yet: a byte order mark may stand in front.
    first: bool,
}

impl Segments {
    pub(crate) const fn new(limit: usize) -> Self {
        Self {
            limit,
            pending: Vec::new(),
            length: 0,
            line_start: true,
            comment: false,
            after_cr: false,
            first: true,
        }
    }

    /// Whether bytes of an unfinished segment have come.
    pub(crate) const fn inside(&self) -> bool {
        self.length > 0
    }

    /// Whether the unfinished segment is already too large to be read.
    pub(crate) const fn oversized(&self) -> bool {
        self.length > self.limit
    }

    /// Takes the next bytes. `ended` gets, for each segment that ends in them, the offset in `chunk` behind it
    /// and its bytes.
    pub(crate) fn push(&mut self, chunk: &[u8], mut ended: impl FnMut(usize, Raw<'_>)) {
        let mut from = 0;
        if self.after_cr && self.length == 0 && chunk.first() == Some(&b'\n') {
            self.after_cr = false;
            ended(1, Raw::LateLineFeed);
            from = 1;
        }
        while let Some(end) = self.next_end(chunk, from) {
            let part = &chunk[from..end];
            let first = std::mem::replace(&mut self.first, false);
            // The LF of a closing CRLF may come late and so never counts.
            let late = usize::from(part.ends_with(b"\r\n"));
            if self.length + part.len() - late > self.limit {
                self.keep_head(part);
                ended(end, Raw::Head(&self.pending));
            } else if self.length == 0 {
                ended(end, Raw::Whole(without_mark(part, first)));
            } else {
                self.pending.extend_from_slice(part);
                ended(end, Raw::Whole(without_mark(&self.pending, first)));
            }
            self.reset();
            from = end;
        }
        let rest = &chunk[from..];
        self.length += rest.len();
        if self.length > self.limit {
            self.keep_head(rest);
        } else {
            self.pending.extend_from_slice(rest);
        }
    }

    /// The stream is over: what is unfinished ends here.
    pub(crate) fn finish(&mut self, ended: impl FnOnce(Raw<'_>)) {
        if self.length > self.limit {
            ended(Raw::Head(&self.pending));
        } else if self.length > 0 {
            ended(Raw::Whole(without_mark(&self.pending, self.first)));
        }
        self.reset();
        self.first = false;
        self.line_start = true;
        self.comment = false;
        self.after_cr = false;
    }

    /// The offset behind the segment that ends first at or after `from`.
    fn next_end(&mut self, chunk: &[u8], from: usize) -> Option<usize> {
        let mut at = from;
        let fresh = self.length == 0;
        loop {
            let byte = *chunk.get(at)?;
            if std::mem::take(&mut self.after_cr) && byte == b'\n' {
                at += 1;
                continue;
            }
            let blank = self.line_start && matches!(byte, b'\r' | b'\n');
            if self.line_start && byte == b':' && fresh && at == from {
                self.comment = true;
            }
            let Some(found) = memchr2(b'\r', b'\n', &chunk[at..]) else {
                self.line_start = false;
                return None;
            };
            at += found + 1;
            self.line_start = true;
            if chunk[at - 1] == b'\r' {
                match chunk.get(at) {
                    Some(b'\n') => at += 1,
                    Some(_) => {}
                    None => self.after_cr = true,
                }
            }
            if blank || std::mem::take(&mut self.comment) {
                return Some(at);
            }
        }
    }

    fn keep_head(&mut self, part: &[u8]) {
        let missing = HEAD_BYTES.saturating_sub(self.pending.len());
        self.pending.extend_from_slice(&part[..missing.min(part.len())]);
        self.pending.truncate(HEAD_BYTES);
        self.pending.shrink_to(HEAD_BYTES);
    }

    /// Largest buffer that is kept from one event to the next.
    const BUFFER_KEPT: usize = 64 * 1024;

    fn reset(&mut self) {
        self.length = 0;
        self.pending.clear();
        self.pending.shrink_to(Self::BUFFER_KEPT);
    }
}

fn without_mark(raw: &[u8], first: bool) -> &[u8] {
    if first { raw.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(raw) } else { raw }
}

/// The `event` field in the first bytes of an event.
pub(crate) fn event_name(head: &[u8]) -> &[u8] {
    let mut name: &[u8] = b"";
    lines(head, |field, value| {
        if field == b"event" {
            name = value;
        }
    });
    name
}

/// Reads the lines of one event. Several data lines are joined in `joined`.
pub(crate) fn read_event<'a>(raw: &'a [u8], joined: &'a mut Vec<u8>) -> Option<SseEvent<'a>> {
    let mut event: &[u8] = b"";
    let mut id = None;
    let mut retry_ms = None;
    let mut data: Option<&[u8]> = None;
    let mut several = false;
    lines(raw, |field, value| match field {
        b"event" => event = value,
        b"id" if memchr(0, value).is_none() => id = Some(value),
        b"retry" => retry_ms = retry(value).or(retry_ms),
        b"data" => match data {
            None => data = Some(value),
            Some(first) => {
                if !std::mem::replace(&mut several, true) {
                    joined.clear();
                    joined.extend_from_slice(first);
                }
                joined.push(b'\n');
                joined.extend_from_slice(value);
            }
        },
        _ => {}
    });
    let data = if several { joined.as_slice() } else { data? };
    Some(SseEvent { event, data, id, retry_ms })
}

fn retry(value: &[u8]) -> Option<u64> {
    let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    digits.then(|| std::str::from_utf8(value).ok()?.parse().ok()).flatten()
}

/// Calls `each` with field name and value of every line that is neither blank nor a comment.
fn lines<'a>(raw: &'a [u8], mut each: impl FnMut(&'a [u8], &'a [u8])) {
    let mut rest = raw;
    while !rest.is_empty() {
        let end = memchr2(b'\r', b'\n', rest).unwrap_or(rest.len());
        let line = &rest[..end];
        // The LF of a CRLF becomes a blank line of its own here, which says nothing.
        rest = rest.get(end + 1..).unwrap_or_default();
        // A field name is short: the colon is near or there is none.
        let colon = line.iter().take(8).position(|byte| *byte == b':');
        match colon {
            Some(0) => {}
            Some(colon) => {
                let value = &line[colon + 1..];
                each(&line[..colon], value.strip_prefix(b" ").unwrap_or(value));
            }
            None if line.is_empty() => {}
            None => each(line, b""),
        }
    }
}
