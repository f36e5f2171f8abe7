//! The crate as its users see it: engines in memory under paused time, and real sockets where those matter.

mod client;
mod discovery;
mod doctor;
mod net;
mod registry;
mod render;
