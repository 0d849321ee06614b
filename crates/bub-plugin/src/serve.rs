//! A Rust plugin in a process of its own: what is written against the kernel's hooks, served over standard input and
//! output.

use std::{
    process::ExitCode,
    sync::{Arc, OnceLock},
};

use bub_kernel::{
    BoxError, BoxFuture, CancellationToken, Error, Framework, Plugin, PluginContext, Result, State,
    ToolContext,
    hooks::{AsyncHook, Call, HookReturn, HookSet, args, point::RunModelStream},
};
use serde_json::{Map, Value, json};
use tokio::sync::Notify;

use crate::{
    codec::{self, Argument, Outcome, SENDER},
    descriptor::{Descriptor, HookEntry, PROTOCOL, ToolEntry},
    hook::apply,
    peer::{Arrival, Desk, Peer},
    stream::{self, CREDITS, Nobody},
    wire::{self, Wire},
};

/// Where the chain below stands, and the plugin above it.
const PLUGIN: usize = 1;

tokio::task_local! {
    /// The call of the host that the current task answers.
    static CALL: Value;
}

/// Serves a plugin until its host ends the conversation. For the `main` of a program.
pub fn serve(name: &str, plugin: impl Plugin) -> ExitCode {
    serve_with(name, move |_| Ok::<_, BoxError>(plugin))
}

/// The same for a plugin that is made from its context.
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
    let below = Below::default();
    let framework = Framework::builder()
        .plugin("below", below.clone())
        .plugin_with(name, make)
        .build();
    let over = Arc::new(Notify::new());
    let served = Arc::new(Served { framework });
    let desk = PluginDesk {
        served,
        runtime: runtime.handle().clone(),
        over: Arc::clone(&over),
    };
    let Ok(peer) = Peer::start(std::io::stdin(), std::io::stdout(), name, Arc::new(desk)) else {
        return ExitCode::FAILURE;
    };
    let _ = below.0.set(peer);
    runtime.block_on(over.notified());
    runtime.shutdown_background();
    ExitCode::SUCCESS
}

/// The plugin, in a framework of its own.
pub(crate) struct Served {
    framework: Framework,
}

impl Served {
    fn describe(&self) -> Descriptor {
        let hooks = wire::implemented(self.framework.hooks(), PLUGIN).into_iter();
        let tools = self.framework.tools().iter().map(|tool| tool.spec());
        Descriptor {
            protocol: PROTOCOL,
            hooks: hooks
                .map(|(name, observe_only)| HookEntry { name: name.to_owned(), args: None, observe_only })
                .collect(),
            tools: tools
                .map(|spec| ToolEntry {
                    name: spec.name.clone(),
                    description: spec.description.clone(),
                    input_schema: spec.parameters.clone(),
                    annotations: json!({"readOnlyHint": spec.read_only, "commandOnly": !spec.agent_use}),
                })
                .collect(),
            ..Descriptor::default()
        }
    }

    /// Calls one hook, and says what it did to the state.
    pub(crate) async fn call<P: Wire>(&self, given: Map<String, Value>) -> Result<Option<Value>> {
        let owned = P::read(given, None)?;
        let args = P::of(&owned);
        let before = P::state(args).map(Argument::write);
        let value = self.framework.hooks().call_one::<P>(PLUGIN, args).await?;
        let mut answer = Map::new();
        if let Some(value) = value.and_then(Outcome::opinion) {
            answer.insert("value".to_owned(), value);
        }
        if let (Some(before), Some(state)) = (before, P::state(args)) {
            answer.append(&mut changes(&before, state));
        }
        Ok((!answer.is_empty()).then(|| answer.into()))
    }

    async fn stream(&self, peer: &Peer, id: &Value, given: Map<String, Value>) {
        let Some(work) = peer.work(id) else { return };
        let owned = match <RunModelStream as Wire>::read(given, None) {
            Ok(owned) => owned,
            Err(error) => return peer.respond(id, Err(error)),
        };
        let args = <RunModelStream as Wire>::of(&owned);
        let before = Argument::write(args.state);
        let stream = self
            .framework
            .hooks()
            .call_one::<RunModelStream>(PLUGIN, args)
            .await;
        let changes = || changes(&before, args.state);
        stream::answer(peer, id, stream, &work, changes).await;
    }

