//! The virtual environment of Python plugins, in bub's home. uv manages it if uv is installed, otherwise venv and pip do.

use std::{
    ffi::OsString,
    path::PathBuf,
    process::{Command, Stdio},
    sync::Arc,
};

use bub_kernel::{Error, Result};
use bub_settings::Settings;
use serde_json::Value;

use super::package;
use crate::cli::prompt;

/// Directory of the environment in bub's home.
const ENVIRONMENT_DIR: &str = "plugins/python";
/// Names of interpreters, in the order in which they are tried.
const INTERPRETERS: &[&str] = &["python3", "python3.14", "python3.13", "python3.12"];
/// Lowest version of Python that plugins of the Python version run with.
const MIN_PYTHON: &str = "3.12";
/// Variables for pip and uv that may contain a password.
const INSTALLER_VARIABLES: &[&str] = &[
    "PIP_INDEX_URL",
    "PIP_EXTRA_INDEX_URL",
    "PIP_FIND_LINKS",
    "PIP_NO_INDEX",
    "UV_INDEX",
    "UV_DEFAULT_INDEX",
    "UV_INDEX_URL",
    "UV_FIND_LINKS",
    "UV_NO_INDEX",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "http_proxy",
    "https_proxy",
];

/// A plugin that is installed in the environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EntryPoint {
    /// Name of the plugin.
    pub(super) name: String,
    /// Name of its distribution.
    pub(super) distribution: String,
    /// Version of the distribution.
    pub(super) version: String,
    /// Address that the distribution was installed from, if it was not its name.
    pub(super) url: Option<String>,
}

impl EntryPoint {
    fn from_value(value: &Value) -> Self {
        let text = |name: &str| Some(value.get(name)?.as_str()?.to_owned());
        Self {
            name: text("name").unwrap_or_default(),
            distribution: text("distribution").unwrap_or_default(),
            version: text("version").unwrap_or_default(),
            url: text("url"),
        }
    }
}

/// Where packages come from, besides the default index.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct SourceArgs {
    /// Install only from --find-links
    #[arg(long)]
    no_index: bool,
    /// Directory or page with packages
    #[arg(long, value_name = "DIR|URL")]
    find_links: Vec<String>,
}

impl SourceArgs {
    fn to_args(&self) -> Vec<OsString> {
        let no_index = self.no_index.then(|| OsString::from("--no-index"));
        let links = self.find_links.iter();
        let links = links.flat_map(|link| ["--find-links".into(), link.into()]);
        no_index.into_iter().chain(links).collect()
    }
}

/// The environment of Python plugins.
#[derive(Clone)]
pub(super) struct PythonEnvironment {
    pub(super) directory: PathBuf,
    settings: Arc<Settings>,
    /// Whether uv manages it.
    pub(super) has_uv: bool,
}

impl PythonEnvironment {
    pub(super) fn new(settings: &Arc<Settings>) -> Self {
        let has_uv = run_quietly(Command::new("uv").arg("--version")).is_some();
        Self {
            directory: settings.home().join(ENVIRONMENT_DIR),
            settings: Arc::clone(settings),
            has_uv,
        }
    }

    /// Returns the interpreter of the environment.
    pub(super) fn python(&self) -> PathBuf {
        self.directory.join("bin/python")
    }

