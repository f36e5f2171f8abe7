//! Damaged files.

use std::io::{self, BufRead, Read, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use serde_json::Value;
use tandem_trace::TraceRow;
use tandem_trace::reader::{Problem, ReadError, ReadOptions, TraceReader};
use tandem_trace::record::{EventType, Loss, PayloadRecord, ToolStatus};
use tandem_trace::writer::EncodedRow;
use tandem_types::Time;

use crate::{ids, read_all, turn};

const ODD: &[u8] = include_bytes!("../fixtures/odd-files.jsonl.gz");

fn line(id: &str) -> String {
    format!("{}\n", serde_json::to_string(&turn(id)).expect("encodes"))
}

fn member(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text).expect("memory");
    encoder.finish().expect("memory")
}

fn problems(bytes: &[u8]) -> Vec<(Option<u32>, Option<u64>, Problem)> {
    let found = read_all(bytes).1.reported;
    found.into_iter().map(|f| (f.place.member, f.place.line, f.problem)).collect()
}

/// I-RDR-1.
#[test]
fn the_collection_of_odd_things_is_read_and_reported_as_agreed() {
    let agreed: Value = serde_json::from_str(include_str!("../fixtures/odd-files.json")).expect("fixture");
    let agreed = &agreed["expected"];
    let (rows, report) = read_all(ODD);
    let got = serde_json::to_value(&report).expect("encodes");
    for part in ["request_end_rows", "tool_rows", "skipped", "reported"] {
        assert_eq!(got[part], agreed[part], "{part}");
    }
    assert_eq!(serde_json::json!(ids(&rows)), agreed["request_ids"]);
    let status = rows.iter().find_map(|row| match row {
        TraceRow::V1(record) => record.tool.as_ref()?.status,
        TraceRow::Own(_) => None,
    });
    assert_eq!(status, Some(ToolStatus::Cancelled));
}

#[test]
fn strict_reading_ends_at_the_first_oddity() {
    let mut reader = TraceReader::new(ODD, ReadOptions { strict: true, ..ReadOptions::default() });
    let rows: Vec<_> = reader.by_ref().collect();
    let Some(Err(ReadError::Finding(finding))) = rows.last() else { panic!("a finding: {rows:?}") };
    assert_eq!(finding.to_string(), "member 2, line 8: damaged JSON");
    assert_eq!(rows.len(), 5, "three requests and a tool before it");
    assert!(reader.next().is_none());
}

/// I-RDR-4.
#[test]
fn a_plain_file_cut_at_any_byte_gives_all_whole_rows_and_at_most_one_finding() {
    let text = line("a") + &line("b") + &line("c");
    let ends: Vec<usize> = text.match_indices('\n').map(|(at, _)| at).collect();
    for cut in 0..=text.len() {
        let (rows, report) = read_all(&text.as_bytes()[..cut]);
        // A row is whole when all of it but the line feed is there.
        let whole = ends.iter().filter(|end| cut >= **end).count();
        assert_eq!(ids(&rows), ["a", "b", "c"][..whole], "cut at {cut}");
        let clean = cut == 0 || ends.iter().any(|end| cut == *end || cut == end + 1);
        let want = if clean { vec![] } else { vec![Problem::CutLine] };
        let got: Vec<_> = report.reported.into_iter().map(|finding| finding.problem).collect();
        assert_eq!(got, want, "cut at {cut}");
    }
}

#[test]
fn a_gzip_file_cut_at_any_byte_gives_all_rows_of_whole_members() {
    let members = [member(line("a").as_bytes()), member(line("b").as_bytes())];
    let file = members.concat();
    for cut in 3..file.len() {
        let (rows, report) = read_all(&file[..cut]);
        let whole = usize::from(cut >= members[0].len());
        let ids = ids(&rows);
        assert!(ids.len() >= whole && ids == ["a", "b"][..ids.len()], "cut at {cut}: {ids:?}");
        let between = cut == members[0].len();
        assert_eq!(report.reported.is_empty(), between, "cut at {cut}: {report:?}");
        assert!(report.reported.iter().all(|f| f.problem == Problem::CutMember), "cut at {cut}: {report:?}");
    }
}

