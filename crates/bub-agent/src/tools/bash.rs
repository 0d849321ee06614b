//! The tools `bash`, `bash.output` and `bash.kill`.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bub_kernel::{Error, ErrorKind, Result, Role, ToolCaller, ToolContext, tools};
use bub_sandbox::{Confinement, SandboxProfile, UNPROTECTED_TEXT};
use bub_settings::MASK;
use serde_json::{Map, Value};

use crate::{
    agent::Agent,
    policy::{ApprovalOutcome, ask_for_exception},
    sandbox::{failure_note, is_at_terminal, looks_refused},
    shell::{Exit, Shell, ShellOutcome, ShellRequest, Shells},
    skills::{LoadedSkills, Skills},
};

/// Name of the tool that runs commands.
const TOOL_NAME: &str = "bash";

/// The tools that run shell commands.
pub struct BashTools {
    shells: Arc<Shells>,
    skills: Arc<Skills>,
    /// Confines the commands, and asks users about those that need more.
    agent: Option<Arc<Agent>>,
}

impl BashTools {
    /// Creates tools whose commands are not confined. They get the environment variables that loaded skills are
    /// granted.
    pub fn new(shells: Arc<Shells>, skills: Arc<Skills>) -> Self {
        Self {
            shells,
            skills,
            agent: None,
        }
    }

    /// Creates the tools of an agent.
    pub(crate) fn with_agent(agent: Arc<Agent>) -> Self {
        Self {
            shells: Arc::clone(&agent.shells),
            skills: Arc::clone(&agent.skills),
            agent: Some(agent),
        }
    }

    /// Sets what a command may reach.
    async fn confine(&self, context: &ToolContext, request: &mut ShellRequest) -> Result<()> {
        if request.environment.is_some() {
            return self.check_environment(context);
        }
        if let Some(agent) = &self.agent {
            let arguments = command_arguments(&request.command);
            request.confinement = confine(agent, context, TOOL_NAME, &arguments).await?;
        }
        Ok(())
    }

    /// Fails if the sender may not write: bub cannot enforce that in an environment of a plugin.
    fn check_environment(&self, context: &ToolContext) -> Result<()> {
        let profile = self
            .agent
            .as_ref()
            .map(|agent| agent.files.profile(context));
        if profile == Some(SandboxProfile::ReadOnly) {
            let text = "cannot run the command: the sandbox profile `read-only` cannot be enforced in the environment of this session; use fs.read";
            return Err(Error::new(ErrorKind::Tool, text));
        }
        Ok(())
    }

    /// Runs a command again without the sandbox if the sandbox may be why it failed and the owner approves.
    async fn retry_outside(
        &self,
        context: &ToolContext,
        request: &ShellRequest,
        outcome: Result<ShellOutcome>,
        limit: Duration,
    ) -> Result<ShellOutcome> {
        let (Some(agent), Some(confinement)) = (&self.agent, &request.confinement) else {
            return outcome;
        };
        let directory = request.directory.as_ref();
        let directory = directory.unwrap_or(&confinement.workspace);
        let question = match &outcome {
            Err(error) if error.message().contains(UNPROTECTED_TEXT) => {
                format!("{}; run it outside the sandbox?", error.message())
            }
            Ok(outcome)
                if outcome.exit.is_some_and(|exit| exit != Exit::Code(0))
                    && looks_refused(&request.command, &outcome.output, directory, confinement) =>
            {
                "the sandbox may have stopped this command; run it again outside the sandbox?"
                    .to_owned()
            }
            _ => return outcome,
        };
        let sender = agent.policy.effective_sender(&context.turn, context.caller);
        if sender.role == Role::Owner {
            let arguments = command_arguments(&request.command);
            let approval =
                ask_for_exception(agent, context, TOOL_NAME, &arguments, (&question, true)).await?;
            if approval.decision == ApprovalOutcome::Approved {
                // A server of the first attempt would still hold its port.
                let left_running = outcome.ok().and_then(|outcome| outcome.left_running);
                if let Some(id) = left_running {
                    self.shells.stop(&request.session, &id).await;
                }
                let outside = ShellRequest {
                    confinement: None,
                    ..request.clone()
                };
                return self.shells.run(outside, limit, &context.cancel).await;
            }
        }
        let outcome = outcome?;
        let note = failure_note(confinement);
        let output = format!("{}\n{note}", outcome.output.trim_end());
        Ok(ShellOutcome { output, ..outcome })
    }
}

