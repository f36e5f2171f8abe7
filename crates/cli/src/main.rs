//! The one binary, `tandem`.

fn main() {}
