//! Trace files by path: what the writers and readers need of the file system, in one place.
//!
//! - Purpose: implement the opener traits on `std::fs`, name the files, put the sinks of a configuration
//!   together.
//! - Invariants: I-FIL-1 an existing segment is never opened for writing; I-FIL-2 companions do not end in
//!   `.jsonl` or `.jsonl.gz`, since tools take every such file of a folder for a trace, and would refuse these.
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

/// Numbered segments of one prefix.
#[derive(Debug, Clone)]
pub struct SegmentPath {
    prefix: PathBuf,
    ending: &'static str,
}

impl SegmentPath {
    /// Segments of the main stream: `PREFIX.NNNNNN.jsonl.gz`.
    #[must_use]
    pub const fn main(prefix: PathBuf) -> Self {
        Self { prefix, ending: ".jsonl.gz" }
    }

    /// Segments of the companion: `PREFIX.NNNNNN.jsonl.tandem.gz`.
    #[must_use]
    pub const fn companion(prefix: PathBuf) -> Self {
        Self { prefix, ending: ".jsonl.tandem.gz" }
    }

    /// The path of one segment.
    #[must_use]
    pub fn segment(&self, index: u64) -> PathBuf {
        let mut name = self.prefix.clone().into_os_string();
        name.push(format!(".{index:06}{}", self.ending));
        PathBuf::from(name)
    }

    /// Segments that are there, in order of their index.
    ///
    /// # Errors
    /// Whatever the operating system says; a folder that is not there holds none.
    pub fn existing(&self) -> io::Result<Vec<(u64, PathBuf)>> {
        let folder = match self.prefix.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let Some(stem) = self.prefix.file_name().and_then(|name| name.to_str()) else {
            return Ok(Vec::new());
        };
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
                .and_then(|name| name.strip_prefix(stem)?.strip_prefix('.')?.strip_suffix(self.ending))
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

/// The companion of a plain file: `.tandem` is put after its whole name (`trace.jsonl.tandem`).
#[must_use]
pub fn companion_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".tandem");
    PathBuf::from(name)
}

/// Files of a trace that are there: main files in order, then companion files in order.
///
/// # Errors
/// Whatever the operating system says.
pub fn existing_files(path: &Path, format: FileFormat) -> io::Result<Vec<PathBuf>> {
    match format {
        FileFormat::Jsonl => {
            Ok([path.to_owned(), companion_path(path)].into_iter().filter(|file| file.exists()).collect())
        }
        FileFormat::JsonlGz => {
            let mut found = SegmentPath::main(path.to_owned()).existing()?;
            found.extend(SegmentPath::companion(path.to_owned()).existing()?);
            Ok(found.into_iter().map(|(_, segment)| segment).collect())
        }
    }
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
                open_file(&mut fanout, Stream::Main, config, started)?;
                open_file(&mut fanout, Stream::Companion, config, started)?;
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
    started: Time,
) -> Result<(), SinkError> {
    let writer = config.writer();
    let named = |mut error: SinkError| {
        error.message = format!("{}: {}", config.path.display(), error.message);
        error
    };
    let main = stream == Stream::Main;
    let path = config.path.clone();
    match config.format {
        FileFormat::Jsonl => {
            let path = if main { path } else { companion_path(&path) };
            let mut sink = JsonlWriter::new(AppendPath(path), writer, started);
            sink.open().map_err(named)?;
            fanout.add(stream, Box::new(sink));
        }
        FileFormat::JsonlGz => {
            let segments = if main { SegmentPath::main(path) } else { SegmentPath::companion(path) };
            let mut sink = GzSegmentWriter::new(segments, writer, started);
            sink.open().map_err(named)?;
            fanout.add(stream, Box::new(sink));
        }
    }
    Ok(())
}
