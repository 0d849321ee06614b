//! What plugins provide outside the stages of a turn, collected by the rules of each hook.

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
            ProvideModelOptions, ProvideTapeSidecar, RegisterCliCommands, SystemPrompt,
        },
    },
    ids::SessionId,
    inbound::Inbound,
    llm::ModelOptions,
    prompt::Prompt,
    steering::SteeringInbox,
    turn::Turn,
};

impl Framework {
    /// The tape store of the running scope; `None` outside of one.
    pub fn tape_store(&self) -> Option<Arc<dyn TapeStore>> {
        self.scope()?.tape_store.clone()
    }

    /// The steering inbox of the running scope; `None` outside of one.
    pub fn steering_inbox(&self) -> Option<Arc<dyn SteeringInbox>> {
        self.scope()?.steering_inbox.clone()
    }

    /// Puts a message into the steering inbox; `false` when there is none or it is full.
    pub async fn steer_message(&self, session_id: &SessionId, message: Inbound) -> Result<bool> {
        match self.steering_inbox() {
            Some(inbox) => guard::run(|| inbox.enqueue(session_id, message)).await?,
            None => Ok(false),
        }
    }

    /// The system prompt: the fragments of all plugins, lowest priority first, joined by blank lines.
    pub fn system_prompt(&self, prompt: &Prompt, turn: &Turn) -> Result<String> {
        let fragments = self
            .hooks()
            .call_many_sync::<SystemPrompt>(args::SystemPrompt {
                prompt,
                state: turn.state(),
                turn,
            })?;
        let spoken: Vec<_> = fragments
            .into_iter()
            .rev()
            .flatten()
            .filter(|text| !text.is_empty())
            .collect();
        Ok(spoken.join("\n\n"))
    }

    /// The prompt of the next step, when a plugin has one.
    pub async fn continue_prompt(&self, prompt: &Prompt, turn: &Turn) -> Result<Option<String>> {
        self.hooks()
            .call_first::<ContinuePrompt>(args::ContinuePrompt {
                prompt,
                tape: turn.tape().tape(),
                state: turn.state(),
                turn,
            })
            .await
    }

    /// How tape entries become messages, when a plugin has a way of its own.
    pub fn tape_context(&self) -> Result<Option<TapeContext>> {
        self.hooks().call_first_sync::<BuildTapeContext>(())
    }

    /// All sidecars, one of each name; the latest registered plugin's wins.
    pub fn tape_sidecars(&self) -> Result<Vec<Sidecar>> {
        let provided = self.hooks().call_many_sync::<ProvideTapeSidecar>(())?;
        Ok(first_of_each(provided.into_iter().flatten(), |sidecar| {
            sidecar.name.clone()
        }))
    }

    /// All channels, one of each name; the latest registered plugin's wins.
    pub fn channels(&self, message_handler: &MessageHandler) -> Result<Vec<Arc<dyn Channel>>> {
        let args = args::ProvideChannels { message_handler };
        let provided = self.hooks().call_many_sync::<ProvideChannels>(args)?;
        Ok(first_of_each(
            provided.into_iter().flatten().flatten(),
            |channel| channel.name().to_owned(),
        ))
    }

    /// Asks plugins what happens to an arriving message; `None` if no plugin decides. A failing plugin decides nothing.
    pub async fn admit_message(
        &self,
        session_id: &SessionId,
        inbound: &Inbound,
        turn: &TurnSnapshot,
    ) -> Option<Admission> {
        let args = args::AdmitMessage {
            session_id,
            message: &inbound.message,
            turn,
            inbound,
        };
        match self.hooks().call_first::<AdmitMessage>(args).await {
            Ok(decided) => decided,
            Err(error) => {
                let plugin = error.origin().map_or("", |origin| &*origin.plugin);
                tracing::warn!(adapter = %plugin, %error, "hook.admit_message_failed");
                self.hooks()
                    .notify_error(args::OnError {
                        stage: "admit_message",
                        error: &error,
                        message: Some(&inbound.message),
                        turn: None,
                    })
                    .await;
                None
            }
        }
    }

    /// The models on offer: all choices in priority order; the first plugin that knows the current
    /// one names it.
    pub async fn model_options(&self, session_id: &SessionId) -> Result<ModelOptions> {
        let args = args::ProvideModelOptions {
            session_id,
            workspace: self.workspace(),
        };
        let offers = self.hooks().call_many::<ProvideModelOptions>(args).await?;
        let mut all = ModelOptions::default();
        for offer in offers.into_iter().flatten() {
            all.choices.extend(offer.choices);
            all.current = all
                .current
                .or(offer.current.filter(|model| !model.is_empty()));
        }
        Ok(all)
    }

    /// The commands of the command line. A plugin that cannot name its own loses them, and nobody else does.
    pub fn cli_commands(&self) -> Vec<CliCommand> {
        let app = CliApp::default();
        for found in RegisterCliCommands::implementations(self.hooks())
            .iter()
            .rev()
        {
            let args = args::RegisterCliCommands { app: &app };
            if let Some(Err(error)) = found.call_sync(self.hooks(), args) {
                let adapter = found.plugin();
                tracing::warn!(%adapter, %error, "hook.register_cli_commands_failed");
            }
        }
        app.into_commands()
    }

    /// Asks every plugin for its part of the configuration, in registration order. Each sees what is
    /// there so far, and what it returns is merged into that.
    pub fn collect_onboard_config(&self, mut config: Value) -> Result<Value> {
        for found in OnboardConfig::implementations(self.hooks()) {
            let args = args::OnboardConfig {
                current_config: &config,
            };
            let Some(fragment) = found.call_sync(self.hooks(), args).transpose()?.flatten() else {
                continue;
            };
            if !fragment.is_object() {
                // The value itself may be a key somebody typed.
                let message = format!("onboard_config of `{}` returned no map", found.plugin());
                return Err(Error::invalid_input(message));
            }
            merge_maps(&mut config, fragment);
        }
        Ok(config)
    }
}

/// Keeps the first item of every name.
fn first_of_each<T>(items: impl Iterator<Item = T>, name: impl Fn(&T) -> String) -> Vec<T> {
    let mut seen = std::collections::HashSet::new();
    // One that fails to say its name cannot be addressed.
    items
        .filter(|item| guard::catch(|| name(item)).is_ok_and(|name| seen.insert(name)))
        .collect()
}

/// Merges maps within maps; everywhere else the incoming value wins.
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
