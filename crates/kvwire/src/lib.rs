//! KV cache event batches as vLLM and SGLang publish them: encoding and decoding.
//!
//! - Purpose: turn the msgpack payloads of the engines' ZeroMQ event streams into [`tandem_types::KvBatch`]
//!   and back, and frame messages and replays.
//! - Inputs: bytes from a socket, or batches from a modelled engine. Outputs: batches with a count of what
//!   was skipped, or bytes.
//! - Invariants:
//!   - I-KVW-1 no input panics, and none makes us allocate more than a small multiple of its own size;
//!   - I-KVW-2 a batch whose msgpack is well formed always decodes: an event that is unknown, of wrong
//!     types or of no use is skipped alone and counted;
//!   - I-KVW-3 what this crate encodes it decodes to the same batch, and what vLLM 0.32 or SGLang 0.5.23
//!     wrote it encodes to the same bytes;
//!   - I-KVW-4 hashes are opaque 64-bit numbers: SGLang's signed ones are reinterpreted, digests of more
//!     than 8 bytes are reduced to their last 8 bytes read big-endian, which is how vLLM does it itself.
//! - Deliberately absent: sockets, block hashing, sequence tracking.
//! - Sources: vLLM 0.11 to 0.33 (`vllm/distributed/kv_events.py`), SGLang 0.5.5 to 0.5.23
//!   (`sglang/srt/disaggregation/kv_events.py`), captures of vLLM 0.32.0 and SGLang 0.5.23.

mod decode;
mod encode;
mod frames;
mod reader;

pub use decode::{Decoded, Skipped, decode};
pub use encode::{Layout, encode};
pub use frames::{
    FrameError, Message, REPLAY_END, ReplayAnswer, message, parse_message, parse_replay_answer,
    parse_replay_request, replay_answer, replay_end, replay_request,
};
pub use reader::DecodeError;
