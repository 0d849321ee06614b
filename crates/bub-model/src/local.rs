//! Detection of model servers on this machine. All servers are queried concurrently, with a short timeout.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::Value;

use crate::base_url::BaseUrl;
use crate::fetch::{Fetch, FetchRequest};
use crate::{ModelId, Provider};

/// Timeout of one query. Unused ports fail immediately; the timeout is for servers that accept a connection and do not
/// respond.
const PROBE_TIMEOUT: Duration = Duration::from_millis(500);

/// A local model server that responded.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LocalServer {
    /// Name of its provider.
    pub provider: String,
    /// Base URL of the server.
    pub base_url: BaseUrl,
    /// Its chat models, in the order of the server.
    pub models: Vec<String>,
}

impl LocalServer {
    /// Returns the model to use if none is configured.
    pub fn first_model(&self) -> Option<ModelId> {
        self.models
            .first()
            .map(|model| ModelId::new(&self.provider, model))
    }
}

/// Queries the candidates and returns the model servers among them, in the order of the candidates. Only loopback
/// addresses are queried.
pub(crate) async fn find_servers(
    fetch: &dyn Fetch,
    candidates: Vec<(&Provider, BaseUrl)>,
) -> Vec<LocalServer> {
    let mut seen: Vec<BaseUrl> = Vec::new();
    let mut queries = Vec::new();
    for (provider, base_url) in candidates {
        // Two providers may share a default port; the first one in the catalog is used.
        if base_url.is_loopback() && !seen.contains(&base_url) {
            seen.push(base_url.clone());
            queries.push(query_server(fetch, &provider.name, base_url));
        }
    }
    join_all(queries).await.into_iter().flatten().collect()
}

async fn query_server(fetch: &dyn Fetch, provider: &str, base_url: BaseUrl) -> Option<LocalServer> {
    let url = format!("{base_url}/models");
    let response = fetch
        .fetch(FetchRequest {
            url: &url,
            form: None,
            timeout: PROBE_TIMEOUT,
        })
        .await
        .ok()?;
    let models = (response.status == 200)
        .then(|| parse_models(&response.body))
        .flatten()?;
    Some(LocalServer {
        provider: provider.to_owned(),
        base_url,
        models,
    })
}

/// Parses a list of models. Returns `None` if the body is not such a list, because another program may use the port.
fn parse_models(body: &[u8]) -> Option<Vec<String>> {
    let body: Value = serde_json::from_slice(body).ok()?;
    // A server without models sends `null`.
    let list = match body.get("data")? {
        Value::Null => return Some(Vec::new()),
        list => list.as_array()?,
    };
    let names: Option<Vec<_>> = list
        .iter()
        .map(|model| model.get("id")?.as_str().map(str::to_owned))
        .collect();
    Some(
        names?
            .into_iter()
            .filter(|name| is_chat_model(name))
            .collect(),
    )
}

/// Guesses from its name whether a model is a chat model. Servers list all models they can load without stating their
/// purpose.
fn is_chat_model(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    !["embed", "rerank", "whisper", "bge-"]
        .iter()
        .any(|word| name.contains(word))
}
