//! The plane from outside: rules one by one, histories against a naive oracle, streams of real engines.

mod captured;
mod model;
mod pool;
mod rules;
mod sessions;
mod states;
mod told;
