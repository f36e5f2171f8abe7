//! Usage objects of all dialects.
