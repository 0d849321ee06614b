//! `bash`, `bash.output`, `bash.kill`: commands in the workspace.

use std::{path::PathBuf, sync::Arc, time::Duration};

use bub_kernel::{Error, ErrorKind, Result, ToolCaller, ToolContext, tools};

use crate::{
    shell::{Exit, Shell, ShellRequest, Shells},
    skills::{LoadedSkills, Skills},
};

/// The tools that run commands.
#[derive(Debug)]
pub struct BashTools {
    shells: Arc<Shells>,
    skills: Arc<Skills>,
}

impl BashTools {
    /// Tools that start shells among these, with the environment that loaded skills were granted.
    pub fn new(shells: Arc<Shells>, skills: Arc<Skills>) -> Self {
        Self { shells, skills }
    }
}

#[tools(crate = bub_kernel)]
impl BashTools {
    /// Runs a shell command and returns what it printed. Standard input is empty and there is no terminal: commands that
    /// ask questions do not work. Use `background` for servers and whatever else takes long.
    #[tool(name = "bash")]
    async fn bash(
        &self,
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
        let request = ShellRequest {
            command: cmd,
            session: context.turn.session_id().clone(),
            directory: directory(context, cwd),
            granted: self
                .skills
                .granted_environment(&LoadedSkills::from_state(context.state())),
            live: context.live_output.clone().filter(|_| !background),
        };
        if background {
            return Ok(format!(
                "started: {}",
                self.shells.start(request).await?.id()
            ));
        }
        if timeout_seconds == 0 {
            return Err(Error::invalid_input("timeout_seconds must be at least 1"));
        }
        let outcome = self
            .shells
            .run(
                request,
                Duration::from_secs(timeout_seconds),
                &context.cancel,
            )
            .await?;
        let output = outcome.output.trim();
        let left_running = outcome.left_running.map_or_else(String::new, |id| {
            format!(
                "\n[processes of this command still run as {id}: see bash.output and bash.kill]"
            )
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
                let what =
                    format!("command timed out after {timeout_seconds} seconds and was terminated");
                let text = if output.is_empty() {
                    what
                } else {
                    format!("{what}\noutput:\n{output}")
                };
                // To a model that is a result, to a user a failure.
                match context.caller {
                    ToolCaller::Model => Ok(text),
                    ToolCaller::User => Err(Error::new(ErrorKind::Tool, text)),
                }
            }
        }
    }

    /// Reads what a background shell has printed, while it runs and after it ended, as often as wanted.
    #[tool(name = "bash.output", read_only)]
    async fn bash_output(
        &self,
        context: &ToolContext,
        /// As `bash` returned it.
        shell_id: String,
        /// The character to start at: `next_offset` of the last read, to read on.
        #[default(0)]
        offset: i64,
        /// Most characters to return.
        limit: Option<i64>,
    ) -> Result<String> {
        let shell = self
            .shells
            .find(context.turn.session_id(), shell_id.trim())?;
        // Before the output: what ended in between is told at the next read, and nothing of it is missed.
        let status = status(&shell);
        let (chunk, next) = shell.read(clamped(offset), limit.map(clamped));
        Ok(format!(
            "{status}\nnext_offset: {next}\noutput:\n{}",
            or_none(chunk.trim_end())
        ))
    }

    /// Terminates a background shell with everything it started.
    #[tool(name = "bash.kill")]
    async fn bash_kill(
        &self,
        context: &ToolContext,
        /// As `bash` returned it.
        shell_id: String,
    ) -> Result<String> {
        let shell = self
            .shells
            .find(context.turn.session_id(), shell_id.trim())?;
        shell.end().await;
        Ok(status(&shell))
    }
}

fn status(shell: &Shell) -> String {
    let status = if shell.is_finished() {
        "exited"
    } else {
        "running"
    };
    let code = shell
        .exit()
        .map_or_else(|| "null".to_owned(), |exit| exit.code().to_string());
    format!("id: {}\nstatus: {status}\nexit_code: {code}", shell.id())
}

fn directory(context: &ToolContext, cwd: Option<String>) -> Option<PathBuf> {
    let workspace = context
        .state()
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
