//! What memory is worth against time of workers: for how long idle programs are kept.
//!
//! - In: the time that workers spent computing again what programs had had before, as ended turns tell. Out: a factor on
//!   the break-even horizon of [`super`], which takes a second of a pool to be worth a second of its worker.
//! - While workers have time to spare, computing again costs nobody anything, and turns that are held gain nothing: the
//!   factor sinks, idle programs count less, and more are let in. When more than a set part of workers' time goes into
//!   computing again, it rises.
//! - I-PTC-1 the factor stays within [`LEAST`] and [`MOST`], and where it is while nothing is heard of caches.
//! - Deliberately absent: a factor for each worker. Who loses a place at one takes one at another, so they pay for each
//!   other.
//! - Source: simulated on Claude Code sessions with recorded pauses, the output is highest where a quarter of workers' time
//!   goes into computing again, whether 200 or 400 sessions are open; which fixed factor gives that differs threefold.

use std::time::Duration;

use tandem_types::Time;

/// Bounds of the factor. With less than the lower one a sudden crowd finds too little admission; more than the upper one
/// keeps the caches of people who have gone home.
const LEAST: f64 = 0.7;
const MOST: f64 = 3.0;
/// Seconds over which work is averaged: some turns of each program.
const AVERAGED_S: f64 = 60.0;
/// Seconds in which the factor grows e-fold while twice what is wanted is computed again.
const FOLLOWS_S: f64 = 90.0;
/// No faster than three times that, however much it is.
const OFF_MOST: f64 = 2.0;

#[derive(Debug, Clone, Copy)]
pub(super) struct Price {
    factor: f64,
    /// Part of workers' time that goes into computing again, averaged.
    part: f64,
    /// What it is to be; 0 leaves the factor as it is.
    wanted: f64,
    at: Time,
    /// When something was heard of caches last.
    heard: Option<Time>,
}

impl Price {
    pub(super) const fn new(factor: f64, wanted: f64) -> Self {
        Self { factor, part: 0.0, wanted, at: Time::ZERO, heard: None }
    }

    pub(super) const fn factor(&self) -> f64 {
        self.factor
    }

    /// A turn took so many seconds of each worker to compute again what its program had had before; 0 where all was there.
    pub(super) fn computed_again(&mut self, now: Time, seconds: f64) {
        self.part += seconds / AVERAGED_S;
        self.heard = Some(now);
    }

    /// Lets time pass.
    pub(super) fn follow(&mut self, now: Time) {
        let until = self.heard.map_or(self.at, |heard| now.min(heard + Duration::from_secs_f64(AVERAGED_S)));
        let passed = until.since(self.at).as_secs_f64();
        if self.wanted > 0.0 && passed > 0.0 {
            // The average sinks meanwhile: its mean over that time, so that it does not matter how often one looks.
            let mean = self.part * AVERAGED_S * (1.0 - (-passed / AVERAGED_S).exp()) / passed;
            let step = (mean / self.wanted - 1.0).min(OFF_MOST) * passed / FOLLOWS_S;
            self.factor = (self.factor * step.exp()).clamp(LEAST.min(self.factor), MOST.max(self.factor));
        }
        self.part *= (-now.since(self.at).as_secs_f64() / AVERAGED_S).exp();
        self.at = self.at.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten minutes in which `part` of each second of workers goes into computing again.
    fn after(mut price: Price, part: f64) -> f64 {
        for tenth in 1..=6_000 {
            let now = Time::ZERO + Duration::from_millis(tenth * 100);
            price.follow(now);
            price.computed_again(now, part * 0.1);
        }
        price.factor()
    }

    /// I-PTC-1.
    #[test]
    fn it_sinks_while_there_is_time_and_rises_while_there_is_not() {
        let price = Price::new(1.5, 0.25);
        assert!((after(price, 0.0) - LEAST).abs() < 1e-9);
        assert!((after(price, 0.9) - MOST).abs() < 1e-9);
        // The average takes a minute to come to what it is: until then it lies below what is wanted.
        let even = after(price, 0.25);
        assert!(even < 1.5 && even > 1.5 * (-AVERAGED_S / FOLLOWS_S).exp() - 0.01, "{even}");
    }

    /// At twice the wanted part, e-fold in 90 s.
    #[test]
    fn it_rises_with_what_is_too_much() {
        let mut price = Price { part: 0.5, ..Price::new(1.0, 0.25) };
        for tenth in 1..=450 {
            let now = Time::ZERO + Duration::from_millis(tenth * 100);
            price.follow(now);
            price.computed_again(now, 0.5 * AVERAGED_S * (1.0 - (-0.1 / AVERAGED_S).exp()));
        }
        assert!((price.factor() - 0.5_f64.exp()).abs() < 0.02, "{}", price.factor());
    }

    /// At four times the wanted part as at three times: e^(2 * 30 / 90) after 30 s.
    #[test]
    fn it_rises_no_faster_however_much_is_too_much() {
        for part in [0.75, 1.0, 2.0] {
            let mut price = Price { part, ..Price::new(1.0, 0.25) };
            for tenth in 1..=300 {
                let now = Time::ZERO + Duration::from_millis(tenth * 100);
                price.follow(now);
                price.computed_again(now, part * AVERAGED_S * (1.0 - (-0.1 / AVERAGED_S).exp()));
            }
            assert!((price.factor() - (2.0_f64 / 3.0).exp()).abs() < 0.02, "{part}: {}", price.factor());
        }
    }

    #[test]
    fn what_is_not_told_moves_nothing() {
        let mut price = Price::new(1.5, 0.25);
        price.follow(Time::ZERO + Duration::from_secs(3_600));
        assert!((price.factor() - 1.5).abs() < 1e-9);
        assert!((after(Price::new(1.5, 0.0), 0.9) - 1.5).abs() < 1e-9, "nothing is wanted");
    }

    /// A factor that was set beyond the bounds may stay there, and comes no further.
    #[test]
    fn bounds_bind_what_moves() {
        assert!((after(Price::new(0.2, 0.25), 0.0) - 0.2).abs() < 1e-9);
        let from_above = after(Price::new(5.0, 0.25), 0.9);
        assert!((MOST..=5.0).contains(&from_above), "{from_above}");
    }
}
