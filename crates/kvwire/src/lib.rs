//! What engines and stores say about KV blocks, on the wire.
//!
//! - Purpose: read and write the event streams of vLLM, SGLang and the Mooncake master; find lost messages
//!   and say how to get them back; compute the hashes by which blocks, pages and objects are named.
//! - Inputs: bytes and frames from sockets, tokens, time. Outputs: [`tandem_types::KvBatch`]es and store
//!   batches with a count of what was skipped, bytes, hashes, object keys, and what a subscriber is to do next.
//!   - [`decode`] and [`encode`]: batches of engines; [`message`] and the like: their frames;
//!   - [`tracker`]: sequence numbers, gaps, replays, restarts;
//!   - [`hash`]: our block hash and the engines' own;
//!   - [`mooncake`]: the store's events and object keys.
//! - Invariants:
//!   - I-KVW-1 no input panics, and none makes us allocate more than a small multiple of its own size;
//!   - I-KVW-2 a batch whose msgpack is well formed always decodes: an event that is unknown or of wrong types
//!     is skipped alone and counted; unknown fields and media of no use cost nothing;
//!   - I-KVW-3 what this crate encodes it decodes to the same batch, and what vLLM 0.32, SGLang 0.5.23 or
//!     Mooncake 0.3.14 wrote it encodes to the same bytes;
//!   - I-KVW-4 the engines' hashes are opaque 64-bit numbers: SGLang's signed ones are reinterpreted, digests
//!     of more than 8 bytes are reduced to their last 8 bytes read big-endian, which is how vLLM does it itself;
//!   - I-KVW-5 what a block's content depends on is told apart whatever layout it came in: adapter, salt, media
//!     and tokens looked ahead at have fields of their own.
//! - Deliberately absent: sockets, clocks, and the index: which worker holds what is kept elsewhere.
//! - Sources: vLLM 0.11 to 0.33 (`vllm/distributed/kv_events.py`), SGLang 0.5.5 to 0.5.23
//!   (`sglang/srt/disaggregation/kv_events.py`), Mooncake 0.3.14; captures of vLLM 0.32.0, SGLang 0.5.23 and
//!   Mooncake 0.3.14; Dynamo 1.6.1's mock engine.

mod decode;
mod encode;
mod fields;
mod frames;
pub mod hash;
mod keys;
pub mod mooncake;
mod reader;
pub mod tracker;

pub use decode::{Decoded, Skipped, decode};
pub use encode::{Layout, encode};
pub use frames::{
    FrameError, Message, REPLAY_END, ReplayAnswer, message, parse_message, parse_replay_answer,
    parse_replay_request, replay_answer, replay_end, replay_request,
};
pub use reader::DecodeError;
pub use tracker::{Effect, Loss, Recovery, Tracker, TrackerConfig};
