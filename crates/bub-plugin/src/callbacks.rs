//! Answers the requests that an external plugin sends to its host, the bub process that started it.

use std::sync::{Arc, Weak};

use bub_kernel::{Envelope, Error, Outbound, Result, SessionId, Turn, hooks::HookSpec};
use bub_tape::{Entry, EntryKind, Query, Tape, TapeName, codec as tape_codec};
use parking_lot::Mutex;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};
use tracing::Instrument as _;

use crate::{
    channel,
    codec::INVALID_RESULT_TEXT,
    peer::{IncomingMessage, OutgoingRequest, Peer, Question, RequestHandler},
    process::PluginProcess,
    stderr::LogRateLimiter,
};

/// Maximum number of entries that one `tape/query` returns.
const MAX_ENTRIES: u64 = 1000;

/// Handles requests and notifications that an external plugin sends on its own initiative. Requests about a running
/// call, such as `next/call`, go to the task that made the call.
pub(crate) struct HostRequestHandler {
    plugin: Weak<PluginProcess>,
    limiter: Mutex<LogRateLimiter>,
}

impl HostRequestHandler {
    pub(crate) fn new(plugin: Weak<PluginProcess>) -> Self {
        Self {
            plugin,
            limiter: Mutex::new(LogRateLimiter::for_log_lines()),
        }
    }
}

impl RequestHandler for HostRequestHandler {
    fn handle_request(&self, peer: &Arc<Peer>, question: Question) {
        let Some(plugin) = self.plugin.upgrade() else {
            return;
        };
        if question.method == "initialize" {
            return peer
                .close("the process does not speak the plugin protocol: it echoes its input; check `command`");
        }
        match plugin.runtime() {
            Some(runtime) => {
                let _entered = runtime.enter();
                spawn_answer(peer, question, CallContext::new(&plugin, None));
            }
            None => answer_blocking(peer, &plugin, &question),
        }
    }

    fn handle_notification(&self, method: &str, params: &Value) {
        let Some(plugin) = self.plugin.upgrade() else {
            return;
        };
        if !self.limiter.lock().allow_line(plugin.name()) {
            return;
        }
        if method == "log" {
            log_plugin_message(&plugin, params);
        } else {
            let plugin = plugin.name();
            tracing::debug!(plugin, method, "plugin.unknown_notification");
        }
    }

    fn handle_close(&self, peer: &Peer, cause: &str) {
        if let Some(plugin) = self.plugin.upgrade() {
            plugin.handle_exit(peer, cause);
        }
    }
}

/// Logs a `log` notification of the plugin at its level.
fn log_plugin_message(plugin: &PluginProcess, params: &Value) {
    let field = |name: &str| params.get(name).and_then(Value::as_str).unwrap_or_default();
    let (plugin, text) = (plugin.name(), plugin.redact(field("message")));
    match field("level") {
        "error" => tracing::error!(plugin, %text, "plugin.log"),
        "warning" | "warn" => tracing::warn!(plugin, %text, "plugin.log"),
        "debug" => tracing::debug!(plugin, %text, "plugin.log"),
        _ => tracing::info!(plugin, %text, "plugin.log"),
    }
}

/// The plugin that sent a request, and the turn that the request belongs to, if any.
pub(crate) struct CallContext {
    plugin: Arc<PluginProcess>,
    turn: Option<Turn>,
}

impl CallContext {
    pub(crate) fn new(plugin: &Arc<PluginProcess>, turn: Option<&Turn>) -> Self {
        Self {
            plugin: Arc::clone(plugin),
            turn: turn.cloned(),
        }
    }

    /// Returns whether `session_id` is the session of the turn that the request belongs to.
    fn is_turn_session(&self, session_id: &SessionId) -> bool {
        self.turn.as_ref().map(Turn::session_id) == Some(session_id)
    }
}

/// Answers a request of the plugin in a new task. If the plugin cancels the request, the task ends without a response.
pub(crate) fn spawn_answer(peer: &Arc<Peer>, question: Question, context: CallContext) {
    let Question { id, method, params } = question;
    let (peer, cancel) = (Arc::clone(peer), peer.cancellation(&id));
    let answering = async move {
        let answer = answer_request(&context, &method, params);
        if let Some(answer) = cancel.run_until_cancelled(answer).await {
            peer.respond(&id, answer);
        }
    };
    tokio::spawn(answering.in_current_span());
}

