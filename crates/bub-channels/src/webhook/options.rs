//! What the settings say about the webhook, and the limits that need no setting.

use std::{net::IpAddr, time::Duration};

use bub_kernel::{Error, Result, Role};
use bub_settings::{Redactor, Secret, Settings, core};

/// How the channel is run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WebhookOptions {
    /// Who knows it may come in; without one the channel is off.
    pub token: Option<Secret>,
    /// Host and port to listen on.
    pub listen: String,
    /// What those who come in are to this house.
    pub role: Role,
    /// The largest body that is read, in bytes.
    pub body_limit: usize,
    /// How long a request waits for its reply.
    pub reply_timeout: Duration,
    /// Hosts and networks that may be called back though they are private.
    pub callback_hosts: Vec<String>,
    /// What may not be seen in deltas and errors.
    pub redactor: Redactor,
    /// Most connections at one time.
    pub connections: usize,
    /// Most requests that wait for a reply at one time.
    pub waiting: usize,
    /// How long a client may take to send the head of a request, and then its body.
    pub read_timeout: Duration,
    /// How long an open stream is silent before a sign of life is sent.
    pub keep_alive: Duration,
    /// How long a callback may take.
    pub callback_timeout: Duration,
    /// How many messages are remembered with their replies, at most.
    pub kept: usize,
    /// How many bytes of replies are kept, at most.
    pub kept_bytes: usize,
    /// How long a message is remembered, at most.
    pub kept_for: Duration,
}

impl Default for WebhookOptions {
    fn default() -> Self {
        Self {
            token: None,
            listen: core::WEBHOOK_LISTEN.default(),
            role: Role::Member,
            body_limit: 1_000_000,
            reply_timeout: core::WEBHOOK_REPLY_TIMEOUT.default(),
            callback_hosts: Vec::new(),
            redactor: Redactor::new(),
            connections: 1024,
            waiting: 1024,
            read_timeout: Duration::from_secs(15),
            keep_alive: Duration::from_secs(15),
            callback_timeout: Duration::from_secs(30),
            kept: 2_000,
            kept_bytes: 2_000_000,
            kept_for: Duration::from_hours(1),
        }
    }
}

impl WebhookOptions {
    /// As the settings say.
    pub fn new(settings: &Settings) -> Self {
        let size = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
        let role = match settings.get(&core::WEBHOOK_ROLE) {
            core::WebhookRole::Owner => Role::Owner,
            core::WebhookRole::Member => Role::Member,
            core::WebhookRole::Guest => Role::Guest,
        };
        let connections = size(settings.get(&core::WEBHOOK_CONNECTIONS));
        Self {
            token: settings.get(&core::WEBHOOK_TOKEN).filter(|token| !token.expose().is_empty()),
            listen: settings.get(&core::WEBHOOK_LISTEN),
            role,
            body_limit: size(settings.get(&core::WEBHOOK_BODY_LIMIT)),
            reply_timeout: settings.get(&core::WEBHOOK_REPLY_TIMEOUT),
            callback_hosts: settings.get(&core::WEBHOOK_CALLBACK_HOSTS),
            redactor: settings.redactor().clone(),
            connections,
            waiting: connections,
            ..Self::default()
        }
    }

    /// Whether `listen` can be right at all, which no waiting would change.
    pub fn check(&self) -> Result<()> {
        let is_fine = self.listen.rsplit_once(':').is_some_and(|(host, port)| {
            let host = host.trim_start_matches('[').trim_end_matches(']');
            let is_name =
                || host.contains(|letter: char| letter.is_ascii_alphabetic()) && !host.contains(':');
            port.parse::<u16>().is_ok() && (host.parse::<IpAddr>().is_ok() || is_name())
        });
        if self.token.is_none() || is_fine {
            return Ok(());
        }
        Err(Error::config(format!(
            "`webhook.listen` is `{}`; it has to be an address and a port, such as 127.0.0.1:8787",
            self.listen
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::WebhookOptions;

    #[test]
    fn an_address_that_cannot_be_is_told_at_once() {
        let check = |listen: &str| {
            let token = Some("a-token".into());
            WebhookOptions { listen: listen.to_owned(), token, ..WebhookOptions::default() }.check().is_ok()
        };
        for right in ["127.0.0.1:8787", "0.0.0.0:0", "[::1]:80", "localhost:1", "my-host.lan:65535"] {
            assert!(check(right), "{right}");
        }
        for wrong in
            ["", "bogus", "8787", ":8787", "999.1.1.1:80", "127.0.0.1:99999", "127.0.0.1:", "127.0.0.1"]
        {
            assert!(!check(wrong), "{wrong}");
        }
    }
}
