//! What can go wrong, and whose fault it is.

use std::path::PathBuf;

/// Why a model's files could not be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file that every model needs is not there or cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file is larger than any real one.
    #[error("{}: larger than {max} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The bound.
        max: u64,
    },
    /// A file does not hold what it should.
    #[error("{}: {why}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

/// Why a request has no locally computed prompt.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// The engine may well serve it, but its prompt cannot be reproduced exactly here.
    #[error("not reproducible here: {why}")]
    Unsupported {
        /// What stands in the way, as a short constant phrase (fit for a metric label) and no content.
        why: &'static str,
    },
    /// The engine would refuse it too: not a body of this dialect.
    #[error("not a valid request: {0}")]
    Invalid(String),
    /// The chat template refused the conversation.
    #[error("chat template: {0}")]
    Template(String),
    /// A bound of ours was hit.
    #[error("over the bound of {0}")]
    Bound(&'static str),
    /// The tokenizer failed on the text.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
}
