//! Prompts against those of real engines, and tokens against tokenizing from scratch.
#![expect(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests fail by panicking, and the comparison says how much it compared"
)]

mod bodies;
mod corpus;
mod golden;
mod memo;
mod templates;

use std::path::{Path, PathBuf};

use tandem_prompt::{LoadOptions, PromptModel};

/// The folder of fixtures.
fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// A small byte-level BPE model with a template of the usual parts.
fn model() -> PromptModel {
    PromptModel::load(&fixtures().join("model"), LoadOptions::default()).unwrap()
}