/// Returns what a command of a tool may reach, or `None` if it is not confined. If this system cannot confine commands,
/// asks the user at the terminal and refuses in other channels.
pub(super) async fn confine(
    agent: &Agent,
    context: &ToolContext,
    tool: &str,
    arguments: &Map<String, Value>,
) -> Result<Option<Confinement>> {
    let sender = agent.policy.effective_sender(&context.turn, context.caller);
    let (sandbox, session) = (&agent.sandbox, context.turn.session_id());
    let profile = sandbox.profile(&sender, context.caller);
    if profile == SandboxProfile::Off {
        return Ok(None);
    }
    let workspace = crate::workspace(context.state()).unwrap_or_default();
    let confinement = sandbox.confinement(profile, &sender, session, &workspace)?;
    let Some(reason) = sandbox.unavailable_reason(&confinement) else {
        return Ok(Some(confinement));
    };
    let reason = format!("the sandbox is unavailable: {reason}");
    if !is_at_terminal(&sender) {
        return Err(Error::new(
            ErrorKind::Tool,
            format!("cannot run the command: {reason}; the owner can run `bub doctor`"),
        ));
    }
    let question = format!("{reason}; run the command without it?");
    let approval = ask_for_exception(agent, context, tool, arguments, (&question, false)).await?;
    approval.consume(tool, arguments)?;
    Ok(None)
}

fn command_arguments(command: &str) -> Map<String, Value> {
    Map::from_iter([("command".to_owned(), Value::from(command))])
}

#[tools(crate = bub_kernel)]
impl BashTools {
    /// Run a shell command and return its output. It has no terminal and no input. Use `background` for servers.
    #[tool(name = "bash", direct)]
    async fn bash(
        &self,
        context: &ToolContext,
        #[alias("cmd")] command: String,
        cwd: Option<String>,
        /// After this time, the command continues in the background
        #[default(30)]
        timeout_seconds: u64,
        /// Return a shell id for `bash_output` and `bash_kill`
        #[default(false)]
        background: bool,
    ) -> Result<String> {
        if context.caller == ToolCaller::Model && command.contains(MASK) {
            let text = "the command contains `***`, which replaces a secret or a name that looks like one, and which a shell \
                        would expand to file names; use another way to name it, such as `find` with `-inum`";
            return Err(Error::invalid_input(text));
        }
        let mut request = ShellRequest {
            command,
            session: context.turn.session_id().clone(),
            directory: working_directory(context, cwd),
            environment: context.turn.environment().cloned(),
            granted: self
                .skills
                .granted_environment(&LoadedSkills::from_state(context.state())),
            confinement: None,
            live: context.live_output.clone().filter(|_| !background),
        };
        self.confine(context, &mut request).await?;
        if background {
            let shell = self.shells.start(request).await?;
            return Ok(format!(
                "Shell started, shell_id: {}\nRead its output with bash_output, terminate it with bash_kill.",
                shell.id()
            ));
        }
        if timeout_seconds == 0 {
            let text = "invalid `timeout_seconds`: expected at least 1";
            return Err(Error::invalid_input(text));
        }
        let limit = Duration::from_secs(timeout_seconds);
        let cancel = &context.cancel;
        let outcome = self.shells.run(request.clone(), limit, cancel).await;
        let outcome = self
            .retry_outside(context, &request, outcome, limit)
            .await?;
        let output = outcome.output.trim();
        let Some(exit) = outcome.exit else {
            let id = outcome.left_running.unwrap_or_default();
            let status = format!(
                "command timed out after {timeout_seconds} seconds; continuing in background\nshell_id: {id}"
            );
            return Ok(if output.is_empty() {
                status
            } else {
                format!("{status}\noutput:\n{output}")
            });
        };
        let left_running = outcome.left_running.map_or_else(String::new, |id| {
            format!(
                "\n[processes of this command are still running as {id}; see bash_output and bash_kill]"
            )
        });
        let result = format!("{}{left_running}", output_or_placeholder(output));
        match exit {
            Exit::Code(0) => Ok(result),
            exit => {
                let detail = match exit {
                    Exit::Code(_) => "",
                    Exit::Signal(_) => " (killed by a signal)",
                    Exit::Unwatched => {
                        " (its supervisor was killed; the command may have taken effect)"
                    }
                    Exit::Lost => " (the command may have taken effect)",
                };
                let text = format!(
                    "command exited with code {}{detail}\noutput:\n{result}",
                    exit.code()
                );
                Err(Error::new(ErrorKind::Tool, text))
            }
        }
    }

    /// Read the output of a background shell
    #[tool(name = "bash.output", read_only, direct)]
    async fn bash_output(
        &self,
        context: &ToolContext,
        shell_id: String,
        /// First character; `next_offset` of the last call continues
        #[default(0)]
        offset: i64,
        /// Maximum characters
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

    /// Stop a background shell and its processes
    #[tool(name = "bash.kill", direct)]
    async fn bash_kill(&self, context: &ToolContext, shell_id: String) -> Result<String> {
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
    let cwd = cwd.filter(|cwd| !cwd.is_empty());
    if let Some(environment) = context.turn.environment() {
        let workspace = environment.workspace().unwrap_or_default();
        return cwd.map(|cwd| Path::new(workspace).join(cwd));
    }
    let workspace = crate::workspace(context.state());
    match cwd {
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
