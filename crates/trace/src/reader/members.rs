//! The text of a file, plain or of its gzip members one after the other, each byte with its member.

use std::io::{self, BufRead, Read};

use flate2::bufread::GzDecoder;

use super::report::Problem;

/// First bytes of a gzip member.
static MAGIC: [u8; 3] = [0x1f, 0x8b, 0x08];

/// An input that remembers its own failures, to tell them from damage of what it holds, and that can take
/// back the bytes by which a member was recognised.
#[derive(Debug)]
pub(super) struct Watched<R> {
    inner: R,
    failed: bool,
    back: &'static [u8],
}

impl<R: BufRead> Watched<R> {
    fn note<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &result
            && error.kind() != io::ErrorKind::Interrupted
        {
            self.failed = true;
        }
        result
    }
}

impl<R: BufRead> Read for Watched<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let count = self.fill_buf()?.read(buf)?;
        self.consume(count);
        Ok(count)
    }
}

impl<R: BufRead> BufRead for Watched<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if !self.back.is_empty() {
            return Ok(self.back);
        }
        if let Err(error) = self.inner.fill_buf() {
            return self.note(Err(error));
        }
        self.inner.fill_buf()
    }

    fn consume(&mut self, count: usize) {
        if self.back.is_empty() {
            self.inner.consume(count);
        } else {
            self.back = self.back.get(count..).unwrap_or(&[]);
        }
    }
}

#[derive(Debug)]
enum State<R> {
    /// Nothing read yet.
    Fresh(Watched<R>),
    Plain(Watched<R>),
    Inside(Box<GzDecoder<Watched<R>>>),
    /// Between members.
    Between(Watched<R>),
    /// Damage met; looks for the next member.
    Searching(Watched<R>),
    Over,
}

/// Next thing of a file.
#[derive(Debug)]
pub(super) enum Chunk {
    /// So many bytes were put into the buffer.
    Bytes { count: usize, member: Option<u32> },
    /// The text is broken here.
    Damage { member: Option<u32>, problem: Problem },
    /// No more.
    End,
}

/// Text of a file.
#[derive(Debug)]
pub(super) struct Members<R> {
    state: State<R>,
    member: u32,
}

impl<R: BufRead> Members<R> {
    pub(super) const fn new(input: R) -> Self {
        Self { state: State::Fresh(Watched { inner: input, failed: false, back: &[] }), member: 0 }
    }

    /// Reads more text into `buffer`, which must not be empty.
    pub(super) fn next_chunk(&mut self, buffer: &mut [u8]) -> io::Result<Chunk> {
        loop {
            match std::mem::replace(&mut self.state, State::Over) {
                State::Over => return Ok(Chunk::End),
                State::Fresh(mut input) => {
                    let known = recognise(&mut input)?;
                    input.back = MAGIC.get(..known).unwrap_or(&[]);
                    // Less than three bytes that fit are a gzip file cut very early.
                    let cut = known > 0 && known < MAGIC.len() && {
                        input.back = &[];
                        let over = fill(&mut input)?.is_empty();
                        input.back = MAGIC.get(..known).unwrap_or(&[]);
                        over
                    };
                    if known == MAGIC.len() || cut {
                        self.enter(input);
                    } else {
                        self.state = State::Plain(input);
                    }
                }
                State::Plain(mut input) => {
                    let count = read(&mut input, buffer)?;
                    if count == 0 {
                        return Ok(Chunk::End);
                    }
                    self.state = State::Plain(input);
                    return Ok(Chunk::Bytes { count, member: None });
                }
                State::Between(mut input) => match fill(&mut input)?.first() {
                    None => return Ok(Chunk::End),
                    Some(&first) if first == MAGIC[0] => self.enter(input),
                    // Tapes and block devices pad with zeros.
                    Some(0) => {
                        let zeros = fill(&mut input)?.iter().take_while(|byte| **byte == 0).count();
                        input.consume(zeros);
                        self.state = State::Between(input);
                    }
                    Some(_) => {
                        self.state = State::Searching(input);
                        return Ok(Chunk::Damage { member: None, problem: Problem::TrailingBytes });
                    }
                },
                State::Searching(mut input) => {
                    if find_member(&mut input)? {
                        self.enter(input);
                    }
                }
                State::Inside(decoder) => {
                    if let Some(chunk) = self.inside(decoder, buffer)? {
                        return Ok(chunk);
                    }
                }
            }
        }
    }

    fn enter(&mut self, input: Watched<R>) {
        self.member = self.member.saturating_add(1);
        self.state = State::Inside(Box::new(GzDecoder::new(input)));
    }

    fn inside(
        &mut self,
        mut decoder: Box<GzDecoder<Watched<R>>>,
        buffer: &mut [u8],
    ) -> io::Result<Option<Chunk>> {
        let member = Some(self.member);
        match read(&mut *decoder, buffer) {
            Ok(0) => {
                self.state = State::Between(decoder.into_inner());
                Ok(None)
            }
            Ok(count) => {
                self.state = State::Inside(decoder);
                Ok(Some(Chunk::Bytes { count, member }))
            }
            Err(error) => {
                let mut input = decoder.into_inner();
                if input.failed {
                    return Err(error);
                }
                let cut = fill(&mut input)?.is_empty() && error.kind() == io::ErrorKind::UnexpectedEof;
                if cut {
                    return Ok(Some(Chunk::Damage { member, problem: Problem::CutMember }));
                }
                self.state = State::Searching(input);
                Ok(Some(Chunk::Damage { member, problem: Problem::DamagedMember }))
            }
        }
    }
}

fn read(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match from.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

fn fill<R: BufRead>(input: &mut Watched<R>) -> io::Result<&[u8]> {
    while let Err(error) = input.fill_buf() {
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    input.fill_buf()
}

/// Takes bytes as long as they fit the start of a member; gives their number.
fn recognise<R: BufRead>(input: &mut Watched<R>) -> io::Result<usize> {
    let mut known = 0;
    while let Some(next) = MAGIC.get(known) {
        if fill(input)?.first() != Some(next) {
            break;
        }
        input.consume(1);
        known += 1;
    }
    Ok(known)
}

/// Goes to what looks like the start of a member.
fn find_member<R: BufRead>(input: &mut Watched<R>) -> io::Result<bool> {
    loop {
        let bytes = fill(input)?;
        if bytes.is_empty() {
            return Ok(false);
        }
        let skip = bytes.iter().position(|byte| *byte == MAGIC[0]).unwrap_or(bytes.len());
        input.consume(skip);
        // No start can begin inside of another: all three bytes differ.
        if recognise(input)? == MAGIC.len() {
            input.back = &MAGIC;
            return Ok(true);
        }
    }
}
