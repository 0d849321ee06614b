//! The tools `bash`, `bash.output` and `bash.kill`.

use std::{path::PathBuf, sync::Arc, time::Duration};

use bub_kernel::{Error, ErrorKind, Result, ToolCaller, ToolContext, tools};

use crate::{
    shell::{Exit, Shell, ShellRequest, Shells},
    skills::{LoadedSkills, Skills},
};

/// The tools that run shell commands.
pub struct BashTools {
    shells: Arc<Shells>,
    skills: Arc<Skills>,
}

impl BashTools {
    /// Creates the tools. Commands get the environment variables that loaded skills are granted.
    pub fn new(shells: Arc<Shells>, skills: Arc<Skills>) -> Self {
        Self { shells, skills }
    }
}

#[tools(crate = bub_kernel)]
impl BashTools {
    /// Run a shell command and return its output. stdin is empty and there is no terminal, so commands that prompt do
    /// not work. Use `background` for servers and other long-running commands.
    #[tool(name = "bash")]
    async fn bash(
        &self,
        context: &ToolContext,
        /// Command for `bash -c`
        cmd: String,
        /// Working directory, absolute or relative to the workspace; the workspace by default
        cwd: Option<String>,
        /// Seconds after which the command and all its processes are terminated; ignored with `background`
        #[default(30)]
        timeout_seconds: u64,
        /// Return immediately with a shell id for `bash.output` and `bash.kill`
        #[default(false)]
        background: bool,
    ) -> Result<String> {
        let request = ShellRequest {
            command: cmd,
            session: context.turn.session_id().clone(),
            directory: working_directory(context, cwd),
            granted: self
                .skills
                .granted_environment(&LoadedSkills::from_state(context.state())),
            live: context.live_output.clone().filter(|_| !background),
        };
        if background {
            let shell = self.shells.start(request).await?;
            return Ok(format!("started: {}", shell.id()));
        }
        if timeout_seconds == 0 {
            let text = "invalid `timeout_seconds`: expected at least 1";
            return Err(Error::invalid_input(text));
        }
        let limit = Duration::from_secs(timeout_seconds);
        let outcome = self.shells.run(request, limit, &context.cancel).await?;
        let output = outcome.output.trim();
        let left_running = outcome.left_running.map_or_else(String::new, |id| {
            format!(
                "\n[processes of this command are still running as {id}; see bash.output and bash.kill]"
            )
        });
        let result = format!("{}{left_running}", output_or_placeholder(output));
        match outcome.exit {
            Some(Exit::Code(0)) => Ok(result),
            Some(exit) => {
                let detail = match exit {
                    Exit::Code(_) => "",
                    Exit::Signal(_) => " (killed by a signal)",
                    Exit::Unwatched => {
                        " (its supervisor was killed; the command may have taken effect)"
                    }
                };
                let text = format!(
                    "command exited with code {}{detail}\noutput:\n{result}",
                    exit.code()
                );
                Err(Error::new(ErrorKind::Tool, text))
            }
            None => {
                let status =
                    format!("command timed out after {timeout_seconds} seconds and was terminated");
                let text = if output.is_empty() {
                    status
                } else {
                    format!("{status}\noutput:\n{output}")
                };
                // For the model, a timeout is a result; for a user, it is a failure.
                match context.caller {
                    ToolCaller::Model => Ok(text),
                    ToolCaller::User => Err(Error::new(ErrorKind::Tool, text)),
                }
            }
        }
    }

    /// Read the output of a background shell. Works while it runs and after it has exited, any number of times.
    #[tool(name = "bash.output", read_only)]
    async fn bash_output(
        &self,
        context: &ToolContext,
        /// Shell id that `bash` returned
        shell_id: String,
        /// Character to start at; to continue, pass `next_offset` of the last call
        #[default(0)]
        offset: i64,
        /// Maximum number of characters to return
        limit: Option<i64>,
    ) -> Result<String> {
        let session_id = context.turn.session_id();
        let shell = self.shells.find(session_id, shell_id.trim())?;
        // Read the status before the output. Otherwise a shell that exits between the two reads could be reported as
        // exited before all its output was read.
        let status = format_status(&shell);
        let (chunk, next) = shell.read_output(non_negative(offset), limit.map(non_negative));
        Ok(format!(
            "{status}\nnext_offset: {next}\noutput:\n{}",
            output_or_placeholder(chunk.trim_end())
        ))
    }

    /// Terminate a background shell and all its processes
    #[tool(name = "bash.kill")]
    async fn bash_kill(
        &self,
        context: &ToolContext,
        /// Shell id that `bash` returned
        shell_id: String,
    ) -> Result<String> {
        let session_id = context.turn.session_id();
        let shell = self.shells.find(session_id, shell_id.trim())?;
        shell.terminate().await;
        Ok(format_status(&shell))
    }
}

/// Returns the status lines of a shell: id, status and exit code.
fn format_status(shell: &Shell) -> String {
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

/// Returns the working directory of a command: `cwd` relative to the workspace, or the workspace.
fn working_directory(context: &ToolContext, cwd: Option<String>) -> Option<PathBuf> {
    let workspace = crate::workspace(context.state());
    match cwd.filter(|cwd| !cwd.is_empty()) {
        Some(cwd) => Some(workspace.unwrap_or_default().join(cwd)),
        None => workspace,
    }
}

fn output_or_placeholder(output: &str) -> &str {
    if output.is_empty() {
        "(no output)"
    } else {
        output
    }
}

/// Converts a number to `usize`. Negative numbers become 0.
fn non_negative(number: i64) -> usize {
    usize::try_from(number.max(0)).unwrap_or(usize::MAX)
}
