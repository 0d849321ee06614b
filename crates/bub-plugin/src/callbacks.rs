//! What a plugin may ask of its host.

use std::sync::{Arc, Mutex, Weak};

use bub_kernel::{CancellationToken, Envelope, Error, Result, State};
use bub_tape::{Entry, Kind, Query, Tape, TapeName, codec};
use serde_json::{Value, json};

use crate::{
    channel,
    errors::Meter,
    external::External,
    peer::{Desk, Peer, lock},
};

/// So many entries of a tape are given at a time.
const MOST_ENTRIES: u64 = 1000;

/// The desk at the host's end.
pub(crate) struct HostDesk {
    plugin: Weak<External>,
    meter: Mutex<Meter>,
}

impl HostDesk {
    pub(crate) fn new(plugin: Weak<External>) -> Self {
        Self { plugin, meter: Mutex::new(Meter::of_lines()) }
    }
}

impl Desk for HostDesk {
    fn request(&self, peer: &Arc<Peer>, id: Value, method: &str, params: Value) {
        let Some(plugin) = self.plugin.upgrade() else { return };
        if method == "initialize" {
            return peer.close("it does not speak the protocol: it sends back what it is told");
        }
        let context = Context::of(&plugin, None);
        match plugin.runtime() {
            Some(runtime) => {
                let _entered = runtime.enter();
                spawn(peer, id, method.to_owned(), params, context);
            }
            None => peer.respond(&id, answer_blocking(&plugin, method, &params)),
        }
    }

    fn notification(&self, method: &str, params: &Value) {
        let Some(plugin) = self.plugin.upgrade() else { return };
        if !lock(&self.meter).lets_through(plugin.name()) {
            return;
        }
        if method == "log" {
            log(&plugin, params);
        } else {
            tracing::debug!("plugin.unknown_notification plugin={} method={method}", plugin.name());
        }
    }

    fn closed(&self, peer: &Peer, why: &str) {
        if let Some(plugin) = self.plugin.upgrade() {
            plugin.ended(peer, why);
        }
    }
}

fn log(plugin: &External, params: &Value) {
    let text = params.get("message").and_then(Value::as_str).unwrap_or_default();
    let text = plugin.redact(text);
    match params.get("level").and_then(Value::as_str).unwrap_or("info") {
        "error" => tracing::error!("plugin.says plugin={} {text}", plugin.name()),
        "warning" | "warn" => tracing::warn!("plugin.says plugin={} {text}", plugin.name()),
        "debug" => tracing::debug!("plugin.says plugin={} {text}", plugin.name()),
        _ => tracing::info!("plugin.says plugin={} {text}", plugin.name()),
    }
}

/// Whose turn a request belongs to.
pub(crate) struct Context {
    plugin: Arc<External>,
    session_id: Option<String>,
}

impl Context {
    pub(crate) fn of(plugin: &Arc<External>, state: Option<&State>) -> Self {
        let session_id = state.and_then(|state| state.get_str("session_id"));
        Self { plugin: Arc::clone(plugin), session_id }
    }
}

/// Answers a request in a task of its own.
pub(crate) fn spawn(peer: &Arc<Peer>, id: Value, method: String, params: Value, context: Context) {
    let cancel = peer.work(&id).map_or_else(CancellationToken::new, |work| work.cancel);
    let peer = Arc::clone(peer);
    tokio::spawn(async move {
        tokio::select! {
            answer = answer(&context, &method, params) => peer.respond(&id, answer),
            () = cancel.cancelled() => {}
        }
    });
}

async fn answer(context: &Context, method: &str, params: Value) -> Result<Value> {
    match method {
        "tape/query" => query(context, &params).await,
        "tape/append" => append(context, &params).await,
        "message/send" => send(context, &params).await,
        "channel/inbound" => channel::inbound(&context.plugin, params).await,
        "ui/ask" => {
            let (plugin, params) = (Arc::clone(&context.plugin), params);
            let asking = tokio::task::spawn_blocking(move || ask(&plugin, &params));
            asking.await.map_err(|error| Error::unknown(error.to_string()))?
        }
        "next/call" => Err(Error::invalid_input("the call it names is over")),
        _ => Err(Error::not_found(format!("there is no method `{method}`"))),
    }
}

