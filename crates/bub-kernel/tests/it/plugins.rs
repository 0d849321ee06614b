//! Plugin registration: order, state and context.

use std::sync::{Arc, Mutex};

use bub_kernel::{
    BoxError, Error, Framework, FrameworkRef, Inbound, PluginState, hooks,
    hooks::{
        args,
        point::{ResolveSession, RunModel},
    },
};
use bub_settings::{Environment, Loader};

use crate::support::{FakePlugin, LogCapture, framework, hi, resolved, some, turn};

// S-41, S-42
#[tokio::test]
async fn the_plugin_registered_last_beats_the_builtin_one() {
    let framework = Framework::builder()
        .plugin(
            "builtin",
            FakePlugin::new().on::<RunModel>(|_| some("builtin")),
        )
        .plugin("user", FakePlugin::new().on::<RunModel>(|_| some("user")))
        .build();
    assert_eq!(turn(&framework).await.unwrap().model_output, "user");
    let names: Vec<_> = framework
        .plugins()
        .iter()
        .map(|status| status.name.to_string())
        .collect();
    assert_eq!(names, ["builtin", "user"]);
}

// H-31
#[tokio::test]
async fn a_plugin_that_cannot_be_made_is_reported_and_skipped() {
    let log = LogCapture::start();
    let framework = Framework::builder()
        .plugin(
            "builtin",
            FakePlugin::new().on::<RunModel>(|_| some("builtin")),
        )
        .plugin_with("broken", |_| {
            Err::<FakePlugin, _>(Error::config("no token"))
        })
        .plugin_with("foreign", |_| {
            Err::<FakePlugin, BoxError>("bad file".into())
        })
        .plugin("last", FakePlugin::new())
        .build();
    let plugins = framework.plugins().iter();
    let plugins: Vec<_> = plugins
        .map(|plugin| (&*plugin.name, &plugin.state))
        .collect();
    assert_eq!(
        plugins,
        [
            ("builtin", &PluginState::Active),
            ("broken", &PluginState::Failed("[config] no token".into())),
            ("foreign", &PluginState::Failed("bad file".into())),
            ("last", &PluginState::Active),
        ]
    );
    assert_eq!(
        log.lines(),
        [
            "WARN plugin.init_failed plugin=broken error=[config] no token",
            "WARN plugin.init_failed plugin=foreign error=bad file",
        ]
    );
    assert_eq!(turn(&framework).await.unwrap().model_output, "builtin");
}

// H-31: a plugin is created with access to the framework.
#[tokio::test]
async fn a_plugin_is_made_with_workspace_settings_and_a_way_back() {
    struct ContextPlugin {
        framework: FrameworkRef,
        description: String,
    }
    #[hooks(crate = bub_kernel)]
    impl ContextPlugin {
        fn run_model(&self) -> String {
            let framework = self.framework.get().expect("turns run after the build");
            format!(
                "{} with {} plugins",
                self.description,
                framework.plugins().len()
            )
        }
    }
    let environment = Environment::from_pairs([("BUB_HOME", "/bub")]);
    let settings = Arc::new(Loader::new(environment).load_lenient().0);
    let framework = Framework::builder()
        .workspace("/project")
        .settings(Arc::clone(&settings))
        .plugin_with("curious", |context| {
            assert!(context.framework.get().is_none(), "not built yet");
            let home = context.settings.home().display();
            let description = format!("{} {home}", context.workspace.display());
            Ok::<_, BoxError>(ContextPlugin {
                framework: context.framework.clone(),
                description,
            })
        })
        .build();
    assert_eq!(
        turn(&framework).await.unwrap().model_output,
        "/project /bub with 1 plugins"
    );
    assert!(Arc::ptr_eq(framework.settings(), &settings));
}

#[test]
fn a_plugin_does_not_keep_its_framework_alive() {
    let kept = Arc::new(Mutex::new(None));
    let keep = Arc::clone(&kept);
    let framework = Framework::builder()
        .plugin_with("keeper", move |context| {
            *keep.lock().unwrap() = Some(context.framework.clone());
            Ok::<_, BoxError>(FakePlugin::new())
        })
        .build();
    let reference = kept.lock().unwrap().take().unwrap();
    assert!(reference.get().is_some());
    drop(framework);
    assert!(reference.get().is_none());
}

#[tokio::test]
async fn clones_are_the_same_framework() {
    let first = framework([FakePlugin::new().on::<ResolveSession>(|_| some("same"))]);
    let second = first.clone();
    drop(first);
    assert_eq!(resolved(&second, hi()).await.unwrap(), "same");
}

// S-40: the framework holds the plugins, their hooks and the router, and runs turns. The agent and the channels are
// plugins.
#[tokio::test]
async fn the_framework_is_complete_without_any_plugin() {
    let framework = framework([]);
    assert!(framework.plugins().is_empty());
    assert!(framework.hooks().implemented_hooks().is_empty());
    assert!(framework.router().is_none() && framework.tape_store().is_none());
    assert_eq!(turn(&framework).await.unwrap().model_output, "hi");
}

// H-31: users identify plugins by name, so a second plugin with the same name is rejected.
#[test]
fn a_second_plugin_of_a_name_is_left_out() {
    let framework = Framework::builder()
        .plugin(
            "twin",
            FakePlugin::new().on::<ResolveSession>(|_| some("first")),
        )
        .plugin(
            "twin",
            FakePlugin::new().on::<ResolveSession>(|_| some("second")),
        )
        .build();
    let inbound = Inbound::from(hi());
    let session = framework
        .hooks()
        .call_first_sync::<ResolveSession>(args::ResolveSession {
            message: &inbound.message,
            inbound: &inbound,
        });
    assert_eq!(session.unwrap().as_deref(), Some("first"));
    let refused =
        PluginState::Failed("[config] duplicate plugin name: an active plugin already has it; remove or rename one of them".into());
    assert_eq!(framework.plugins()[1].state, refused);
}
