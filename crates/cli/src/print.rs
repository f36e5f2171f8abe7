//! What commands print.
//!
//! - Invariants: I-PRN-1 a reader that went away (`tandem config schema | head -1`) is no error and never a
//!   panic: the command goes on to its end and keeps its exit code; I-PRN-2 any other failure to write data is
//!   an error, so that a full disk does not pass for a whole output.

use std::io::{self, Write as _};

use anyhow::Context as _;

/// Whether anybody reads what is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reader {
    /// As far as anybody can tell.
    There,
    /// It closed its end.
    Gone,
}

/// Writes data to stdout at once.
pub(crate) fn data(text: &str) -> anyhow::Result<Reader> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(Reader::There),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Reader::Gone),
        Err(error) => Err(error).context("writing to stdout"),
    }
}

/// [`data`], with a line's end.
pub(crate) fn line(text: &str) -> anyhow::Result<Reader> {
    data(&format!("{text}\n"))
}

/// Says something to a person, on stderr. Nobody is left to be told when that fails.
pub(crate) fn note(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}
