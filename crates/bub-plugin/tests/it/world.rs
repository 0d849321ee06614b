//! A framework with the probe in it: linked in, or as a program.

use std::{ffi::OsString, path::PathBuf, sync::Arc};

use bub_kernel::{
    Envelope, Error, Framework, ModelStream, Plugin, PluginContext, Prompt, Result, Role, StreamEvent, hooks,
};
use bub_plugin::{External, ExternalPlugin, Host, Limits, Setup};
use bub_settings::{Environment, Loader, Settings};

/// What is below the probe.
pub(crate) struct Bottom;

#[hooks(crate = bub_kernel)]
impl Bottom {
    async fn build_prompt(&self, message: &Envelope) -> Prompt {
        format!("bottom: {}", message.content()).into()
    }

    async fn run_model_stream(&self, prompt: &Prompt) -> ModelStream {
        ModelStream::of([StreamEvent::Text("below ".to_owned()), StreamEvent::Text(prompt.text())])
    }
}

pub(crate) fn settings() -> Arc<Settings> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let environment = Environment::from_pairs([("BUB_HOME", OsString::from("/nowhere")), ("PATH", path)]);
    Arc::new(Loader::new(environment).load().unwrap())
}

pub(crate) fn setup(command: &[&str]) -> Setup {
    Setup {
        name: "probe".to_owned(),
        command: command.iter().map(OsString::from).collect(),
        directory: std::env::temp_dir(),
        granted: Vec::new(),
        config: serde_json::Value::Null,
        limits: Limits::default(),
        most_role: Role::Member,
        pinned: PathBuf::new(),
        digest: None,
    }
}

/// The example program of that name, which cargo built beside the tests.
pub(crate) fn program(name: &str) -> String {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    path.push("examples");
    path.push(name);
    assert!(path.exists(), "{} is built by `cargo test -p bub-plugin`", path.display());
    path.to_str().unwrap().to_owned()
}

/// A framework whose latest plugin is a program.
pub(crate) fn external(setup: Setup) -> Framework {
    let make = move |context: &PluginContext<'_>| {
        let host = Host {
            framework: context.framework.clone(),
            workspace: context.workspace.to_owned(),
            settings: settings(),
            launcher: None,
        };
        let descriptor = External::describe(setup.clone(), host.clone())?;
        let plugin = External::new(setup, descriptor, host);
        Ok::<_, Error>(ExternalPlugin::new(plugin, context))
    };
    Framework::builder().plugin("bottom", Bottom).plugin_with("probe", make).build()
}

/// A framework whose latest plugin is linked in.
pub(crate) fn linked<P: Plugin>(
    make: impl FnOnce(&PluginContext<'_>) -> Result<P> + Send + 'static,
) -> Framework {
    Framework::builder().plugin("bottom", Bottom).plugin_with("probe", make).build()
}
