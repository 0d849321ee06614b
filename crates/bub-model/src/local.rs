//! Model servers on this computer: asked what they have, all at once, with little patience.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::Value;

use crate::base_url::BaseUrl;
use crate::fetch::{Fetch, FetchRequest};
use crate::{ModelId, Provider};

/// A refused connection answers at once; this is for what accepts and says nothing.
const PROBE_TIMEOUT: Duration = Duration::from_millis(500);

/// A server that answered.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LocalServer {
    /// The provider it answers for.
    pub provider: String,
    /// Where it is.
    pub base_url: BaseUrl,
    /// The models it has, those for conversation only, in its own order.
    pub models: Vec<String>,
}

impl LocalServer {
    /// The model to use when nothing says which.
    pub fn first_model(&self) -> Option<ModelId> {
        self.models
            .first()
            .map(|model| ModelId::new(&self.provider, model))
    }
}

/// Asks the servers at these addresses; those that answer like a model server are given back in the
/// same order. Addresses beyond this computer are never asked.
pub(crate) async fn find(
    fetch: &dyn Fetch,
    candidates: Vec<(&Provider, BaseUrl)>,
) -> Vec<LocalServer> {
    let mut seen: Vec<BaseUrl> = Vec::new();
    let mut asked = Vec::new();
    for (provider, base_url) in candidates {
        // Two programs may share a usual port; the first one in the catalogue stands for it.
        if base_url.is_loopback() && !seen.contains(&base_url) {
            seen.push(base_url.clone());
            asked.push(ask(fetch, &provider.name, base_url));
        }
    }
    join_all(asked).await.into_iter().flatten().collect()
}

async fn ask(fetch: &dyn Fetch, provider: &str, base_url: BaseUrl) -> Option<LocalServer> {
    let url = format!("{base_url}/models");
    let answer = fetch
        .fetch(FetchRequest {
            url: &url,
            form: None,
            timeout: PROBE_TIMEOUT,
        })
        .await
        .ok()?;
    let models = (answer.status == 200)
        .then(|| models(&answer.body))
        .flatten()?;
    Some(LocalServer {
        provider: provider.to_owned(),
        base_url,
        models,
    })
}

/// The models in a list; `None` when it is no such list, as of any other program on that port.
fn models(body: &[u8]) -> Option<Vec<String>> {
    let body: Value = serde_json::from_slice(body).ok()?;
    // A server without any model says `null`.
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

/// Servers list everything they can load, and say nowhere what it is for.
fn is_chat_model(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    !["embed", "rerank", "whisper", "bge-"]
        .iter()
        .any(|word| name.contains(word))
}
