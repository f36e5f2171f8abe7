//! The file: what is in it afterwards, and what becomes of it when it is spoilt.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redb::backends::InMemoryBackend;

use super::*;

pub(crate) const LIMITS: Limits = Limits { programs: 100, bytes: 1 << 20, idle_ms: 10_000 };

pub(crate) fn put(name: &str, last_ms: u64, bytes: usize) -> Change {
    let mut value = last_ms.to_le_bytes().to_vec();
    value.resize(8 + bytes, 7);
    Change::Put { key: name.as_bytes().to_vec(), value }
}

fn remove(name: &str) -> Change {
    Change::Remove { key: name.as_bytes().to_vec() }
}

fn open(folder: &Path, limits: Limits) -> (Store, Option<String>) {
    Store::open(folder, limits).expect("opens")
}

fn names(store: &Store, now_ms: u64) -> Vec<String> {
    let mut names = Vec::new();
    store.each(now_ms, |key, _| names.push(String::from_utf8(key.to_vec()).unwrap())).unwrap();
    names
}

/// A backend that fails when told to.
#[derive(Debug)]
pub(crate) struct Failing {
    inner: InMemoryBackend,
    pub(crate) full: Arc<AtomicBool>,
}

impl Failing {
    pub(crate) fn new() -> (Self, Arc<AtomicBool>) {
        let full = Arc::new(AtomicBool::new(false));
        (Self { inner: InMemoryBackend::new(), full: Arc::clone(&full) }, full)
    }

    fn room(&self) -> Result<(), io::Error> {
        if self.full.load(Ordering::Relaxed) {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        Ok(())
    }
}

impl redb::StorageBackend for Failing {
    fn len(&self) -> Result<u64, io::Error> {
        self.inner.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), io::Error> {
        self.inner.read(offset, out)
    }

    fn set_len(&self, len: u64) -> Result<(), io::Error> {
        self.room()?;
        self.inner.set_len(len)
    }

    fn sync_data(&self) -> Result<(), io::Error> {
        self.room()?;
        self.inner.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), io::Error> {
        self.room()?;
        self.inner.write(offset, data)
    }
}

#[test]
fn what_was_written_is_there_again_oldest_first() {
    let folder = tempfile::tempdir().unwrap();
    let (mut store, aside) = open(folder.path(), LIMITS);
    assert_eq!(aside, None);
    store.write(&[put("b", 5, 10), put("a", 3, 10), put("c", 4, 10)], 5).unwrap();
    store.write(&[put("a", 6, 30), remove("c"), Change::Learned(vec![1, 2])], 6).unwrap();
    let bytes = store.bytes();
    drop(store);
    let (store, aside) = open(folder.path(), LIMITS);
    assert_eq!((names(&store, 6), aside), (vec!["b".to_owned(), "a".to_owned()], None));
    assert_eq!((store.bytes(), bytes), (1 + 18 + 1 + 38, 58));
    assert_eq!(store.learned().unwrap(), Some(vec![1, 2]));
}

/// I-STF-2.
#[test]
fn what_has_no_room_or_was_quiet_too_long_leaves_the_oldest_first() {
    let few = Limits { programs: 2, ..LIMITS };
    let small = Limits { bytes: 60, ..LIMITS };
    for limits in [few, small] {
        let folder = tempfile::tempdir().unwrap();
        let (mut store, _) = open(folder.path(), limits);
        let gone = store.write(&[put("c", 3, 16), put("a", 1, 16), put("b", 2, 16)], 5).unwrap();
        assert_eq!((gone, names(&store, 5)), (1, vec!["b".to_owned(), "c".to_owned()]));
        drop(store);
        let (mut store, _) = open(folder.path(), limits);
        assert_eq!(names(&store, 5), ["b", "c"]);
        // 10 seconds of quiet.
        assert_eq!(names(&store, 10_003), ["c"]);
        assert!(!store.is_overdue(10_002) && store.is_overdue(10_003));
        assert_eq!(store.write(&[], 10_003).unwrap(), 1);
        assert_eq!((names(&store, 5), store.programs(), store.bytes()), (vec!["c".to_owned()], 1, 25));
    }
}

/// I-STF-3.
#[test]
fn a_file_has_one_user() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = open(folder.path(), LIMITS);
    let error = Store::open(folder.path(), LIMITS).expect_err("in use");
    assert!(error.to_string().contains("in use by another process"), "{error}");
    drop(store);
    open(folder.path(), LIMITS);
}

/// I-STF-4: nothing of it is used, and it can be looked at.
#[test]
fn a_file_that_is_spoilt_is_set_aside() {
    type Spoil = fn(&mut Vec<u8>);
    let spoil: [(&str, Spoil); 5] = [
        ("other text", |bytes| *bytes = b"something else".to_vec()),
        ("cut", |bytes| bytes.truncate(bytes.len() / 2)),
        ("cut to nothing", |bytes| bytes.truncate(100)),
        ("a byte of a value", |bytes| {
            let at = bytes.windows(40).rposition(|window| window == [7; 40]).expect("a value");
            bytes[at] ^= 1;
        }),
        ("zeroes", |bytes| bytes.iter_mut().skip(4096).for_each(|byte| *byte = 0)),
    ];
    for (how, spoil) in spoil {
        let folder = tempfile::tempdir().unwrap();
        let (mut store, _) = open(folder.path(), LIMITS);
        store.write(&[put("a", 1, 2000), put("b", 2, 50)], 5).unwrap();
        drop(store);
        let path = folder.path().join(FILE);
        let mut bytes = fs::read(&path).unwrap();
        spoil(&mut bytes);
        fs::write(&path, &bytes).unwrap();
        let (mut store, aside) = open(folder.path(), LIMITS);
        assert!(aside.as_ref().is_some_and(|why| why.contains(ASIDE)), "{how}: {aside:?}");
        assert_eq!(store.programs(), 0, "{how}");
        assert_eq!(fs::read(folder.path().join(ASIDE)).unwrap().len(), bytes.len(), "{how}");
        store.write(&[put("c", 3, 5)], 5).unwrap();
        drop(store);
        assert_eq!(names(&open(folder.path(), LIMITS).0, 5), ["c"], "{how}");
    }
}

