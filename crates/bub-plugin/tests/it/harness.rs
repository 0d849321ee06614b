//! A framework with the probe in it: linked in, or as a program.

use std::{
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
    sync::Arc,
};

use bub_kernel::{
    Envelope, Error, Framework, ModelStream, Plugin, PluginContext, Prompt, Result, Role,
    StreamEvent, hooks,
};
use bub_plugin::{ExternalPlugin, HostContext, Limits, PluginConfig, PluginProcess};
use bub_settings::{Environment, Loader, Settings};

/// What is below the probe.
pub(crate) struct Bottom;

#[hooks(crate = bub_kernel)]
impl Bottom {
    async fn build_prompt(&self, message: &Envelope) -> Prompt {
        format!("bottom: {}", message.content()).into()
    }

    async fn run_model_stream(&self, prompt: &Prompt, session_id: &str) -> ModelStream {
        if session_id == "long" {
            // A piece ends within a character, unless somebody takes care.
            let text = "ä".repeat(1_500_000);
            let whole = serde_json::json!({"ok": true, "text": text});
            return ModelStream::from_events([
                StreamEvent::Text(format!("x{text}")),
                StreamEvent::Final(whole),
            ]);
        }
        ModelStream::from_events([
            StreamEvent::Text("below ".to_owned()),
            StreamEvent::Text(prompt.text()),
        ])
    }
}

pub(crate) fn settings() -> Arc<Settings> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let environment =
        Environment::from_pairs([("BUB_HOME", OsString::from("/nowhere")), ("PATH", path)]);
    Arc::new(Loader::new(environment).load().unwrap())
}

pub(crate) fn plugin_config(command: &[impl AsRef<OsStr>]) -> PluginConfig {
    PluginConfig {
        name: "probe".to_owned(),
        command: command
            .iter()
            .map(|part| part.as_ref().to_owned())
            .collect(),
        directory: std::env::temp_dir(),
        granted: Vec::new(),
        config: serde_json::Value::Null,
        limits: Limits::default(),
        max_role: Role::Member,
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
    assert!(
        path.exists(),
        "{} is built by `cargo test -p bub-plugin`",
        path.display()
    );
    path.to_str().unwrap().to_owned()
}

/// Whether there is a Python to test with; says so when there is none.
#[allow(clippy::print_stdout, reason = "a test that was skipped has to say so")]
pub(crate) fn has_python() -> bool {
    let is_there = std::process::Command::new("python3")
        .arg("--version")
        .output()
        .is_ok();
    if !is_there {
        println!("skipped: there is no python3 here");
    }
    is_there
}

/// The Python package, in the repository.
pub(crate) fn sdk() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../sdk/python")
        .canonicalize()
        .unwrap()
}

/// The command that runs a program of `tests/programs` with the Python package.
pub(crate) fn python_program(name: &str) -> Vec<OsString> {
    let path = format!("PYTHONPATH={}", sdk().display());
    let program = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/programs")
        .join(name);
    vec![
        "env".into(),
        path.into(),
        "python3".into(),
        "-B".into(),
        program.into(),
    ]
}

/// A framework whose latest plugin is a program.
pub(crate) fn external(plugin_config: PluginConfig) -> Framework {
    let make = move |context: &PluginContext<'_>| {
        let host = HostContext {
            framework: context.framework.clone(),
            workspace: context.workspace.to_owned(),
            settings: settings(),
            launcher: None,
            question_handler: None,
        };
        let descriptor = PluginProcess::describe(plugin_config.clone(), host.clone())?;
        let plugin = PluginProcess::new(plugin_config, descriptor, host);
        Ok::<_, Error>(ExternalPlugin::new(plugin, context))
    };
    Framework::builder()
        .plugin("bottom", Bottom)
        .plugin_with("probe", make)
        .build()
}

/// A framework whose latest plugin is linked in.
pub(crate) fn linked<P: Plugin>(
    make: impl FnOnce(&PluginContext<'_>) -> Result<P> + Send + 'static,
) -> Framework {
    Framework::builder()
        .plugin("bottom", Bottom)
        .plugin_with("probe", make)
        .build()
}