    /// Returns the name of the program that installs packages.
    pub(super) fn installer(&self) -> &'static str {
        if self.has_uv { "uv" } else { "pip" }
    }

    /// Creates the environment if it does not exist, and writes the package `bub` into it.
    pub(super) async fn prepare(&self, sources: &SourceArgs) -> Result<()> {
        if !self.python().exists() {
            notice!(
                "creating a Python environment in {}",
                self.directory.display()
            );
            let python = find_python()?;
            let mut arguments: Vec<OsString> = if self.has_uv {
                let arguments = ["uv", "venv", "--quiet", "--no-python-downloads", "--python"];
                let arguments = arguments.map(OsString::from).into_iter();
                arguments.chain([python]).collect()
            } else {
                vec![python, "-m".into(), "venv".into()]
            };
            arguments.push(self.directory.clone().into());
            self.run(arguments).await?;
        }
        let site_packages = self.site_packages()?;
        package::write(&site_packages)?;
        // The plugins cannot write to the environment. Without compiled files, each start would be slow.
        let compile = [
            self.python().into(),
            "-m".into(),
            "compileall".into(),
            "-q".into(),
        ];
        let packages = ["bub", "bub_sdk"].map(|name| site_packages.join(name).into_os_string());
        self.run(compile.into_iter().chain(packages).collect())
            .await?;
        let requirements = package::REQUIREMENTS.iter().map(OsString::from);
        self.install(requirements.collect(), sources, false).await
    }

    /// Installs packages. With `upgrade`, also installs newer versions of them.
    pub(super) async fn install(
        &self,
        requirements: Vec<OsString>,
        sources: &SourceArgs,
        upgrade: bool,
    ) -> Result<()> {
        let constraints = self.directory.join("constraints.txt");
        std::fs::write(&constraints, format!("bub=={}\n", package::VERSION))?;
        let mut arguments = self.installer_command("install");
        arguments.extend(["--constraint".into(), constraints.into()]);
        arguments.extend(sources.to_args());
        if self.has_uv {
            arguments.push("--compile-bytecode".into());
        }
        if upgrade {
            arguments.push("--upgrade".into());
        }
        arguments.extend(requirements);
        self.run(arguments).await
    }

    /// Removes a package.
    pub(super) async fn uninstall(&self, distribution: &str) -> Result<()> {
        let mut arguments = self.installer_command("uninstall");
        if !self.has_uv {
            arguments.push("--yes".into());
        }
        arguments.push(distribution.into());
        self.run(arguments).await
    }

    fn installer_command(&self, action: &str) -> Vec<OsString> {
        let python = self.python().into_os_string();
        let mut arguments: Vec<OsString> = if self.has_uv {
            vec![
                "uv".into(),
                "pip".into(),
                action.into(),
                "--python".into(),
                python,
            ]
        } else {
            vec![
                python,
                "-m".into(),
                "pip".into(),
                action.into(),
                "--disable-pip-version-check".into(),
            ]
        };
        arguments.push("--quiet".into());
        arguments
    }

    /// Returns the plugins that are installed in the environment, without importing them.
    pub(super) fn entry_points(&self) -> Result<Vec<EntryPoint>> {
        if !self.python().exists() {
            return Ok(Vec::new());
        }
        let mut command = self.command(&[
            self.python().into(),
            "-m".into(),
            "bub".into(),
            "list".into(),
        ]);
        let listed = run_quietly(&mut command);
        let parsed = listed.and_then(|text| serde_json::from_str::<Vec<Value>>(&text).ok());
        let entries = parsed.map(|entries| entries.iter().map(EntryPoint::from_value).collect());
        entries.ok_or_else(|| {
            Error::config(format!(
                "cannot list the plugins of the Python environment in {}; remove the directory and install the plugins again",
                self.directory.display()
            ))
        })
    }

    fn site_packages(&self) -> Result<PathBuf> {
        let libraries = std::fs::read_dir(self.directory.join("lib"))?;
        let mut libraries =
            libraries.filter_map(|entry| Some(entry.ok()?.path().join("site-packages")));
        libraries.find(|path| path.is_dir()).ok_or_else(|| {
            Error::config(format!(
                "no directory for packages in {}; remove the directory and install the plugins again",
                self.directory.display()
            ))
        })
    }

    fn command(&self, arguments: &[OsString]) -> Command {
        let granted: Vec<String> = INSTALLER_VARIABLES
            .iter()
            .map(|name| (*name).to_owned())
            .collect();
        let program = arguments.first().cloned().unwrap_or_default();
        let mut command = Command::new(program);
        command
            .args(arguments.get(1..).unwrap_or_default())
            .env_clear()
            .envs(self.settings.plugin_environment(&granted))
            .stdin(Stdio::null());
        command
    }

    /// Runs a program, which shows its output to the user. Ctrl-C ends it.
    async fn run(&self, arguments: Vec<OsString>) -> Result<()> {
        let mut command = self.command(&arguments);
        command.stdout(Stdio::from(std::io::stderr()));
        let shown: Vec<_> = arguments
            .iter()
            .map(|part| part.to_string_lossy().into_owned())
            .collect();
        let shown = shown.join(" ");
        let status = prompt::run_interruptible("", move || Ok(command.status()?)).await;
        match status {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(Error::config(format!(
                "`{shown}` failed: {status}; see its output above"
            ))),
            Err(error) if prompt::is_interruption(&error) => Err(error),
            Err(error) => Err(Error::config(format!(
                "cannot run `{shown}`: {}",
                error.message()
            ))),
        }
    }
}

/// Runs a program and returns its output, or `None` if it fails.
fn run_quietly(command: &mut Command) -> Option<String> {
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let is_success = output.status.success();
    String::from_utf8(output.stdout).ok().filter(|_| is_success)
}

/// Returns the path of an interpreter of a supported version. Links are resolved: a plugin can reach the interpreter, and
/// not every link to it.
fn find_python() -> Result<OsString> {
    let check = "import os, sys; print(os.path.realpath(sys.executable)); sys.exit(sys.version_info < (3, 12))";
    let find = |name: &&str| run_quietly(Command::new(name).args(["-c", check]));
    let found = INTERPRETERS.iter().find_map(find);
    let found = found.map(|path| path.trim_end().into());
    found.ok_or_else(|| {
        Error::config(format!(
            "no Python {MIN_PYTHON} or later found; install it: Python plugins need it"
        ))
    })
}
