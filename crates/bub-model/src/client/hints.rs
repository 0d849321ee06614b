//! Hints that tell users how to resolve an error of a provider.

use crate::Endpoint;
use crate::error::{ModelError, ModelErrorKind, RecoveryAction};

/// Adds the host, the source of the key and advice to errors that the user has to resolve.
pub(super) fn add_hints(mut error: ModelError, endpoint: &Endpoint) -> ModelError {
    if error.kind != ModelErrorKind::Provider {
        return error;
    }
    let (host, provider) = (endpoint.base_url.authority(), endpoint.id.provider());
    let advice = match (error.status, error.action) {
        (_, RecoveryAction::Reauthenticate) => match (&endpoint.sign_in_command, &endpoint.key) {
            (Some(command), _) => format!("{host} rejected the login; run `{command}`"),
            (None, Some(source)) => {
                format!("{host} rejected the key from {source}; check it or set another one")
            }
            (None, None) if endpoint.headers.is_empty() => {
                format!("{host} requires a key and none was sent; set `api_key.{provider}`")
            }
            (None, None) => format!("{host} rejected the key; check the configured headers"),
        },
        (Some(403), _) => format!(
            "{host} denies access to this machine, region or account; check the account at the provider"
        ),
        (Some(404 | 405 | 410), _) => {
            let model = endpoint.id.model();
            format!(
                "check that {host} has the model `{model}` and that {} is its base URL",
                endpoint.base_url
            )
        }
        (Some(413), _) => {
            format!("too large for {host}; shorten the conversation or send smaller files")
        }
        _ => return error,
    };
    error.append(&advice);
    error
}
