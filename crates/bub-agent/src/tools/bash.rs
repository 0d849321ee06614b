//! `bash`, `bash.output`, `bash.kill`: commands in the workspace.

use std::{ffi::OsString, path::PathBuf, sync::Arc, time::Duration};

use bub_kernel::{Error, ErrorKind, Result, ToolContext, tool};

use crate::{
    runner::{Live, TimedOut},
    shell::{Exit, Request, Shell, Shells},
    skills::{LoadedSkills, Skills},
};

/// Runs a shell command and returns what it printed. Standard input is empty and there is no terminal: commands that
/// ask questions do not work. Use `background` for servers and whatever else takes long.
#[tool(crate = bub_kernel, name = "bash")]
pub async fn bash(
    context: &ToolContext,
    /// The command, for `bash -c`.
    cmd: String,
    /// Where it runs, absolute or relative to the workspace, which is the default.
    cwd: Option<String>,
    /// After so many seconds the command and everything it started is terminated; not with `background`.
    #[default(30)]
    timeout_seconds: u64,
    /// Return at once with a shell id for `bash.output` and `bash.kill`.
    #[default(false)]
    background: bool,
) -> Result<String> {
    let shells = shells(context)?;
    let request = Request {
        command: cmd,
        session: session(context),
        directory: directory(context, cwd),
        granted: granted(context),
        live: context
            .state
            .slot::<Live>()
            .filter(|_| !background)
            .map(|live| live.0.clone()),
    };
    if background {
        return Ok(format!("started: {}", shells.start(request).await?.id()));
    }
    if timeout_seconds == 0 {
        return Err(Error::invalid_input("timeout_seconds must be at least 1"));
    }
    let outcome = shells
        .run(
            request,
            Duration::from_secs(timeout_seconds),
            &context.cancel,
        )
        .await?;
    let output = outcome.output.trim();
    let left_running = outcome.left_running.map_or_else(String::new, |id| {
        format!("\n[processes of this command still run as {id}: see bash.output and bash.kill]")
    });
    let shown = format!("{}{left_running}", or_none(output));
    match outcome.exit {
        Some(Exit::Code(0)) => Ok(shown),
        Some(exit) => {
            let how = match exit {
                Exit::Code(_) => "",
                Exit::Signal(_) => " (killed by a signal)",
                Exit::Unwatched => {
                    " (its supervisor was killed; the command may have taken effect)"
                }
            };
            let text = format!(
                "command exited with code {}{how}\noutput:\n{shown}",
                exit.code()
            );
            Err(Error::new(ErrorKind::Tool, text))
        }
        None => {
            context.state.put_slot(Arc::new(TimedOut));
            let what =
                format!("command timed out after {timeout_seconds} seconds and was terminated");
            Ok(if output.is_empty() {
                what
            } else {
                format!("{what}\noutput:\n{output}")
            })
        }
    }
}

/// Reads what a background shell has printed, while it runs and after it ended, as often as wanted.
#[tool(crate = bub_kernel, name = "bash.output", read_only)]
pub async fn bash_output(
    context: &ToolContext,
    /// As `bash` returned it.
    shell_id: String,
    /// The character to start at: `next_offset` of the last read, to read on.
    #[default(0)]
    offset: i64,
    /// Most characters to return.
    limit: Option<i64>,
) -> Result<String> {
    let shell = shells(context)?.find(&session(context), shell_id.trim())?;
    // Before the output: what ended in between is told at the next read, and nothing of it is missed.
    let status = status(&shell);
    let (chunk, next) = shell.read(clamped(offset), limit.map(clamped));
    Ok(format!(
        "{status}\nnext_offset: {next}\noutput:\n{}",
        or_none(chunk.trim_end())
    ))
}

/// Terminates a background shell with everything it started.
#[tool(crate = bub_kernel, name = "bash.kill")]
pub async fn bash_kill(
    context: &ToolContext,
    /// As `bash` returned it.
    shell_id: String,
) -> Result<String> {
    let shell = shells(context)?.find(&session(context), shell_id.trim())?;
    shell.end().await;
    Ok(status(&shell))
}

fn status(shell: &Shell) -> String {
    let status = if shell.is_over() { "exited" } else { "running" };
    let code = shell
        .exit()
        .map_or_else(|| "null".to_owned(), |exit| exit.code().to_string());
    format!("id: {}\nstatus: {status}\nexit_code: {code}", shell.id())
}

fn shells(context: &ToolContext) -> Result<Arc<Shells>> {
    context
        .state
        .slot()
        .ok_or_else(|| Error::unknown("this turn has no shells: `load_state` did not run"))
}

fn session(context: &ToolContext) -> String {
    context.state.get_str("session_id").unwrap_or_default()
}

/// What the skills that this turn has loaded may see.
fn granted(context: &ToolContext) -> Vec<(String, OsString)> {
    let skills = context
        .state
        .slot::<Skills>()
        .zip(context.state.slot::<LoadedSkills>());
    skills.map_or_else(Vec::new, |(skills, loaded)| {
        skills.granted_environment(&loaded)
    })
}

fn directory(context: &ToolContext, cwd: Option<String>) -> Option<PathBuf> {
    let workspace = context
        .state
        .get_str("_runtime_workspace")
        .map(PathBuf::from);
    let Some(cwd) = cwd.filter(|cwd| !cwd.is_empty()) else {
        return workspace;
    };
    Some(workspace.unwrap_or_default().join(cwd))
}

fn or_none(output: &str) -> &str {
    if output.is_empty() {
        "(no output)"
    } else {
        output
    }
}

fn clamped(number: i64) -> usize {
    usize::try_from(number.max(0)).unwrap_or(usize::MAX)
}
