//! `bub sandbox`: runs a command in the sandbox of the agent's commands.

use std::{os::unix::process::ExitStatusExt, process::ExitCode};

use bub::CommandContext;
use bub_agent::{Sandbox, Skills};
use bub_kernel::{Error, Result, Sender, SessionId};
use bub_sandbox::SandboxProfile;

/// Session whose temporary directory the command gets.
const SESSION_ID: &str = "sandbox";

/// Run a command in the sandbox of the agent's commands
///
/// Runs the command as the agent would: with the profile, network and limits of the settings, in the workspace. The exit
/// code is that of the command; 125 means that the sandbox could not start it.
#[derive(clap::Args)]
pub(super) struct SandboxArgs {
    /// Profile [default: `sandbox.profile`]
    #[arg(long, value_name = "NAME", value_parser = ["read-only", "workspace"])]
    profile: Option<String>,
    /// Allow the network
    #[arg(long, conflicts_with = "no_network")]
    network: bool,
    /// Deny the network
    #[arg(long)]
    no_network: bool,
    /// Command to run
    #[arg(
        required = true,
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
