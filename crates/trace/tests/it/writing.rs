//! Writers on a disk that can fail.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flate2::read::MultiGzDecoder;
use tandem_trace::reader::Problem;
use tandem_trace::record::{
    Extras, Loss, OutcomeResult, OwnKind, PayloadRecord, Record, RequestRecord, Rows, TraceStart,
};
use tandem_trace::writer::{
    AppendOpener, Appended, BareWriter, EncodedRow, Fanout, GzSegmentWriter, JsonlWriter, Pushed,
    SegmentFactory, Sink, SinkReport, Stream, Unfit, WriterConfig,
};
use tandem_trace::{OwnEvent, TraceRow};
use tandem_types::{RequestClass, Time};

use crate::{ids, read_all, turn};

/// Files in memory. Writes fail while `broken`, after `room` more bytes.
#[derive(Default)]
struct State {
    files: Vec<(u64, Vec<u8>)>,
    broken: bool,
    room: usize,
    opens: usize,
}

#[derive(Clone, Default)]
struct Disk(Arc<Mutex<State>>);

struct Handle {
    disk: Disk,
    index: u64,
}

impl Disk {
    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.0.lock().expect("no panic holds it"))
    }

    fn break_after(&self, room: usize) {
        self.with(|state| (state.broken, state.room) = (true, room));
    }

    fn mend(&self) {
        self.with(|state| state.broken = false);
    }

    fn text(&self) -> Vec<u8> {
        self.with(|state| state.files.iter().flat_map(|(_, bytes)| bytes.clone()).collect())
    }

    fn files(&self) -> Vec<Vec<u8>> {
        self.with(|state| state.files.iter().map(|(_, bytes)| bytes.clone()).collect())
    }
}

