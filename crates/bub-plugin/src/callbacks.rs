//! Answers the requests that an external plugin sends to its host, the bub process that started it.

use std::sync::{Arc, Weak};

use bub_kernel::{Error, Result, SessionId, Turn, hooks::HookSpec};
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
    tape_requests, turn_requests,
};

/// Methods that a plugin can call, with the names of their parameters and the version of the protocol that has them.
pub(crate) const HOST_METHODS: &[(&str, &[&str], u32)] = &[
    (
        "tape/query",
        &[
            "session_id",
            "fork",
            "text",
            "kinds",
            "last_anchor",
            "after_anchor",
            "between_anchors",
            "since",
            "until",
            "newest_first",
            "offset",
            "limit",
        ],
        1,
    ),
    ("tape/append", &["session_id", "fork", "name", "data"], 1),
    (
        "tape/search",
        &["session_id", "text", "kinds", "since", "until", "limit"],
        2,
    ),
    ("tape/info", &["session_id"], 2),
    ("tape/anchors", &["session_id", "limit"], 2),
    ("tape/handoff", &["session_id", "fork", "name", "state"], 2),
    ("tape/reset", &["session_id", "archive"], 2),
    ("tape/list", &["session_id"], 2),
    ("tape/fork", &["session_id"], 2),
    ("tape/merge", &["fork"], 2),
    ("tape/discard", &["fork"], 2),
    ("turn/run", &["message", "stream_output"], 2),
    ("session/quit", &["session_id"], 2),
    ("session/steer", &["session_id", "message", "reason"], 2),
    ("models/list", &["session_id"], 2),
    ("message/send", &["message"], 1),
    (
        "channel/inbound",
        &["channel", "message", "sender", "lifespan"],
        1,
    ),
    (
        "ui/ask",
        &[
            "question", "default", "secret", "choices", "multiple", "raw",
        ],
        1,
    ),
    ("next/call", &["call", "args", "credits"], 1),
    ("tools/changed", &["tools"], 2),
    ("log", &["level", "message"], 1),
];

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
        } else if method == "tools/changed" {
            plugin.change_tools(params);
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
    pub(crate) plugin: Arc<PluginProcess>,
    pub(crate) turn: Option<Turn>,
}

impl CallContext {
    pub(crate) fn new(plugin: &Arc<PluginProcess>, turn: Option<&Turn>) -> Self {
        Self {
            plugin: Arc::clone(plugin),
            turn: turn.cloned(),
        }
    }

    /// Returns whether `session_id` is the session of the turn that the request belongs to.
    pub(crate) fn is_turn_session(&self, session_id: &SessionId) -> bool {
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
        "message/send" => turn_requests::send_message(context, &params).await,
        "turn/run" => turn_requests::run_turn(context, params).await,
        "session/quit" => turn_requests::quit_session(context, &params).await,
        "session/steer" => turn_requests::steer_session(context, params).await,
        "models/list" => turn_requests::list_models(context, &params).await,
        "channel/inbound" => channel::accept_inbound(&context.plugin, params).await,
        method if method.starts_with("tape/") => {
            tape_requests::answer(context, method, &params).await
        }
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
            "unknown method `{method}`; available methods: {}",
            HOST_METHODS
                .iter()
                .map(|(name, ..)| *name)
                .collect::<Vec<_>>()
                .join(", ")
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
    let is_multiple = params.multiple.unwrap_or_default();
    let question = crate::PluginQuestion {
        text: params.question,
        default: params.default.map(|default| match default {
            TextOrList::Text(text) => text,
            TextOrList::List(texts) => texts.join(", "),
        }),
        is_secret: params.secret.unwrap_or_default(),
        choices: params.choices.unwrap_or_default(),
        is_multiple,
        is_raw: params.raw.unwrap_or_default(),
    };
    let mut answers = (handler.0)(&question)?;
    let answer = if is_multiple {
        Value::from(answers)
    } else if question.is_raw {
        answers.pop().map_or(Value::Null, Value::from)
    } else {
        answers.pop().unwrap_or_default().into()
    };
    Ok(json!({"answer": answer}))
}

/// The parameters of `ui/ask`.
#[derive(Deserialize)]
struct AskParams {
    question: String,
    default: Option<TextOrList>,
    secret: Option<bool>,
    choices: Option<Vec<String>>,
    multiple: Option<bool>,
    raw: Option<bool>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum TextOrList {
    Text(String),
    List(Vec<String>),
}

/// Deserializes the parameters of a request. Fails if a parameter has the wrong type, even if the parameter is
/// optional.
pub(crate) fn parse_params<T: DeserializeOwned>(params: &Value) -> Result<T> {
    crate::parse::deserialize_map(params).map_err(Error::invalid_input)
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
