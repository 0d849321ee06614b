//! Methods that call the hooks outside of the turn pipeline and merge their results.

use std::sync::Arc;

use bub_tape::{Sidecar, TapeContext, TapeStore};
use serde_json::Value;

use crate::{
    admission::{Admission, TurnSnapshot},
    channel::{Channel, MessageHandler},
    cli::{CliApp, CliCommand},
    error::{Error, Result},
    framework::Framework,
    hooks::{
        HookPoint, args, guard,
        point::{
            AdmitMessage, BuildTapeContext, ContinuePrompt, OnboardConfig, ProvideChannels,
            ProvideModelOptions, ProvideRoutes, ProvideServices, ProvideTapeSidecar,
            RegisterCliCommands, SystemPrompt,
        },
    },
    ids::SessionId,
    inbound::Inbound,
    llm::ModelOptions,
    prompt::Prompt,
    route::HttpRoute,
    service::Service,
    steering::SteeringInbox,
    turn::Turn,
};

impl Framework {
    /// Returns the tape store of the running scope, if a scope is open and a plugin provides one.
    pub fn tape_store(&self) -> Option<Arc<dyn TapeStore>> {
        self.current_scope()?.tape_store.clone()
    }

    /// Returns the steering inbox of the running scope, if a scope is open and a plugin provides one.
    pub fn steering_inbox(&self) -> Option<Arc<dyn SteeringInbox>> {
        self.current_scope()?.steering_inbox.clone()
    }

    /// Builds the system prompt: the parts of all plugins in registration order, joined by blank lines.
    pub fn system_prompt(&self, prompt: &Prompt, turn: &Turn) -> Result<String> {
        let args = args::SystemPrompt::new(prompt, turn.state(), turn);
        let parts = self.hooks().call_all_sync::<SystemPrompt>(args)?;
        let parts = parts.into_iter().rev().flatten();
        let parts: Vec<_> = parts.filter(|text| !text.is_empty()).collect();
        Ok(parts.join("\n\n"))
    }

    /// Returns the prompt of the next step, if a plugin has one.
    pub async fn continue_prompt(&self, prompt: &Prompt, turn: &Turn) -> Result<Option<String>> {
        let args = args::ContinuePrompt::new(prompt, turn.tape().tape(), turn.state(), turn);
        self.hooks().call_first::<ContinuePrompt>(args).await
    }

    /// Returns the rules for building a view from tape entries, if a plugin provides them.
    pub fn tape_context(&self) -> Result<Option<TapeContext>> {
        self.hooks().call_first_sync::<BuildTapeContext>(())
    }

    /// Returns all sidecars. If several have the same name, the one of the plugin registered last wins.
    pub fn tape_sidecars(&self) -> Result<Vec<Sidecar>> {
        let provided = self.hooks().call_all_sync::<ProvideTapeSidecar>(())?;
        let sidecars = provided.into_iter().flatten();
        Ok(unique_by_name(sidecars, |sidecar| &sidecar.name))
    }

    /// Returns all channels. If several have the same name, the one of the plugin registered last wins.
    pub fn channels(&self, message_handler: &MessageHandler) -> Result<Vec<Arc<dyn Channel>>> {
        let args = args::ProvideChannels { message_handler };
        let provided = self.hooks().call_all_sync::<ProvideChannels>(args)?;
        let channels = provided.into_iter().flatten().flatten();
        Ok(unique_by_name(channels, |channel| channel.name()))
    }

    /// Returns the HTTP routes of all plugins in registration order, each with the name of its plugin.
    pub fn routes(&self, message_handler: &MessageHandler) -> Result<Vec<(Arc<str>, HttpRoute)>> {
        let (mut routes, args) = (Vec::new(), args::ProvideRoutes { message_handler });
        for implementation in ProvideRoutes::implementations(self.hooks()) {
            let provided = implementation.call_sync(self.hooks(), args).transpose()?;
            let provided = provided.flatten().unwrap_or_default().into_iter();
            routes.extend(provided.map(|route| (implementation.plugin(), route)));
        }
        Ok(routes)
    }

    /// Returns all background services. If several have the same name, the one of the plugin registered last wins.
    pub fn background_services(&self) -> Result<Vec<Arc<dyn Service>>> {
        let provided = self.hooks().call_all_sync::<ProvideServices>(())?;
        let services = provided.into_iter().flatten().flatten();
        Ok(unique_by_name(services, |service| service.name()))
    }

