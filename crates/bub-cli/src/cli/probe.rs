//! Short test requests to models and channels.

use std::{sync::Arc, time::Duration};

use bub_kernel::{Channel, MessageHandler};
use bub_model::{CallOptions, ChatRequest, ModelClient, ModelId, Models};
use bub_settings::Settings;
use serde_json::json;

/// Timeout of one test request.
const PROBE_TIMEOUT: Duration = Duration::from_secs(15);
/// Timeout of a list of models. The user can also type a name.
const LIST_TIMEOUT: Duration = Duration::from_secs(5);

/// Sends a short request to a model. The error text says what to do.
pub(super) async fn probe_model(
    settings: &Settings,
    models: &Models,
    id: &ModelId,
) -> Result<(), String> {
    let endpoint = models.endpoint(id).await;
    let endpoint = endpoint.map_err(|error| error.to_string())?;
    let request = ChatRequest {
        model: id.model().to_owned(),
        messages: Arc::new(vec![json!({"role": "user", "content": "Say ok."})]),
        // The smallest limit that every provider accepts.
        max_tokens: Some(16),
        stream: true,
        ..ChatRequest::default()
    };
    let options = CallOptions {
        attempts: 1,
        timeout: Some(PROBE_TIMEOUT),
        ..CallOptions::from_settings(settings)
    };
    let client = ModelClient::from_settings(settings);
    let answer = client.complete(endpoint, request, options).await;
    answer.map(drop).map_err(|error| error.to_string())
}

/// Returns the models that the server of a provider lists.
pub(super) async fn list_models(
    settings: &Settings,
    models: &Models,
    provider: &str,
) -> Result<Vec<String>, String> {
    // The list does not depend on the model.
    let endpoint = models.endpoint(&ModelId::new(provider, "any")).await;
    let endpoint = endpoint.map_err(|error| error.to_string())?;
    let client = ModelClient::from_settings(settings);
    let listed = client.list_models(&endpoint, LIST_TIMEOUT).await;
    listed.map_err(|error| error.to_string())
}

/// Checks the connection of a channel to its platform. Returns the account that the channel uses, if it has one.
pub(super) async fn probe_channel(channel: &dyn Channel) -> Result<Option<String>, String> {
    match tokio::time::timeout(PROBE_TIMEOUT, channel.check_connection()).await {
        Ok(outcome) => outcome.map_err(|error| error.message().to_owned()),
        Err(_) => Err(format!("no response within {} s", PROBE_TIMEOUT.as_secs())),
    }
}

/// Returns a handler that discards messages, for channels that are only inspected.
pub(crate) fn discard_handler() -> MessageHandler {
    Arc::new(|_| Box::pin(std::future::ready(Ok(()))))
}
