//! Frames of event messages and of the replay protocol.
//!
//! An event message has three frames: topic, sequence number (8 bytes, big-endian, from 0), payload. A
//! replay is asked for with one frame (the first sequence number wanted) after the delimiter and answered
//! with one message per kept batch and an end marker whose sequence number is -1. vLLM before 0.26 and
//! SGLang before 0.5.22 leave the topic out of the answers.

/// The sequence number of the replay's end marker.
pub const REPLAY_END: u64 = u64::MAX;

/// Why frames are not what the protocol has there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Another number of frames.
    #[error("message of {0} frames")]
    Count(usize),
    /// A sequence number that is not 8 bytes long.
    #[error("sequence number of {0} bytes")]
    Sequence(usize),
}

/// An event message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message<'a> {
    /// The configured topic.
    pub topic: &'a [u8],
    /// Counts the publisher's messages from 0.
    pub seq: u64,
    /// For [`crate::decode`].
    pub payload: &'a [u8],
}

/// One message of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayAnswer<'a> {
    /// A batch that was published before.
    Batch {
        /// Its sequence number.
        seq: u64,
        /// Its payload.
        payload: &'a [u8],
    },
    /// There is no more.
    End,
}

fn sequence(frame: &[u8]) -> Result<u64, FrameError> {
    frame.try_into().map(u64::from_be_bytes).map_err(|_| FrameError::Sequence(frame.len()))
}

/// The frames of an event message.
#[must_use]
pub fn message(topic: &[u8], seq: u64, payload: Vec<u8>) -> [Vec<u8>; 3] {
    [topic.to_vec(), seq.to_be_bytes().to_vec(), payload]
}

/// Reads an event message.
///
/// # Errors
/// [`FrameError`] when it has not three frames or no sequence number.
pub fn parse_message<'a>(frames: &[&'a [u8]]) -> Result<Message<'a>, FrameError> {
    match *frames {
        [topic, seq, payload] => Ok(Message { topic, seq: sequence(seq)?, payload }),
        _ => Err(FrameError::Count(frames.len())),
    }
}

/// The frames that a DEALER sends to ask for a replay; a REQ adds the delimiter itself.
#[must_use]
pub fn replay_request(start: u64) -> [Vec<u8>; 2] {
    [Vec::new(), start.to_be_bytes().to_vec()]
}

/// Reads a replay request as a ROUTER receives it: identity, delimiter, first sequence number wanted.
/// Returns identity and number.
///
/// # Errors
/// [`FrameError`] for any other shape; engines drop those without an answer.
pub fn parse_replay_request<'a>(frames: &[&'a [u8]]) -> Result<(&'a [u8], u64), FrameError> {
    match *frames {
        [identity, [], start] => Ok((identity, sequence(start)?)),
        _ => Err(FrameError::Count(frames.len())),
    }
}

/// The frames of one replayed batch, after the identity.
#[must_use]
pub fn replay_answer(topic: &[u8], seq: u64, payload: Vec<u8>) -> [Vec<u8>; 4] {
    [Vec::new(), topic.to_vec(), seq.to_be_bytes().to_vec(), payload]
}

/// The frames of the end marker, after the identity.
#[must_use]
pub fn replay_end() -> [Vec<u8>; 4] {
    [Vec::new(), Vec::new(), REPLAY_END.to_be_bytes().to_vec(), Vec::new()]
}

/// Reads one message of a replay in either shape, with or without the leading delimiter.
///
/// # Errors
/// [`FrameError`] when there are not two to four frames or there is no sequence number.
pub fn parse_replay_answer<'a>(frames: &[&'a [u8]]) -> Result<ReplayAnswer<'a>, FrameError> {
    let (2..=4, [.., seq, payload]) = (frames.len(), frames) else {
        return Err(FrameError::Count(frames.len()));
    };
    match sequence(seq)? {
        REPLAY_END => Ok(ReplayAnswer::End),
        seq => Ok(ReplayAnswer::Batch { seq, payload }),
    }
}
