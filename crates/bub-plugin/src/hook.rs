//! The hooks of a plugin in another process, as the kernel calls them.

use std::{sync::Arc, time::Duration};

use bub_kernel::{
    BoxFuture, Error, Result, State,
    hooks::{AsyncHook, HookCall, HookPoint, HookReturn, HookSet, SyncHook, args, point},
};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::time::Instant;
use tracing::{Instrument as _, Span};

use crate::{
    callbacks::{self, CallContext},
    codec::{self, ResultCodec, wrong},
    descriptor::HookDecl,
    peer::{IncomingMessage, Peer, deadline_after},
    process::PluginProcess,
    stream::{StreamHook, StreamRequest},
    wire_hook::{self, WireHook},
};

/// How often a plugin that takes its time is asked whether it lives.
const LIVENESS_INTERVAL: Duration = Duration::from_secs(30);

/// One hook of one plugin.
#[derive(Clone)]
pub(crate) struct ExternalHook {
    pub(crate) plugin: Arc<PluginProcess>,
    pub(crate) entry: Arc<HookDecl>,
    /// `hook/<name>`.
    pub(crate) method: Arc<str>,
}

/// Registers all hooks of a plugin.
pub(crate) fn register(plugin: &Arc<PluginProcess>, hooks: &mut HookSet) {
    for entry in &plugin.descriptor.hooks {
        let hook = ExternalHook {
            plugin: Arc::clone(plugin),
            entry: Arc::new(entry.clone()),
            method: format!("hook/{}", entry.name).into(),
        };
        if entry.name == point::RunModelStream::SPEC.name {
            hooks.add_async::<point::RunModelStream>(StreamHook(hook));
        } else if entry.name == point::OnboardConfig::SPEC.name {
            hooks.add_sync::<point::OnboardConfig>(OnboardConfigHook(hook));
        } else if !wire_hook::register(&entry.name, hook, hooks) {
            tracing::warn!(plugin = plugin.name(), hook = %entry.name, "plugin.unknown_hook");
        }
        if entry.observe_only {
            hooks.observe_only();
        }
    }
}

impl ExternalHook {
    pub(crate) fn params<P: WireHook>(&self, args: P::Args<'_>) -> Value {
        let wanted = self.entry.args.as_deref();
        let is_wanted =
            |name: &str| wanted.is_none_or(|wanted| wanted.iter().any(|want| want == name));
        let mut params = Map::new();
        params.insert("args".to_owned(), P::write(args, &is_wanted).into());
        if let Some(sender) = P::sender(args) {
            params.insert("sender".to_owned(), codec::sender(&sender));
        }
        params.into()
    }

    /// The process to ask. Without one, turns go on; only a guard that cannot be asked says no.
    pub(crate) fn peer_or_skip(&self, reached: Result<Arc<Peer>>) -> Result<Option<Arc<Peer>>> {
        let is_guard =
            self.entry.name == point::BeforeToolCall::SPEC.name && !self.entry.observe_only;
        match reached {
            Ok(peer) => Ok(Some(peer)),
            Err(error) if is_guard => Err(error),
            // Why it could not be started is in the log.
            Err(_) => Ok(None),
        }
    }

    pub(crate) fn limit<P: WireHook>(&self) -> Option<Duration> {
        self.plugin.limit(
            &self.entry.name,
            P::SPEC.sync_only,
            P::SPEC.time_limit.is_none(),
        )
    }

    pub(crate) async fn late(&self, peer: &Arc<Peer>, limit: Option<Duration>) -> Error {
        self.plugin.handle_timeout(peer).await;
        self.plugin
            .timeout_error(limit.unwrap_or(self.plugin.plugin_config.limits.model))
    }

