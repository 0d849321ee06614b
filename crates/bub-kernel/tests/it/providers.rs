//! The hooks outside of the turn pipeline.

use std::{process::ExitCode, sync::Arc};

use bub_kernel::{
    Channel, CliCommand, ErrorKind, Framework, MessageHandler, ModelOption, ModelOptions, Prompt,
    hooks::point::{
        BuildTapeContext, ContinuePrompt, OnboardConfig, ProvideChannels, ProvideModelOptions,
        ProvideTapeSidecar, RegisterCliCommands, SystemPrompt,
    },
};
use bub_tape::{AnchorSelector, Sidecar, TapeContext};
use serde_json::{Value, json};

use crate::support::{FakeChannel, FakePlugin, LogCapture, detached, fail, framework, none, some};

fn handler() -> MessageHandler {
    Arc::new(|_| Box::pin(std::future::ready(Ok(()))))
}

// S-51
#[test]
fn the_system_prompt_joins_fragments_low_priority_first() {
    let saying = |text: &'static str| FakePlugin::new().on::<SystemPrompt>(move |_| some(text));
    let plugins = [
        saying("base"),
        saying(""),
        FakePlugin::new().on::<SystemPrompt>(|_| none()),
        saying("last word"),
    ];
    let system_prompt = |framework: &Framework| {
        framework
            .system_prompt(&Prompt::from("x"), &detached(framework))
            .unwrap()
    };
    assert_eq!(system_prompt(&framework(plugins)), "base\n\nlast word");
    assert_eq!(system_prompt(&framework([])), "");
}

// S-51
#[test]
fn the_system_prompt_depends_on_prompt_and_state() {
    let plugin = FakePlugin::new().on::<SystemPrompt>(|call| {
        some(format!(
            "{} for {}",
            call.args.state.get_str("mood").unwrap(),
            call.args.prompt.text()
        ))
    });
    let framework = framework([plugin]);
    let turn = detached(&framework);
    turn.state().set("mood", "kind");
    let system_prompt = framework.system_prompt(&Prompt::from("hi"), &turn);
    assert_eq!(system_prompt.unwrap(), "kind for hi");
}

// S-44
#[test]
fn of_channels_with_one_name_the_latest_plugins_wins() {
    let builtin: [Arc<dyn Channel>; 2] = [
        Arc::new(FakeChannel::new("telegram")),
        Arc::new(FakeChannel::new("cli")),
    ];
    let better: Arc<dyn Channel> = Arc::new(FakeChannel::new("cli"));
    let other: Arc<dyn Channel> = Arc::new(FakeChannel::new("mail"));
    let (first, kept) = (builtin.clone(), Arc::clone(&better));
    let plugins = [
        FakePlugin::new().on::<ProvideChannels>(move |_| Ok(Some(first.to_vec()))),
        FakePlugin::new().on::<ProvideChannels>(|_| none()),
        FakePlugin::new().on::<ProvideChannels>(move |_| {
            Ok(Some(vec![Arc::clone(&better), Arc::clone(&other)]))
        }),
    ];
    let channels = framework(plugins).channels(&handler()).unwrap();
    let names: Vec<_> = channels.iter().map(|channel| channel.name()).collect();
    assert_eq!(names, ["cli", "mail", "telegram"]);
    assert!(Arc::ptr_eq(&channels[0], &kept));
}

// S-47, S-51
#[test]
fn the_tape_context_is_the_first_one_offered() {
    let anchored = |name: &'static str| {
        FakePlugin::new().on::<BuildTapeContext>(move |_| {
            some(TapeContext::new().with_anchor(AnchorSelector::Named(name.into())))
        })
    };
    let context = framework([anchored("low"), anchored("high")])
        .tape_context()
        .unwrap()
        .unwrap();
    assert_eq!(context.anchor, AnchorSelector::Named("high".into()));
    assert!(framework([]).tape_context().unwrap().is_none());
}

// H-39
#[test]
fn of_sidecars_with_one_name_the_latest_plugins_wins() {
    let offering = |name: &'static str, from: &'static str| {
        FakePlugin::new()
            .on::<ProvideTapeSidecar>(move |_| some(Sidecar::new(name).with_description(from)))
    };
    let plugins = [
        offering("spill", "builtin"),
        offering("notes", "builtin"),
        FakePlugin::new().on::<ProvideTapeSidecar>(|_| none()),
        offering("spill", "user"),
    ];
    let sidecars = framework(plugins).tape_sidecars().unwrap();
    let pairs: Vec<_> = sidecars
        .iter()
        .map(|sidecar| (sidecar.name.as_str(), sidecar.description.as_str()))
        .collect();
    assert_eq!(pairs, [("spill", "user"), ("notes", "builtin")]);
}

// H-30
#[tokio::test]
async fn the_next_prompt_is_the_first_one_offered() {
    let plugins = [
        FakePlugin::new().on::<ContinuePrompt>(|_| some("builtin")),
        FakePlugin::new()
            .on_async::<ContinuePrompt>(|call| some(format!("{} on", call.args.prompt.text()))),
        FakePlugin::new().on::<ContinuePrompt>(|_| none()),
    ];
    let framework = framework(plugins);
    let next = framework
        .continue_prompt(&Prompt::from("go"), &detached(&framework))
        .await
        .unwrap();
    assert_eq!(next.as_deref(), Some("go on"));
}

