//! Hooks of an external plugin. The kernel calls them like the hooks of a linked-in plugin.

use std::{
    path::{Component, Path},
    sync::Arc,
    time::Duration,
};

use bub_kernel::{
    BoxFuture, Error, ExecutionEnvironment, Provided, Result, ScopeGuard, State, SteeringInbox,
    WORKSPACE_KEY,
    hooks::{AsyncHook, HOOKS, HookCall, HookPoint, HookReturn, HookSet, SyncHook, args, point},
};
use bub_tape::{Entry, TapeContext, TapeStore, codec};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::time::Instant;
use tracing::{Instrument as _, Span};

use crate::{
    callbacks::{self, CallContext},
    codec::{Wire, type_error},
    descriptor::HookDecl,
    peer::{IncomingMessage, OutgoingRequest, Peer},
    process::PluginProcess,
    remote_environment::RemoteEnvironment,
    remote_store::{self, RemoteSteeringInbox},
    stream::StreamHook,
    wire_hook::{self, WireHook},
};

/// How often bub sends `ping` to a plugin that runs a call without a timeout.
const LIVENESS_INTERVAL: Duration = Duration::from_secs(30);

/// One hook that an external plugin implements.
#[derive(Clone)]
pub(crate) struct ExternalHook {
    pub(crate) plugin: Arc<PluginProcess>,
    pub(crate) entry: Arc<HookDecl>,
    /// Protocol method, `hook/<name>`.
    pub(crate) method: Arc<str>,
    /// Timeout of a call; `None` means no timeout.
    pub(crate) limit: Option<Duration>,
}

/// Registers all hooks of an external plugin. Logs a warning for unknown hooks and skips them.
pub(crate) fn register_hooks(plugin: &Arc<PluginProcess>, hooks: &mut HookSet) {
    for entry in &plugin.descriptor.hooks {
        let Some(spec) = HOOKS.iter().find(|spec| spec.name == entry.name) else {
            tracing::warn!(plugin = plugin.name(), hook = %entry.name, "plugin.unknown_hook");
            continue;
        };
        let hook = ExternalHook {
            plugin: Arc::clone(plugin),
            entry: Arc::new(entry.clone()),
            method: format!("hook/{}", entry.name).into(),
            limit: plugin.hook_timeout(spec, entry.timeout()),
        };
        if entry.name == point::RunModelStream::SPEC.name {
            let options = entry.options(None);
            hooks.add_async::<point::RunModelStream>(StreamHook(hook));
            hooks.set_last_options::<point::RunModelStream>(options);
        } else if entry.name == point::OnboardConfig::SPEC.name {
            hooks.add_sync::<point::OnboardConfig>(OnboardConfigHook(hook));
        } else if entry.name == point::ProvideLifespan::SPEC.name {
            hooks.add_sync::<point::ProvideLifespan>(ProvidingHook(hook));
        } else if entry.name == point::ProvideTapeStore::SPEC.name {
            let options = entry.options(None);
            hooks.add_sync::<point::ProvideTapeStore>(ProvidingHook(hook));
            hooks.set_last_options::<point::ProvideTapeStore>(options);
        } else if entry.name == point::ProvideSteeringInbox::SPEC.name {
            let options = entry.options(None);
            hooks.add_sync::<point::ProvideSteeringInbox>(ProvidingHook(hook));
            hooks.set_last_options::<point::ProvideSteeringInbox>(options);
        } else if entry.name == point::ProvideEnvironment::SPEC.name {
            let options = entry.options(hook.limit);
            hooks.add_async::<point::ProvideEnvironment>(ProvidingHook(hook));
            hooks.set_last_options::<point::ProvideEnvironment>(options);
        } else if entry.name == point::BuildTapeContext::SPEC.name {
            let options = entry.options(None);
            hooks.add_sync::<point::BuildTapeContext>(ProvidingHook(hook));
            hooks.set_last_options::<point::BuildTapeContext>(options);
        } else {
            wire_hook::register_hook(&entry.name, hook, hooks);
        }
    }
}

