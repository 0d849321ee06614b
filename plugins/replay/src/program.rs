//! Runs this program as a child process, with its own home and workspace.

use std::{
    path::{Path, PathBuf},
    process::ExitStatus,
    time::Duration,
};

use bub::{CancellationToken, Error, Result, Settings};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

use crate::files::FileResultExt as _;

/// How long a child process has to end after a signal, before it is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);

/// Returns the path of this program.
pub(crate) fn current_program() -> Result<PathBuf> {
    std::env::current_exe()
        .map_err(|error| Error::unknown(format!("cannot find the path of this program: {error}")))
}

/// Returns a command that runs `program` in a workspace. It gets no variables yet.
pub(crate) fn command(program: &Path, workspace: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env_clear()
        .current_dir(workspace)
        .kill_on_drop(true);
    command
}

/// Starts a child process. The error names the program.
pub(crate) fn spawn(command: &mut Command) -> Result<Child> {
    let program = PathBuf::from(command.as_std().get_program());
    command.spawn().at("start", &program)
}

/// Adds variables of this process.
pub(crate) fn pass_variables(
    command: &mut Command,
    settings: &Settings,
    is_passed: impl Fn(&str) -> bool,
) {
    let variables = settings.environment().iter();
    command.envs(variables.filter(|(name, _)| is_passed(name)));
}

/// Waits for a child process. If `stop` is cancelled, the process gets SIGTERM and time to end; then it is killed. A signal
/// of the terminal may have reached it, too.
pub(crate) async fn wait(child: &mut Child, stop: &CancellationToken) -> Result<ExitStatus> {
    tokio::select! {
        status = child.wait() => return Ok(status?),
        () = stop.cancelled() => {}
    }
    let id = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
    // It may just have ended.
    id.map(|id| kill_process(id, Signal::TERM));
    if let Ok(status) = tokio::time::timeout(STOP_TIMEOUT, child.wait()).await {
        return Ok(status?);
    }
    child.start_kill()?;
    Ok(child.wait().await?)
}