async fn answer_request(context: &CallContext, method: &str, params: Value) -> Result<Value> {
    let params = if params.is_null() { json!({}) } else { params };
    match method {
        "tape/query" => query_tape(context, &params).await,
        "tape/append" => append_event(context, &params).await,
        "message/send" => send_message(context, &params).await,
        "channel/inbound" => channel::accept_inbound(&context.plugin, params).await,
        "ui/ask" => {
            let (plugin, params) = (Arc::clone(&context.plugin), params);
            let asking = tokio::task::spawn_blocking(move || ask_user(&plugin, &params));
            asking.await.map_err(|_| {
                Error::unknown("cannot ask the user: the prompt was interrupted; see the log")
            })?
        }
        "next/call" => Err(Error::invalid_input(
            "`next/call` failed: the hook request named in `call` has ended; send `next/call` before you answer that request",
        )),
        _ => Err(Error::not_found(format!(
            "unknown method `{method}`; available methods: tape/query, tape/append, message/send, channel/inbound, ui/ask, next/call"
        ))),
    }
}

/// Answers a request of the plugin without an async runtime, such as a request during a synchronous hook. Supports only
/// `ui/ask`; all other requests need an async runtime and get an error.
pub(crate) fn answer_blocking(peer: &Peer, plugin: &PluginProcess, question: &Question) {
    let answer = match question.method.as_str() {
        "ui/ask" => ask_user(plugin, &question.params),
        method => Err(Error::invalid_input(format!(
            "unsupported request `{method}`: a plugin can send only `ui/ask` during a synchronous hook"
        ))),
    };
    peer.respond(&question.id, answer);
}

/// Waits for the response to a request. Answers the requests that the plugin sends meanwhile.
pub(crate) async fn wait_for_response(
    request: &mut OutgoingRequest,
    plugin: &Arc<PluginProcess>,
    turn: Option<&Turn>,
) -> Result<Value> {
    loop {
        match request.next_message().await {
            IncomingMessage::Response(answer) => return answer,
            IncomingMessage::Question(question) => {
                spawn_answer(&request.peer, question, CallContext::new(plugin, turn));
            }
            IncomingMessage::Event(_) => {}
        }
    }
}

fn ask_user(plugin: &PluginProcess, params: &Value) -> Result<Value> {
    let handler = plugin.host.question_handler.as_ref();
    let no_terminal =
        "cannot ask the user: no terminal is available; run the command in a terminal";
    let handler = handler.ok_or_else(|| Error::config(no_terminal))?;
    let params: AskParams = parse_params(params)?;
    let question = crate::PluginQuestion {
        text: params.question,
        default: params.default,
        is_secret: params.secret.unwrap_or_default(),
    };
    (handler.0)(&question).map(|answer| json!({"answer": answer}))
}

/// The parameters of `ui/ask`.
#[derive(Deserialize)]
struct AskParams {
    question: String,
    default: Option<String>,
    secret: Option<bool>,
}

/// The parameters of `tape/query`.
#[derive(Deserialize)]
struct TapeQueryParams {
    session_id: Option<SessionId>,
    text: Option<String>,
    kinds: Option<Vec<String>>,
    last_anchor: Option<bool>,
    newest_first: Option<bool>,
    limit: Option<u64>,
}

/// The parameters of `tape/append`.
#[derive(Deserialize)]
struct TapeAppendParams {
    session_id: Option<SessionId>,
    name: String,
    data: Option<Value>,
}

/// Deserializes the parameters of a request. Fails if a parameter has the wrong type, even if the parameter is
/// optional.
fn parse_params<T: DeserializeOwned>(params: &Value) -> Result<T> {
    crate::parse::deserialize_map(params).map_err(Error::invalid_input)
}

/// Returns the tape of a session. Without `session_id`, returns the tape of the turn in `context`, which may be in
/// memory only.
///
/// The tape of another session has no [`TapeContext`](bub_tape::TapeContext) and no sidecars. Creating them would call
/// plugins, possibly the plugin that waits for this response.
fn resolve_tape(context: &CallContext, session_id: Option<&SessionId>) -> Result<Tape> {
    let other_session = session_id.filter(|session_id| !context.is_turn_session(session_id));
    if let (None, Some(turn)) = (other_session, &context.turn) {
        return Ok(turn.tape().tape().clone());
    }
    let session_id = other_session.ok_or_else(|| {
        Error::invalid_input("missing `session_id`: it is required outside a turn")
    })?;
    let framework = context.plugin.framework()?;
    let no_store = "cannot open the tape: no tape store is open; send the request while bub runs";
    let store = framework.tape_store();
    let store = store.ok_or_else(|| Error::unknown(no_store))?;
    let name = TapeName::for_session(framework.workspace_text(), session_id);
    Ok(Tape::new(store, name))
}