impl ExternalHook {
    /// Returns the parameters of the request: the arguments that the descriptor lists for this hook, and the sender.
    pub(crate) fn build_params<P: WireHook>(&self, args: P::Args<'_>) -> Value {
        let requested_args = self.entry.args.as_deref();
        let is_requested =
            |name: &str| requested_args.is_none_or(|args| args.iter().any(|arg| arg == name));
        // Not `json!`, which would copy the arguments.
        let mut params = Map::new();
        let mut encoded = P::encode_args(args, &is_requested);
        if let (Some(state), Some(encoded)) = (P::facts(args).state, encoded.get_mut("state")) {
            self.plugin.add_workspace(state, encoded);
        }
        params.insert("args".to_owned(), encoded.into());
        if let Some(sender) = P::sender(args) {
            params.insert("sender".to_owned(), sender.encode());
        }
        params.into()
    }

    /// Connects to the plugin. Returns the connection and what is left of the timeout, which includes the start of the
    /// process; see also [`Self::peer_or_skip`].
    pub(crate) async fn connect(&self) -> Result<Option<(Arc<Peer>, Option<Duration>)>> {
        let started = Instant::now();
        self.start_others();
        let peer = self.peer_or_skip(self.plugin.connect(self.limit).await)?;
        let remaining = self
            .limit
            .map(|limit| limit.saturating_sub(started.elapsed()));
        Ok(peer.map(|peer| (peer, remaining)))
    }

    /// If this call has to start the plugin, starts the others that bub is about to call, too.
    fn start_others(&self) {
        if !self.plugin.is_running() {
            self.plugin.host.group.start_with(&self.entry.name);
        }
    }

    /// Returns the peer of `connection`. If the plugin cannot be reached, returns `None`, so that bub skips the plugin.
    /// Fails only for `before_tool_call` without `observe_only`: then bub must deny the tool call.
    fn peer_or_skip(&self, connection: Result<Arc<Peer>>) -> Result<Option<Arc<Peer>>> {
        match connection {
            Ok(peer) => Ok(Some(peer)),
            Err(error) if self.entry.is_guard() => Err(error),
            // The log already has the reason.
            Err(error) => {
                self.plugin.report_failure(&error);
                Ok(None)
            }
        }
    }

    /// Waits for the next message of a call. Fails after the timeout, and kills the plugin's process if it hangs.
    ///
    /// `remaining` is what is left of the timeout. Without a timeout, the call runs while the plugin answers `ping` and
    /// sends a message at least every [`Limits::model`](crate::Limits::model). This interval excludes the time during
    /// which `is_waiting` returns true.
    pub(crate) async fn next_message(
        &self,
        request: &mut OutgoingRequest,
        remaining: Option<Duration>,
        is_waiting: impl Fn() -> bool,
    ) -> Result<IncomingMessage> {
        let max_silence = self.plugin.plugin_config.limits.model;
        let has_limit = remaining.is_some();
        let mut remaining = remaining.unwrap_or(max_silence);
        loop {
            let interval = if has_limit {
                remaining
            } else {
                remaining.min(LIVENESS_INTERVAL)
            };
            if let Ok(incoming) = tokio::time::timeout(interval, request.next_message()).await {
                return Ok(incoming);
            }
            if has_limit || !is_waiting() {
                remaining -= interval;
            }
            if remaining.is_zero() {
                let limit = self.limit.unwrap_or(max_silence);
                return Err(self.plugin.handle_timeout(&request.peer, limit).await);
            }
            self.plugin.check_alive(&request.peer).await;
        }
    }

    async fn call_async<P: WireHook>(&self, call: HookCall<'_, P>) -> Result<Option<P::Output>> {
        // The next plugins run in the span of the caller: they are not part of this plugin's call.
        let caller = Span::current();
        let span = self.plugin.call_span(Some(P::SPEC.name));
        self.exchange_messages(call, &caller).instrument(span).await
    }

    async fn exchange_messages<P: WireHook>(
        &self,
        call: HookCall<'_, P>,
        caller: &Span,
    ) -> Result<Option<P::Output>> {
        let Some((peer, mut remaining)) = self.connect().await? else {
            return Ok(None);
        };
        let mut request = peer.send_request(&self.method, &self.build_params::<P>(call.args), 0);
        loop {
            let wait_started = Instant::now();
            let incoming = self.next_message(&mut request, remaining, || false);
            match incoming.await? {
                IncomingMessage::Response(answer) => {
                    return self.decode_response::<P>(P::facts(call.args).state, answer?);
                }
                IncomingMessage::Question(question) => {
                    // The timeout does not include the time that the next plugins take.
                    remaining =
                        remaining.map(|remaining| remaining.saturating_sub(wait_started.elapsed()));
                    if question.method == "next/call" {
                        let below = async {
                            let next = P::next(call)?;
                            let replaced =
                                callbacks::parse_replaced_args(P::SPEC, &question.params)?;
                            P::call_next(next, replaced).await
                        };
                        let below = below.instrument(caller.clone()).await;
                        peer.respond(&question.id, below.map(encode_next_result));
                    } else {
                        let context = CallContext::new(&self.plugin, P::turn(call.args));
                        callbacks::spawn_answer(&peer, question, context);
                    }
                }
                IncomingMessage::Event(_) => {}
            }
        }
    }

