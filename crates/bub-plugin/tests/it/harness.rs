//! Frameworks with the probe plugin, linked in or as a program.
//!
//! `bub::testing` runs turns with the agent; here all hooks but those of the probe are known.

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
use bub_settings::{Settings, testing::load};

/// The plugin below the probe.
pub(crate) struct BottomPlugin;

#[hooks(crate = bub_kernel)]
impl BottomPlugin {
    async fn build_prompt(&self, message: &Envelope) -> Prompt {
        format!("bottom: {}", message.content()).into()
    }

    async fn run_model_stream(&self, prompt: &Prompt, session_id: &str) -> ModelStream {
        if session_id == "long" {
            // A split at a fixed number of bytes would fall inside a character.
            let text = "ä".repeat(1_500_000);
            let whole = serde_json::json!({"ok": true, "text": text});
            return ModelStream::from_events([
                StreamEvent::Text(format!("x{text}")),
                StreamEvent::Final(whole),
            ]);
        }
        ModelStream::from_events([
            // The agent emits this kind; a plugin that passes on what it receives must be able to return it.
            StreamEvent::from_value(&serde_json::json!({"kind": "retry", "data": {"attempt": 1}})),
            StreamEvent::Text("below ".to_owned()),
            StreamEvent::Text(prompt.text()),
        ])
    }
}

pub(crate) fn settings() -> Arc<Settings> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    Arc::new(load([("BUB_HOME", "/nowhere".into()), ("PATH", path)], []))
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
        permissions: None,
        config: serde_json::Value::Null,
        fingerprint: String::new(),
        is_stale: false,
        home_files: Vec::new(),
        limits: Limits::default(),
        max_role: Role::Member,
        pinned: PathBuf::new(),
        digest: None,
    }
}

/// Returns the path of an example program that cargo built with the tests.
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

/// Returns whether Python is available. Prints a note if it is not.
#[allow(clippy::print_stdout, reason = "a skipped test prints a note")]
pub(crate) fn has_python() -> bool {
    let is_available = std::process::Command::new("python3")
        .arg("--version")
        .output()
        .is_ok();
    if !is_available {
        println!("skipped: python3 not found");
    }
    is_available
}

/// Returns the directory of the Python SDK.
pub(crate) fn sdk() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../sdk/python")
        .canonicalize()
        .unwrap()
}

/// Returns the command that runs a program of `tests/programs` with the Python SDK.
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

/// Returns a framework whose top plugin is a program.
pub(crate) fn external(plugin_config: PluginConfig) -> Framework {
    let make = move |context: &PluginContext<'_>| {
        let host = HostContext {
            framework: context.framework.clone(),
            workspace: context.workspace.to_owned(),
            settings: settings(),
            launcher: None,
            question_handler: None,
            group: bub_plugin::PluginGroup::default(),
        };
        let descriptor = PluginProcess::request_descriptor(plugin_config.clone(), host.clone())?;
        let plugin = PluginProcess::new(plugin_config, descriptor, host);
        Ok::<_, Error>(ExternalPlugin::new(plugin, context))
    };
    Framework::builder()
        .plugin("bottom", BottomPlugin)
        .plugin_with("probe", make)
        .build()
}

/// Returns a framework whose top plugin is linked in.
pub(crate) fn linked<P: Plugin>(
    make: impl FnOnce(&PluginContext<'_>) -> Result<P> + Send + 'static,
) -> Framework {
    Framework::builder()
        .plugin("bottom", BottomPlugin)
        .plugin_with("probe", make)
        .build()
}
