//! Event streams: however the bytes are cut, the events are the same, with a small limit, too.

use tandem_dialect::SseParser;

type Event = (Vec<u8>, Vec<u8>, Option<Vec<u8>>, Option<u64>);

/// The first byte says where the stream is cut, the rest is the stream.
pub fn check(data: &[u8]) {
    let [step, stream @ ..] = data else { return };
    let step = usize::from(step % 13) + 1;
    for limit in [1 << 20, 24] {
        let whole = events(limit, std::iter::once(stream));
        assert_eq!(events(limit, stream.chunks(step)), whole, "cut every {step} bytes");
        assert_eq!(events(limit, stream.chunks(1)), whole, "cut everywhere");
    }
}

fn events<'a>(limit: usize, pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<Event>, u64) {
    let mut parser = SseParser::new(limit);
    let mut events: Vec<Event> = Vec::new();
    for piece in pieces {
        parser.push(piece, |event| {
            events.push((
                event.event.to_vec(),
                event.data.to_vec(),
                event.id.map(<[u8]>::to_vec),
                event.retry_ms,
            ));
        });
    }
    parser.finish(|event| {
        events.push((
            event.event.to_vec(),
            event.data.to_vec(),
            event.id.map(<[u8]>::to_vec),
            event.retry_ms,
        ));
    });
    (events, parser.oversized())
}