    fn call_blocking<P: WireHook>(&self, args: P::Args<'_>) -> Result<Option<P::Output>> {
        match self.call_blocking_raw::<P>(args)? {
            Some(answer) => self.decode_response::<P>(P::facts(args).state, answer),
            None => Ok(None),
        }
    }

    /// Calls the hook and returns the response. Returns `None` if the plugin cannot be reached.
    fn call_blocking_raw<P: WireHook>(&self, args: P::Args<'_>) -> Result<Option<Value>> {
        let _entered = self.plugin.call_span(Some(P::SPEC.name)).entered();
        let default = self.plugin.plugin_config.limits.hook;
        let limit = self.limit.unwrap_or(default);
        let deadline = std::time::Instant::now() + limit;
        self.start_others();
        let Some(peer) = self.peer_or_skip(self.plugin.connect_blocking(limit))? else {
            return Ok(None);
        };
        let mut request = peer.send_request(&self.method, &self.build_params::<P>(args), 0);
        let answer = request.wait_blocking(deadline, |question| {
            callbacks::answer_blocking(&peer, &self.plugin, &question);
        });
        drop(request);
        match answer {
            Some(answer) => answer.map(Some),
            None => Err(self.plugin.handle_timeout_blocking(&peer, limit)),
        }
    }

    /// Sends `tape/select`: the plugin maps entries to messages. If it fails, the model sees no messages of the tape.
    fn select_messages(&self, entries: &[Entry]) -> Vec<Map<String, Value>> {
        let encode =
            |entry: &Entry| serde_json::from_str(&codec::encode(entry)).unwrap_or_default();
        let entries: Vec<Value> = entries.iter().map(encode).collect();
        let limit = self.plugin.plugin_config.limits.hook;
        let deadline = std::time::Instant::now() + limit;
        let answer = self.plugin.connect_blocking(limit).and_then(|peer| {
            let mut request = peer.send_request("tape/select", &json!({"entries": entries}), 0);
            let answer = request.wait_blocking(deadline, |question| {
                callbacks::answer_blocking(&peer, &self.plugin, &question);
            });
            drop(request);
            answer.unwrap_or_else(|| Err(self.plugin.handle_timeout_blocking(&peer, limit)))
        });
        match answer {
            Ok(answer) => {
                let messages = answer.get("messages").and_then(Value::as_array);
                let messages = messages.into_iter().flatten();
                messages
                    .filter_map(|message| message.as_object().cloned())
                    .collect()
            }
            Err(error) => {
                self.plugin.report_failure(&error);
                let (plugin, error) = (self.plugin.name(), self.plugin.redact(error.message()));
                tracing::error!(plugin, %error, "plugin.select_failed");
                Vec::new()
            }
        }
    }

    /// Decodes a response `{value?, state?}` and applies its changes to the state of the turn.
    pub(crate) fn decode_response<P: WireHook>(
        &self,
        state: Option<&State>,
        answer: Value,
    ) -> Result<Option<P::Output>> {
        let mut answer = self.response_fields(answer)?;
        let value = answer.remove("value").map(P::Output::decode).transpose();
        let patch = answer.get("state").unwrap_or(&Value::Null);
        let decoded = value.and_then(|value| {
            apply_state_changes(state, patch)?;
            Ok(value)
        });
        let value = decoded.map_err(|error| self.invalid_response_error(&error))?;
        self.plugin.record_success();
        Ok(value)
    }

    /// Returns the fields of a response. Unknown fields are an error, so that a misspelled field is not ignored.
    pub(crate) fn response_fields(&self, answer: Value) -> Result<Map<String, Value>> {
        let is_stream_hook = self.entry.name == point::RunModelStream::SPEC.name;
        let is_known =
            |name: &str| matches!(name, "value" | "state") || (is_stream_hook && name == "stream");
        match answer {
            Value::Null => Ok(Map::new()),
            Value::Object(answer) if answer.keys().all(|name| is_known(name)) => Ok(answer),
            other => {
                let error = type_error("an object with `value` and `state` only", &other);
                Err(self.invalid_response_error(&error))
            }
        }
    }

