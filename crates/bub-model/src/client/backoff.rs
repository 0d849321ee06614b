//! Delays between attempts.

use std::time::Duration;

/// Exponential backoff with jitter, so that many clients do not retry at once.
// The crate `backon` would replace only the doubling: the delay that a server requests has its own limit and jitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Longest delay before the first retry; it doubles with each retry. The actual delay is a random part of it, at
    /// least half. Default: 500 milliseconds.
    pub initial: Duration,
    /// Maximum delay if the server does not request a delay. Default: 30 seconds.
    pub max: Duration,
    /// Maximum delay that the server may request. If it requests more, the call is not retried. Default: one minute.
    pub max_retry_after: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            initial: Duration::from_millis(500),
            max: Duration::from_secs(30),
            max_retry_after: Duration::from_mins(1),
        }
    }
}

impl Backoff {
    /// Returns the delay after `failures` failed attempts, or `None` if the server requests too long a delay.
    pub(crate) fn retry_delay(
        &self,
        failures: u32,
        requested: Option<Duration>,
    ) -> Option<Duration> {
        // Without random numbers, use a fixed jitter instead of failing.
        self.delay_with_random(
            failures,
            requested,
            getrandom::u32().unwrap_or(u32::MAX / 2),
        )
    }

    fn delay_with_random(
        &self,
        failures: u32,
        requested: Option<Duration>,
        random: u32,
    ) -> Option<Duration> {
        let share = f64::from(random) / f64::from(u32::MAX);
        if let Some(requested) = requested.filter(|requested| !requested.is_zero()) {
            // Add jitter, because other clients may have got the same delay. Never retry earlier than requested.
            let jitter = (requested / 10).min(Duration::from_secs(1)).mul_f64(share);
            return (requested <= self.max_retry_after).then(|| requested + jitter);
        }
        let doubled = self
            .initial
            .saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1)));
        let max = doubled.min(self.max);
        Some(max / 2 + (max / 2).mul_f64(share))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(delay: Option<Duration>) -> Option<f64> {
        delay.map(|delay| delay.as_secs_f64())
    }

    #[test]
    fn waits_double_up_to_a_limit_and_have_chance_in_them() {
        let backoff = Backoff::default();
        let shortest: Vec<_> = (1..=9)
            .map(|n| seconds(backoff.delay_with_random(n, None, 0)).unwrap())
            .collect();
        assert_eq!(shortest, [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 15.0]);
        assert_eq!(
            seconds(backoff.delay_with_random(2, None, u32::MAX)),
            Some(1.0)
        );
        assert_eq!(
            seconds(backoff.delay_with_random(u32::MAX, None, u32::MAX)),
            Some(30.0)
        );
        let delays: Vec<_> = (0..20).map(|_| backoff.retry_delay(5, None)).collect();
        assert!(delays.iter().any(|delay| *delay != delays[0]));
    }

    #[test]
    fn a_server_is_given_the_time_it_asks_for_but_not_any() {
        let backoff = Backoff::default();
        let requested = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(
            seconds(backoff.delay_with_random(1, requested(7), 0)),
            Some(7.0)
        );
        assert!(backoff.retry_delay(1, requested(60)).unwrap() >= Duration::from_mins(1));
        assert_eq!(backoff.retry_delay(1, requested(61)), None);
        assert_eq!(
            seconds(backoff.delay_with_random(1, requested(0), 0)),
            Some(0.25)
        );
    }
}
