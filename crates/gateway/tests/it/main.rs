//! The gateway against scripted engines over real sockets.

mod admin;
mod client;
mod config;
mod engine;
mod faults;
mod holds;
mod plain;
mod setup;
mod shutdown;
mod surface;
