//! Serves a plugin that is written in Rust over stdin and stdout, so that it runs as an external plugin.

use std::{
    process::ExitCode,
    sync::{Arc, OnceLock},
};

use bub_kernel::{
    BoxError, BoxFuture, CancellationToken, Envelope, Error, Framework, Inbound, Plugin,
    PluginContext, Result, Sender, SessionId, State, ToolContext, Turn, TurnId,
    hooks::{AsyncHook, HookCall, HookReturn, HookSet, args, point::RunModelStream},
};
use serde_json::{Map, Value, json};
use tokio::sync::Notify;

use crate::{
    codec::{self, ArgumentCodec, ResultCodec, TurnFacts},
    descriptor::{Descriptor, HookDecl, PROTOCOL_VERSION, ToolDecl},
    hook::apply_state_changes,
    peer::{IncomingMessage, Peer, RequestHandler},
    stream::{self, NoCallbacks, STREAM_CREDITS},
    wire_hook::{self, WireHook},
};

/// Registration index of the served plugin. Index 0 stands for the plugins of the host, which `next/call` calls.
const PLUGIN_INDEX: usize = 1;

/// Serves a plugin over stdin and stdout until the host closes the connection. Call it from `main`.
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
///     bub_plugin::serve("weather", Weather)
/// }
/// ```
pub fn serve(name: &str, plugin: impl Plugin) -> ExitCode {
    serve_with(name, move |_| Ok::<_, BoxError>(plugin))
}

/// Serves a plugin that `make` creates from its context, like [`serve`].
pub fn serve_with<P: Plugin, E: Into<BoxError>>(
    name: &str,
    make: impl FnOnce(&PluginContext<'_>) -> Result<P, E> + Send + 'static,
) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let Ok(runtime) = runtime else {
        return ExitCode::FAILURE;
    };
    let framework = Framework::builder()
        .plugin("host", HostPlugins)
        .plugin_with(name, make)
        .build();
    let closed = Arc::new(Notify::new());
    let served = Arc::new(ServedPlugin { framework });
    let handler = PluginRequestHandler {
        served,
        runtime: runtime.handle().clone(),
        closed: Arc::clone(&closed),
    };
    if Peer::start(std::io::stdin(), std::io::stdout(), name, Arc::new(handler)).is_err() {
        return ExitCode::FAILURE;
    }
    runtime.block_on(closed.notified());
    runtime.shutdown_background();
    ExitCode::SUCCESS
}

/// The served plugin with a framework of its process.
pub(crate) struct ServedPlugin {
    framework: Framework,
}

impl ServedPlugin {
    fn descriptor(&self) -> Descriptor {
        let hooks = wire_hook::implemented_hooks(self.framework.hooks(), PLUGIN_INDEX).into_iter();
        let tools = self.framework.tools().iter().map(|tool| tool.spec());
        Descriptor {
            protocol: PROTOCOL_VERSION,
            hooks: hooks
                .map(|(name, observe_only)| HookDecl { name: name.to_owned(), args: None, observe_only })
                .collect(),
            tools: tools
                .map(|spec| ToolDecl {
                    name: spec.name.clone(),
                    description: spec.description.clone(),
                    input_schema: spec.parameters.clone(),
                    annotations: json!({"readOnlyHint": spec.read_only, "commandOnly": !spec.agent_use}),
                })
                .collect(),
            ..Descriptor::default()
        }
    }

    /// Calls one hook of the plugin. Returns the response: the result of the hook and its changes to the state.
    pub(crate) async fn call_hook<P: WireHook>(
        &self,
        call: &HostCall<'_>,
        raw_args: Map<String, Value>,
    ) -> Result<Option<Value>> {
        let owned = P::decode_args(raw_args, None)?;
        let served = ServedCall::new(&self.framework, call, P::turn_facts(&owned));
        let args = P::args_from_owned(&owned, &served);
        let before = P::state(args).map(ArgumentCodec::encode);
        let chain = P::next_hooks(&call.host_chain());
        let hooks = self.framework.hooks();
        let value = hooks.call_plugin::<P>(PLUGIN_INDEX, args, &chain).await?;
        let mut answer = Map::new();
        if let Some(value) = value.and_then(ResultCodec::into_response_value) {
            answer.insert("value".to_owned(), value);
        }
        if let (Some(before), Some(state)) = (before, P::state(args)) {
            answer.append(&mut state_changes(&before, state));
        }
        Ok((!answer.is_empty()).then(|| answer.into()))
    }

    /// Calls `run_model_stream` of the plugin and sends the events to the host.
    async fn call_stream_hook(&self, call: &HostCall<'_>, raw_args: Map<String, Value>) {
        let (peer, id) = (call.peer, call.id);
        let Some(request) = peer.served_request(id) else {
            return;
        };
        let owned = match <RunModelStream as WireHook>::decode_args(raw_args, None) {
            Ok(owned) => owned,
            Err(error) => return peer.respond(id, Err(error)),
        };
        let facts = <RunModelStream as WireHook>::turn_facts(&owned);
        let served = ServedCall::new(&self.framework, call, facts);
        let args = <RunModelStream as WireHook>::args_from_owned(&owned, &served);
        let before = ArgumentCodec::encode(args.state);
        let chain = <RunModelStream as WireHook>::next_hooks(&call.host_chain());
        let hooks = self.framework.hooks();
        let stream = hooks
            .call_plugin::<RunModelStream>(PLUGIN_INDEX, args, &chain)
            .await;
        let changes = || state_changes(&before, args.state);
        stream::send_stream(peer, id, stream, &request, changes).await;
    }

