//! Options of the webhook channel: the settings, and limits without a setting.

use std::time::Duration;

use bub::kernel::Role;
use bub::settings::{Redactor, Secret};

use crate::settings::WebhookSettings;

/// Options of the webhook channel.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WebhookOptions {
    /// Token that clients must send. The channel is disabled without one.
    pub token: Option<Secret>,
    /// Host and port to listen on.
    pub listen: String,
    /// Role of clients that send the token.
    pub role: Role,
    /// Maximum size of a request body in bytes.
    pub body_limit: usize,
    /// How long a request waits for its reply.
    pub reply_timeout: Duration,
    /// Hosts in private networks that replies may be posted to.
    pub callback_hosts: Vec<String>,
    /// Replaces secrets in streamed text and errors.
    pub redactor: Redactor,
    /// Maximum number of concurrent connections. Default: 1024.
    pub connections: usize,
    /// Maximum number of requests that wait for a reply. Default: 1024.
    pub waiting: usize,
    /// How long a client may take to send the head of a request, and then its body. Default: 15 seconds.
    pub read_timeout: Duration,
    /// How long an open stream may be silent before a keep-alive comment is sent. Default: 15 seconds.
    pub keep_alive: Duration,
    /// Timeout for a callback. Default: 30 seconds.
    pub callback_timeout: Duration,
    /// Maximum number of messages that are kept with their replies. Default: 2000.
    pub kept: usize,
    /// Maximum size of the kept replies in bytes. Default: 2 MB.
    pub kept_bytes: usize,
    /// How long a message is kept. Default: one hour.
    pub kept_for: Duration,
}

impl Default for WebhookOptions {
    fn default() -> Self {
        Self {
            token: None,
            listen: WebhookSettings::LISTEN.default(),
            role: Role::Member,
            body_limit: 1_000_000,
            reply_timeout: WebhookSettings::REPLY_TIMEOUT.default(),
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
    /// Returns the options of the given settings.
    pub fn new(settings: WebhookSettings, redactor: Redactor) -> Self {
        let token = settings.token;
        Self {
            token: token.filter(|token| !token.expose().is_empty()),
            listen: settings.listen,
            role: settings.role,
            body_limit: settings.body_limit,
            reply_timeout: settings.reply_timeout,
            callback_hosts: settings.callback_hosts,
            redactor,
            connections: settings.max_connections,
            waiting: settings.max_connections,
            ..Self::default()
        }
    }
}
