//! Serves a plugin that is written in Rust over stdin and stdout, so that it runs as an external plugin.

use std::{
    process::ExitCode,
    sync::{Arc, OnceLock},
};

use bub_kernel::{
    BoxFuture, CancellationToken, Envelope, Error, Framework, FrameworkBuilder, Inbound, Plugin,
    PluginState, Result, Sender, SessionId, State, ToolContext, ToolExposure, Turn, TurnId,
    hooks::{AsyncHook, HookCall, HookReturn, HookSet, point::RunModelStream},
};
use bub_settings::{Environment, Loader, Section, Settings, SettingsError};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio::sync::Notify;

use crate::{
    codec::{TurnFacts, Wire},
    descriptor::{Descriptor, HookDecl, MIN_PROTOCOL_VERSION, ToolDecl},
    peer::{IncomingMessage, Peer, Question, RequestHandler},
    stream::{self, STREAM_CREDITS, StreamReader, StreamStep},
    wire_hook::{self, WireHook},
};

/// Registration index of the served plugin. Index 0 stands for the plugins of the host, which `next/call` calls.
const PLUGIN_INDEX: usize = 1;

/// Environment variable that bub sets to [`MIN_PROTOCOL_VERSION`] when it starts an external plugin.
pub const PROTOCOL_VARIABLE: &str = "BUB_PLUGIN_PROTOCOL";

/// Adds the served plugin and its tools to a framework.
type AddPlugins = Box<dyn FnOnce(FrameworkBuilder) -> FrameworkBuilder + Send>;

/// Serves the plugin that `add_plugins` adds over stdin and stdout, until the host closes the connection. `sections` are
/// the settings of the plugin. `bub::App` calls it if the host started the program.
///
/// ```no_run
/// # use std::{process::ExitCode, sync::Arc};
/// # use bub_kernel::{Plugin, hooks::HookSet};
/// struct Weather;
///
/// impl Plugin for Weather {
///     fn register(self: Arc<Self>, _hooks: &mut HookSet) {}
/// }
///
/// fn main() -> ExitCode {
///     bub_plugin::serve(Vec::new(), |builder| builder.plugin("weather", Weather))
/// }
/// ```
pub fn serve(
    sections: Vec<Section>,
    add_plugins: impl FnOnce(FrameworkBuilder) -> FrameworkBuilder + Send + 'static,
) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let Ok(runtime) = runtime else {
        return ExitCode::FAILURE;
    };
    let closed = Arc::new(Notify::new());
    let handler = Arc::new(PluginRequestHandler {
        plugin: Mutex::new(Some((sections, Box::new(add_plugins)))),
        served: OnceLock::new(),
        runtime: runtime.handle().clone(),
        closed: Arc::clone(&closed),
    });
    if Peer::start(std::io::stdin(), std::io::stdout(), "host", handler).is_err() {
        return ExitCode::FAILURE;
    }
    runtime.block_on(closed.notified());
    runtime.shutdown_background();
    ExitCode::SUCCESS
}

/// The served plugin, registered in a framework of this process.
pub(crate) struct ServedPlugin {
    framework: Framework,
}

/// Returns settings with the values that the host sent with `initialize`. The host alone reads the user's files.
fn host_settings(params: &Value, sections: Vec<Section>) -> Result<Settings> {
    let name = params.get("name").and_then(Value::as_str);
    let config = params.get("config").and_then(Value::as_object);
    let variables = config.into_iter().flatten().map(|(key, value)| {
        let variable = format!("BUB_{}_{key}", name.unwrap_or_default());
        let text = value.as_str().map(str::to_owned);
        let text = text.unwrap_or_else(|| value.to_string());
        (variable.replace('-', "_").to_uppercase(), text)
    });
    let environment = Environment::from_pairs(variables);
    let (settings, problems) = Loader::new(environment).sections(sections).load_lenient();
    let is_wrong = |problem: &&SettingsError| !matches!(problem, SettingsError::NoHome);
    match problems.iter().find(is_wrong) {
        Some(problem) => Err(Error::config(problem.to_string())),
        None => Ok(settings),
    }
}

impl ServedPlugin {
    /// Creates the plugin with the settings and the workspace of the host.
    fn new(params: &Value, sections: Vec<Section>, add_plugins: AddPlugins) -> Result<Self> {
        let workspace = params.get("workspace").and_then(Value::as_str);
        let builder = Framework::builder()
            .settings(Arc::new(host_settings(params, sections)?))
            .workspace(workspace.unwrap_or("."))
            .plugin("host", HostPlugins);
        let framework = add_plugins(builder).build();
        let own_plugins = framework.plugins().get(PLUGIN_INDEX..).unwrap_or_default();
        if own_plugins.len() > 1 {
            return Err(Error::config(
                "the program has several plugins, but an external plugin is one; make a program for each",
            ));
        }
        match own_plugins.first().map(|plugin| &plugin.state) {
            Some(PluginState::Failed(reason)) => {
                Err(Error::config(format!("cannot create the plugin: {reason}")))
            }
            _ => Ok(Self { framework }),
        }
    }

