//! The observer of a stream: facts, and the bytes that pass.

use bytes::Bytes;
use memchr::memrchr;
use tandem_types::Dialect;

use super::{AnswerFacts, Reading, chat, messages, responses};
use crate::errors::ErrorKind;
use crate::events::{StreamPosition, stream_error};
use crate::limits::SSE_EVENT_BYTES_MAX;
use crate::sse::{Raw, Segments, event_name, read_event};

/// What to take out of a stream of chat or completions chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum UsageFilter {
    /// Nothing: every byte passes as it comes, undelayed.
    #[default]
    Keep,
    /// The chunk with empty `choices` and usage, for engines that change nothing else when asked for usage
    /// (vLLM, SGLang, llama.cpp). Events pass at their end.
    DropChunk,
    /// Also `"usage":null` on every other chunk, which services that follow OpenAI's reference to the letter
    /// add when asked for usage.
    DropChunkAndNulls,
}

/// Observes a streamed answer and passes its bytes on.
#[derive(Debug)]
pub struct StreamObserver {
    reading: Reading,
    filter: UsageFilter,
    segments: Segments,
    joined: Vec<u8>,
    /// Pieces of the unfinished event, not yet passed on (only while filtering).
    held: Vec<Bytes>,
    /// The unfinished event is too large to be read and passes as it comes.
    passing: bool,
    /// The last event was taken out.
    dropped: bool,
    /// The event that ended the last choice, until it is known what stands in the chunk that is taken out.
    waiting: Option<Vec<u8>>,
    /// The stream ended inside an event that was passed on.
    torn: bool,
}

/// What becomes of an event.
enum Verdict {
    Pass,
    /// Out, with the value of its `system_fingerprint`, which belongs to the event before.
    Drop(Option<Vec<u8>>),
    Replace(Vec<u8>),
    /// These bytes go out when the next event is known.
    Wait(Vec<u8>),
}

/// What becomes of a part of the stream that ended at this offset of the chunk.
type Ended = (usize, Verdict);

impl StreamObserver {
    /// An observer for one stream. The filter says what asking for usage on the client's behalf has added.
    #[must_use]
    pub fn new(dialect: Dialect, filter: UsageFilter) -> Self {
        let filter = match dialect {
            Dialect::Chat | Dialect::Completions => filter,
            Dialect::Responses | Dialect::Messages => UsageFilter::Keep,
        };
        Self {
            reading: Reading::new(dialect, 1),
            filter,
            segments: Segments::new(SSE_EVENT_BYTES_MAX),
            joined: Vec::new(),
            held: Vec::new(),
            passing: false,
            dropped: false,
            waiting: None,
            torn: false,
        }
    }

    /// How many choices the answer will have ([`crate::ParsedRequest::answer_choices`]); 1 unless told.
    #[must_use]
    pub const fn expecting(mut self, choices: u32) -> Self {
        self.reading.expected = choices;
        self
    }

    /// Takes the next bytes of the engine's stream and appends what is to be sent to `out`.
    pub fn push(&mut self, chunk: Bytes, out: &mut Vec<Bytes>) {
        let mut ended: Vec<Ended> = Vec::new();
        let Self { segments, reading, joined, filter, dropped, .. } = self;
        segments.push(&chunk, |end, raw| {
            let verdict = judge(reading, raw, joined, *filter, dropped);
            if *filter != UsageFilter::Keep {
                ended.push((end, verdict));
            }
        });
        self.reading.refresh();
        if self.filter == UsageFilter::Keep {
            if !chunk.is_empty() {
                out.push(chunk);
            }
            return;
        }
        self.release(&chunk, ended, out);
    }

    /// The engine's stream is over (closed or cut): appends what was still held back to `out`.
    pub fn finish(&mut self, out: &mut Vec<Bytes>) {
        self.torn = self.segments.inside() && !self.reading.facts.complete;
        let Self { segments, reading, joined, filter, dropped, .. } = self;
        let mut verdict = Verdict::Pass;
        segments.finish(|raw| verdict = judge(reading, raw, joined, *filter, dropped));
        self.reading.refresh();
        self.let_go(&verdict, out);
        match verdict {
            Verdict::Pass => out.append(&mut self.held),
            Verdict::Drop(_) => {
                self.held.clear();
                self.torn = false;
            }
            Verdict::Replace(bytes) | Verdict::Wait(bytes) => {
                self.held.clear();
                out.push(bytes.into());
            }
        }
    }

    /// What is known so far.
    #[must_use]
    pub const fn facts(&self) -> &AnswerFacts {
        &self.reading.facts
    }

    /// Ends the observation.
    #[must_use]
    pub fn into_facts(self) -> AnswerFacts {
        self.reading.into_facts()
    }

    /// The error event with which this stream is to be ended, fit to what it has sent so far. Call it after
    /// [`Self::finish`] and only when the answer is not complete.
    #[must_use]
    pub fn error_event(
        &self,
        kind: ErrorKind,
        message: &str,
        retry_after_s: Option<u32>,
        now_unix_s: u64,
    ) -> Vec<u8> {
        let position = StreamPosition {
            response_id: self.reading.facts.response_id.clone(),
            model: self.reading.facts.model.clone(),
            created_unix_s: now_unix_s,
            next_sequence: self.reading.next_sequence,
            inside_event: self.torn,
        };
        stream_error(self.reading.dialect, kind, message, retry_after_s, &position)
    }