    /// Calls a tool of the plugin and returns its result in the format of MCP.
    async fn call_tool(&self, call: &HostCall<'_>, params: &Value) -> Result<Value> {
        let name = params
            .get("name")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let tool = self
            .framework
            .tools()
            .iter()
            .find(|tool| tool.spec().name == name);
        let tool = tool.ok_or_else(|| {
            Error::not_found(format!(
                "unknown tool `{name}`: the plugin does not declare it in `initialize`"
            ))
        })?;
        let meta = params.get("_meta").cloned().unwrap_or_default();
        let state = <&State as ArgumentCodec<'_>>::decode(
            meta.get("state").cloned().unwrap_or_default(),
            None,
        )?;
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
        let arguments = params
            .get("arguments")
            .and_then(Value::as_object)
            .cloned()
            .unwrap_or_default();
        Ok(
            match bub_kernel::run_tool(tool.as_ref(), tool.normalize_arguments(arguments)?, context)
                .await
            {
                Ok(Value::String(text)) => json!({"content": [{"type": "text", "text": text}]}),
                Ok(value) => {
                    json!({"content": [{"type": "text", "text": value.to_string()}], "structuredContent": value})
                }
                Err(error) => {
                    json!({"content": [{"type": "text", "text": error.message()}], "isError": true})
                }
            },
        )
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

/// The turn of a request, as far as the request describes it.
pub(crate) struct ServedCall<'a> {
    framework: &'a Framework,
    inbound: Inbound,
    has_message: bool,
    state: State,
    session_id: Option<SessionId>,
    run_id: Option<TurnId>,
    /// The turn, created when a hook first uses it.
    turn: OnceLock<Turn>,
}

impl<'a> ServedCall<'a> {
    fn new(framework: &'a Framework, call: &HostCall<'_>, facts: TurnFacts<'_>) -> Self {
        let sender = call.sender.map(|sender| codec::decode_sender(Some(sender)));
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

    /// Returns the message with the sender that the host authenticated.
    pub(crate) fn inbound(&self) -> &Inbound {
        &self.inbound
    }

    /// Returns whether the request has a message.
    pub(crate) fn has_message(&self) -> bool {
        self.has_message
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

/// Returns the changes that a hook made to the state, as the field `state` of the response. Empty without changes.
fn state_changes(before: &Value, state: &State) -> Map<String, Value> {
    let empty = Map::new();
    let after = ArgumentCodec::encode(state);
    let (before, after) = (
        before.as_object().unwrap_or(&empty),
        after.as_object().unwrap_or(&empty),
    );
    let set: Map<_, _> = after
        .iter()
        .filter(|(name, value)| before.get(*name) != Some(value))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    let remove: Vec<_> = before
        .keys()
        .filter(|name| !after.contains_key(*name))
        .collect();
    let is_changed = !set.is_empty() || !remove.is_empty();
    is_changed
        .then(|| ("state".to_owned(), json!({"set": set, "remove": remove})))
        .into_iter()
        .collect()
}

/// Handles the host's requests to the served plugin.
struct PluginRequestHandler {
    served: Arc<ServedPlugin>,
    runtime: tokio::runtime::Handle,
    closed: Arc<Notify>,
}

impl RequestHandler for PluginRequestHandler {
    fn handle_request(&self, peer: &Arc<Peer>, id: Value, method: &str, mut params: Value) {
        match method {
            "initialize" => {
                let described = serde_json::to_value(self.served.descriptor());
                return peer.respond(
                    &id,
                    described.map_err(|error| Error::unknown(error.to_string())),
                );
            }
            "ping" => return peer.respond(&id, Ok(json!({}))),
            _ => {}
        }
        let (served, peer, method) = (
            Arc::clone(&self.served),
            Arc::clone(peer),
            method.to_owned(),
        );
        let cancel = peer
            .served_request(&id)
            .map_or_else(CancellationToken::new, |request| request.cancel);
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
            tokio::select! { () = answering => {}, () = cancel.cancelled() => {} }
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
        Some(hook) => wire_hook::call_served_hook(served, call, hook, raw_args)
            .await
            .map(Option::unwrap_or_default),
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

/// The plugins of the host that run after the served plugin, for one call. It calls them with `next/call`.
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
                    request.is_over = true;
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
            let args::RunModelStream { state, .. } = call.args;
            let args = stream::encode_model_args(call.args);
            let params = json!({"call": self.0.call, "args": args, "credits": STREAM_CREDITS});
            let mut request = self
                .0
                .peer
                .send_request("next/call", &params, STREAM_CREDITS);
            loop {
                match request.next_message().await {
                    IncomingMessage::Response(answer) => {
                        request.is_over = true;
                        let answer = answer?;
                        if let Some(patch) = answer.get("state") {
                            apply_state_changes(Some(state), patch)?;
                        }
                        // No event arrived: either the stream is empty or no plugin returned one.
                        let is_stream = answer.get("stream").is_some();
                        return Ok(is_stream.then(|| bub_kernel::ModelStream::from_events([])));
                    }
                    IncomingMessage::Event(event) => {
                        let first = bub_kernel::StreamEvent::from_value(&event);
                        return Ok(Some(stream::event_stream(
                            Some(first),
                            request,
                            None::<NoCallbacks>,
                        )));
                    }
                    IncomingMessage::Question { id, .. } => {
                        request.peer.respond(
                            &id,
                            Err(Error::invalid_input(
                                "unsupported request: the caller of `next/call` accepts no requests",
                            )),
                        );
                    }
                }
            }
        })
    }
}
