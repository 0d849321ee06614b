//! What the settings say about the webhook, and the limits that need no setting.

use std::time::Duration;

use bub::kernel::Role;
use bub::settings::{Redactor, Secret, Settings};

use crate::settings::{
    WEBHOOK_BODY_LIMIT, WEBHOOK_CALLBACK_HOSTS, WEBHOOK_CONNECTIONS, WEBHOOK_LISTEN,
    WEBHOOK_REPLY_TIMEOUT, WEBHOOK_ROLE, WEBHOOK_TOKEN,
};

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
            listen: WEBHOOK_LISTEN.default(),
            role: Role::Member,
            body_limit: 1_000_000,
            reply_timeout: WEBHOOK_REPLY_TIMEOUT.default(),
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
        let connections = size(settings.get(&WEBHOOK_CONNECTIONS));
        Self {
            token: settings
                .get(&WEBHOOK_TOKEN)
                .filter(|token| !token.expose().is_empty()),
            listen: settings.get(&WEBHOOK_LISTEN),
            role: settings.get(&WEBHOOK_ROLE),
            body_limit: size(settings.get(&WEBHOOK_BODY_LIMIT)),
            reply_timeout: settings.get(&WEBHOOK_REPLY_TIMEOUT),
            callback_hosts: settings.get(&WEBHOOK_CALLBACK_HOSTS),
            redactor: settings.redactor().clone(),
            connections,
            waiting: connections,
            ..Self::default()
        }
    }
}
