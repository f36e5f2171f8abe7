//! Behaviour of the lineage as its users see it.

#![expect(clippy::expect_used, clippy::indexing_slicing, reason = "helpers of tests fail by panicking")]

mod bounds;
mod captures;
mod causes;
mod corpus;
mod expected;
mod infer;
mod outlines;
mod restarts;
mod support;
