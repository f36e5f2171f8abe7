//! From the moments of one request to the times in its row.
//!
//! - Inputs: when the request came (wall clock and run clock) and the moments that followed, on the run clock.
//! - Outputs: durations in milliseconds; a moment that never came gives no duration.
//! - Invariants: I-TIM-1 every duration is finite and not negative, whatever order the moments are in.
//! - Sources: dynamo-llm 1.6.1, recomputed from rows that it wrote (average inter-token latency is the time
//!   from first to last token over the number of tokens less one; the hit rate counts whole blocks).

use std::num::NonZeroU32;
use std::time::Duration;

use tandem_types::Time;

use crate::record::RequestRecord;

/// Moments of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moments {
    /// Wall clock when the request came, milliseconds since the epoch.
    pub received_unix_ms: u64,
    /// The same moment on the run clock.
    pub received: Time,
    /// When it was sent to the worker that answered.
    pub dispatched: Option<Time>,
    /// When the first token (or the first byte of the answer, where tokens cannot be told) came.
    pub first_token: Option<Time>,
    /// When the last token came.
    pub last_token: Option<Time>,
    /// When the request was over, for whatever reason.
    pub ended: Time,
}

impl Moments {
    /// Fills the times of `request`. `output_tokens` must be set before, for the inter-token latency.
    pub fn fill(&self, request: &mut RequestRecord) {
        request.request_received_ms = Some(self.received_unix_ms);
        request.prefill_wait_time_ms = self.dispatched.map(|at| millis(at.since(self.received)));
        request.prefill_time_ms =
            self.dispatched.zip(self.first_token).map(|(sent, first)| millis(first.since(sent)));
        request.ttft_ms = self.first_token.map(|at| millis(at.since(self.received)));
        request.total_time_ms = Some(self.total_ms());
        request.avg_itl_ms = self.avg_itl_ms(request.output_tokens);
    }

    /// From arrival to the end, milliseconds.
    #[must_use]
    pub fn total_ms(&self) -> f64 {
        millis(self.ended.since(self.received))
    }

    /// The row's `event_time_unix_ms`: arrival plus the rounded total.
    #[must_use]
    pub fn event_time_unix_ms(&self) -> u64 {
        let total = self.ended.since(self.received) + Duration::from_micros(500);
        self.received_unix_ms.saturating_add(u64::try_from(total.as_millis()).unwrap_or(u64::MAX))
    }

    fn avg_itl_ms(&self, output_tokens: Option<u64>) -> Option<f64> {
        let gaps = output_tokens?.checked_sub(1).filter(|gaps| *gaps > 0)?;
        let first = self.first_token?;
        let last = self.last_token.unwrap_or(self.ended);
        #[expect(clippy::cast_precision_loss, reason = "a token count is far below 2^52")]
        Some(millis(last.since(first)) / gaps as f64)
    }
}

/// Part of the prompt's blocks that came from the cache, 0 to 1. With a block size: whole cached blocks over
/// all blocks of the prompt, a partial one included; without: tokens over tokens. `None` for an empty prompt.
#[must_use]
pub fn kv_hit_rate(cached_tokens: u64, input_tokens: u64, block_size: Option<NonZeroU32>) -> Option<f64> {
    let (hit, all) = match block_size {
        Some(size) => {
            let size = u64::from(size.get());
            (cached_tokens / size, input_tokens.div_ceil(size))
        }
        None => (cached_tokens, input_tokens),
    };
    #[expect(clippy::cast_precision_loss, reason = "a token count is far below 2^52")]
    (all > 0).then(|| hit.min(all) as f64 / all as f64)
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Time {
        Time(micros * 1_000)
    }

    #[test]
    fn a_row_of_the_reference_system_is_reproduced() {
        let moments = Moments {
            received_unix_ms: 1_795_960_813_377,
            received: Time(1_000),
            dispatched: Some(Time(1_000 + 5_245_211)),
            first_token: Some(Time(1_000 + 19_890_260)),
            last_token: Some(Time(1_000 + 29_648_978)),
            ended: Time(1_000 + 29_648_978),
        };
        let mut row = RequestRecord { output_tokens: Some(20), ..RequestRecord::new("r") };
        moments.fill(&mut row);
        assert_eq!(moments.event_time_unix_ms(), 1_795_960_813_407);
        let close = |got: Option<f64>, want: f64| assert!((got.expect("set") - want).abs() < 1e-6, "{got:?}");
        close(row.prefill_wait_time_ms, 5.245_211);
        close(row.prefill_time_ms, 14.645_049);
        close(row.ttft_ms, 19.890_26);
        close(row.total_time_ms, 29.648_978);
        close(row.avg_itl_ms, 0.513_616_736_842);
    }

    #[test]
    fn hit_rate_counts_whole_blocks() {
        let sixteen = NonZeroU32::new(16);
        assert_eq!(kv_hit_rate(432, 450, sixteen), Some(27.0 / 29.0));
        assert_eq!(kv_hit_rate(448, 450, sixteen), Some(28.0 / 29.0));
        assert_eq!(kv_hit_rate(15, 450, sixteen), Some(0.0));
        assert_eq!(kv_hit_rate(9, 3, sixteen), Some(0.0));
        assert_eq!(kv_hit_rate(900, 450, None), Some(1.0));
        assert_eq!(kv_hit_rate(0, 0, None), None);
    }

    /// I-TIM-1.
    #[test]
    fn moments_out_of_order_or_missing_give_no_negative_time() {
        let moments = Moments {
            received_unix_ms: 5,
            received: at(100),
            dispatched: Some(at(50)),
            first_token: None,
            last_token: None,
            ended: at(20),
        };
        let mut row = RequestRecord { output_tokens: Some(1), ..RequestRecord::new("r") };
        moments.fill(&mut row);
        assert_eq!((row.prefill_wait_time_ms, row.total_time_ms), (Some(0.0), Some(0.0)));
        assert_eq!((row.prefill_time_ms, row.ttft_ms, row.avg_itl_ms), (None, None, None));
        assert_eq!(moments.event_time_unix_ms(), 5);
    }
}
