//! Usage objects of all dialects.
//!
//! - Inputs: usage objects as they come, one or several per answer. Output: [`Usage`].
//! - Rules: counts are cumulative, so of each field the last value that is no null counts. Anthropic's
//!   `input_tokens` leaves out what was read from and written to the cache; vLLM 0.32.0 reports all of it as
//!   `input_tokens` in `message_start` and splits it in `message_delta`, Anthropic itself sends the split at the
//!   start and only the output at the end: the sum of the fields' last values is right for both.
//! - Sources: vLLM 0.32.0, SGLang 0.5.23 (`reasoning_tokens` beside the details) and llama.cpp as recorded.

use tandem_types::{Dialect, Usage};

use crate::json::{Scan, Scanner};

/// The counts seen so far.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct UsageCounts {
    input: Option<u64>,
    output: Option<u64>,
    cached: Option<u64>,
    cache_read: Option<u64>,
    cache_creation: Option<u64>,
    reasoning: Option<u64>,
}

impl UsageCounts {
    /// Reads one usage object over what is known; anything else is read over.
    pub(crate) fn read(&mut self, scan: &mut Scanner<'_>) -> Scan {
        scan.members(|scan, key| {
            match key {
                b"prompt_tokens" | b"input_tokens" => update(&mut self.input, scan)?,
                b"completion_tokens" | b"output_tokens" => update(&mut self.output, scan)?,
                b"cache_read_input_tokens" => update(&mut self.cache_read, scan)?,
                b"cache_creation_input_tokens" => update(&mut self.cache_creation, scan)?,
                b"reasoning_tokens" => update(&mut self.reasoning, scan)?,
                b"prompt_tokens_details" | b"input_tokens_details" => {
                    details(scan, b"cached_tokens", &mut self.cached)?;
                }
                b"completion_tokens_details" | b"output_tokens_details" => {
                    details(scan, b"reasoning_tokens", &mut self.reasoning)?;
                }
                _ => scan.skip()?,
            }
            Ok(())
        })
    }

    /// The counts in neutral form; `None` as long as neither side was counted.
    pub(crate) fn usage(&self, dialect: Dialect) -> Option<Usage> {
        if self.input.is_none() && self.output.is_none() {
            return None;
        }
        let input = self.input.unwrap_or(0);
        let (input_tokens, cached_tokens) = match dialect {
            Dialect::Messages => {
                let cache = self.cache_read.unwrap_or(0).saturating_add(self.cache_creation.unwrap_or(0));
                (input.saturating_add(cache), self.cache_read)
            }
            Dialect::Chat | Dialect::Completions | Dialect::Responses => (input, self.cached),
        };
        Some(Usage {
            input_tokens,
            output_tokens: self.output.unwrap_or(0),
            cached_tokens,
            reasoning_tokens: self.reasoning,
        })
    }
}

fn update(count: &mut Option<u64>, scan: &mut Scanner<'_>) -> Scan {
    *count = scan.unsigned()?.or(*count);
    Ok(())
}

fn details(scan: &mut Scanner<'_>, name: &[u8], count: &mut Option<u64>) -> Scan {
    scan.members(|scan, key| if key == name { update(count, scan) } else { scan.skip() })
}
