//! Lines of a file, with their places, in bounded memory.

use std::io::{self, BufRead};

use super::ReadOptions;
use super::members::{Chunk, Members};
use super::report::Problem;
use super::rows;

const CHUNK_BYTES: usize = 64 * 1024;

/// Length at which a line's type is looked at, to know whether to hold the rest.
const PEEK_BYTES: usize = 64 * 1024;

/// A buffer larger than this is not kept for the next line.
const KEPT_BYTES: usize = 1 << 20;

/// One line, or the part of it that is worth holding.
#[derive(Debug, Default)]
pub(super) struct Line {
    pub(super) bytes: Vec<u8>,
    /// Its length in the file, without the line end.
    pub(super) length: u64,
    /// Its number, from 1.
    pub(super) number: u64,
    /// The gzip member in which it starts.
    pub(super) member: Option<u32>,
    pub(super) held: Held,
    /// Nothing ended it but the end of the file.
    pub(super) unended: bool,
}

/// How much of a line is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Held {
    /// All.
    #[default]
    Whole,
    /// Its head: its type makes it one to step over.
    SteppedOver,
    /// Its head: it is too long.
    TooLong,
}

/// Next thing of a file.
#[derive(Debug)]
pub(super) enum Piece {
    Line(Line),
    Damage { member: Option<u32>, problem: Problem },
    End,
}

#[derive(Debug)]
pub(super) struct Lines<R> {
    members: Members<R>,
    options: ReadOptions,
    chunk: Box<[u8]>,
    /// Unread part of `chunk`.
    at: usize,
    end: usize,
    member: Option<u32>,
    line: Line,
    lines: u64,
    begun: bool,
    damage: Option<(Option<u32>, Problem)>,
    over: bool,
}

impl<R: BufRead> Lines<R> {
    pub(super) fn new(input: R, options: ReadOptions) -> Self {
        Self {
            members: Members::new(input),
            options,
            chunk: vec![0; CHUNK_BYTES].into_boxed_slice(),
            at: 0,
            end: 0,
            member: None,
            line: Line::default(),
            lines: 0,
            begun: false,
            damage: None,
            over: false,
        }
    }

    /// Takes a buffer back for the next line.
    pub(super) fn give_back(&mut self, line: Line) {
        if self.line.bytes.capacity() == 0 && line.bytes.capacity() <= KEPT_BYTES {
            self.line.bytes = line.bytes;
            self.line.bytes.clear();
        }
    }

    pub(super) fn next_piece(&mut self) -> io::Result<Piece> {
        loop {
            if let Some((member, problem)) = self.damage.take() {
                return Ok(Piece::Damage { member, problem });
            }
            if self.at < self.end {
                if let Some(line) = self.take_from_chunk() {
                    return Ok(Piece::Line(line));
                }
                continue;
            }
            if self.over {
                return Ok(Piece::End);
            }
            match self.members.next_chunk(&mut self.chunk)? {
                Chunk::Bytes { count, member } => {
                    (self.at, self.end, self.member) = (0, count.min(self.chunk.len()), member);
                }
                Chunk::Damage { member, problem } => {
                    self.damage = Some((member, problem));
                    // What was begun before the break is used only if it is whole.
                    if let Some(line) = self.end_line(true).filter(is_whole) {
                        return Ok(Piece::Line(line));
                    }
                }
                Chunk::End => {
                    self.over = true;
                    if let Some(line) = self.end_line(true) {
                        return Ok(Piece::Line(line));
                    }
                }
            }
        }
    }

    /// Moves bytes up to the next line end out of the chunk; gives the line if it ends there.
    fn take_from_chunk(&mut self) -> Option<Line> {
        let bytes = self.chunk.get(self.at..self.end).unwrap_or(&[]);
        let newline = bytes.iter().position(|byte| *byte == b'\n');
        let part = bytes.get(..newline.unwrap_or(bytes.len())).unwrap_or(&[]);
        if !self.begun {
            self.begun = true;
            self.lines += 1;
            self.line.number = self.lines;
            self.line.member = self.member;
        }
        hold(&mut self.line, part, &self.options);
        self.at += part.len() + usize::from(newline.is_some());
        newline.and_then(|_| self.end_line(false))
    }

    fn end_line(&mut self, unended: bool) -> Option<Line> {
        if !std::mem::take(&mut self.begun) {
            return None;
        }
        let mut line = std::mem::take(&mut self.line);
        line.unended = unended;
        if line.number == 1 && line.bytes.starts_with(b"\xef\xbb\xbf") {
            line.bytes.drain(..3);
        }
        Some(line)
    }
}

fn is_whole(line: &Line) -> bool {
    line.held == Held::Whole && serde_json::from_slice::<serde::de::IgnoredAny>(&line.bytes).is_ok()
}

fn hold(line: &mut Line, part: &[u8], options: &ReadOptions) {
    let before = line.bytes.len();
    line.length += u64::try_from(part.len()).unwrap_or(u64::MAX);
    if line.held != Held::Whole {
        return;
    }
    if before + part.len() > options.line_bytes_max {
        line.held = Held::TooLong;
        let room = PEEK_BYTES.min(options.line_bytes_max).saturating_sub(before);
        line.bytes.extend_from_slice(part.get(..room.min(part.len())).unwrap_or(part));
        line.bytes.truncate(PEEK_BYTES);
    } else {
        line.bytes.extend_from_slice(part);
    }
    let passed = before < PEEK_BYTES && line.bytes.len() >= PEEK_BYTES;
    if (passed || line.held == Held::TooLong) && rows::is_stepped_over(&line.bytes, options.payloads) {
        line.held = Held::SteppedOver;
        line.bytes.truncate(PEEK_BYTES);
    }
    if line.held != Held::Whole {
        line.bytes.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_is_stepped_over_is_not_held() {
        let head =
            r#"{"timestamp":5,"event":{"schema":"dynamo.request.trace.v1","event_type":"request_payload","#;
        let text = format!("{head}\"payload\":\"{}\"}}}}\n{{}}\n", "x".repeat(20 << 20));
        let mut lines = Lines::new(text.as_bytes(), ReadOptions::default());
        let Ok(Piece::Line(line)) = lines.next_piece() else { panic!("a line") };
        assert_eq!((line.held, line.length), (Held::SteppedOver, text.len() as u64 - 4));
        assert!(line.bytes.capacity() <= 4 * PEEK_BYTES, "{} bytes held", line.bytes.capacity());
        let held_whole = ReadOptions { payloads: true, ..ReadOptions::default() };
        let mut lines = Lines::new(text.as_bytes(), held_whole);
        assert!(matches!(lines.next_piece(), Ok(Piece::Line(line)) if line.bytes.len() > 20 << 20));
        assert!(
            matches!(lines.next_piece(), Ok(Piece::Line(line)) if line.bytes == b"{}" && line.number == 2)
        );
    }
}