    /// What comes next for a call; `None` when it took longer than it may. One without a limit of its own is waited for
    /// while its plugin lives, and is not silent for too long; what it waits for itself is not its silence.
    pub(crate) async fn next(
        &self,
        asked: &mut StreamRequest,
        limit: Option<Duration>,
        is_waiting: impl Fn() -> bool,
    ) -> Option<IncomingMessage> {
        if let Some(limit) = limit {
            return tokio::time::timeout(limit, asked.next()).await.ok();
        }
        let mut left = self.plugin.plugin_config.limits.model;
        while !left.is_zero() {
            let look = left.min(LIVENESS_INTERVAL);
            if let Ok(incoming) = tokio::time::timeout(look, asked.next()).await {
                return Some(incoming);
            }
            if !is_waiting() {
                left -= look;
            }
            self.plugin.handle_timeout(&asked.peer).await;
        }
        None
    }

    async fn call_async<P: WireHook>(&self, call: HookCall<'_, P>) -> Result<Option<P::Output>> {
        // The chain below is not part of this plugin's call.
        let caller = Span::current();
        let span = self.plugin.call_span(Some(P::SPEC.name));
        self.call_plugin(call, &caller).instrument(span).await
    }

    async fn call_plugin<P: WireHook>(
        &self,
        call: HookCall<'_, P>,
        caller: &Span,
    ) -> Result<Option<P::Output>> {
        let limit = self.limit::<P>();
        let begun = Instant::now();
        let Some(peer) = self.peer_or_skip(self.plugin.connect(limit).await)? else {
            return Ok(None);
        };
        // Starting is a part of it.
        let mut left = limit.map(|limit| limit.saturating_sub(begun.elapsed()));
        let mut request = peer.ask(&self.method, &self.params::<P>(call.args), 0);
        loop {
            let asked = Instant::now();
            let incoming = self.next(&mut request, left, || false).await;
            match incoming {
                Some(IncomingMessage::Response(answer)) => {
                    request.is_over = true;
                    return self.finish::<P>(P::state(call.args), answer);
                }
                Some(IncomingMessage::Question { id, method, params }) => {
                    // What the chain below takes is not this plugin's time.
                    left = left.map(|left| left.saturating_sub(asked.elapsed()));
                    if method == "next/call" {
                        let below = match callbacks::replaced(P::SPEC, &params) {
                            Ok(replaced) => {
                                let below = P::below(call, replaced);
                                below.instrument(caller.clone()).await
                            }
                            Err(error) => Err(error),
                        };
                        peer.respond(&id, below.map(wrapped));
                    } else {
                        let context = CallContext::new(&self.plugin, P::turn(call.args));
                        callbacks::spawn(&peer, id, method, params, context);
                    }
                }
                Some(IncomingMessage::Event(_)) => {}
                None => {
                    drop(request);
                    return Err(self.late(&peer, limit).await);
                }
            }
        }
    }

    fn call_blocking<P: WireHook>(&self, args: P::Args<'_>) -> Result<Option<P::Output>> {
        let _entered = self.plugin.call_span(Some(P::SPEC.name)).entered();
        let limit = self
            .limit::<P>()
            .unwrap_or(self.plugin.plugin_config.limits.hook);
        let mut deadline = deadline_after(limit);
        let Some(peer) = self.peer_or_skip(self.plugin.connect_blocking(Some(limit)))? else {
            return Ok(None);
        };
        let mut request = peer.ask_blocking(&self.method, &self.params::<P>(args));
        loop {
            match request.next_before(deadline) {
                Some(IncomingMessage::Response(answer)) => {
                    request.is_over = true;
                    return self.finish::<P>(P::state(args), answer);
                }
                Some(IncomingMessage::Question { id, method, params }) => {
                    // A person may take as long as they need.
                    let asked = std::time::Instant::now();
                    peer.respond(
                        &id,
                        callbacks::answer_blocking(&self.plugin, &method, &params),
                    );
                    deadline += asked.elapsed();
                }
                Some(IncomingMessage::Event(_)) => {}
                None => {
                    drop(request);
                    self.plugin.note_late_blocking(&peer);
                    return Err(self.plugin.timeout_error(limit));
                }
            }
        }
    }

