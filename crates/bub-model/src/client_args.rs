//! The setting `client_args`: options written for the HTTP clients of the Python version. bub supports some of them.

use std::time::Duration;

use bub_settings::{Secret, Settings};
use serde_json::Value;

use crate::settings::ModelSettings;
use crate::wire::{ORGANIZATION_HEADER, PROJECT_HEADER};

/// The supported members of `client_args`.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClientArgs {
    /// `timeout` in seconds: the maximum time without data, as in the Python version.
    pub(crate) timeout: Option<Duration>,
    /// Number of attempts: `max_retries` plus one.
    pub(crate) attempts: Option<u32>,
    /// Headers from `default_headers` (or `headers`), `organization` and `project`. They may contain credentials, so
    /// they are sent to one provider only, like a key that is set without the name of a provider.
    pub(crate) headers: Vec<(String, Secret)>,
    /// Names of the members that are not supported or have an invalid value.
    pub(crate) unknown: Vec<String>,
}

impl ClientArgs {
    pub(crate) fn from_settings(settings: &Settings) -> Self {
        let mut args = Self::default();
        for (name, value) in settings.get(ModelSettings::CLIENT_ARGS) {
            if !value.is_null() && !args.apply_member(&name, &value) {
                args.unknown.push(name);
            }
        }
        args
    }

    /// Applies one member of `client_args`. Returns whether the member is supported and valid.
    fn apply_member(&mut self, name: &str, value: &Value) -> bool {
        match name {
            "timeout" => {
                let seconds = value.as_f64().filter(|seconds| *seconds > 0.0);
                self.timeout =
                    seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
                self.timeout.is_some()
            }
            "max_retries" => {
                let retries = value
                    .as_u64()
                    .and_then(|retries| u32::try_from(retries).ok());
                self.attempts = retries.map(|retries| retries.saturating_add(1));
                self.attempts.is_some()
            }
            "default_headers" | "headers" => {
                let Some(headers) = value.as_object() else {
                    return false;
                };
                headers
                    .iter()
                    .all(|(name, value)| self.add_header(name, value))
            }
            "organization" => self.add_header(ORGANIZATION_HEADER, value),
            "project" => self.add_header(PROJECT_HEADER, value),
            _ => false,
        }
    }

    fn add_header(&mut self, name: &str, value: &Value) -> bool {
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            _ => return false,
        };
        self.headers
            .push((name.to_ascii_lowercase(), Secret::from(text)));
        true
    }

    /// Logs a warning for each member of `client_args` that has no effect.
    pub(crate) fn warn_unsupported(&self) {
        for name in &self.unknown {
            let hint = "supported: timeout, max_retries, default_headers, organization, project; \
                        set proxies and certificates with HTTPS_PROXY and SSL_CERT_FILE";
            let setting = format_args!("client_args.{name}");
            tracing::warn!(%setting, hint, "model.setting_ignored");
        }
    }
}
