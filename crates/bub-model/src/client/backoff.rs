//! Delays between attempts.

use std::time::Duration;

/// Exponential backoff with jitter, so that many clients do not retry at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Delay before the first retry; it doubles with each retry. Default: 500 milliseconds.
    pub first: Duration,
    /// Maximum delay that is not requested by the server. Default: 30 seconds.
    pub most: Duration,
    /// Maximum delay that the server may request. If it requests more, the call is not retried. Default: one minute.
    pub wait_timeout: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(500),
            most: Duration::from_secs(30),
            wait_timeout: Duration::from_mins(1),
        }
    }
}

impl Backoff {
    /// Returns the delay after `failures` failed attempts, or `None` if the server requests too long a delay.
    pub(crate) fn wait(&self, failures: u32, asked: Option<Duration>) -> Option<Duration> {
        // Without random numbers, use a fixed jitter instead of failing.
        self.wait_with(failures, asked, getrandom::u32().unwrap_or(u32::MAX / 2))
    }

    fn wait_with(&self, failures: u32, asked: Option<Duration>, chance: u32) -> Option<Duration> {
        let share = f64::from(chance) / f64::from(u32::MAX);
        if let Some(asked) = asked.filter(|asked| !asked.is_zero()) {
            // Never earlier than requested, with jitter for clients that got the same delay.
            let late = (asked / 10).min(Duration::from_secs(1)).mul_f64(share);
            return (asked <= self.wait_timeout).then(|| asked + late);
        }
        let doubled = self
            .first
            .saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1)));
        let most = doubled.min(self.most);
        Some(most / 2 + (most / 2).mul_f64(share))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(wait: Option<Duration>) -> Option<f64> {
        wait.map(|wait| wait.as_secs_f64())
    }

    #[test]
    fn waits_double_up_to_a_limit_and_have_chance_in_them() {
        let backoff = Backoff::default();
        let shortest: Vec<_> = (1..=9)
            .map(|n| seconds(backoff.wait_with(n, None, 0)).unwrap())
            .collect();
        assert_eq!(shortest, [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 15.0]);
        assert_eq!(seconds(backoff.wait_with(2, None, u32::MAX)), Some(1.0));
        assert_eq!(
            seconds(backoff.wait_with(u32::MAX, None, u32::MAX)),
            Some(30.0)
        );
        let drawn: Vec<_> = (0..20).map(|_| backoff.wait(5, None)).collect();
        assert!(drawn.iter().any(|wait| *wait != drawn[0]));
    }

    #[test]
    fn a_server_is_given_the_time_it_asks_for_but_not_any() {
        let backoff = Backoff::default();
        let asked = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(seconds(backoff.wait_with(1, asked(7), 0)), Some(7.0));
        assert!(backoff.wait(1, asked(60)).unwrap() >= Duration::from_mins(1));
        assert_eq!(backoff.wait(1, asked(61)), None);
        assert_eq!(seconds(backoff.wait_with(1, asked(0), 0)), Some(0.25));
    }
}