    /// Sends the waiting event, now that the verdict on the next one is known.
    fn let_go(&mut self, next: &Verdict, out: &mut Vec<Bytes>) {
        let Some(mut event) = self.waiting.take() else { return };
        if let Verdict::Drop(Some(fingerprint)) = next
            && let Some(end) = memrchr(b'}', &event)
        {
            let member = [b",\"system_fingerprint\":", fingerprint.as_slice()].concat();
            event.splice(end..end, member);
        }
        out.push(event.into());
    }

    /// Passes on what the verdicts allow: runs of events that pass go out as one piece.
    fn release(&mut self, chunk: &Bytes, ended: Vec<Ended>, out: &mut Vec<Bytes>) {
        // Bytes of the chunk from `open` on are not decided; from `run` on they pass but are not yet out.
        let (mut run, mut open) = (0, 0);
        for (end, verdict) in ended {
            // Nothing is undecided between a waiting event and the next one.
            self.let_go(&verdict, out);
            if !matches!(verdict, Verdict::Pass) {
                give(out, chunk, run, open);
                self.held.clear();
                run = end;
            } else if !self.held.is_empty() {
                out.append(&mut self.held);
            }
            match verdict {
                Verdict::Pass | Verdict::Drop(_) => {}
                Verdict::Replace(bytes) => out.push(bytes.into()),
                Verdict::Wait(bytes) => self.waiting = Some(bytes),
            }
            open = end;
            self.passing = false;
        }
        self.passing |= self.segments.oversized();
        if self.passing {
            give(out, chunk, run, open);
            out.append(&mut self.held);
            give(out, chunk, open, chunk.len());
        } else {
            give(out, chunk, run, open);
            if open < chunk.len() {
                self.held.push(chunk.slice(open..));
            }
        }
    }
}

fn give(out: &mut Vec<Bytes>, chunk: &Bytes, from: usize, to: usize) {
    if from < to {
        out.push(chunk.slice(from..to));
    }
}

/// Reads one event and decides what becomes of it.
fn judge(
    reading: &mut Reading,
    raw: Raw<'_>,
    joined: &mut Vec<u8>,
    filter: UsageFilter,
    dropped: &mut bool,
) -> Verdict {
    let raw = match raw {
        Raw::Whole(raw) => raw,
        Raw::Head(head) => {
            reading.facts.oversized_events += 1;
            if reading.dialect == Dialect::Responses {
                responses::unread_event(reading, event_name(head));
            }
            *dropped = false;
            return Verdict::Pass;
        }
        Raw::LateLineFeed => return if *dropped { Verdict::Drop(None) } else { Verdict::Pass },
    };
    *dropped = false;
    let Some(event) = read_event(raw, joined) else { return Verdict::Pass };
    match reading.dialect {
        Dialect::Responses => responses::event(reading, event.data),
        Dialect::Messages => messages::event(reading, event.data),
        Dialect::Chat | Dialect::Completions => {
            let chunk = chat::event(reading, event.data);
            if filter != UsageFilter::Keep && chunk.no_choices && chunk.usage && !chunk.error {
                *dropped = true;
                let fingerprint = chunk.fingerprint.and_then(|at| event.data.get(at));
                return Verdict::Drop(fingerprint.map(<[u8]>::to_vec));
            }
            let replaced = match chunk.usage_null {
                Some(null) if filter == UsageFilter::DropChunkAndNulls => {
                    without_usage_null(raw, event.data, null.start, null.end)
                }
                _ => None,
            };
            if filter != UsageFilter::Keep && chunk.ends_all && !chunk.usage && chunk.fingerprint.is_none() {
                return Verdict::Wait(replaced.unwrap_or_else(|| raw.to_vec()));
            }
            if let Some(bytes) = replaced {
                return Verdict::Replace(bytes);
            }
        }
    }
    Verdict::Pass
}

/// `raw` without the member `"usage":null` of its data, which stands at `start..end` of `data`; `None` when the
/// data is not one piece of `raw` or the member is written in an unusual way.
fn without_usage_null(raw: &[u8], data: &[u8], start: usize, end: usize) -> Option<Vec<u8>> {
    let offset = (data.as_ptr() as usize).checked_sub(raw.as_ptr() as usize)?;
    if raw.get(offset..offset.checked_add(data.len())?)? != data {
        return None;
    }
    let before = data.get(..start)?.trim_ascii_end().strip_suffix(b":")?.trim_ascii_end();
    let before = before.strip_suffix(b"\"usage\"")?.trim_ascii_end();
    let (from, to) = if let Some(before) = before.strip_suffix(b",") {
        (before.len(), end)
    } else {
        let after = data.get(end..)?;
        let gap = after.len() - after.trim_ascii_start().len();
        let comma = after.trim_ascii_start().starts_with(b",");
        (before.len(), if comma { end + gap + 1 } else { end })
    };
    let mut bytes = raw.get(..offset + from)?.to_vec();
    bytes.extend_from_slice(raw.get(offset + to..)?);
    Some(bytes)
}