    fn descriptor(&self) -> Descriptor {
        let hooks = wire_hook::implemented_hooks(self.framework.hooks(), PLUGIN_INDEX).into_iter();
        let tools = self.framework.tools().iter().map(|tool| tool.spec());
        Descriptor {
            protocol: MIN_PROTOCOL_VERSION,
            hooks: hooks
                .map(|(name, observe_only)| HookDecl {
                    name: name.to_owned(),
                    observe_only,
                    ..HookDecl::default()
                })
                .collect(),
            tools: tools
                .map(|spec| ToolDecl {
                    name: spec.name.clone(),
                    description: spec.description.clone(),
                    input_schema: spec.parameters.clone(),
                    output_schema: spec.output_schema.clone(),
                    annotations: json!({
                        "readOnlyHint": spec.read_only,
                        "commandOnly": spec.exposure == ToolExposure::Command,
                        "exposure": spec.exposure.name(),
                        "deferred": spec.deferred,
                    }),
                })
                .collect(),
            ..Descriptor::default()
        }
    }

    /// Calls one hook of the plugin. Returns its result and a record of the state.
    async fn run_hook<P: WireHook>(
        &self,
        call: &HostCall<'_>,
        raw_args: Map<String, Value>,
    ) -> Result<(Option<P::Output>, StateRecord)> {
        let owned = P::decode_args(raw_args)?;
        let facts = P::owned_facts(&owned);
        let record = StateRecord::new(facts.state);
        let served = ServedCall::new(&self.framework, call, facts);
        let args = P::args_from_owned(&owned, &served);
        let chain = P::next_hooks(&call.host_chain());
        let hooks = self.framework.hooks();
        let value = hooks.call_plugin::<P>(PLUGIN_INDEX, args, &chain).await?;
        Ok((value, record))
    }

    /// Calls one hook of the plugin. Returns the response: the result of the hook and its changes to the state.
    pub(crate) async fn call_hook<P: WireHook>(
        &self,
        call: &HostCall<'_>,
        raw_args: Map<String, Value>,
    ) -> Result<Value> {
        let (value, record) = self.run_hook::<P>(call, raw_args).await?;
        let mut answer = record.changes();
        if let Some(value) = value.and_then(|value| value.to_response_value()) {
            answer.insert("value".to_owned(), value);
        }
        Ok(answer.into())
    }

    /// Calls `run_model_stream` of the plugin and sends the events to the host.
    async fn call_stream_hook(&self, call: &HostCall<'_>, raw_args: Map<String, Value>) {
        let Some(request) = call.peer.served_request(call.id) else {
            return;
        };
        match self.run_hook::<RunModelStream>(call, raw_args).await {
            Ok((stream, record)) => {
                let end = || record.changes();
                stream::send_stream(call.peer, call.id, Ok(stream), &request, end).await;
            }
            Err(error) => call.peer.respond(call.id, Err(error)),
        }
    }

    /// Calls a tool of the plugin and returns its result in the format of MCP.
    async fn call_tool(&self, call: &HostCall<'_>, params: &Value) -> Result<Value> {
        let name = params.get("name").and_then(Value::as_str);
        let name = name.unwrap_or_default();
        let mut tools = self.framework.tools().iter();
        let tool = tools.find(|tool| tool.spec().name == name);
        let tool = tool.ok_or_else(|| {
            Error::not_found(format!(
                "unknown tool `{name}`: the plugin does not declare it in `initialize`"
            ))
        })?;
        let meta = params.get("_meta").cloned().unwrap_or_default();
        let state = State::decode(meta.get("state").cloned().unwrap_or_default())?;
        let text = |name: &str| meta.get(name).and_then(Value::as_str);
        let session_id = text("session_id").map(SessionId::from);
        let facts = TurnFacts {
            state: Some(&state),
            session_id: session_id.as_ref(),
            run_id: text("run_id"),
            message: None,
        };
        let call = HostCall {
            sender: meta.get("sender"),
            ..*call
        };
        let served = ServedCall::new(&self.framework, &call, facts);
        let context = ToolContext::new(served.turn().clone());
        let arguments = params.get("arguments").and_then(Value::as_object);
        let arguments = tool.normalize_arguments(arguments.cloned().unwrap_or_default())?;
        let result = bub_kernel::run_tool(tool.as_ref(), arguments, context).await;
        Ok(match result {
            Ok(Value::String(text)) => json!({"content": [{"type": "text", "text": text}]}),
            Ok(value) => {
                json!({"content": [{"type": "text", "text": value.to_string()}], "structuredContent": value})
            }
            Err(error) => {
                json!({"content": [{"type": "text", "text": error.message()}], "isError": true})
            }
        })
    }
}