/// The same where nothing can wait: only a person can be asked.
pub(crate) fn answer_blocking(plugin: &External, method: &str, params: &Value) -> Result<Value> {
    match method {
        "ui/ask" => ask(plugin, params),
        _ => Err(Error::invalid_input(format!("`{method}` is not available in a synchronous hook"))),
    }
}

fn ask(plugin: &External, params: &Value) -> Result<Value> {
    let asker = plugin.host.framework.get().and_then(|framework| framework.service::<crate::Asker>());
    let asker = asker.ok_or_else(|| Error::config("there is nobody to ask here"))?;
    let text = |name: &str| params.get(name).and_then(Value::as_str).map(str::to_owned);
    let question = crate::Question {
        text: text("question").ok_or_else(|| Error::invalid_input("`question` is missing"))?,
        default: text("default"),
        is_secret: params.get("secret").and_then(Value::as_bool).unwrap_or(false),
    };
    (asker.0)(&question).map(|answer| json!({"answer": answer}))
}

fn tape(context: &Context, params: &Value) -> Result<Tape> {
    let named = params.get("session_id").and_then(Value::as_str).or(context.session_id.as_deref());
    let session =
        named.ok_or_else(|| Error::invalid_input("outside of a turn `session_id` has to be given"))?;
    let framework = context.plugin.framework()?;
    let store = framework.tape_store().ok_or_else(|| Error::unknown("no tapes are open"))?;
    Ok(Tape::new(store, TapeName::for_session(framework.workspace_text(), session)))
}

async fn query(context: &Context, params: &Value) -> Result<Value> {
    let tape = tape(context, params)?;
    let limit = params.get("limit").and_then(Value::as_u64).unwrap_or(100).min(MOST_ENTRIES);
    let mut query = Query::new().limit(usize::try_from(limit).unwrap_or_default());
    if let Some(text) = params.get("text").and_then(Value::as_str) {
        query = query.text(text);
    }
    if let Some(kinds) = params.get("kinds").and_then(Value::as_array) {
        query = query.kinds(kinds.iter().filter_map(Value::as_str).map(Kind::from));
    }
    if params.get("last_anchor").and_then(Value::as_bool).unwrap_or(false) {
        query = query.last_anchor();
    }
    if params.get("newest_first").and_then(Value::as_bool).unwrap_or(false) {
        query = query.newest_first();
    }
    let entries = tape.query_all(query).await?;
    let shown = |entry: &Entry| serde_json::from_str(&codec::encode(entry)).unwrap_or_default();
    let entries: Vec<Value> = entries.iter().map(shown).collect();
    Ok(json!({"entries": entries}))
}

/// Events only: a plugin adds to history what it did, and cannot put words into anybody's mouth.
async fn append(context: &Context, params: &Value) -> Result<Value> {
    let name = params.get("name").and_then(Value::as_str).filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| Error::invalid_input("`name` of the event is missing"))?;
    let entry = Entry::event(name, params.get("data").cloned()).with_meta("plugin", context.plugin.name());
    let tape = tape(context, params)?;
    if let Some(named) = params.get("session_id").and_then(Value::as_str)
        && context.session_id.as_deref() != Some(named)
        && tape.info().await?.entries == 0
    {
        return Err(Error::not_found(format!("there is no session `{named}`")));
    }
    let id = tape.append(entry).await?;
    Ok(json!({"id": id.get()}))
}

async fn send(context: &Context, params: &Value) -> Result<Value> {
    let message = params.get("message").cloned().unwrap_or_default();
    if !message.is_object() {
        return Err(Error::invalid_input("`message` has to be an object"));
    }
    let framework = context.plugin.framework()?;
    let router = framework.router().ok_or_else(|| Error::unknown("no channel runs"))?;
    let is_sent = router.dispatch(&Envelope::normalize(message)).await?;
    Ok(json!({"delivered": is_sent}))
}
