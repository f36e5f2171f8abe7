//! The file in which programs are kept: one `redb` database.
//!
//! - Purpose: what was written is there after `kill -9`; what is broken is found when it is opened, not when it is used.
//! - Inputs: batches of changes. Outputs: all that is kept, the longest quiet program first.
//! - I-STF-1 a batch is there whole or not at all. I-STF-2 never more programs, and never more bytes of keys and values,
//!   than the limits say: the longest quiet ones leave first; nothing stays that was quiet for longer than the limit.
//!   I-STF-3 one process at a time has the file open. I-STF-4 a file that cannot be read, or that another version wrote in another form, is
//!   set aside under another name and not used; the one that was set aside before is replaced.
//! - Deliberately absent: what the values mean ([`super::value`]), threads ([`super::writer`]).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use redb::{Database, DatabaseError, ReadableDatabase as _, ReadableTable as _, TableDefinition};

use super::value;

/// Rises when a file of the version before cannot be read as it is, or one of this version not by that.
const FORMAT: u32 = 1;

/// Keys and values of programs.
const PROGRAMS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("programs");
/// The file's own format, and what was learned of harnesses and models.
const ABOUT: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("about");

const FORMAT_KEY: &str = "format";
const LEARNED_KEY: &str = "learned";

/// Memory for pages of the file. All that is read twice is the path to a program's value.
const CACHE_BYTES: usize = 16 << 20;

const FILE: &str = "sessions.redb";
const ASIDE: &str = "sessions.redb.aside";

/// Bounds of what is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    /// Programs.
    pub(super) programs: usize,
    /// Bytes of keys and values.
    pub(super) bytes: u64,
    /// How long a program may be quiet, in milliseconds.
    pub(super) idle_ms: u64,
}

/// A change of what is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    /// A program was active.
    Put { key: Vec<u8>, value: Vec<u8> },
    /// A program is over.
    Remove { key: Vec<u8> },
    /// What was learned of harnesses and models.
    Learned(Vec<u8>),
}

/// Why there is no store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Somebody else has it.
    #[error("{} is in use by another process: give each gateway a directory of its own", .0.display())]
    InUse(PathBuf),
    /// The directory or the file.
    #[error("cannot use {}: {source}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The database.
    #[error("cannot use {}: {why}", path.display())]
    Database {
        /// Which.
        path: PathBuf,
        /// Why.
        why: String,
    },
}

/// Why a file is of no use.
enum Unusable {
    /// It says nothing that can be trusted.
    Broken(String),
    /// It may be good, but not now and not for us.
    Refused(OpenError),
}

/// A batch could not be written.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(super) struct WriteError(#[from] redb::Error);

macro_rules! from_redb {
    ($($error:ident),*) => {
        $(impl From<redb::$error> for WriteError {
            fn from(error: redb::$error) -> Self {
                Self(error.into())
            }
        })*
    };
}
from_redb!(TransactionError, TableError, StorageError, CommitError, SetDurabilityError);

/// What is kept, and its order.
#[derive(Debug)]
pub(super) struct Store {
    database: Database,
    limits: Limits,
    /// Last sign of life and bytes of each program.
    known: BTreeMap<Vec<u8>, (u64, u64)>,
    by_age: BTreeSet<(u64, Vec<u8>)>,
    bytes: u64,
}

impl Store {
    /// Opens the store of a directory, which is made if need be. A file that cannot be used is set aside; the text says
    /// why.
    pub(super) fn open(folder: &Path, limits: Limits) -> Result<(Self, Option<String>), OpenError> {
        let of = |path: &Path| {
            let path = path.to_owned();
            move |source| OpenError::Io { path, source }
        };
        fs::create_dir_all(folder).map_err(of(folder))?;
        let (path, aside) = (folder.join(FILE), folder.join(ASIDE));
        match Self::read(&path, limits) {
            Ok(store) => Ok((store, None)),
            Err(Unusable::Refused(error)) => Err(error),
            Err(Unusable::Broken(why)) => {
                fs::rename(&path, &aside).map_err(of(&path))?;
                match Self::read(&path, limits) {
                    Ok(store) => Ok((store, Some(format!("{why}; it is now {}", aside.display())))),
                    Err(Unusable::Refused(error)) => Err(error),
                    Err(Unusable::Broken(why)) => Err(OpenError::Database { path, why }),
                }
            }
        }
    }

    fn read(path: &Path, limits: Limits) -> Result<Self, Unusable> {
        // Checked whole: a page that was spoilt from outside would else be noticed when it is used, if ever.
        let opening = std::panic::AssertUnwindSafe(|| {
            let mut builder = Database::builder();
            builder.set_cache_size(CACHE_BYTES).set_check_integrity_on_open(true);
            builder.create(path).map(|database| Self::new(database, limits))
        });
        // The library says of itself that it may panic on files that were changed from outside.
        let opened = std::panic::catch_unwind(opening)
            .map_err(|_| Unusable::Broken(format!("{} is damaged", path.display())))?;
        match opened {
            Ok(read) => read.map_err(|why| Unusable::Broken(format!("{} {why}", path.display()))),
            Err(DatabaseError::DatabaseAlreadyOpen | DatabaseError::LockProtocolMismatch) => {
                Err(Unusable::Refused(OpenError::InUse(path.to_owned())))
            }
            Err(DatabaseError::Storage(redb::StorageError::Io(source))) if !is_of_content(source.kind()) => {
                Err(Unusable::Refused(OpenError::Io { path: path.to_owned(), source }))
            }
            Err(DatabaseError::UpgradeRequired(version)) => {
                Err(Unusable::Broken(format!("{} is of database format {version}", path.display())))
            }
            Err(error) => Err(Unusable::Broken(format!("{} is damaged ({error})", path.display()))),
        }
    }