/// I-STF-4.
#[test]
fn a_newer_versions_file_is_set_aside() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = open(folder.path(), LIMITS);
    let write = store.database.begin_write().unwrap();
    write.open_table(ABOUT).unwrap().insert(FORMAT_KEY, &(FORMAT + 1).to_le_bytes()[..]).unwrap();
    write.commit().unwrap();
    drop(store);
    let (store, aside) = open(folder.path(), LIMITS);
    assert!(aside.is_some_and(|why| why.contains("another version")) && store.programs() == 0);
}

#[test]
fn a_folder_that_cannot_be_used_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "x").unwrap();
    let error = Store::open(&file.join("state"), LIMITS).expect_err("no folder");
    assert!(error.to_string().contains("file/state"), "{error}");
}

/// I-STF-1.
#[test]
fn a_full_disk_is_an_error_and_leaves_what_was_written() {
    let (backend, full) = Failing::new();
    let mut store = Store::on(backend, LIMITS).unwrap();
    store.write(&[put("a", 1, 10)], 5).unwrap();
    full.store(true, Ordering::Relaxed);
    let batch: Vec<Change> = (0..50).map(|number| put(&format!("n{number}"), 2, 5000)).collect();
    assert!(store.write(&batch, 5).is_err());
}

/// What is kept of a session with a hundred segments, as agents have after some thirty turns.
fn grown(key: &tandem_types::ProgramKey) -> value::Record {
    use tandem_lineage::{Arriving, Ended, Lineage, LineageConfig, outline};
    use tandem_types::{Dialect, EngineKind, Harness, Time, Usage};

    let part = |part: usize| format!(r#"{{"role":"user","content":"part {part}"}}"#);
    let parts: Vec<String> = (0..99).map(part).collect();
    let text = format!(r#"{{"model":"m","messages":[{}]}}"#, parts.join(","));
    let outline = outline(Dialect::Chat, EngineKind::Vllm, text.as_bytes()).unwrap();
    assert_eq!(outline.segments().len(), 100);
    let harness = Harness::Unknown;
    let arriving = Arriving { outline: &outline, tokens: None, harness, compacted: false, side: false };
    let usage = Usage { input_tokens: 40_000, output_tokens: 300, ..Usage::default() };
    let (usage, block_size) = (Some(usage), Some(16));
    let ended = Ended { usage, tool_calls: &[], answer: None, block_size, text: None, lost: false };
    let mut lineage = Lineage::new(LineageConfig::default());
    let ticket = lineage.arrived(key, &arriving, Time(1)).ticket;
    lineage.ended(ticket, &ended, Time(1));
    value::Record {
        parent: None,
        group: None,
        home: Some(value::Place { engine: "http://gpu-12:8000".to_owned(), rank: 3 }),
        prefill: None,
        turns_dispatched: 30,
        turns_finished: 30,
        known_tokens: 40_300,
        ended_with_tools: true,
        stopped: false,
        outlines: tandem_lineage::OUTLINES_VERSION,
        lineage: lineage.remembered(key),
    }
}

/// Time and bytes of a hundred thousand sessions.
#[test]
#[ignore = "measures"]
fn a_hundred_thousand_sessions() {
    use std::time::Instant;

    use tandem_lineage::{Lineage, LineageConfig};
    use tandem_types::Time;

    const SESSIONS: usize = 100_000;
    let limits = Limits { programs: SESSIONS, bytes: u64::MAX, idle_ms: u64::MAX };
    let folder = tempfile::tempdir().unwrap();
    let (mut store, _) = open(folder.path(), limits);
    let name = |number: usize| format!("tenant\0session-{number:032}").into_bytes();
    let record = grown(&value::program(&name(0)).unwrap());
    let began = Instant::now();
    for batch in 0..SESSIONS.div_ceil(512) {
        let numbers = batch * 512..SESSIONS.min((batch + 1) * 512);
        let put = |number| {
            let value = value::encode(number as u64, &record).unwrap();
            Change::Put { key: name(number), value }
        };
        store.write(&numbers.map(put).collect::<Vec<_>>(), 0).unwrap();
    }
    let (written, bytes) = (began.elapsed(), store.bytes());
    // As after a kill: nothing is closed.
    let copy = folder.path().join("copy");
    fs::create_dir(&copy).unwrap();
    fs::copy(folder.path().join(FILE), copy.join(FILE)).unwrap();
    let file = fs::metadata(copy.join(FILE)).unwrap().len();
    let began = Instant::now();
    let (store, aside) = open(&copy, limits);
    let opened = began.elapsed();
    let mut lineage = Lineage::new(LineageConfig { segments_max: usize::MAX, ..LineageConfig::default() });
    let take = |key: &[u8], bytes: &[u8]| {
        let known = value::decode(bytes).unwrap().lineage.unwrap();
        lineage.remember(&value::program(key).unwrap(), known, Time(1));
    };
    store.each(0, take).unwrap();
    assert_eq!((lineage.programs(), aside), (SESSIONS, None));
    println!(
        "bytes per session {}, file {} MiB, written in {written:?}, opened in {opened:?}, restored in {:?}",
        bytes / SESSIONS as u64,
        file >> 20,
        began.elapsed()
    );
}
