//! Answers, streamed and not: bytes pass, and how they are cut changes neither bytes nor facts.

use bytes::Bytes;
use tandem_dialect::{AnswerFacts, StreamObserver, UsageFilter, observe_body};
use tandem_types::Dialect;

/// The first byte says where the stream is cut, the rest is the answer.
pub fn check(data: &[u8]) {
    let [step, answer @ ..] = data else { return };
    let step = usize::from(step % 29) + 1;
    for dialect in [Dialect::Chat, Dialect::Completions, Dialect::Responses, Dialect::Messages] {
        drop(observe_body(dialect, answer));
        for filter in [UsageFilter::Keep, UsageFilter::DropChunk, UsageFilter::DropChunkAndNulls] {
            let whole = observed(dialect, filter, std::iter::once(answer));
            assert_eq!(observed(dialect, filter, answer.chunks(step)), whole, "cut every {step} bytes");
            assert_eq!(observed(dialect, filter, answer.chunks(1)), whole, "cut everywhere");
            if filter == UsageFilter::Keep {
                assert_eq!(whole.0, answer, "bytes changed");
            } else {
                assert!(whole.0.len() <= answer.len(), "bytes added");
            }
        }
    }
}

fn observed<'a>(
    dialect: Dialect,
    filter: UsageFilter,
    pieces: impl Iterator<Item = &'a [u8]>,
) -> (Vec<u8>, AnswerFacts) {
    let mut observer = StreamObserver::new(dialect, filter);
    let mut out = Vec::new();
    for piece in pieces {
        observer.push(Bytes::copy_from_slice(piece), &mut out);
    }
    observer.finish(&mut out);
    (out.concat(), observer.into_facts())
}