/// A request of the host to the served plugin.
#[derive(Clone, Copy)]
pub(crate) struct HostCall<'a> {
    peer: &'a Arc<Peer>,
    id: &'a Value,
    /// The sender that the host authenticated.
    sender: Option<&'a Value>,
    /// Cancelled when the host cancels the request.
    cancel: &'a CancellationToken,
}

impl HostCall<'_> {
    /// Returns the plugins of the host that run after the served plugin.
    fn host_chain(&self) -> HostChain {
        HostChain {
            peer: Arc::clone(self.peer),
            call: self.id.clone(),
        }
    }
}

/// Data about the turn that a request of the host belongs to, as far as the request contains it.
pub(crate) struct ServedCall<'a> {
    framework: &'a Framework,
    /// The message with the sender that the host authenticated.
    pub(crate) inbound: Inbound,
    /// Whether the request has a message.
    pub(crate) has_message: bool,
    state: State,
    session_id: Option<SessionId>,
    run_id: Option<TurnId>,
    /// The turn, created when a hook first uses it.
    turn: OnceLock<Turn>,
}

impl<'a> ServedCall<'a> {
    fn new(framework: &'a Framework, call: &HostCall<'_>, facts: TurnFacts<'_>) -> Self {
        let sender = call.sender.cloned();
        let sender = sender.and_then(|sender| Sender::decode(sender).ok());
        let message = facts.message.cloned();
        let message = message.unwrap_or_else(|| placeholder_message(sender.as_ref()));
        let mut inbound = Inbound::new(message).with_cancel(call.cancel.clone());
        if let Some(sender) = sender {
            inbound = inbound.with_sender(sender);
        }
        let state = facts.state.cloned().unwrap_or_default();
        let in_state = || state.get_str("session_id").map(SessionId::from);
        Self {
            framework,
            inbound,
            has_message: facts.message.is_some(),
            session_id: facts.session_id.cloned().or_else(in_state),
            run_id: facts.run_id.map(TurnId::from),
            state,
            turn: OnceLock::new(),
        }
    }

    /// Returns the turn as far as the request describes it. The tape and the channels of the turn are in the host.
    pub(crate) fn turn(&self) -> &Turn {
        self.turn.get_or_init(|| {
            let mut inbound = self.inbound.clone();
            if let Some(session_id) = &self.session_id {
                inbound.set_session_id(session_id.clone());
            }
            let id = self.run_id.clone().unwrap_or_else(TurnId::generate);
            Turn::remote(self.framework, inbound, self.state.clone(), id)
        })
    }
}

/// Creates a message with the chat of the sender, for a request that contains no message.
fn placeholder_message(sender: Option<&Sender>) -> Envelope {
    let Some(sender) = sender else {
        return Envelope::new();
    };
    Envelope::with_capacity(4)
        .with("channel", sender.channel.as_str())
        .with("chat_id", sender.chat_id.as_str())
}

/// The state of a turn, if the hook has it, and its content before the hook was called.
struct StateRecord(Option<(State, Value)>);

impl StateRecord {
    fn new(state: Option<&State>) -> Self {
        Self(state.map(|state| (state.clone(), state.encode())))
    }

    /// Returns a map with the field `state` of the response: the changes that the hook made to the state. The map is
    /// empty if the hook changed nothing.
    fn changes(&self) -> Map<String, Value> {
        let empty = Map::new();
        let Some((state, before)) = &self.0 else {
            return empty;
        };
        let after = state.encode();
        let before = before.as_object().unwrap_or(&empty);
        let mut set = after.as_object().cloned().unwrap_or_default();
        let mut remove: Vec<_> = before.keys().collect();
        remove.retain(|name| !set.contains_key(*name));
        set.retain(|name, value| before.get(name) != Some(value));
        let is_changed = !set.is_empty() || !remove.is_empty();
        let change = ("state".to_owned(), json!({"set": set, "remove": remove}));
        is_changed.then_some(change).into_iter().collect()
    }
}

/// Handles the host's requests to the served plugin.
struct PluginRequestHandler {
    /// The plugin until `initialize` creates it: its settings, and the function that adds it to a framework.
    plugin: Mutex<Option<(Vec<Section>, AddPlugins)>>,
    served: OnceLock<Arc<ServedPlugin>>,
    runtime: tokio::runtime::Handle,
    closed: Arc<Notify>,
}

