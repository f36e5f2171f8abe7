//! What engines are told of sessions.

use tandem_types::ProgramKey;

/// The session id that an engine is told, and that its events bring back.
pub(crate) fn engine_session(program: &ProgramKey) -> String {
    program.to_string()
}
