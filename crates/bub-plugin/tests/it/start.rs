//! The time to start a plugin counts towards the timeout of the call that needs it. Plugins start at the same time.

use std::time::{Duration, Instant};

use bub_kernel::{Envelope, Error, Framework, PluginContext};
use bub_plugin::{
    Descriptor, ExternalPlugin, HookDecl, HostContext, Limits, PROTOCOL_VERSION, PluginConfig,
    PluginGroup, PluginProcess,
};

use super::harness;

// L8: a plugin that hangs at its start delays a turn once, by the timeout of one hook, and not at every hook.
#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_hangs_at_its_start_holds_a_turn_up_once() {
    let hook = Duration::from_secs(2);
    let limits = Limits {
        start: Duration::from_secs(20),
        hook,
        synchronous: hook,
        ..Limits::default()
    };
    let plugin_config = PluginConfig {
        limits,
        ..harness::plugin_config(&["sleep", "60"])
    };
    let names = [
        "resolve_session",
        "load_state",
        "build_prompt",
        "save_state",
        "render_outbound",
        "dispatch_outbound",
    ];
    let hooks = names
        .map(|name| HookDecl {
            name: name.to_owned(),
            ..HookDecl::default()
        })
        .to_vec();
    let descriptor = Descriptor {
        protocol: PROTOCOL_VERSION,
        hooks,
        ..Descriptor::default()
    };
    let make = move |context: &PluginContext<'_>| {
        let host = HostContext {
            framework: context.framework.clone(),
            workspace: context.workspace.to_owned(),
            settings: harness::settings(),
            launcher: None,
            question_handler: None,
            group: bub_plugin::PluginGroup::default(),
        };
        Ok::<_, Error>(ExternalPlugin::new(
            PluginProcess::new(plugin_config, descriptor, host),
            context,
        ))
    };
    let framework: Framework = Framework::builder()
        .plugin("bottom", harness::BottomPlugin)
        .plugin_with("hanging", make)
        .build();
    let started = Instant::now();
    let message = Envelope::from_text("hi")
        .with("channel", "lab")
        .with("chat_id", "1");
    let turn = framework.process_inbound(message).await.unwrap();
    assert_eq!(turn.prompt.text(), "bottom: hi");
    // Without the shared limit, each of the six hooks would wait.
    assert!(
        started.elapsed() >= hook && started.elapsed() < hook * 4,
        "{:?}",
        started.elapsed()
    );
}

/// Each of three plugins answers only after the processes of all of them run.
#[tokio::test(flavor = "multi_thread")]
async fn plugins_that_a_turn_needs_start_at_the_same_time() {
    let directory = tempfile::tempdir().unwrap();
    let probe = harness::program("probe");
    let all = ["a", "b", "c"];
    let waits = all.map(|name| format!("[ -e {}/{name} ]", directory.path().display()));
    let group = PluginGroup::default();
    let mut builder = Framework::builder().plugin("bottom", harness::BottomPlugin);
    for name in all {
        let script = format!(
            "touch {}/{name}; until {}; do sleep 0.02; done; exec {probe}",
            directory.path().display(),
            waits.join(" && ")
        );
        let minute = Duration::from_mins(1);
        let plugin_config = PluginConfig {
            name: name.to_owned(),
            limits: Limits {
                start: minute,
                hook: minute,
                synchronous: minute,
                ..Limits::default()
            },
            ..harness::plugin_config(&["sh", "-c", &script])
        };
        let (probe, group) = (probe.clone(), group.clone());
        builder = builder.plugin_with(name, move |context| {
            let host = HostContext {
                framework: context.framework.clone(),
                workspace: context.workspace.to_owned(),
                settings: harness::settings(),
                launcher: None,
                question_handler: None,
                group,
            };
            let describing = harness::plugin_config(&[&probe]);
            let descriptor = PluginProcess::request_descriptor(describing, host.clone())?;
            let plugin = PluginProcess::new(plugin_config, descriptor, host);
            Ok::<_, Error>(ExternalPlugin::new(plugin, context))
        });
    }
    let message = Envelope::from_text("session mine")
        .with("channel", "lab")
        .with("chat_id", "1");
    let turn = builder.build().process_inbound(message).await.unwrap();
    assert_eq!(turn.session_id, "mine");
}
