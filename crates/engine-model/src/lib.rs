//! A modelled inference engine: batching step, paged KV pool, timing; a pure step function.
