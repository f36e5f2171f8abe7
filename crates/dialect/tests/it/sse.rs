use std::time::Instant;

use tandem_dialect::SseParser;

/// (event, data, id, retry)
type Seen = (String, String, Option<String>, Option<u64>);

fn events_of(limit: usize, pieces: &[&[u8]]) -> (Vec<Seen>, u64) {
    let mut parser = SseParser::new(limit);
    let mut seen: Vec<Seen> = Vec::new();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("utf-8");
    for piece in pieces {
        parser.push(piece, |event| {
            seen.push((text(event.event), text(event.data), event.id.map(text), event.retry_ms));
        });
    }
    parser.finish(|event| {
        seen.push((text(event.event), text(event.data), event.id.map(text), event.retry_ms));
    });
    (seen, parser.oversized())
}

fn data_of(stream: &str) -> Vec<String> {
    let whole = events_of(1 << 20, &[stream.as_bytes()]);
    let bytes: Vec<&[u8]> = stream.as_bytes().chunks(1).collect();
    assert_eq!(events_of(1 << 20, &bytes), whole, "cut everywhere: {stream:?}");
    whole.0.into_iter().map(|(_, data, _, _)| data).collect()
}

/// I-DIA-SSE-1.
#[test]
fn line_ends_of_all_kinds() {
    for end in ["\n", "\r\n", "\r"] {
        let stream =
            format!("data: a{end}{end}event: e{end}data: b{end}data: c{end}id: 7{end}retry: 12{end}{end}");
        let (seen, _) = events_of(1000, &[stream.as_bytes()]);
        let want = vec![
            (String::new(), "a".to_owned(), None, None),
            ("e".to_owned(), "b\nc".to_owned(), Some("7".to_owned()), Some(12)),
        ];
        assert_eq!(seen, want, "{end:?}");
        assert_eq!(data_of(&stream), ["a", "b\nc"], "{end:?}");
    }
    assert_eq!(data_of("data: a\r\n\ndata: b\n\r\ndata: c\r\r\n"), ["a", "b", "c"]);
}

#[test]
fn the_standards_corners() {
    // Examples and rules of the standard's section on interpreting an event stream.
    assert_eq!(data_of("data: YHOO\ndata: +2\ndata: 10\n\n"), ["YHOO\n+2\n10"]);
    assert_eq!(data_of("data\n\ndata\ndata\n\ndata:"), ["", "\n", ""]);
    assert_eq!(data_of("data:test\n\ndata: test\n\ndata:  test\n\n"), ["test", "test", " test"]);
    assert_eq!(data_of(": comment\n\ndata: x\n: inside\n\n:\n"), ["x"]);
    assert_eq!(data_of("event: only\n\nid: 1\n\n"), Vec::<String>::new());
    assert_eq!(data_of("Data: no\ndataset: no\ndata : no\nunknown\ndata: yes\n\n"), ["yes"]);
    assert_eq!(data_of("\u{feff}data: mark\n\n\u{feff}data: no mark\n\n"), ["mark"]);
    assert_eq!(data_of("\u{feff}: comment\n\ndata: x\n\n"), ["x"]);
    let (seen, _) = events_of(1000, &[b"id: a\0b\nretry: 1x\ndata: d: e\n\n"]);
    assert_eq!(seen, [(String::new(), "d: e".to_owned(), None, None)]);
}

#[test]
fn an_event_without_its_blank_line_is_handed_out_at_the_end() {
    assert_eq!(data_of("data: a\n\ndata: [DONE]"), ["a", "[DONE]"]);
    assert_eq!(data_of("data: a\n\ndata: b\n"), ["a", "b"]);
}

/// I-DIA-SSE-3.
#[test]
fn an_event_ends_at_the_carriage_return_without_waiting_for_a_line_feed() {
    let mut parser = SseParser::default();
    let mut seen = 0;
    parser.push(b"data: a\r\n\r", |_| seen += 1);
    assert_eq!(seen, 1);
    parser.push(b"\ndata: b\r\r", |_| seen += 1);
    assert_eq!(seen, 2);
}

/// I-DIA-SSE-4.
#[test]
fn too_large_events_are_counted_and_the_next_one_is_read() {
    let stream = format!("data: small\n\nevent: e\ndata: {}\n\ndata: next\n\n", "x".repeat(100));
    for size in [1, 7, 1000] {
        let pieces: Vec<&[u8]> = stream.as_bytes().chunks(size).collect();
        let (seen, oversized) = events_of(64, &pieces);
        let data: Vec<_> = seen.into_iter().map(|(_, data, _, _)| data).collect();
        assert_eq!((data, oversized), (vec!["small".to_owned(), "next".to_owned()], 1), "{size}");
    }
}

/// I-DIA-SSE-2.
#[test]
fn a_large_event_in_small_pieces_is_not_searched_again_for_each_piece() {
    // Searched again for each of 65,536 pieces it would be a terabyte of searching, minutes on any machine.
    let bytes = 32 << 20;
    let stream = [b"data: ".as_slice(), &vec![b'x'; bytes], b"\n\n"].concat();
    let start = Instant::now();
    let mut parser = SseParser::default();
    let mut length = 0;
    for piece in stream.chunks(512) {
        parser.push(piece, |event| length = event.data.len());
    }
    assert_eq!(length, bytes);
    assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
}