#[test]
fn a_damaged_member_costs_only_itself() {
    let mut bad = member(line("b").as_bytes());
    let middle = bad.len() / 2;
    bad[middle..middle + 8].copy_from_slice(&[0xff; 8]);
    let file = [member(line("a").as_bytes()), bad, member(line("c").as_bytes())].concat();
    let (rows, report) = read_all(&file);
    assert_eq!(ids(&rows), ["a", "c"]);
    // What came out of the bad member before the damage was noticed may be told as bad lines.
    assert!(report.reported.iter().all(|finding| finding.place.member == Some(2)), "{report:?}");
    assert!(report.reported.iter().any(|finding| finding.problem == Problem::DamagedMember), "{report:?}");
}

#[test]
fn padding_after_the_last_member_is_fine_and_anything_else_is_told() {
    let file = [member(line("a").as_bytes()), vec![0; 100]].concat();
    assert_eq!(problems(&file), []);
    let file = [member(line("a").as_bytes()), b"hello".to_vec()].concat();
    assert_eq!(problems(&file), [(None, None, Problem::TrailingBytes)]);
    let file = [member(line("a").as_bytes()), b"hello".to_vec(), member(line("b").as_bytes())].concat();
    assert_eq!(ids(&read_all(&file).0), ["a", "b"]);
}

#[test]
fn a_line_may_go_on_in_the_next_member_and_belongs_to_the_first() {
    let text = line("a");
    let (head, tail) = text.as_bytes().split_at(40);
    let file = [member(head), member(tail), member(b"{oops\n")].concat();
    assert_eq!(ids(&read_all(&file).0), ["a"]);
    assert_eq!(problems(&file), [(Some(3), Some(2), Problem::DamagedJson)]);
}

#[test]
fn kinds_of_bad_lines_are_told_apart() {
    let v1 = r#""schema":"dynamo.request.trace.v1","event_time_unix_ms":1"#;
    let cases = [
        ("[1,2]".to_owned(), Problem::NotARow { column: 0 }),
        ("{}".to_owned(), Problem::NotARow { column: 0 }),
        ("{\"schema\":\"other.v9\",\"event_type\":\"request_end\"}".to_owned(), Problem::UnknownSchema),
        (format!("{{{v1},\"event_type\":\"request_end\"}}"), Problem::NotARow { column: 0 }),
        (format!("{{{v1},\"event_type\":\"tool_end\",\"tool\":null}}"), Problem::NotARow { column: 0 }),
        ("{\"event\":".to_owned(), Problem::DamagedJson),
        ("\"secret".to_owned(), Problem::DamagedJson),
    ];
    for (text, want) in cases {
        let got = problems(format!("{text}\n{}", line("a")).as_bytes());
        let same = match (&got[0].2, &want) {
            (Problem::NotARow { .. }, Problem::NotARow { .. }) => true,
            (got, want) => got == want,
        };
        assert!(got.len() == 1 && got[0].1 == Some(1) && same, "{text}: {got:?}");
    }
    let bad = [&b"{\"a\":\"\xff\"}\n"[..], line("a").as_bytes()].concat();
    assert_eq!(problems(&bad), [(None, Some(1), Problem::NotUtf8)]);
}

/// I-TRC-3.
#[test]
fn no_finding_repeats_content() {
    let text =
        r#"{"schema":"dynamo.request.trace.v1","event_type":"request_end","event_time_unix_ms":"SECRET",
        "request":{"request_id":"r","model":["SECRET"]}}"#
            .replace('\n', " ");
    let report = read_all(text.as_bytes()).1;
    assert_eq!(report.reported.len(), 1);
    assert!(!serde_json::to_string(&report).expect("encodes").contains("SECRET"));
}

