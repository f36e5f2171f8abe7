//! Request trace: record schema, sinks and readers over io traits, block hashes.
//!
//! - Purpose: write what happened to every request in `dynamo.request.trace.v1`, so that tools which read
//!   that schema read ours, and read such files back even when they are damaged.
//! - Inputs: facts of one request and its timestamps (the gateway's), tool events (ZMQ frames or HTTP bodies),
//!   settings by name, bytes of trace files. Outputs: rows in sinks, rows from files, a report of what was odd.
//! - Invariants:
//!   - I-TRC-1 nothing is lost silently: each row that did not get into a file is counted in that file, on the
//!     next row that does (member `tandem_loss`), or in a last row of its own.
//!   - I-TRC-2 a reader of v1 that knows nothing of us reads the main file: our own members are extra members
//!     and our own event types live in a companion file.
//!   - I-TRC-3 no content (prompt, answer, tool arguments) unless payload rows are switched on; no text of an
//!     error quotes more of a row than ids and names of event types.
//!   - I-TRC-4 bytes from outside never panic, and cost memory only up to a named bound.
//!   - I-TRC-5 time comes in as an argument; files are opened only through traits that the caller implements
//!     or picks from [`files`].
//! - Deliberately absent: sockets, threads, queues between threads (the gateway has them), S3 and NATS sinks,
//!   Perfetto export and analysis.
//! - Sources: dynamo-llm 1.6.1 (schema, environment, file layout), aisimulate-core 0.13.0 (what its loader
//!   accepts), ai-dynamo/dynamo pull request 14636 (output-side hashes).

pub mod config;
pub mod files;
pub mod hash;
pub mod reader;
pub mod record;
pub mod timing;
pub mod tool;
pub mod writer;

pub use record::{OwnEvent, Record, TraceRow};