    /// Builds the error for a response that cannot be decoded.
    pub(crate) fn invalid_response_error(&self, error: &Error) -> Error {
        self.plugin.plugin_error(error.kind(), error.message())
    }
}

/// The hook `onboard_config` of an external plugin. The plugin can set only its own section of the config: it must not
/// change permissions or where API keys are sent.
struct OnboardConfigHook(ExternalHook);

impl SyncHook<point::OnboardConfig> for OnboardConfigHook {
    fn call(&self, call: HookCall<'_, point::OnboardConfig>) -> HookReturn<Value> {
        let name = self.0.plugin.name();
        // Pass only the plugin's section and `model`, because other sections may contain API keys.
        let field = |key: &str| Some((key.to_owned(), call.args.current_config.get(key)?.clone()));
        let visible_config: Map<_, _> = [name, "model"].into_iter().filter_map(field).collect();
        let visible_config = Value::from(visible_config);
        let args = args::OnboardConfig {
            current_config: &visible_config,
        };
        let answer = self.0.call_blocking::<point::OnboardConfig>(args)?;
        let Some(Value::Object(mut config)) = answer else {
            return Ok(answer);
        };
        let is_unchanged = |key: &str, value: &Value| visible_config.get(key) == Some(value);
        let ignored = config
            .iter()
            .filter(|(key, value)| *key != name && !is_unchanged(key, value));
        let ignored: Vec<&str> = ignored.map(|(key, _)| key.as_str()).collect();
        if !ignored.is_empty() {
            let hint = format_args!("a plugin can set only keys under `{name}`");
            tracing::warn!(plugin = name, keys = ?ignored, %hint, "plugin.config_ignored");
        }
        config.retain(|key, _| key == name);
        Ok(Some(config.into()))
    }
}

/// A hook of an external plugin whose result is an object in the plugin's process. The host uses it through requests.
struct ProvidingHook(ExternalHook);

impl ProvidingHook {
    /// Calls the hook. Returns the value of the response, or `None` if the plugin has no result.
    fn value<P: WireHook>(&self, args: P::Args<'_>) -> Result<Option<Value>> {
        let Some(answer) = self.0.call_blocking_raw::<P>(args)? else {
            return Ok(None);
        };
        let value = self.0.response_fields(answer)?.remove("value");
        Ok(value.filter(|value| !value.is_null()))
    }
}

impl SyncHook<point::ProvideTapeStore> for ProvidingHook {
    fn call(
        &self,
        call: HookCall<'_, point::ProvideTapeStore>,
    ) -> HookReturn<Provided<dyn TapeStore>> {
        let value = self.value::<point::ProvideTapeStore>(call.args)?;
        Ok(value.map(|_| remote_store::provide_store(&self.0.plugin)))
    }
}

impl SyncHook<point::ProvideSteeringInbox> for ProvidingHook {
    fn call(
        &self,
        call: HookCall<'_, point::ProvideSteeringInbox>,
    ) -> HookReturn<Provided<dyn SteeringInbox>> {
        let value = self.value::<point::ProvideSteeringInbox>(call.args)?;
        let inbox = || Arc::new(RemoteSteeringInbox::new(&self.0.plugin)) as Arc<dyn SteeringInbox>;
        Ok(value.map(|_| Provided::new(inbox())))
    }
}

impl AsyncHook<point::ProvideEnvironment> for ProvidingHook {
    fn call<'a>(
        &'a self,
        call: HookCall<'a, point::ProvideEnvironment>,
    ) -> BoxFuture<'a, HookReturn<Arc<dyn ExecutionEnvironment>>> {
        Box::pin(async move {
            let (hook, plugin) = (&self.0, &self.0.plugin);
            let params = hook.build_params::<point::ProvideEnvironment>(call.args);
            let limit = hook.limit.unwrap_or(plugin.plugin_config.limits.hook);
            hook.start_others();
            let answer = plugin.call(&hook.method, &params, None, limit).await?;
            let value = hook.response_fields(answer)?.remove("value");
            let Some(value) = value.filter(|value| !value.is_null()) else {
                return Ok(None);
            };
            let provided = RemoteEnvironment::new(plugin, &value);
            let provided = provided.ok_or_else(|| {
                let error = type_error("an object with a string `id`", &value);
                hook.invalid_response_error(&error)
            })?;
            Ok(Some(Arc::new(provided) as Arc<dyn ExecutionEnvironment>))
        })
    }
}

