//! Behaviour of the identity crate, against recorded requests and against its rules.

mod explaining;
mod hygiene;
mod recorded;
mod rules;
mod support;
mod waiting;