    /// The same on another backend.
    #[cfg(test)]
    pub(super) fn on(backend: impl redb::StorageBackend, limits: Limits) -> Result<Self, String> {
        let database = Database::builder().create_with_backend(backend).map_err(|error| error.to_string())?;
        Self::new(database, limits)
    }

    fn new(database: Database, limits: Limits) -> Result<Self, String> {
        let mut store = Self { database, limits, known: BTreeMap::new(), by_age: BTreeSet::new(), bytes: 0 };
        let fail = |error: WriteError| format!("cannot be read ({error})");
        match store.format().map_err(fail)? {
            None => store.begin().map_err(fail)?,
            Some(format) if format != FORMAT => {
                return Err(format!(
                    "was written by another version (format {format}, this one reads {FORMAT})"
                ));
            }
            Some(_) => store.survey().map_err(fail)?,
        }
        Ok(store)
    }

    /// The file's format; `None` = it is new.
    fn format(&self) -> Result<Option<u32>, WriteError> {
        let read = self.database.begin_read()?;
        let table = match read.open_table(ABOUT) {
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(None),
            table => table?,
        };
        let value = table.get(FORMAT_KEY)?;
        let bytes = value.as_ref().and_then(|value| value.value().first_chunk().copied());
        Ok(Some(bytes.map_or(u32::MAX, u32::from_le_bytes)))
    }

    fn begin(&self) -> Result<(), WriteError> {
        let write = self.database.begin_write()?;
        write.open_table(ABOUT)?.insert(FORMAT_KEY, &FORMAT.to_le_bytes()[..])?;
        write.open_table(PROGRAMS)?;
        Ok(write.commit()?)
    }

    fn survey(&mut self) -> Result<(), WriteError> {
        let read = self.database.begin_read()?;
        for entry in read.open_table(PROGRAMS)?.iter()? {
            let (key, bytes) = entry?;
            let (key, bytes) = (key.value(), bytes.value());
            self.note(key, value::last_ms(bytes).unwrap_or(0), bytes.len());
        }
        Ok(())
    }

    fn note(&mut self, key: &[u8], last_ms: u64, value: usize) {
        self.forget(key);
        let bytes = (key.len() + value) as u64;
        self.bytes += bytes;
        self.by_age.insert((last_ms, key.to_vec()));
        self.known.insert(key.to_vec(), (last_ms, bytes));
    }

    fn forget(&mut self, key: &[u8]) -> bool {
        let Some((last_ms, bytes)) = self.known.remove(key) else { return false };
        self.by_age.remove(&(last_ms, key.to_vec()));
        self.bytes -= bytes;
        true
    }

    /// Programs kept.
    pub(super) fn programs(&self) -> usize {
        self.known.len()
    }

    /// Bytes of their keys and values.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// All keys.
    pub(super) fn keys(&self) -> Vec<Vec<u8>> {
        self.known.keys().cloned().collect()
    }

    /// What was learned of harnesses and models.
    pub(super) fn learned(&self) -> Result<Option<Vec<u8>>, WriteError> {
        let read = self.database.begin_read()?;
        Ok(read.open_table(ABOUT)?.get(LEARNED_KEY)?.map(|value| value.value().to_vec()))
    }

    /// Hands out all that is kept and was not quiet for too long at `now_ms`, the longest quiet program first.
    pub(super) fn each(&self, now_ms: u64, mut take: impl FnMut(&[u8], &[u8])) -> Result<(), WriteError> {
        let read = self.database.begin_read()?;
        let table = read.open_table(PROGRAMS)?;
        let oldest = (now_ms.saturating_sub(self.limits.idle_ms), Vec::new());
        for (_, key) in self.by_age.range(oldest..) {
            if let Some(value) = table.get(&**key)? {
                take(key, value.value());
            }
        }
        Ok(())
    }

    /// Writes a batch, and takes out what has no place any more. The number taken out beside what the batch says.
    pub(super) fn write(&mut self, batch: &[Change], now_ms: u64) -> Result<usize, WriteError> {
        let write = self.database.begin_write()?;
        let mut surplus = 0;
        {
            let mut programs = write.open_table(PROGRAMS)?;
            for change in batch {
                match change {
                    Change::Put { key, value } => {
                        programs.insert(&**key, &**value)?;
                        self.note(key, value::last_ms(value).unwrap_or(0), value.len());
                    }
                    Change::Remove { key } => {
                        if self.forget(key) {
                            programs.remove(&**key)?;
                        }
                    }
                    Change::Learned(learned) => {
                        write.open_table(ABOUT)?.insert(LEARNED_KEY, &**learned)?;
                    }
                }
            }
            let oldest = now_ms.saturating_sub(self.limits.idle_ms);
            while let Some((last_ms, key)) = self.by_age.first().cloned() {
                let room = self.known.len() <= self.limits.programs && self.bytes <= self.limits.bytes;
                if room && last_ms >= oldest {
                    break;
                }
                self.forget(&key);
                programs.remove(&*key)?;
                surplus += 1;
            }
        }
        write.commit()?;
        Ok(surplus)
    }

    /// Whether [`Self::write`] would take something out at this time.
    pub(super) fn is_overdue(&self, now_ms: u64) -> bool {
        let oldest = now_ms.saturating_sub(self.limits.idle_ms);
        self.by_age.first().is_some_and(|(last_ms, _)| *last_ms < oldest)
    }
}

/// Whether such an error is about what the file says, not about whether it can be reached.
const fn is_of_content(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidInput)
}

#[cfg(test)]
#[path = "store_tests.rs"]
pub(crate) mod tests;