impl SyncHook<point::BuildTapeContext> for ProvidingHook {
    fn call(&self, call: HookCall<'_, point::BuildTapeContext>) -> HookReturn<TapeContext> {
        let Some(value) = self.value::<point::BuildTapeContext>(call.args)? else {
            return Ok(None);
        };
        let has_selector = value.get("select") == Some(&Value::Bool(true));
        let context = TapeContext::decode(value);
        let mut context = context.map_err(|error| self.0.invalid_response_error(&error))?;
        if has_selector {
            let hook = self.0.clone();
            context = context.with_selector(move |entries| hook.select_messages(entries));
        }
        Ok(Some(context))
    }
}

impl SyncHook<point::ProvideLifespan> for ProvidingHook {
    fn call(&self, call: HookCall<'_, point::ProvideLifespan>) -> HookReturn<Box<dyn ScopeGuard>> {
        self.0
            .call_blocking_raw::<point::ProvideLifespan>(call.args)?;
        Ok(Some(Box::new(PluginLifespan(Arc::clone(&self.0.plugin)))))
    }
}

/// The open resources of an external plugin.
struct PluginLifespan(Arc<PluginProcess>);

impl ScopeGuard for PluginLifespan {
    fn close(self: Box<Self>) -> BoxFuture<'static, Result<()>> {
        Box::pin(async move {
            // If the process has ended, so have its resources.
            if self.0.is_running() {
                let limit = self.0.plugin_config.limits.hook;
                self.0
                    .call("lifespan/close", &Value::Null, None, limit)
                    .await?;
            }
            Ok(())
        })
    }
}

/// Encodes the result of the next plugins as the response to `next/call`.
pub(crate) fn encode_next_result<T: Wire>(value: Option<T>) -> Value {
    value.map_or_else(|| json!({}), |value| json!({"value": value.encode()}))
}

/// Applies the changes that a plugin made to the state of the turn. Ignores fields whose names start with
/// [`RUNTIME_PREFIX`](bub_kernel::RUNTIME_PREFIX), except the workspace.
pub(crate) fn apply_state_changes(state: Option<&State>, patch: &Value) -> Result<()> {
    let expected = "a `state` of {\"set\": {…}, \"remove\": [name, …]}";
    let changes = Option::<StateChanges>::deserialize(patch);
    let changes = changes.map_err(|_| type_error(expected, patch))?;
    let (Some(state), Some(changes)) = (state, changes) else {
        return Ok(());
    };
    let is_public = |name: &str| !name.starts_with(bub_kernel::RUNTIME_PREFIX);
    // A plugin can move a turn into a directory below the workspace, not out of it.
    let workspace = state.get_str(WORKSPACE_KEY);
    let is_below = |value: &Value| {
        let (Some(workspace), Some(target)) = (&workspace, value.as_str()) else {
            return false;
        };
        let target = Path::new(target);
        target.starts_with(workspace)
            && target.components().all(|part| part != Component::ParentDir)
    };
    let is_allowed =
        |name: &str, value: &Value| is_public(name) || (name == WORKSPACE_KEY && is_below(value));
    for (name, value) in changes.set {
        if is_allowed(&name, &value) {
            state.set(name, value);
        }
    }
    for name in changes.remove.iter().filter(|name| is_public(name)) {
        state.remove(name);
    }
    Ok(())
}

/// The changes that a plugin made to the state of a turn.
#[derive(Default, Deserialize)]
#[serde(default)]
struct StateChanges {
    set: Map<String, Value>,
    remove: Vec<String>,
}

impl<P: WireHook> AsyncHook<P> for ExternalHook {
    fn call<'a>(&'a self, call: HookCall<'a, P>) -> BoxFuture<'a, HookReturn<P::Output>> {
        Box::pin(async move { self.call_async(call).await.map_err(Into::into) })
    }
}

impl<P: WireHook> SyncHook<P> for ExternalHook {
    fn call(&self, call: HookCall<'_, P>) -> HookReturn<P::Output> {
        self.call_blocking::<P>(call.args).map_err(Into::into)
    }
}
