//! Trace files by path: what the writers and readers need of the file system, in one place.
//!
//! - Purpose: implement the opener traits on `std::fs`, name the files, put the sinks of a configuration
//!   together.
//! - Invariants: I-FIL-1 an existing segment is never opened for writing; I-FIL-2 the companion of a main file
//!   is not matched by the glob that finds the main file's segments (`PREFIX.*.jsonl.gz`).
//! - Deliberately absent: deletion of old files, locks between processes (a plain file is appended to by one
//!   process; segments are made with create-new, so several processes may share a prefix).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use tandem_types::Time;

use crate::config::{FileFormat, SinkKind, TraceConfig};
use crate::writer::{
    AppendOpener, Appended, BareWriter, Fanout, GzSegmentWriter, JsonlWriter, SegmentFactory, SinkError,
    Stream,
};

/// Appends to one path.
#[derive(Debug, Clone)]
pub struct AppendPath(pub PathBuf);

impl AppendOpener for AppendPath {
    type File = File;

    fn open(&mut self) -> io::Result<Appended<File>> {
        make_parent(&self.0)?;
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(&self.0)?;
        let at_line_start = ends_a_line(&mut file);
        Ok(Appended { file, at_line_start })
    }
}

/// Whether a file is empty or ends in a line feed. A pipe or device cannot tell and counts as such.
fn ends_a_line(file: &mut File) -> bool {
    let mut last = [0u8; 1];
    match file.seek(SeekFrom::End(-1)).and_then(|_| file.read(&mut last)) {
        Ok(1) => last == [b'\n'],
        _ => true,
    }
}

/// Numbered segments `PREFIX.NNNNNN.jsonl.gz`.
#[derive(Debug, Clone)]
pub struct SegmentPath(pub PathBuf);

impl SegmentPath {
    /// The path of one segment.
    #[must_use]
    pub fn segment(&self, index: u64) -> PathBuf {
        let mut name = self.0.clone().into_os_string();
        name.push(format!(".{index:06}.jsonl.gz"));
        PathBuf::from(name)
    }

    /// Segments that are there, in order of their index.
    ///
    /// # Errors
    /// Whatever the operating system says; a folder that is not there holds none.
    pub fn existing(&self) -> io::Result<Vec<(u64, PathBuf)>> {
        let folder = match self.0.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let Some(stem) = self.0.file_name().and_then(|name| name.to_str()) else { return Ok(Vec::new()) };
        let entries = match fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut found = Vec::new();
        for entry in entries {
            let name = entry?.file_name();
            let index = name
                .to_str()
                .and_then(|name| name.strip_prefix(stem)?.strip_prefix('.')?.strip_suffix(".jsonl.gz"))
                .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
                .and_then(|digits| digits.parse().ok());
            found.extend(index.map(|index| (index, folder.join(&name))));
        }
        found.sort();
        Ok(found)
    }
}

impl SegmentFactory for SegmentPath {
    type File = File;

    fn first_free(&mut self) -> io::Result<u64> {
        Ok(self.existing()?.last().map_or(0, |(index, _)| index.saturating_add(1)))
    }

    fn create_new(&mut self, index: u64) -> io::Result<File> {
        let path = self.segment(index);
        make_parent(&path)?;
        OpenOptions::new().write(true).create_new(true).open(path)
    }
}

fn make_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => fs::create_dir_all(parent),
        _ => Ok(()),
    }
}

/// Where the companion lies: `-tandem` goes before the extension, if there is one (`trace.jsonl` and
/// `trace-tandem.jsonl`; segments of `PREFIX` and of `PREFIX-tandem`).
#[must_use]
pub fn companion_path(path: &Path) -> PathBuf {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let companion = match name.rsplit_once('.') {
        Some((stem, extension)) if !stem.is_empty() => format!("{stem}-tandem.{extension}"),
        _ => format!("{name}-tandem"),
    };
    path.with_file_name(companion)
}

/// Files of a trace that are there: main files in order, then companion files in order.
///
/// # Errors
/// Whatever the operating system says.
pub fn existing_files(path: &Path, format: FileFormat) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for base in [path.to_owned(), companion_path(path)] {
        match format {
            FileFormat::Jsonl => found.extend(base.exists().then_some(base)),
            FileFormat::JsonlGz => {
                found.extend(SegmentPath(base).existing()?.into_iter().map(|(_, segment)| segment));
            }
        }
    }
    Ok(found)
}

/// The sinks that `config` asks for and that this crate has: files and the error stream. Files are opened at
/// once, so that a wrong path is known at start. An OTLP sink is for the caller to add.
///
/// # Errors
/// [`SinkError`] with the path in its message when a file cannot be opened.
pub fn open_sinks(
    config: &TraceConfig,
    started: Time,
    stderr: Box<dyn Write + Send>,
) -> Result<Fanout, SinkError> {
    let mut fanout = Fanout::new(config.rows);
    let mut stderr = Some(stderr);
    for kind in &config.sinks {
        match kind {
            SinkKind::File => {
                open_file(&mut fanout, Stream::Main, config, &config.path, started)?;
                let companion = companion_path(&config.path);
                open_file(&mut fanout, Stream::Companion, config, &companion, started)?;
            }
            SinkKind::Stderr => {
                if let Some(stream) = stderr.take() {
                    fanout.add(Stream::Both, Box::new(BareWriter::new(stream, "stderr")));
                }
            }
            SinkKind::Otel => {}
        }
    }
    Ok(fanout)
}

fn open_file(
    fanout: &mut Fanout,
    stream: Stream,
    config: &TraceConfig,
    path: &Path,
    started: Time,
) -> Result<(), SinkError> {
    let writer = config.writer();
    let named = |mut error: SinkError| {
        error.message = format!("{}: {}", path.display(), error.message);
        error
    };
    match config.format {
        FileFormat::Jsonl => {
            let mut sink = JsonlWriter::new(AppendPath(path.to_owned()), writer, started);
            sink.open().map_err(named)?;
            fanout.add(stream, Box::new(sink));
        }
        FileFormat::JsonlGz => {
            let mut sink = GzSegmentWriter::new(SegmentPath(path.to_owned()), writer, started);
            sink.open().map_err(named)?;
            fanout.add(stream, Box::new(sink));
        }
    }
    Ok(())
}