impl PluginRequestHandler {
    /// Creates the plugin and returns its descriptor.
    fn initialize(&self, params: &Value) -> Result<Value> {
        let plugin = self.plugin.lock().take();
        if let Some((sections, add_plugins)) = plugin {
            let served = ServedPlugin::new(params, sections, add_plugins)?;
            let _ = self.served.set(Arc::new(served));
        }
        Ok(serde_json::to_value(self.served()?.descriptor())?)
    }

    fn served(&self) -> Result<&Arc<ServedPlugin>> {
        let error = "the plugin is not initialized; send `initialize` first";
        self.served.get().ok_or_else(|| Error::invalid_input(error))
    }
}

impl RequestHandler for PluginRequestHandler {
    fn handle_request(&self, peer: &Arc<Peer>, question: Question) {
        let Question {
            id,
            method,
            mut params,
        } = question;
        match method.as_str() {
            "initialize" => return peer.respond(&id, self.initialize(&params)),
            "ping" => return peer.respond(&id, Ok(json!({}))),
            _ => {}
        }
        let served = match self.served() {
            Ok(served) => Arc::clone(served),
            Err(error) => return peer.respond(&id, Err(error)),
        };
        let (peer, cancel) = (Arc::clone(peer), peer.cancellation(&id));
        let raw_args = match params.get_mut("args").map(Value::take) {
            Some(Value::Object(raw_args)) => raw_args,
            _ => Map::new(),
        };
        self.runtime.spawn(async move {
            let call = HostCall {
                peer: &peer,
                id: &id,
                sender: params.get("sender"),
                cancel: &cancel,
            };
            let answering = answer_request(&served, &call, &method, raw_args, &params);
            cancel.run_until_cancelled(answering).await;
        });
    }

    fn handle_notification(&self, method: &str, _: &Value) {
        if method == "shutdown" {
            self.closed.notify_one();
        }
    }

    fn handle_close(&self, _: &Peer, _: &str) {
        self.closed.notify_one();
    }
}

async fn answer_request(
    served: &ServedPlugin,
    call: &HostCall<'_>,
    method: &str,
    raw_args: Map<String, Value>,
    params: &Value,
) {
    let answer = match method.strip_prefix("hook/") {
        Some("run_model_stream") => return served.call_stream_hook(call, raw_args).await,
        Some(hook) => wire_hook::call_served_hook(served, call, hook, raw_args).await,
        None if method == "tools/call" => served.call_tool(call, params).await,
        None => Err(Error::not_found(format!("unknown method `{method}`"))),
    };
    call.peer.respond(call.id, answer);
}

/// Placeholder for the plugins of the host at registration index 0. [`HostChain`] calls them.
struct HostPlugins;

impl Plugin for HostPlugins {
    fn register(self: Arc<Self>, _: &mut HookSet) {}
}

/// Hook implementation that stands for the plugins of the host that run after the served plugin. A call sends
/// `next/call` to the host. Each request of the host has its own `HostChain`.
#[derive(Clone)]
pub(crate) struct HostChain {
    peer: Arc<Peer>,
    /// Id of the host's request that is being served.
    call: Value,
}

/// The [`HostChain`] of `run_model_stream`, whose result is a stream.
pub(crate) struct HostChainStream(pub(crate) HostChain);

impl<P: WireHook> AsyncHook<P> for HostChain {
    fn call<'a>(&'a self, call: HookCall<'a, P>) -> BoxFuture<'a, HookReturn<P::Output>> {
        Box::pin(async move {
            let args = P::encode_args(call.args, &|name| name != "state" && name != "tape");
            let params = json!({"call": self.call, "args": args});
            let mut request = self.peer.send_request("next/call", &params, 0);
            loop {
                if let IncomingMessage::Response(answer) = request.next_message().await {
                    let Value::Object(mut answer) = answer? else {
                        return Ok(None);
                    };
                    return Ok(answer.remove("value").map(P::Output::decode).transpose()?);
                }
            }
        })
    }
}

impl AsyncHook<RunModelStream> for HostChainStream {
    fn call<'a>(
        &'a self,
        call: HookCall<'a, RunModelStream>,
    ) -> BoxFuture<'a, HookReturn<bub_kernel::ModelStream>> {
        Box::pin(async move {
            let args = RunModelStream::encode_args(call.args, &|name| name != "state");
            let params = json!({"call": self.0.call, "args": args, "credits": STREAM_CREDITS});
            let peer = &self.0.peer;
            let request = peer.send_request("next/call", &params, STREAM_CREDITS);
            let mut reader = StreamReader::new(request, None);
            Ok(match reader.next_step(None).await? {
                StreamStep::Event(first) => Some(reader.into_stream(first)),
                StreamStep::End(answer) => stream::empty_stream(&answer),
            })
        })
    }
}
