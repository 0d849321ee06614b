//! `bub gateway --install` and `--uninstall`: the gateway as a service of the current user.
//!
//! Linux uses a unit of the user's systemd, macOS a launch agent.

use std::{
    ffi::OsString,
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use bub_gateway::settings::GatewaySettings;
use bub_kernel::{Error, Result};
use bub_settings::Settings;

use crate::cli::output;

/// Variables of the current environment that the service gets. They name directories; others may hold secrets, which do
/// not belong into a file that describes a service.
const KEPT_VARIABLES: [&str; 2] = ["BUB_HOME", "CODEX_HOME"];

/// Seconds that the service manager waits after `gateway.drain_seconds` before it kills the gateway.
const STOP_MARGIN_SECONDS: u64 = 15;

/// The gateway as the service manager sees it.
pub(super) struct GatewayService {
    /// The name without an extension: `bub-gateway`, or `bub-gateway-NAME`.
    name: String,
    /// The program and its arguments.
    command: Vec<String>,
    workspace: String,
    environment: Vec<(&'static str, String)>,
    stop_seconds: u64,
    manager: ServiceManager,
    /// The file that describes the service.
    file: PathBuf,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ServiceManager {
    Systemd,
    Launchd,
}

impl GatewayService {
    /// Describes the service of the gateway `name`.
    ///
    /// # Errors
    ///
    /// Fails if a path is not UTF-8 or has a line break, or if the user has no home directory.
    pub(super) fn new(
        settings: &Settings,
        workspace: &Path,
        name: &str,
        channels: &[String],
    ) -> Result<Self> {
        let environment = settings.environment();
        let home = environment.user_home().map(Path::to_owned);
        let home = home.ok_or_else(|| install_error("no home directory; set HOME"))?;
        let unit = match name {
            "main" => "bub-gateway".to_owned(),
            name => format!("bub-gateway-{name}"),
        };
        let (manager, file) = if cfg!(target_os = "macos") {
            let directory = home.join("Library/LaunchAgents");
            (
                ServiceManager::Launchd,
                directory.join(format!("{unit}.plist")),
            )
        } else {
            let config = environment.get("XDG_CONFIG_HOME").map(PathBuf::from);
            let config = config.filter(|config| config.is_absolute());
            let directory = config.unwrap_or_else(|| home.join(".config"));
            let directory = directory.join("systemd/user");
            (
                ServiceManager::Systemd,
                directory.join(format!("{unit}.service")),
            )
        };
        let workspace = path_text(workspace)?;
        let program = std::env::current_exe().map_err(install_error)?;
        let mut command = vec![path_text(&program)?, "--workspace".to_owned()];
        command.extend([workspace.clone(), "gateway".to_owned()]);
        command.extend(["--name".to_owned(), name.to_owned()]);
        for channel in channels {
            command.extend(["--enable-channel".to_owned(), channel.clone()]);
        }
        let kept = KEPT_VARIABLES.into_iter().filter_map(|variable| {
            let value = environment.get(variable)?;
            Some(path_text(Path::new(value)).map(|value| (variable, value)))
        });
        let drain = settings.get(GatewaySettings::DRAIN).as_secs();
        Ok(Self {
            name: unit,
            command,
            workspace,
            environment: kept.collect::<Result<_>>()?,
            stop_seconds: drain.saturating_add(STOP_MARGIN_SECONDS),
            manager,
            file,
        })
    }

    /// Returns the file that describes the service.
    pub(super) fn file(&self) -> &Path {
        &self.file
    }

    /// Writes the file of the service, and starts the service now and at every login.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be written or the service manager refuses the service. A new file is then removed.
    pub(super) fn install(&self) -> Result<()> {
        let previous = fs::read(&self.file).ok();
        let text = match self.manager {
            ServiceManager::Systemd => self.unit_text(),
            ServiceManager::Launchd => self.launch_agent_text(),
        };
        let directory = self.file.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(directory)
            .and_then(|()| fs::write(&self.file, text))
            .map_err(|error| install_error(format!("{}: {error}", self.file.display())))?;
        let started = match self.manager {
            ServiceManager::Systemd => systemctl(&["daemon-reload"])
                .and_then(|()| systemctl(&["enable", &self.unit()]))
                .and_then(|()| systemctl(&["restart", &self.unit()])),
            ServiceManager::Launchd => {
                // An agent that is loaded already must be replaced.
                let _ = self.launchctl("bootout");
                self.launchctl("bootstrap")
            }
        };
        started.map_err(|reason| {
            // The Python version leaves the file of a failed installation behind.
            let _ = match &previous {
                Some(previous) => fs::write(&self.file, previous),
                None => fs::remove_file(&self.file),
            };
            install_error(reason)
        })?;
        let (manager, file) = (self.manager_name(), self.file.display());
        notice!("Installed and started the gateway with {manager}: {file}");
        Ok(())
    }

    /// Stops the service and removes its file.
    ///
    /// # Errors
    ///
    /// Fails if the service manager cannot stop the service, or the file cannot be removed.
    pub(super) fn uninstall(&self) -> Result<()> {
        let fail =
            |reason: String| Error::unknown(format!("cannot uninstall the gateway: {reason}"));
        if self.file.exists() {
            match self.manager {
                ServiceManager::Systemd => systemctl(&["disable", "--now", &self.unit()]),
                ServiceManager::Launchd => self.launchctl("bootout"),
            }
            .map_err(fail)?;
            fs::remove_file(&self.file).map_err(|error| fail(error.to_string()))?;
            if self.manager == ServiceManager::Systemd {
                systemctl(&["daemon-reload"]).map_err(fail)?;
            }
        }
        let (manager, file) = (self.manager_name(), self.file.display());
        notice!("Stopped and uninstalled the gateway from {manager}: {file}");
        Ok(())
    }

    fn manager_name(&self) -> &'static str {
        match self.manager {
            ServiceManager::Systemd => "systemd",
            ServiceManager::Launchd => "launchd",
        }
    }

    fn unit(&self) -> String {
        format!("{}.service", self.name)
    }

    /// Returns the unit for systemd.
    ///
    /// It does not restrict namespaces or mounts, because the sandbox of commands needs them.
    fn unit_text(&self) -> String {
        let quote_command = |word: &String| quote_unit(&word.replace('$', "$$"));
        let command: Vec<String> = self.command.iter().map(quote_command).collect();
        let mut environment = String::new();
        for (name, value) in &self.environment {
            let assignment = quote_unit(&format!("{name}={value}"));
            let _ = writeln!(environment, "Environment={assignment}");
        }
        format!(
            "[Unit]\nDescription=bub gateway\nWants=network-online.target\nAfter=network-online.target\n\n\
             [Service]\nType=notify\nWorkingDirectory={}\nExecStart={}\n{environment}Restart=on-failure\nRestartSec=5s\n\
             WatchdogSec=60\nTimeoutStopSec={}\nUMask=0077\nNoNewPrivileges=yes\nLockPersonality=yes\n\
             RestrictRealtime=yes\nRestrictSUIDSGID=yes\nSystemCallArchitectures=native\n\n\
             [Install]\nWantedBy=default.target\n",
            self.workspace.replace('%', "%%"),
            command.join(" "),
            self.stop_seconds,
        )
    }

    /// Returns the launch agent for launchd, which has not been tested on a Mac.
    fn launch_agent_text(&self) -> String {
        let texts = |words: &mut dyn Iterator<Item = String>| words.collect::<String>();
        let string = |text: &str| format!("<string>{}</string>", escape_xml(text));
        let arguments = texts(&mut self.command.iter().map(|word| string(word)));
        let environment = texts(
            &mut self
                .environment
                .iter()
                .map(|(name, value)| format!("<key>{name}</key>{}", string(value))),
        );
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<plist version=\"1.0\"><dict>\n<key>Label</key>{}\n\
             <key>ProgramArguments</key><array>{arguments}</array>\n<key>WorkingDirectory</key>{}\n\
             <key>EnvironmentVariables</key><dict>{environment}</dict>\n<key>RunAtLoad</key><true/>\n\
             <key>KeepAlive</key><dict><key>SuccessfulExit</key><false/></dict>\n\
             <key>ExitTimeOut</key><integer>{}</integer>\n<key>Umask</key><integer>63</integer>\n</dict></plist>\n",
            string(&self.name),
            string(&self.workspace),
            self.stop_seconds,
        )
    }

    fn launchctl(&self, verb: &str) -> Result<(), String> {
        let domain = format!("gui/{}", rustix::process::getuid().as_raw());
        run(
            "launchctl",
            &[verb.into(), domain.into(), self.file.clone().into()],
        )
    }
}

/// Returns the variables of the current environment that configure bub but that the service does not get.
pub(super) fn missing_variables(settings: &Settings, key_variables: &[&str]) -> Vec<String> {
    let is_setting = |name: &str| name.starts_with("BUB_") || key_variables.contains(&name);
    let names = settings.environment().iter().map(|(name, _)| name);
    let mut names: Vec<String> = names
        .filter(|name| is_setting(name) && !KEPT_VARIABLES.contains(name))
        .map(str::to_owned)
        .collect();
    names.sort();
    names
}

fn systemctl(arguments: &[&str]) -> Result<(), String> {
    let arguments = ["--user"].into_iter().chain(arguments.iter().copied());
    let arguments: Vec<OsString> = arguments.map(OsString::from).collect();
    run("systemctl", &arguments)
}

fn run(program: &str, arguments: &[OsString]) -> Result<(), String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => format!("`{program}` not found"),
        _ => format!("{program}: {error}"),
    })?;
    if output.status.success() {
        return Ok(());
    }
    let words: Vec<_> = arguments
        .iter()
        .map(|word| word.to_string_lossy())
        .collect();
    let stderr = String::from_utf8_lossy(&output.stderr);
    let reason = output::sanitize_line(stderr.trim());
    Err(format!("`{program} {}` failed: {reason}", words.join(" ")))
}

fn install_error(reason: impl std::fmt::Display) -> Error {
    Error::unknown(format!("Gateway installation failed: {reason}"))
}

fn path_text(path: &Path) -> Result<String> {
    let text = path.to_str().filter(|text| !text.contains(['\n', '\r']));
    let text = text.ok_or_else(|| {
        install_error(format!(
            "{} has a line break or is not UTF-8",
            path.display()
        ))
    })?;
    Ok(text.to_owned())
}

/// Quotes a word for a unit. In `ExecStart`, `$` has to be doubled before.
fn quote_unit(word: &str) -> String {
    let mut quoted = String::from("\"");
    for character in word.chars() {
        match character {
            '\\' | '"' => quoted.extend(['\\', character]),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            '%' => quoted.push_str("%%"),
            character => quoted.push(character),
        }
    }
    quoted.push('"');
    quoted
}

fn escape_xml(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
