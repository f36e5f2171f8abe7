//! Answers of control endpoints.