    /// Reads an answer `{value?, state?}`.
    pub(crate) fn finish<P: WireHook>(
        &self,
        state: Option<&State>,
        answer: Result<Value>,
    ) -> Result<Option<P::Output>> {
        let mut answer = self.answer(answer?)?;
        let named = |error: Error| self.invalid_response(&error);
        let value = answer
            .remove("value")
            .map(P::Output::read)
            .transpose()
            .map_err(named)?;
        if let Some(patch) = answer.get("state") {
            apply(state, patch).map_err(named)?;
        }
        self.plugin.note_success();
        Ok(value)
    }

    /// The fields of an answer. One that says something which nobody understands is not one that says nothing.
    pub(crate) fn answer(&self, answer: Value) -> Result<Map<String, Value>> {
        let streams = self.entry.name == point::RunModelStream::SPEC.name;
        let is_known =
            |name: &str| matches!(name, "value" | "state") || (streams && name == "stream");
        match answer {
            Value::Null => Ok(Map::new()),
            Value::Object(answer) if answer.keys().all(|name| is_known(name)) => Ok(answer),
            other => Err(self.invalid_response(&wrong(
                "an object with `value`, `state` and nothing else",
                &other,
            ))),
        }
    }

    /// What the plugin sent cannot be read.
    pub(crate) fn invalid_response(&self, error: &Error) -> Error {
        self.plugin.error(error.kind(), error.message())
    }
}

/// A plugin asks for its own part of the configuration: who may do what, and where keys go, is not for it to say.
struct OnboardConfigHook(ExternalHook);

impl SyncHook<point::OnboardConfig> for OnboardConfigHook {
    fn call(&self, call: HookCall<'_, point::OnboardConfig>) -> HookReturn<Value> {
        let name = self.0.plugin.name();
        // The rest has keys in it.
        let shown = [name, "model"];
        let shown: Map<String, Value> = shown
            .into_iter()
            .filter_map(|key| Some((key.to_owned(), call.args.current_config.get(key)?.clone())))
            .collect();
        let shown = Value::from(shown);
        let args = args::OnboardConfig {
            current_config: &shown,
        };
        let answer = self.0.call_blocking::<point::OnboardConfig>(args)?;
        let Some(Value::Object(mut part)) = answer else {
            return Ok(answer);
        };
        let is_same = |key: &str, value: &Value| shown.get(key) == Some(value);
        let others = part
            .iter()
            .filter(|(key, value)| *key != name && !is_same(key, value));
        let others: Vec<&str> = others.map(|(key, _)| key.as_str()).collect();
        if !others.is_empty() {
            let hint = format_args!("a plugin can set only keys under `{name}`");
            tracing::warn!(plugin = name, keys = ?others, %hint, "plugin.config_ignored");
        }
        part.retain(|key, _| key == name);
        Ok(Some(part.into()))
    }
}

/// A result of the chain below, as a plugin reads it.
pub(crate) fn wrapped<T: ResultCodec>(value: Option<T>) -> Value {
    value.map_or_else(|| json!({}), |value| json!({"value": value.write()}))
}

/// Takes over what a plugin did to the state; what belongs to the runtime is not its business.
pub(crate) fn apply(state: Option<&State>, patch: &Value) -> Result<()> {
    let patch = match Option::<StateChanges>::deserialize(patch) {
        Ok(patch) => patch.unwrap_or_default(),
        Err(_) => {
            return Err(wrong(
                "a `state` of {\"set\": {…}, \"remove\": [name, …]}",
                patch,
            ));
        }
    };
    let Some(state) = state else { return Ok(()) };
    let is_public = |name: &str| !name.starts_with(bub_kernel::RUNTIME_PREFIX);
    for (name, value) in patch.set.into_iter().filter(|(name, _)| is_public(name)) {
        state.set(name, value);
    }
    for name in patch.remove.iter().filter(|name| is_public(name)) {
        state.remove(name);
    }
    Ok(())
}

/// What a plugin did to the state.
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