    async fn tool(&self, params: &Value) -> Result<Value> {
        let name = params
            .get("name")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let tool = self
            .framework
            .tools()
            .iter()
            .find(|tool| tool.spec().name == name);
        let tool = tool.ok_or_else(|| Error::not_found(format!("there is no tool `{name}`")))?;
        let meta = params.get("_meta").cloned().unwrap_or_default();
        let state =
            <&State as Argument<'_>>::read(meta.get("state").cloned().unwrap_or_default(), None)?;
        state.put_slot(Arc::new(codec::read_sender(meta.get("sender"))));
        let context = ToolContext {
            run_id: meta
                .get("run_id")
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned(),
            tape: None,
            state,
            cancel: CancellationToken::new(),
        };
        let arguments = params
            .get("arguments")
            .and_then(Value::as_object)
            .cloned()
            .unwrap_or_default();
        Ok(
            match bub_kernel::run_tool(tool.as_ref(), tool.normalize(arguments)?, context).await {
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

/// What a plugin did to the state, as part of its answer.
fn changes(before: &Value, state: &State) -> Map<String, Value> {
    let empty = Map::new();
    let after = Argument::write(state);
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

/// The desk at the plugin's end.
struct PluginDesk {
    served: Arc<Served>,
    runtime: tokio::runtime::Handle,
    over: Arc<Notify>,
}

impl Desk for PluginDesk {
    fn request(&self, peer: &Arc<Peer>, id: Value, method: &str, params: Value) {
        match method {
            "initialize" => {
                let described = serde_json::to_value(self.served.describe());
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
            .work(&id)
            .map_or_else(CancellationToken::new, |work| work.cancel);
        self.runtime.spawn(async move {
            let answering = CALL.scope(id.clone(), answer(&served, &peer, &id, &method, params));
            tokio::select! { () = answering => {}, () = cancel.cancelled() => {} }
        });
    }

    fn notification(&self, method: &str, _: &Value) {
        if method == "shutdown" {
            self.over.notify_one();
        }
    }

    fn closed(&self, _: &Peer, _: &str) {
        self.over.notify_one();
    }
}

async fn answer(served: &Served, peer: &Peer, id: &Value, method: &str, mut params: Value) {
    let mut given = match params.get_mut("args").map(Value::take) {
        Some(Value::Object(given)) => given,
        _ => Map::new(),
    };
    if let (Some(Value::Object(message)), Some(sender)) =
        (given.get_mut("message"), params.get_mut("sender"))
    {
        message.insert(SENDER.to_owned(), sender.take());
    }
    let answer = match method.strip_prefix("hook/") {
        Some("run_model_stream") => return served.stream(peer, id, given).await,
        Some(hook) => wire::call(served, hook, given)
            .await
            .map(Option::unwrap_or_default),
        None if method == "tools/call" => served.tool(&params).await,
        None => Err(Error::not_found(format!("there is no method `{method}`"))),
    };
    peer.respond(id, answer);
}

/// The plugins below, which are at the host.
#[derive(Clone, Default)]
pub(crate) struct Below(Arc<OnceLock<Arc<Peer>>>);

/// The same for the one hook that streams.
pub(crate) struct BelowStream(pub(crate) Below);

impl Plugin for Below {
    fn register(self: Arc<Self>, hooks: &mut HookSet) {
        wire::register_below(&self, hooks);
    }
}

impl Below {
    fn peer(&self) -> Result<&Arc<Peer>> {
        self.0
            .get()
            .ok_or_else(|| Error::unknown("there is no host yet"))
    }

    fn call_id() -> Result<Value> {
        CALL.try_with(Value::clone)
            .map_err(|_| Error::invalid_input("`next` is called outside of its hook"))
    }
}

impl<P: Wire> AsyncHook<P> for Below {
    fn call<'a>(&'a self, call: Call<'a, P>) -> BoxFuture<'a, HookReturn<P::Output>> {
        Box::pin(async move {
            let args = P::write(call.args, &|name| name != "state" && name != "tape");
            let params = json!({"call": Self::call_id()?, "args": args});
            let mut asked = self.peer()?.ask("next/call", &params, 0);
            loop {
                if let Arrival::Response(answer) = asked.next().await {
                    asked.is_over = true;
                    let Value::Object(mut answer) = answer? else {
                        return Ok(None);
                    };
                    return Ok(answer.remove("value").map(P::Output::read).transpose()?);
                }
            }
        })
    }
}

impl AsyncHook<RunModelStream> for BelowStream {
    fn call<'a>(
        &'a self,
        call: Call<'a, RunModelStream>,
    ) -> BoxFuture<'a, HookReturn<bub_kernel::ModelStream>> {
        Box::pin(async move {
            let args::RunModelStream { state, .. } = call.args;
            let args = stream::model_args(call.args);
            let params = json!({"call": Below::call_id()?, "args": args, "credits": CREDITS});
            let mut asked = self.0.peer()?.ask("next/call", &params, CREDITS);
            loop {
                match asked.next().await {
                    Arrival::Response(answer) => {
                        asked.is_over = true;
                        let answer = answer?;
                        if let Some(patch) = answer.get("state") {
                            apply(Some(state), patch)?;
                        }
                        // It ended before its first event: an empty stream, unless nobody had one.
                        let is_stream = answer.get("stream").is_some();
                        return Ok(is_stream.then(|| bub_kernel::ModelStream::of([])));
                    }
                    Arrival::Event(event) => {
                        let first = bub_kernel::StreamEvent::from_value(&event);
                        return Ok(Some(stream::events(Some(first), asked, None::<Nobody>)));
                    }
                    Arrival::Question { id, .. } => {
                        asked
                            .peer
                            .respond(&id, Err(Error::invalid_input("nobody answers that here")));
                    }
                }
            }
        })
    }
}
