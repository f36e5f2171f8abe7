//! What a call is for.