async fn query_tape(context: &CallContext, params: &Value) -> Result<Value> {
    let params: TapeQueryParams = parse_params(params)?;
    let tape = resolve_tape(context, params.session_id.as_ref())?;
    let limit = params.limit.unwrap_or(100).min(MAX_ENTRIES);
    let mut query = Query::new().limit(usize::try_from(limit).unwrap_or_default());
    if let Some(text) = params.text {
        query = query.text(text);
    }
    if let Some(kinds) = params.kinds {
        query = query.kinds(kinds.iter().map(|kind| EntryKind::from(kind.as_str())));
    }
    if params.last_anchor == Some(true) {
        query = query.after_last_anchor();
    }
    if params.newest_first == Some(true) {
        query = query.newest_first();
    }
    let entries = tape.query_all(query).await?;
    let encode =
        |entry: &Entry| serde_json::from_str(&tape_codec::encode(entry)).unwrap_or_default();
    let entries: Vec<Value> = entries.iter().map(encode).collect();
    Ok(json!({"entries": entries}))
}

/// Appends an event to a tape. A plugin can append only events, so that it cannot forge messages.
async fn append_event(context: &CallContext, params: &Value) -> Result<Value> {
    let params: TapeAppendParams = parse_params(params)?;
    if params.name.is_empty() {
        let text = "invalid `name`: the name of an event must not be empty";
        return Err(Error::invalid_input(text));
    }
    let tape = resolve_tape(context, params.session_id.as_ref())?;
    let entry = Entry::event(&params.name, params.data).with_meta("plugin", context.plugin.name());
    if let Some(session_id) = params.session_id
        && !context.is_turn_session(&session_id)
        && tape.info().await?.entries == 0
    {
        return Err(Error::not_found(format!(
            "session `{session_id}` not found: its tape has no entries"
        )));
    }
    let id = tape.append(entry).await?;
    Ok(json!({"id": id.get()}))
}

/// Returns the arguments that a plugin replaces when it calls the next plugins with `next/call`.
pub(crate) fn parse_replaced_args(spec: &HookSpec, params: &Value) -> Result<Map<String, Value>> {
    // A turn has one state and one tape, which cannot be replaced.
    let names = spec.args.iter().map(|arg| arg.name);
    let replaceable: Vec<_> = names
        .filter(|name| !matches!(*name, "state" | "tape"))
        .collect();
    let args = match params.get("args") {
        None | Some(Value::Null) => return Ok(Map::new()),
        Some(Value::Object(args)) => args,
        Some(_) => return Err(Error::invalid_input("invalid `args`: expected an object")),
    };
    let mut names = args.keys();
    match names.find(|name| !replaceable.contains(&name.as_str())) {
        Some(name) => Err(Error::invalid_input(format!(
            "hook `{}`: cannot replace argument `{name}`; replaceable arguments: {}",
            spec.name,
            replaceable.join(", ")
        ))),
        None => Ok(args.clone()),
    }
}

/// Builds the error for an argument of `next/call` that has the wrong type.
pub(crate) fn invalid_argument_error(error: &Error) -> Error {
    Error::invalid_input(format!(
        "invalid `args`: {}",
        error.message().trim_start_matches(INVALID_RESULT_TEXT)
    ))
}

async fn send_message(context: &CallContext, params: &Value) -> Result<Value> {
    let Some(message @ Value::Object(_)) = params.get("message").cloned() else {
        let text = "invalid `message`: expected an object";
        return Err(Error::invalid_input(text));
    };
    let reply = Outbound::new(Envelope::from_value(message));
    let turn = context.turn.as_ref();
    let turn = turn.filter(|turn| turn.inbound().reply_target.is_some());
    let is_delivered = if let Some(turn) = turn {
        turn.deliver(reply).await?
    } else {
        let router = context.plugin.framework()?.router();
        let router = router.ok_or_else(|| {
            Error::unknown("cannot send the message: no channel is running; start `bub gateway`")
        })?;
        router.dispatch(reply).await?
    };
    Ok(json!({"delivered": is_delivered}))
}