/// I-RDR-2.
#[test]
fn contradictions_are_taken_out_and_told() {
    let mut record = turn("a");
    let request = record.request.as_mut().expect("a request");
    request.total_time_ms = Some(-1.0);
    request.replay.as_mut().expect("a replay").input_sequence_hashes.push(9);
    let text = serde_json::to_string(&record).expect("encodes");
    let (rows, report) = read_all(text.as_bytes());
    let Some(TraceRow::V1(record)) = rows.first() else { panic!("one row") };
    let request = record.request.as_ref().expect("a request");
    assert_eq!((request.total_time_ms, &request.replay), (None, &None));
    let got: Vec<_> = report.reported.into_iter().map(|finding| finding.problem).collect();
    assert_eq!(got, [Problem::BadReplay, Problem::BadTime]);
}

#[test]
fn ids_are_known_across_files_and_findings_name_the_file() {
    let (first, second) = (line("a"), line("b") + &line("a"));
    let mut reader = TraceReader::new(first.as_bytes(), ReadOptions::default()).named("one");
    assert_eq!(reader.by_ref().count(), 1);
    reader.next_file(second.as_bytes(), Some("two".to_owned()));
    assert_eq!(reader.by_ref().count(), 1);
    let report = reader.into_report();
    let told: Vec<_> = report.reported.iter().map(ToString::to_string).collect();
    assert_eq!(told, ["two, line 2: request id a occurs twice; the second is left out"]);
    assert_eq!(report.request_end_rows, 2);
}

/// I-RDR-3.
#[test]
fn long_lines_are_left_out_whole_and_the_next_row_is_read() {
    let options = ReadOptions { line_bytes_max: 1 << 20, ..ReadOptions::default() };
    let payload = format!(
        "{{\"timestamp\":1,\"event\":{{\"schema\":\"dynamo.request.trace.v1\",\"event_type\":\"request_payload\",\
         \"payload\":{{\"request\":\"{}\"}}}}}}\n",
        "x".repeat(3 << 20)
    );
    let unnamed = format!("{{\"pad\":\"{}\",\"event_type\":\"request_end\"}}\n", "y".repeat(2 << 20));
    let text = payload + &unnamed + &line("a");
    let mut reader = TraceReader::new(text.as_bytes(), options);
    let rows: Vec<_> = reader.by_ref().collect::<Result<_, _>>().expect("reads");
    assert_eq!(ids(&rows), ["a"]);
    let report = reader.into_report();
    assert_eq!(report.skipped.request_payload, 1);
    let length = u64::try_from(unnamed.len() - 1).expect("fits");
    assert_eq!(report.reported[0].problem, Problem::LineTooLong { bytes: length });
    assert_eq!(report.reported[0].place.line, Some(2));
}

/// I-TRC-1: a row that is stepped over may be the one that tells of lost rows.
#[test]
fn losses_told_on_rows_that_are_stepped_over_count() {
    let loss = Loss { queue_full: 3, ..Loss::default() };
    for padding in [0, 200_000] {
        let text = "x".repeat(padding);
        let mut row = turn("r");
        row.request = None;
        row.event_type = EventType::RequestPayload;
        row.payload = Some(PayloadRecord {
            request_id: "r".to_owned(),
            endpoint: "openai.chat_completion".to_owned(),
            model: "m".to_owned(),
            request: serde_json::value::to_raw_value(&text).ok(),
            response: None,
            http_request_headers: None,
            payload_complete: true,
            payload_drop_reason: None,
        });
        let mut line = Vec::new();
        EncodedRow::new(&row.into()).expect("fits").append_wrapped(0, loss, &mut line);
        let (rows, report) = read_all(&line);
        assert_eq!((rows.len(), report.skipped.request_payload, report.lost), (0, 1, loss), "{padding}");
        let newer = format!(
            r#"{{"tandem_loss":{{"queue_full":3}},"schema":"tandem.trace.v1","event_type":"newer","x":"{text}"}}{}"#,
            "\n"
        );
        let report = read_all(newer.as_bytes()).1;
        assert_eq!((report.skipped.unknown_event_type["newer"], report.lost), (1, loss), "{padding}");
    }
}

