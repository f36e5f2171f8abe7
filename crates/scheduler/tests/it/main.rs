//! Behaviour of the scheduler as its drivers see it.

mod chaos;
mod limits;
mod replay;
mod scenarios;
mod support;
