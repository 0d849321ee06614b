//! Settings of the webhook channel, in the section `webhook`.

use std::time::Duration;

use bub::settings::{Settings, text_format};
use bub::{Role, Secret};

/// Settings in the section `webhook`.
#[derive(Settings)]
#[settings(section = "webhook")]
pub struct WebhookSettings {
    /// Token that webhook clients must send; without one, only public routes of plugins are served.
    pub token: Option<Secret>,
    /// Address and port that the webhook listens on.
    #[setting(default = "127.0.0.1:8787", format = &text_format::LISTEN)]
    pub listen: String,
    /// Role of webhook clients that send the token: `owner`, `member` or `guest`.
    #[setting(default = Role::Member)]
    pub role: Role,
    /// Hosts in private networks that the webhook may post replies to.
    pub callback_hosts: Vec<String>,
    /// Seconds that a webhook request waits for its reply; the client can fetch the reply later.
    #[setting(default = Duration::from_mins(5), name = "reply_timeout_seconds")]
    pub reply_timeout: Duration,
    /// Maximum size of the body of a webhook request, in bytes.
    #[setting(default = 1_000_000, at_least = 1)]
    pub body_limit: usize,
    /// Maximum concurrent webhook connections.
    #[setting(default = 1024, at_least = 1, deprecated_names = &["webhook.connections"])]
    pub max_connections: usize,
}
