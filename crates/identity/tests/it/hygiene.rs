//! hygiene
