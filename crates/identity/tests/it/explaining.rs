//! explaining