// H-30
#[tokio::test]
async fn model_choices_are_collected_and_the_first_known_current_one_counts() {
    let offering = |ids: &'static [&'static str], current: Option<&'static str>| {
        FakePlugin::new().on_async::<ProvideModelOptions>(move |call| {
            assert_eq!(
                (call.args.session_id.as_str(), call.args.workspace.to_str()),
                ("s", Some("/project"))
            );
            let choices = ids
                .iter()
                .map(|id| ModelOption {
                    id: (*id).to_owned(),
                    label: None,
                })
                .collect();
            Ok(Some(ModelOptions {
                choices,
                current: current.map(str::to_owned),
            }))
        })
    };
    let plugins = [
        offering(&["a:low"], Some("a:low")),
        offering(&["b:mid"], Some("b:mid")),
        FakePlugin::new().on::<ProvideModelOptions>(|_| none()),
        offering(&["c:high"], Some("")),
    ];
    let options = framework(plugins).model_options(&"s".into()).await.unwrap();
    let ids: Vec<_> = options
        .choices
        .iter()
        .map(|choice| choice.id.as_str())
        .collect();
    assert_eq!(ids, ["c:high", "b:mid", "a:low"]);
    assert_eq!(options.current.as_deref(), Some("b:mid"));
}

fn onboard_plugin(fragment: Value) -> FakePlugin {
    FakePlugin::new().on::<OnboardConfig>(move |_| Ok(Some(fragment.clone())))
}

// S-52: plugins run in registration order, nested maps are merged, and later values win.
#[test]
fn onboarding_merges_in_registration_order() {
    let plugins = [
        onboard_plugin(json!({"model": "a", "telegram": {"token": "t", "proxy": "p"}})),
        FakePlugin::new().on::<OnboardConfig>(|_| none()),
        onboard_plugin(json!({"model": "b", "telegram": {"token": "u", "list": [1]}})),
    ];
    let merged = framework(plugins)
        .collect_onboard_config(json!({"kept": 1, "telegram": "old"}))
        .unwrap();
    assert_eq!(
        merged,
        json!({"kept": 1, "model": "b", "telegram": {"token": "u", "proxy": "p", "list": [1]}})
    );
}

// S-52
#[test]
fn each_sees_the_configuration_so_far() {
    let counting = || {
        FakePlugin::new().on::<OnboardConfig>(|call| {
            let count = call.args.current_config["count"].as_u64().unwrap_or(0);
            Ok(Some(json!({"count": count + 1})))
        })
    };
    let merged = framework([counting(), counting()])
        .collect_onboard_config(json!({"count": 5}))
        .unwrap();
    assert_eq!(merged, json!({"count": 7}));
}

// S-51
#[test]
fn onboarding_that_returns_no_map_is_an_error() {
    for odd in [json!([1]), json!("x"), json!(null)] {
        let error = framework([onboard_plugin(odd.clone())])
            .collect_onboard_config(json!({}))
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert_eq!(
            error.message(),
            "invalid result of `onboard_config` from plugin `p0`: expected a map of settings; update or remove the plugin"
        );
    }
}

// S-46, S-52
#[test]
fn onboarding_cannot_wait_and_does_not_swallow_errors() {
    let log = LogCapture::start();
    let slow = FakePlugin::new().on_async::<OnboardConfig>(|_| panic!("not called"));
    assert_eq!(
        framework([slow])
            .collect_onboard_config(json!({"a": 1}))
            .unwrap(),
        json!({"a": 1})
    );
    assert_eq!(
        log.lines(),
        ["WARN hook.async_not_supported hook=onboard_config adapter=p0"]
    );
    let failing = FakePlugin::new().on::<OnboardConfig>(|_| fail("interrupted"));
    assert_eq!(
        framework([failing])
            .collect_onboard_config(json!({}))
            .unwrap_err()
            .to_string(),
        "interrupted"
    );
}

// S-51
#[test]
fn commands_are_collected_and_a_plugin_can_replace_a_builtin_one() {
    let register_with = |name: &'static str, about: &'static str| {
        FakePlugin::new().on::<RegisterCliCommands>(move |call| {
            let command = CliCommand::new(name, about);
            call.args
                .app
                .add(command.handler(|_| async { Ok(ExitCode::SUCCESS) }));
            none()
        })
    };
    let set = framework([
        register_with("run", "builtin"),
        register_with("chat", "builtin"),
        register_with("run", "user"),
    ]);
    let commands: Vec<_> = set
        .cli_commands()
        .iter()
        .map(|command| format!("{} {}", command.spec.name, command.spec.about))
        .collect();
    assert_eq!(commands, ["run user", "chat builtin"]);
}

// L8: a plugin that fails to register its commands does not affect other plugins.
#[test]
fn a_plugin_that_fails_to_register_commands_costs_only_its_own() {
    let good = FakePlugin::new().on::<RegisterCliCommands>(|call| {
        call.args
            .app
            .add(CliCommand::new("run", "").handler(|_| async { Ok(ExitCode::SUCCESS) }));
        none()
    });
    let failing = FakePlugin::new().on::<RegisterCliCommands>(|_| crate::support::fail("no"));
    let panicking = FakePlugin::new().on::<RegisterCliCommands>(|_| panic!("no"));
    assert_eq!(
        framework([good, failing, panicking]).cli_commands().len(),
        1
    );
}
