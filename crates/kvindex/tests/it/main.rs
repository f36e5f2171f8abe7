//! Tests of the indexes against naive oracles.