/// A segment that was opened anew may hold a row twice: what it tells is told once.
#[test]
fn a_loss_told_on_a_repeated_row_counts_once() {
    let loss = Loss { io: 2, ..Loss::default() };
    let mut line = EncodedRow::new(&turn("r").into()).expect("fits").bare(loss);
    line.push(b'\n');
    assert_eq!(read_all(&line.repeat(2)).1.lost, loss);
}

#[test]
fn payload_rows_are_given_out_when_asked_for() {
    let mut reader = TraceReader::new(ODD, ReadOptions { payloads: true, ..ReadOptions::default() });
    let rows: Vec<_> = reader.by_ref().collect::<Result<_, _>>().expect("reads");
    let payload = rows.iter().find_map(|row| match row {
        TraceRow::V1(record) => record.payload.as_ref(),
        TraceRow::Own(_) => None,
    });
    assert!(payload.and_then(|p| p.request.as_ref()).is_some_and(|body| body.get().len() > 1_900_000));
    assert_eq!((reader.report().payload_rows, reader.report().skipped.request_payload), (1, 0));
}

#[test]
fn the_list_of_findings_is_bounded() {
    let options = ReadOptions { findings_max: 3, ..ReadOptions::default() };
    let mut reader = TraceReader::new(&b"x\nx\nx\nx\nx\n"[..], options);
    assert_eq!(reader.by_ref().count(), 0);
    assert_eq!((reader.report().reported.len(), reader.report().unlisted), (3, 2));
    assert!(!reader.report().is_clean());
}

/// An input that fails after its first bytes.
struct Failing(&'static [u8]);

impl Read for Failing {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf)
    }
}

impl BufRead for Failing {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.0.is_empty() { Err(io::Error::other("disk gone")) } else { Ok(self.0) }
    }

    fn consume(&mut self, count: usize) {
        self.0.consume(count);
    }
}

#[test]
fn a_failing_disk_is_not_taken_for_a_damaged_file() {
    for head in [&ODD[..500], b""] {
        let mut reader = TraceReader::new(Failing(head), ReadOptions::default());
        let last = reader.by_ref().last();
        assert!(matches!(last, Some(Err(ReadError::Io { .. }))), "{last:?}");
        assert!(reader.report().reported.is_empty());
        assert!(reader.next().is_none());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// I-TRC-4.
    #[test]
    fn arbitrary_bytes_and_mangled_files_never_panic(
        noise in prop::collection::vec(any::<u8>(), 0..300),
        cut in 0usize..3200,
        at in 0usize..3200,
        gzip in any::<bool>(),
    ) {
        let mut file = if gzip { ODD.to_vec() } else { (line("a") + &line("b")).into_bytes() };
        file.truncate(cut.max(3));
        let at = at.min(file.len());
        file.splice(at..at, noise.iter().copied());
        read_all(&file);
        read_all(&noise);
    }

    #[test]
    fn what_the_writers_write_the_reader_reads(
        names in prop::collection::btree_set("[a-z]{1,6}", 1..30),
        buffer in 1usize..4000,
        gzip in any::<bool>(),
    ) {
        let names: Vec<String> = names.into_iter().collect();
        let files = crate::writing::write(&names, buffer, gzip);
        let mut reader = TraceReader::new(&b""[..], ReadOptions { strict: true, ..ReadOptions::default() });
        let mut got = Vec::new();
        for file in &files {
            reader.next_file(file, None);
            let rows: Vec<_> = reader.by_ref().collect::<Result<_, _>>().expect("nothing odd");
            got.extend(ids(&rows));
        }
        prop_assert_eq!(got, names);
        let _ = Time::ZERO;
    }
}
