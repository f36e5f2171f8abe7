//! Behaviour of the modelled engine through its public face.

mod fuzz;
mod published;
mod scenarios;
mod sglang;
mod support;
