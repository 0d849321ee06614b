//! Starting a plugin is a part of the time that the call has which needs it.

use std::time::{Duration, Instant};

use bub_kernel::{Envelope, Error, Framework, PluginContext};
use bub_plugin::{
    Descriptor, ExternalPlugin, HookDecl, HostContext, Limits, PROTOCOL_VERSION, PluginConfig,
    PluginProcess,
};

use super::harness;

// L8: one that hangs when it starts holds a turn up once, for as long as a hook may take, and not at every hook.
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
        };
        Ok::<_, Error>(ExternalPlugin::new(
            PluginProcess::new(plugin_config, descriptor, host),
            context,
        ))
    };
    let framework: Framework = Framework::builder()
        .plugin("bottom", harness::Bottom)
        .plugin_with("hanging", make)
        .build();
    let begun = Instant::now();
    let message = Envelope::text("hi")
        .with("channel", "lab")
        .with("chat_id", "1");
    let turn = framework.process_inbound(message).await.unwrap();
    assert_eq!(turn.prompt.text(), "bottom: hi");
    // Six hooks, each of which would have waited on its own.
    assert!(
        begun.elapsed() >= hook && begun.elapsed() < hook * 4,
        "{:?}",
        begun.elapsed()
    );
}
