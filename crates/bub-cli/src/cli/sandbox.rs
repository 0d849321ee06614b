//! `bub sandbox`: runs a command in the sandbox of the agent's commands.

use std::{
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::ExitCode,
};

use bub::CommandContext;
use bub_agent::{Sandbox, Skills};
use bub_kernel::{Error, Result, Sender, SessionId};
use bub_sandbox::{Confinement, SandboxProfile, enable_repository};

use super::output;

/// Session whose temporary directory the command gets.
const SESSION_ID: &str = "sandbox";

/// Run a command in the sandbox of the agent's commands
///
/// Runs the command as the agent would: with the profile, network and limits of the settings, in the workspace. The exit
/// code is that of the command; 125 means that the sandbox could not start it.
#[derive(clap::Args)]
pub(super) struct SandboxArgs {
    /// Profile [default: `sandbox.profile`, or `workspace` if that is `off`]
    #[arg(long, value_name = "NAME", value_parser = ["read-only", "workspace"])]
    profile: Option<String>,
    /// Allow the network
    #[arg(long, conflicts_with = "no_network")]
    network: bool,
    /// Deny the network
    #[arg(long)]
    no_network: bool,
    /// Make git use the repository in DIR again, which the sandbox disabled after a command, and show what it runs
    #[arg(long, value_name = "DIR", conflicts_with_all = ["profile", "network", "no_network", "command"])]
    enable: Option<PathBuf>,
    /// Command to run
    #[arg(
        required_unless_present = "enable",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "CMD"
    )]
    command: Vec<String>,
}

pub(super) async fn run(context: CommandContext, args: SandboxArgs) -> Result<ExitCode> {
    let settings = &context.settings;
    let sandbox = Sandbox::new(
        std::sync::Arc::clone(settings),
        std::sync::Arc::new(Skills::new(settings)),
        context.launcher.as_deref().cloned(),
    );
    let sender = Sender::terminal();
    let configured = sandbox.profile(&sender, bub_kernel::ToolCaller::Model);
    let profile = match &args.profile {
        Some(name) => name
            .parse()
            .map_err(|error| Error::invalid_input(format!("{error}")))?,
        None if configured == SandboxProfile::Off => SandboxProfile::Workspace,
        None => configured,
    };
    let session = SessionId::from(SESSION_ID);
    let workspace = context.framework.workspace();
    let mut confinement = sandbox.confinement(profile, &sender, &session, workspace)?;
    if let Some(directory) = &args.enable {
        return enable(&confinement, directory);
    }
    confinement.network = (confinement.network || args.network) && !args.no_network;
    let launcher = context.launcher.as_deref();
    let launcher = launcher.ok_or_else(|| {
        Error::unknown("cannot start the sandbox: the path of this program is unknown")
    })?;
    let [program, arguments @ ..] = args.command.as_slice() else {
        return Err(Error::invalid_input("no command"));
    };
    let mut command = confinement.command(launcher, program)?;
    let environment = settings.child_environment();
    let status = command
        .env_clear()
        .envs(environment)
        .args(arguments)
        .current_dir(workspace)
        .status()?;
    let code = status.code().or_else(|| Some(128 + status.signal()?));
    let code = code.and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Enables a repository, and shows what git may run because of it.
fn enable(confinement: &Confinement, directory: &Path) -> Result<ExitCode> {
    let findings = enable_repository(confinement, &confinement.workspace.join(directory));
    let shown = output::sanitize_line(&directory.to_string_lossy());
    let findings = findings
        .map_err(|error| Error::invalid_input(format!("cannot enable `{shown}`: {error}")))?;
    let findings = findings.iter().map(|finding| format!("  {finding}\n"));
    output::print_untrusted(&format!(
        "enabled {shown}\n{}",
        findings.collect::<String>()
    ))?;
    Ok(ExitCode::SUCCESS)
}