    /// Asks plugins how to handle an inbound message. Returns `None` if no plugin decides or the hook fails. A failure
    /// is reported to `on_error`.
    pub async fn admit_message(
        &self,
        session_id: &SessionId,
        inbound: &Inbound,
        turn: &TurnSnapshot,
    ) -> Option<Admission> {
        let args = args::AdmitMessage::new(session_id, &inbound.message, turn, inbound);
        match self.hooks().call_first::<AdmitMessage>(args).await {
            Ok(admission) => admission,
            Err(error) => {
                let plugin = error.origin().map_or("", |origin| &*origin.plugin);
                tracing::warn!(adapter = %plugin, %error, "hook.admit_message_failed");
                let args =
                    args::OnError::new("admit_message", &error, Some(&inbound.message), None);
                self.hooks().notify_error(args).await;
                None
            }
        }
    }

    /// Returns the models of all plugins, starting with the plugin registered last. The current model comes from the
    /// first plugin in this order that knows it.
    pub async fn model_options(&self, session_id: &SessionId) -> Result<ModelOptions> {
        let args = args::ProvideModelOptions {
            session_id,
            workspace: self.workspace(),
        };
        let offers = self.hooks().call_all::<ProvideModelOptions>(args).await?;
        let mut all = ModelOptions::default();
        for offer in offers.into_iter().flatten() {
            let current = offer.current.filter(|model| !model.is_empty());
            all.choices.extend(offer.choices);
            all.current = all.current.or(current);
        }
        Ok(all)
    }

    /// Returns the CLI commands of all plugins. If a plugin fails, a warning is logged and the other plugins are not
    /// affected.
    pub fn cli_commands(&self) -> Vec<CliCommand> {
        let (app, hooks) = (CliApp::default(), self.hooks());
        for implementation in RegisterCliCommands::implementations(hooks).iter().rev() {
            let args = args::RegisterCliCommands { app: &app };
            if let Some(Err(error)) = implementation.call_sync(hooks, args) {
                let adapter = implementation.plugin();
                tracing::warn!(%adapter, %error, "hook.register_cli_commands_failed");
            }
        }
        app.into_commands()
    }

    /// Asks all plugins for their part of the configuration, in registration order. Each plugin gets the configuration
    /// so far, and its part is merged into that configuration.
    ///
    /// # Errors
    ///
    /// Fails if a plugin fails or returns anything but a map.
    pub fn collect_onboard_config(&self, config: Value) -> Result<Value> {
        self.collect_onboard_config_of(None, config)
    }

    /// Returns the plugins that implement `onboard_config`.
    pub fn onboard_plugins(&self) -> Vec<String> {
        let implementations = OnboardConfig::implementations(self.hooks());
        let names = implementations.iter();
        names.map(|one| one.plugin().to_string()).collect()
    }

    /// Calls the hook `onboard_config` like [`collect_onboard_config`](Self::collect_onboard_config), but only that of the
    /// named plugin.
    ///
    /// # Errors
    ///
    /// Fails if the plugin fails or returns anything but a map.
    pub fn collect_onboard_config_of(
        &self,
        plugin: Option<&str>,
        mut config: Value,
    ) -> Result<Value> {
        for implementation in OnboardConfig::implementations(self.hooks()) {
            if plugin.is_some_and(|plugin| *implementation.plugin() != *plugin) {
                continue;
            }
            let args = args::OnboardConfig {
                current_config: &config,
            };
            let result = implementation.call_sync(self.hooks(), args).transpose()?;
            let Some(fragment) = result.flatten() else {
                continue;
            };
            if !fragment.is_object() {
                // The error does not show the value, because it may be an API key that the user typed.
                let plugin = implementation.plugin();
                return Err(Error::invalid_input(format!(
                    "invalid result of `onboard_config` from plugin `{plugin}`: expected a map of settings; update or remove the plugin"
                )));
            }
            merge_maps(&mut config, fragment);
        }
        Ok(config)
    }
}

/// Keeps the first item of each name.
fn unique_by_name<T>(items: impl Iterator<Item = T>, name: impl Fn(&T) -> &str) -> Vec<T> {
    let mut seen = std::collections::HashSet::new();
    // Skip items whose `name` panics, because they cannot be addressed.
    items
        .filter(|item| {
            guard::catch_panic(|| name(item).to_owned()).is_ok_and(|name| seen.insert(name))
        })
        .collect()
}

/// Merges nested maps. For all other values, the incoming value wins.
fn merge_maps(base: &mut Value, incoming: Value) {
    match (base, incoming) {
        (Value::Object(base), Value::Object(incoming)) => {
            for (key, value) in incoming {
                merge_maps(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (base, incoming) => *base = incoming,
    }
}
