//! Harness headers and body fields to agent context; the header table; prompt-prefix hygiene.