impl Write for Handle {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.disk.with(|state| {
            let mut count = bytes.len().min(1000);
            if state.broken {
                count = count.min(state.room);
                state.room -= count;
                if count == 0 {
                    return Err(io::ErrorKind::StorageFull.into());
                }
            }
            let file = state.files.iter_mut().find(|(index, _)| *index == self.index).expect("made");
            file.1.extend_from_slice(&bytes[..count]);
            Ok(count)
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AppendOpener for Disk {
    type File = Handle;

    fn open(&mut self) -> io::Result<Appended<Handle>> {
        self.with(|state| {
            state.opens += 1;
            if state.files.is_empty() {
                state.files.push((0, Vec::new()));
            }
        });
        let at_line_start = self.text().last().is_none_or(|byte| *byte == b'\n');
        Ok(Appended { file: Handle { disk: self.clone(), index: 0 }, at_line_start })
    }
}

impl SegmentFactory for Disk {
    type File = Handle;

    fn first_free(&mut self) -> io::Result<u64> {
        Ok(0)
    }

    fn create_new(&mut self, index: u64) -> io::Result<Handle> {
        self.with(|state| {
            state.opens += 1;
            if state.files.iter().any(|(taken, _)| *taken == index) {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            state.files.push((index, Vec::new()));
            Ok(Handle { disk: self.clone(), index })
        })
    }
}

fn ms(ms: u64) -> Time {
    Time::from_millis(ms)
}

fn config(buffer_bytes: usize) -> WriterConfig {
    WriterConfig { buffer_bytes, ..WriterConfig::default() }
}

fn encoded(id: &str) -> EncodedRow {
    EncodedRow::new(&turn(id).into()).expect("fits")
}

fn push(sink: &mut impl Sink, now: Time, id: &str) -> Pushed {
    sink.push(now, &encoded(id), Loss::default())
}

/// Writes rows with these ids and closes; the bytes of each file.
pub(crate) fn write(names: &[String], buffer_bytes: usize, gzip: bool) -> Vec<Vec<u8>> {
    let disk = Disk::default();
    let config = WriterConfig { roll_lines: Some(7), ..config(buffer_bytes) };
    let sink: Box<dyn Sink + Send> = if gzip {
        Box::new(GzSegmentWriter::new(disk.clone(), config, Time::ZERO))
    } else {
        Box::new(JsonlWriter::new(disk.clone(), config, Time::ZERO))
    };
    let mut fanout = Fanout::new(Rows::All);
    fanout.add(Stream::Main, sink);
    for (at, name) in (0u64..).zip(names) {
        fanout.record(ms(at), turn(name).into());
    }
    let closed = fanout.close(ms(1000), 0);
    assert!(closed.iter().all(|close| close.error.is_none() && close.report.rows_held == 0));
    disk.files()
}

fn gunzip(bytes: &[u8]) -> String {
    io::read_to_string(MultiGzDecoder::new(bytes)).expect("whole members")
}

#[test]
fn a_line_is_wrapped_as_the_reference_system_does_it() {
    let disk = Disk::default();
    let mut sink = JsonlWriter::new(disk.clone(), config(1), ms(1000));
    assert_eq!(push(&mut sink, ms(1016), "a"), Pushed::Taken);
    let row = serde_json::to_string(&turn("a")).expect("encodes");
    let text = String::from_utf8(disk.text()).expect("text");
    assert_eq!(text, format!("{{\"timestamp\":16,\"event\":{row}}}\n"));
}

#[test]
fn a_batch_goes_when_it_is_full_or_old() {
    let disk = Disk::default();
    let size = encoded("a").len();
    let mut sink = JsonlWriter::new(disk.clone(), config(size * 2), Time::ZERO);
    assert_eq!(sink.next_deadline(), None);
    let _ = push(&mut sink, ms(10), "a");
    assert_eq!((disk.text().len(), sink.next_deadline()), (0, Some(ms(1010))));
    sink.tick(ms(1009));
    assert_eq!(disk.text().len(), 0);
    sink.tick(ms(1010));
    assert_eq!(ids(&read_all(&disk.text()).0), ["a"]);
    assert_eq!(sink.next_deadline(), None);
    let _ = push(&mut sink, ms(1020), "b");
    let _ = push(&mut sink, ms(1021), "c");
    assert_eq!(ids(&read_all(&disk.text()).0), ["a", "b", "c"]);
    let report = sink.report();
    assert_eq!((report.rows_written, report.rows_held, report.files), (3, 0, 1));
    assert_eq!(report.bytes_written, u64::try_from(disk.text().len()).expect("fits"));
}

/// I-WRT-4.
#[test]
fn each_flush_is_one_gzip_member_and_segments_roll_by_lines() {
    let disk = Disk::default();
    let config = WriterConfig { roll_lines: Some(3), ..config(1) };
    let mut sink = GzSegmentWriter::new(disk.clone(), config, Time::ZERO);
    for id in ["a", "b", "c", "d"] {
        let _ = push(&mut sink, ms(1), id);
    }
    let files = disk.files();
    assert_eq!(files.len(), 2);
    assert_eq!(ids(&read_all(gunzip(&files[0]).as_bytes()).0), ["a", "b", "c"]);
    assert_eq!(ids(&read_all(gunzip(&files[1]).as_bytes()).0), ["d"]);
    let members = files[0].windows(3).filter(|window| *window == [0x1f, 0x8b, 8]).count();
    assert_eq!(members, 3);
}

#[test]
fn segments_roll_by_bytes_before_they_are_too_long() {
    let disk = Disk::default();
    let line = u64::try_from(encoded("a").len() + 30).expect("fits");
    let config = WriterConfig { roll_bytes: line * 2 + 60, ..config(1 << 20) };
    let mut sink = GzSegmentWriter::new(disk.clone(), config.clone(), Time::ZERO);
    for id in ["a", "b", "c", "d", "e"] {
        let _ = push(&mut sink, ms(1), id);
    }
    sink.close(ms(2)).expect("closes");
    let texts: Vec<String> = disk.files().iter().map(|file| gunzip(file)).collect();
    assert_eq!(texts.iter().map(|text| text.lines().count()).collect::<Vec<_>>(), [2, 2, 1]);
    assert!(texts.iter().all(|text| u64::try_from(text.len()).is_ok_and(|len| len <= config.roll_bytes)));
}

#[test]
fn a_segment_taken_by_another_process_is_left_alone() {
    let disk = Disk::default();
    disk.with(|state| state.files.extend([(0, b"theirs".to_vec()), (1, b"theirs".to_vec())]));
    let mut sink = GzSegmentWriter::new(disk.clone(), config(1), Time::ZERO);
    let _ = push(&mut sink, ms(1), "a");
    let files = disk.files();
    assert_eq!((files.len(), files[0].as_slice(), files[1].as_slice()), (3, &b"theirs"[..], &b"theirs"[..]));
    assert_eq!(ids(&read_all(&files[2]).0), ["a"]);
}

#[test]
fn opening_at_start_leaves_a_gzip_file_that_tools_can_read() {
    let disk = Disk::default();
    GzSegmentWriter::new(disk.clone(), config(1), Time::ZERO).open().expect("opens");
    assert_eq!(gunzip(&disk.files()[0]), "");
}

/// I-WRT-1, I-TRC-5.
#[test]
fn a_full_disk_is_tried_again_with_growing_pauses_and_nothing_is_lost_or_doubled() {
    for gzip in [false, true] {
        let disk = Disk::default();
        let mut sink: Box<dyn Sink> = if gzip {
            Box::new(GzSegmentWriter::new(disk.clone(), config(1), Time::ZERO))
        } else {
            Box::new(JsonlWriter::new(disk.clone(), config(1), Time::ZERO))
        };
        disk.break_after(40);
        assert_eq!(sink.push(ms(0), &encoded("a"), Loss::default()), Pushed::Taken);
        assert_eq!(sink.next_deadline(), Some(ms(100)));
        assert_eq!(sink.push(ms(50), &encoded("b"), Loss::default()), Pushed::Taken);
        sink.tick(ms(100));
        assert_eq!(sink.next_deadline(), Some(ms(300)), "the pause has doubled");
        let report: SinkReport = sink.report();
        assert_eq!((report.errors, report.rows_held, report.rows_written), (2, 2, 0));
        let told = report.last_error.expect("an error").to_string();
        assert!(told.starts_with("cannot write trace file: "), "{told}");
        disk.mend();
        sink.tick(ms(300));
        sink.tick(ms(301));
        let (rows, report) = read_all(&disk.text());
        assert_eq!(ids(&rows), ["a", "b"], "gzip: {gzip}");
        assert!(report.is_clean(), "{report:?}");
        assert_eq!(sink.report().rows_held, 0);
    }
}

#[test]
fn after_three_failures_the_file_is_opened_anew_on_a_fresh_line() {
    let disk = Disk::default();
    let mut sink = JsonlWriter::new(disk.clone(), config(1), Time::ZERO);
    disk.break_after(30);
    let _ = push(&mut sink, ms(0), "a");
    sink.tick(ms(100));
    sink.tick(ms(300));
    disk.mend();
    sink.tick(ms(10_000));
    let (rows, report) = read_all(&disk.text());
    assert_eq!(ids(&rows), ["a"]);
    assert_eq!(report.reported.len(), 1, "the cut line of the first try");
    assert_eq!(report.reported[0].problem, Problem::DamagedJson);
    assert_eq!(disk.with(|state| state.opens), 2);
}

#[test]
fn after_three_failures_a_gzip_member_goes_whole_into_a_new_segment() {
    let disk = Disk::default();
    let mut sink = GzSegmentWriter::new(disk.clone(), config(1), Time::ZERO);
    disk.break_after(30);
    let _ = push(&mut sink, ms(0), "a");
    sink.tick(ms(100));
    sink.tick(ms(300));
    disk.mend();
    sink.tick(ms(10_000));
    let files = disk.files();
    assert_eq!(files.len(), 2);
    assert_eq!(ids(&read_all(&files[0]).0), [""; 0]);
    assert_eq!(ids(&read_all(gunzip(&files[1]).as_bytes()).0), ["a"]);
}

/// I-WRT-3.
#[test]
fn what_a_broken_sink_cannot_hold_is_told_on_the_next_row_that_gets_out() {
    for gzip in [false, true] {
        let disk = Disk::default();
        let size = encoded("a").len();
        let config = WriterConfig { held_bytes_max: size * 2, ..config(1) };
        let mut fanout = Fanout::new(Rows::All);
        if gzip {
            fanout.add(Stream::Main, Box::new(GzSegmentWriter::new(disk.clone(), config, Time::ZERO)));
        } else {
            fanout.add(Stream::Main, Box::new(JsonlWriter::new(disk.clone(), config, Time::ZERO)));
        }
        disk.break_after(0);
        for at in 0..10u64 {
            fanout.record(ms(at), turn(&format!("r{at}")).into());
        }
        fanout.lost(4);
        let lost = fanout.lost_so_far();
        assert!(lost.io > 0 && lost.queue_full == 4, "{lost:?}");
        disk.mend();
        fanout.tick(ms(20_000));
        fanout.record(ms(20_001), turn("late").into());
        let closed = fanout.close(ms(20_002), 0);
        assert!(closed[0].error.is_none());
        let (rows, report) = read_all(&disk.text());
        assert_eq!(report.lost, lost);
        assert_eq!(u64::try_from(rows.len()).expect("fits") + lost.io, 11);
    }
}

#[test]
fn a_sink_that_stays_broken_says_at_the_end_how_much_was_lost() {
    let disk = Disk::default();
    let mut sink = GzSegmentWriter::new(disk.clone(), config(1), Time::ZERO);
    disk.break_after(0);
    let _ = push(&mut sink, ms(0), "a");
    let _ = push(&mut sink, ms(0), "b");
    assert_eq!(sink.close(ms(1)).map_err(|error| error.kind), Err(io::ErrorKind::StorageFull));
    let report = sink.report();
    assert_eq!((report.lost.io, report.rows_held, report.rows_written), (2, 0, 0));
}

/// I-WRT-1: of a plain file cut in its last batch, only the lines that are not whole are lost.
#[test]
fn lines_that_got_out_before_a_sink_broke_are_not_counted_as_lost() {
    let disk = Disk::default();
    let mut sink = JsonlWriter::new(disk.clone(), config(1 << 20), Time::ZERO);
    let row = {
        let mut line = Vec::new();
        encoded("a").append_wrapped(0, Loss::default(), &mut line);
        line.len()
    };
    for name in ["a", "b", "c", "d"] {
        let _ = push(&mut sink, ms(0), name);
    }
    disk.break_after(2 * row + 5);
    assert_eq!(sink.close(ms(1)).map_err(|error| error.kind), Err(io::ErrorKind::StorageFull));
    let report = sink.report();
    assert_eq!((report.lost.io, report.rows_held, report.rows_written), (2, 0, 2));
    assert_eq!(ids(&read_all(&disk.text()).0), ["a", "b"]);
}

/// I-WRT-2.
#[test]
fn losses_that_no_row_can_carry_make_a_last_row_of_their_own() {
    let (main, companion) = (Disk::default(), Disk::default());
    let mut fanout = Fanout::new(Rows::Loadable);
    fanout.add(Stream::Main, Box::new(JsonlWriter::new(main.clone(), config(1), Time::ZERO)));
    fanout.add(Stream::Companion, Box::new(JsonlWriter::new(companion.clone(), config(1), Time::ZERO)));
    fanout.start(ms(0), 5, TraceStart { version: "1".to_owned(), ..TraceStart::default() });
    fanout.record(ms(1), turn("a").into());
    fanout.lost(3);
    fanout.close(ms(2), 9);
    let (rows, report) = read_all(&main.text());
    assert_eq!((ids(&rows), report.lost.queue_full), (vec!["a".to_owned()], 3));
    assert_eq!(report.skipped.request_payload, 1, "a type that readers of v1 step over");
    let (rows, report) = read_all(&companion.text());
    assert_eq!(report.lost.queue_full, 3);
    let kinds: Vec<_> = rows
        .iter()
        .map(|row| match row {
            TraceRow::Own(event) => &event.kind,
            TraceRow::V1(_) => panic!("a row of ours"),
        })
        .collect();
    let [OwnKind::TraceStart(start), OwnKind::TraceEnd(end)] = kinds[..] else { panic!("{kinds:?}") };
    assert_eq!((start.version.as_str(), start.rows), ("1", Rows::Loadable));
    assert_eq!((end.request_end, end.own, end.lost.queue_full), (1, 1, 3));
}

#[test]
fn rows_that_loaders_refuse_go_to_the_companion_with_the_reason() {
    let mut title = turn("title");
    title.tandem.as_mut().expect("ours").class = RequestClass::Title;
    let mut rejected = turn("rejected");
    let request = rejected.request.as_mut().expect("a request");
    (request.replay, request.output_tokens) = (None, None);
    rejected.tandem.as_mut().expect("ours").outcome.result = OutcomeResult::Rejected;
    let mut silent = turn("silent");
    silent.request.as_mut().expect("a request").output_tokens = Some(0);
    let stranger = Record::request_end(
        1,
        None,
        RequestRecord { request_id: "stranger".to_owned(), ..turn("x").request.expect("a request") },
        Extras::default(),
    );
    let of = |rows: Rows| {
        let (main, companion) = (Disk::default(), Disk::default());
        let mut fanout = Fanout::new(rows);
        fanout.add(Stream::Main, Box::new(JsonlWriter::new(main.clone(), config(1), Time::ZERO)));
        fanout.add(Stream::Companion, Box::new(JsonlWriter::new(companion.clone(), config(1), Time::ZERO)));
        for record in [turn("a"), title.clone(), rejected.clone(), silent.clone(), stranger.clone()] {
            fanout.record(ms(0), record.into());
        }
        fanout.close(ms(1), 0);
        let beside = read_all(&companion.text()).0;
        let reasons: Vec<String> = beside
            .iter()
            .filter_map(|row| match row {
                TraceRow::V1(record) => record.tandem.as_ref()?.not_loadable,
                TraceRow::Own(_) => None,
            })
            .map(|why| serde_json::to_string(&why).expect("encodes"))
            .collect();
        (ids(&read_all(&main.text()).0), ids(&beside), reasons.concat())
    };
    let (main, beside, reasons) = of(Rows::Loadable);
    assert_eq!(
        (main, beside),
        (
            vec!["a".to_owned(), "stranger".to_owned()],
            vec!["title".to_owned(), "rejected".to_owned(), "silent".to_owned()],
        )
    );
    assert_eq!(reasons, r#""not_a_turn""no_tokens""no_output""#);
    let (main, _, reasons) = of(Rows::Agentic);
    assert_eq!(main, ["a"]);
    assert_eq!(reasons, r#""not_a_turn""no_tokens""no_output""no_identity""#);
    assert_eq!(of(Rows::All).0, ["a", "title", "rejected", "silent", "stranger"]);
}

#[test]
fn a_stream_gets_bare_rows_of_both_kinds_at_once() {
    let mut sink = BareWriter::new(Vec::new(), "stderr");
    let loss = Loss { queue_full: 2, ..Loss::default() };
    let _ = sink.push(ms(0), &encoded("a"), loss);
    let text = String::from_utf8(sink.into_inner()).expect("text");
    assert!(
        text.starts_with(r#"{"tandem_loss":{"queue_full":2},"schema":"dynamo.request.trace.v1""#),
        "{text}"
    );
    assert_eq!(read_all(text.as_bytes()).1.lost, loss);
}

#[test]
fn a_payload_laid_out_over_lines_stays_one_row() {
    let body = "{\r\n  \"a\": \"line\\nbreak\"\n}";
    let payload = PayloadRecord {
        request_id: "r".to_owned(),
        endpoint: "openai.chat_completion".to_owned(),
        model: "m".to_owned(),
        request: Some(serde_json::value::RawValue::from_string(body.to_owned()).expect("json")),
        response: None,
        http_request_headers: None,
        payload_complete: true,
        payload_drop_reason: None,
    };
    let row = EncodedRow::new(&Record::request_payload(1, payload).into()).expect("fits");
    let text = row.bare(Loss::default());
    assert!(!text.contains(&b'\n'));
    let back: Record = serde_json::from_slice(&text).expect("a row");
    let got: serde_json::Value =
        serde_json::from_str(back.payload.and_then(|p| p.request).expect("a body").get()).expect("json");
    assert_eq!(got, serde_json::json!({"a": "line\nbreak"}));
}

#[test]
fn a_row_that_is_too_long_is_counted_as_unfit() {
    let disk = Disk::default();
    let mut fanout = Fanout::new(Rows::All);
    fanout.add(Stream::Main, Box::new(JsonlWriter::new(disk.clone(), config(1), Time::ZERO)));
    let mut giant = turn("giant");
    giant.request.as_mut().expect("a request").model = Some("m".repeat(33 << 20));
    assert!(matches!(EncodedRow::new(&giant.clone().into()), Err(Unfit::TooLong { .. })));
    fanout.record(ms(0), giant.into());
    fanout.record(ms(0), turn("a").into());
    fanout.close(ms(1), 0);
    let (rows, report) = read_all(&disk.text());
    assert_eq!((ids(&rows), report.lost), (vec!["a".to_owned()], Loss { unfit: 1, ..Loss::default() }));
}

#[test]
fn deadlines_of_all_sinks_count() {
    let (one, two) = (Disk::default(), Disk::default());
    let mut fanout = Fanout::new(Rows::All);
    let slow = WriterConfig { flush_interval: Duration::from_secs(9), ..WriterConfig::default() };
    fanout.add(Stream::Main, Box::new(JsonlWriter::new(one.clone(), slow, Time::ZERO)));
    fanout.add(Stream::Both, Box::new(JsonlWriter::new(two.clone(), config(1 << 20), Time::ZERO)));
    assert_eq!(fanout.next_deadline(), None);
    fanout.record(ms(0), turn("a").into());
    assert_eq!(fanout.next_deadline(), Some(ms(1000)));
    fanout.record(
        ms(1),
        OwnEvent::new(1, OwnKind::TraceLoss(tandem_trace::record::LossEvent::default())).into(),
    );
    fanout.tick(ms(1000));
    assert_eq!(fanout.next_deadline(), Some(ms(9000)));
    assert_eq!((one.text().len(), read_all(&two.text()).0.len()), (0, 2));
}
