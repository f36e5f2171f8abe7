//! Choosing a worker for a turn: the policies and their registry.
