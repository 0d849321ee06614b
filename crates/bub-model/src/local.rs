//! Detection of model servers on this machine. All servers are queried concurrently, with a short timeout.

use std::time::Duration;

use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::base_url::BaseUrl;
use crate::fetch::{Fetch, FetchRequest};
use crate::{ModelId, Provider};

/// Timeout of one query. Unused ports fail immediately; the timeout is for servers that accept a connection and do not
/// respond.
const PROBE_TIMEOUT: Duration = Duration::from_millis(500);

/// Maximum length of a model name. Models with longer names are not listed.
const MAX_NAME_BYTES: usize = 200;

/// A local model server that responded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LocalServer {
    /// Name of the server's provider in the catalog, such as `ollama`.
    pub provider: String,
    /// Base URL of the server.
    pub base_url: BaseUrl,
    /// Chat models that the server lists, in its order.
    pub models: Vec<String>,
}

impl LocalServer {
    /// Returns the first model of the server, which bub offers if no model is configured.
    pub fn first_model(&self) -> Option<ModelId> {
        self.models
            .first()
            .map(|model| ModelId::new(&self.provider, model))
    }
}

/// Queries the base URLs in `candidates` and returns the model servers that respond, in the same order. Only loopback
/// addresses are queried, each base URL only once, and on Linux only programs of the user or of root.
pub(crate) async fn find_servers(
    fetch: &dyn Fetch,
    candidates: Vec<(&Provider, BaseUrl)>,
) -> Vec<LocalServer> {
    let mut seen: Vec<BaseUrl> = Vec::new();
    let mut queries = Vec::new();
    for (provider, base_url) in candidates {
        // Two providers may share a default port; the first one in the catalog is used.
        let port = base_url.port().filter(|_| base_url.is_loopback());
        if port.is_some_and(|port| fetch.is_trusted_listener(port)) && !seen.contains(&base_url) {
            seen.push(base_url.clone());
            queries.push(query_server(fetch, &provider.name, base_url));
        }
    }
    join_all(queries).await.into_iter().flatten().collect()
}

async fn query_server(fetch: &dyn Fetch, provider: &str, base_url: BaseUrl) -> Option<LocalServer> {
    let url = format!("{base_url}/models");
    let request = FetchRequest {
        url: &url,
        form: None,
        timeout: PROBE_TIMEOUT,
    };
    let response = fetch.fetch(request).await.ok()?;
    if response.status != 200 {
        return None;
    }
    Some(LocalServer {
        provider: provider.to_owned(),
        base_url,
        models: parse_models(&response.body)?,
    })
}

/// Parses a list of models. Returns `None` if the body is not such a list, because another program may use the port.
pub(crate) fn parse_models(body: &[u8]) -> Option<Vec<String>> {
    #[derive(Deserialize)]
    struct Model {
        id: String,
    }
    #[derive(Deserialize)]
    struct NamedModel {
        name: String,
    }
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum ModelList {
        // Some servers send `null` if they have no models.
        Standard { data: Option<Vec<Model>> },
        Named { models: Vec<NamedModel> },
    }
    // An untagged enum would take a missing `data` for `null`.
    let body: Map<String, Value> = serde_json::from_slice(body).ok()?;
    if !body.contains_key("data") && !body.contains_key("models") {
        return None;
    }
    let names: Vec<String> = match serde_json::from_value(Value::Object(body)).ok()? {
        ModelList::Standard { data } => {
            let models = data.unwrap_or_default().into_iter();
            models.map(|model| model.id).collect()
        }
        ModelList::Named { models } => {
            let names = models.into_iter().map(|model| model.name);
            names
                .map(|name| name.trim_start_matches("models/").to_owned())
                .collect()
        }
    };
    let names = names.into_iter();
    // Users see the names in questions and lists, so a name must not control a terminal.
    let is_name =
        |name: &String| !name.chars().any(char::is_control) && name.len() <= MAX_NAME_BYTES;
    let names = names.filter(|name| is_name(name) && is_chat_model(name));
    Some(names.collect())
}

/// Guesses from its name whether a model is a chat model. Servers list all models they can load without stating their
/// purpose.
fn is_chat_model(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    !["embed", "rerank", "whisper", "bge-"]
        .iter()
        .any(|word| name.contains(word))
}
