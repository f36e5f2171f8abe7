//! Request trace: record schema, sinks and readers over io traits, block hashes.
