//! The four API dialects: what a gateway must know of a turn, SSE parsing, error bodies.
