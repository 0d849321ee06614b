//! Shell commands of the `bash` tool.
//!
//! * [`Shells`]: the commands of all sessions. Each command belongs to one session.
//! * `process`: the processes of one command, with or without the supervisor of `bub-sandbox`.
//! * `output`: the bounded output of one command.

use std::{
    ffi::{OsStr, OsString},
    hash::{BuildHasher, RandomState},
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bub_kernel::{CancellationToken, Error, ErrorKind, ExecutionEnvironment, Result, SessionId};
use bub_settings::Settings;
use futures_util::future::join_all;
use parking_lot::Mutex;
use rustix::process::Signal;
use tokio::{
    io::AsyncReadExt,
    net::unix::pipe::Receiver,
    sync::{OwnedSemaphorePermit, Semaphore, mpsc::Sender, watch},
    task::JoinSet,
    time::{sleep, timeout},
};

pub(crate) use output::OutputBuffer;
use process::Process;

mod output;
mod process;

pub use bub_sandbox::{Confinement, Launcher, SUBCOMMAND, supervise};
pub use process::Exit;

/// Maximum number of concurrent commands.
const MAX_RUNNING_SHELLS: usize = 64;
/// Maximum number of finished commands whose output is kept.
const MAX_FINISHED_SHELLS: usize = 32;
/// How long a command has to exit after SIGTERM before it is killed.
const TERMINATE_TIMEOUT: Duration = Duration::from_secs(3);
/// How long to wait for a killed command. A process of another user cannot be killed, so the wait is limited.
const KILL_TIMEOUT: Duration = Duration::from_secs(1);
/// How long to wait for processes that outlive their shell before the command is reported as still running.
const ORPHAN_GRACE_PERIOD: Duration = Duration::from_millis(150);
/// How long to wait for the end of the output. A process that left the process group may keep the pipe open.
const OUTPUT_DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Timeout for starting a command, including its supervisor.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Directories to search for a shell if `PATH` is not set.
const DEFAULT_SHELL_PATH: &str = "/bin:/usr/bin:/usr/local/bin";

/// The running and finished commands of all sessions.
#[derive(Debug)]
pub struct Shells {
    settings: Arc<Settings>,
    launcher: Option<Launcher>,
    all: Mutex<Vec<Arc<Shell>>>,
    permits: Arc<Semaphore>,
}

/// A command to run.
#[derive(Clone, Debug, Default)]
pub struct ShellRequest {
    /// The command line for the shell.
    pub command: String,
    /// The session that the command belongs to.
    pub session: SessionId,
    /// The working directory. Defaults to that of this process, or to the workspace of the environment.
    pub directory: Option<PathBuf>,
    /// Where the command runs. `None` is this machine. Elsewhere, `granted` and `confinement` do not apply.
    pub environment: Option<Arc<dyn ExecutionEnvironment>>,
    /// Environment variables for this command, in addition to those that every child process gets.
    pub granted: Vec<(String, OsString)>,
    /// What the command may reach. Without it, the command has all rights of bub.
    pub confinement: Option<Confinement>,
    /// Receives the beginning of the output while the command runs.
    pub live: Option<Sender<String>>,
}

/// The outcome of a foreground command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShellOutcome {
    /// How the shell exited. `None` if it still runs.
    pub exit: Option<Exit>,
    /// stdout and stderr, interleaved as they arrived.
    pub output: String,
    /// The id of the shell if processes of the command are still running.
    pub left_running: Option<String>,
}

/// One command and all the processes it started.
#[derive(Debug)]
pub struct Shell {
    id: String,
    session: SessionId,
    output: Mutex<OutputBuffer>,
    progress: watch::Sender<ShellStatus>,
    stop: CancellationToken,
}

#[derive(Clone, Copy, Debug, Default)]
struct ShellStatus {
    exit: Option<Exit>,
    /// Whether the shell was the last process of the command when it exited.
    is_alone: bool,
    /// Whether all processes are gone and all output is read.
    is_finished: bool,
}

impl Shells {
    /// Creates an empty set of commands. Without a launcher, commands have no supervisor and keep running if this
    /// process is killed.
    pub fn new(settings: Arc<Settings>, launcher: Option<Launcher>) -> Self {
        Self {
            settings,
            launcher,
            all: Mutex::default(),
            permits: Arc::new(Semaphore::new(MAX_RUNNING_SHELLS)),
        }
    }

    /// Starts a command in the background.
    pub async fn start(&self, request: ShellRequest) -> Result<Arc<Shell>> {
        let permit = Arc::clone(&self.permits).try_acquire_owned().map_err(|_| {
            tool_error(format!(
                "too many running commands: the limit is {MAX_RUNNING_SHELLS}; terminate one with bash.kill"
            ))
        })?;
        if let Some(environment) = request.environment {
            let shell = self.add_shell(request.session, request.live);
            let running =
                Arc::clone(&shell).run_in(environment, request.command, request.directory);
            tokio::spawn(async move {
                running.await;
                drop(permit);
            });
            return Ok(shell);
        }
        let process = self.launch_process(&request).await?;
        let shell = self.add_shell(request.session, request.live);
        tokio::spawn(Arc::clone(&shell).supervise(process, permit));
        Ok(shell)
    }

    /// Runs a command until its shell exits, or for `limit`. Terminates it on `cancel`, and when the future is dropped.
    ///
    /// A command that runs longer than `limit`, and processes that outlive the shell, keep running until
    /// [`Self::stop_session`] or the end of this process.
    pub async fn run(
        &self,
        request: ShellRequest,
        limit: Duration,
        cancel: &CancellationToken,
    ) -> Result<ShellOutcome> {
        if cancel.is_cancelled() {
            return Err(cancelled_error());
        }
        let shell = self.start(request).await?;
        let stop_guard = shell.stop.clone().drop_guard();
        let exit = tokio::select! {
            exit = shell.wait_exit() => Some(exit),
            () = sleep(limit) => None,
            () = cancel.cancelled() => {
                shell.terminate().await;
                self.remove(&shell);
                return Err(cancelled_error());
            }
        };
        let may_keep_running = !shell.progress.borrow().is_alone;
        let wait_timeout = if may_keep_running {
            ORPHAN_GRACE_PERIOD
        } else {
            TERMINATE_TIMEOUT + KILL_TIMEOUT + OUTPUT_DRAIN_TIMEOUT
        };
        let is_finished =
            exit.is_some() && timeout(wait_timeout, shell.wait_finished()).await.is_ok();
        stop_guard.disarm();
        if is_finished {
            self.remove(&shell);
        }
        let left_running = (!is_finished).then(|| shell.id.clone());
        Ok(ShellOutcome {
            exit,
            output: shell.output.lock().full_text(),
            left_running,
        })
    }

    /// Returns the shell with this id if it belongs to the session.
    pub fn find(&self, session: &str, id: &str) -> Result<Arc<Shell>> {
        let all = self.all.lock();
        let is_match = |shell: &&Arc<Shell>| shell.id == id && shell.session == session;
        let shell = all.iter().find(is_match).cloned();
        shell.ok_or_else(|| Error::not_found(format!("unknown shell id: {id}")))
    }

    /// Terminates and removes one shell of a session. Does nothing if it is gone.
    pub(crate) async fn stop(&self, session: &str, id: &str) {
        if let Ok(shell) = self.find(session, id) {
            shell.terminate().await;
            self.remove(&shell);
        }
    }

    /// Terminates and removes all shells of a session.
    pub async fn stop_session(&self, session: &str) {
        let is_match = |shell: &mut Arc<Shell>| shell.session == session;
        let session_shells: Vec<_> = self.all.lock().extract_if(.., is_match).collect();
        join_all(session_shells.iter().map(|shell| shell.terminate())).await;
    }

    /// Terminates all shells. Processes that are still running after `deadline` are killed when this process exits.
    pub async fn stop_all(&self, deadline: Duration) {
        let all = std::mem::take(&mut *self.all.lock());
        let stopping = join_all(all.iter().map(|shell| shell.terminate()));
        if timeout(deadline, stopping).await.is_err() {
            tracing::warn!(timeout = ?deadline, "shell.stop_timeout");
        }
    }

    /// Checks the request and starts its process.
    async fn launch_process(&self, request: &ShellRequest) -> Result<Process> {
        if request.command.contains('\0') {
            return Err(tool_error("invalid command: it contains a NUL byte".into()));
        }
        if let Some(directory) = &request.directory
            && !directory.is_dir()
        {
            return Err(tool_error(format!(
                "working directory '{}' not found; pass an existing directory as `cwd`",
                directory.display()
            )));
        }
        let environment = self.command_environment(&request.granted);
        let shell = find_shell_program(&environment)
            .ok_or_else(|| tool_error("neither bash nor sh found in PATH; install one".into()))?;
        let launcher = self.launcher.as_ref();
        let starting = Process::spawn(request, launcher, &shell, environment);
        let started = timeout(START_TIMEOUT, starting).await;
        started.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(|error| match error.kind() {
            io::ErrorKind::ArgumentListTooLong => tool_error(format!(
                "the command is too long for the system ({} bytes); write it to a file and run the file",
                request.command.len()
            )),
            _ => tool_error(format!("cannot start the command: {error}")),
        })
    }

    /// Returns the environment of a command: without secrets, except for those that are granted.
    pub(crate) fn command_environment(
        &self,
        granted: &[(String, OsString)],
    ) -> Vec<(OsString, OsString)> {
        let inherited = self.settings.child_environment().into_iter();
        let inherited = inherited.map(|(name, value)| (name.into(), value.to_owned()));
        let granted = granted
            .iter()
            .map(|(name, value)| (name.into(), value.clone()));
        inherited.chain(granted).collect()
    }

    /// Adds a shell with a new id. Removes the oldest finished shells above the limit.
    fn add_shell(&self, session: SessionId, live: Option<Sender<String>>) -> Arc<Shell> {
        let mut all = self.all.lock();
        let finished = all.iter().filter(|shell| shell.is_finished()).count();
        let excess = finished.saturating_sub(MAX_FINISHED_SHELLS - 1);
        let evicted = all.extract_if(.., |shell| shell.is_finished());
        evicted.take(excess).for_each(drop);
        let mut id = new_shell_id();
        while all.iter().any(|shell| shell.id == id) {
            id = new_shell_id();
        }
        let shell = Arc::new(Shell {
            id,
            session,
            output: Mutex::new(OutputBuffer::new(self.settings.redactor().stream(), live)),
            progress: watch::Sender::default(),
            stop: CancellationToken::new(),
        });
        all.push(Arc::clone(&shell));
        shell
    }

    fn remove(&self, shell: &Arc<Shell>) {
        self.all.lock().retain(|other| !Arc::ptr_eq(other, shell));
    }
}

impl Shell {
    /// Returns the id of the shell: `bash-` and 8 hex digits. The tools `bash.output` and `bash.kill` take this id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns how the shell exited, or `None` while it runs.
    pub fn exit(&self) -> Option<Exit> {
        self.progress.borrow().exit
    }

    /// Returns whether all processes of the command are gone and all output is read.
    pub fn is_finished(&self) -> bool {
        self.progress.borrow().is_finished
    }

    /// Returns at most `limit` characters of the output, starting at character `offset`, and the offset of the next
    /// character.
    pub fn read_output(&self, offset: usize, limit: Option<usize>) -> (String, usize) {
        let mut output = self.output.lock();
        output.flush();
        let start = offset.min(output.char_count());
        let end = start.saturating_add(limit.unwrap_or(usize::MAX));
        let end = end.min(output.char_count());
        (output.slice(start, end), end)
    }

    /// Terminates all processes of the command: SIGTERM first, SIGKILL after a grace period.
    pub async fn terminate(&self) {
        self.stop.cancel();
        self.wait_finished().await;
    }

    /// Waits until the shell exits.
    pub async fn wait_exit(&self) -> Exit {
        let mut progress = self.progress.subscribe();
        let ended = progress.wait_for(|progress| progress.exit.is_some()).await;
        let exit = ended.ok().and_then(|progress| progress.exit);
        exit.unwrap_or(Exit::Signal(0))
    }

    /// Waits until all processes of the command are gone and their output is read.
    pub async fn wait_finished(&self) {
        let mut progress = self.progress.subscribe();
        let _ = progress.wait_for(|progress| progress.is_finished).await;
    }

    /// Collects the output and the status of the command until all its processes are gone. Terminates the command when
    /// `stop` is cancelled.
    async fn supervise(self: Arc<Self>, process: Process, _permit: OwnedSemaphorePermit) {
        let Process {
            mut watch,
            control,
            output,
        } = process;
        // Dropping the set aborts the reader.
        let mut reader = JoinSet::new();
        reader.spawn(Arc::clone(&self).collect_output(output));
        let watching = async {
            let (exit, is_alone) = watch.wait_exit().await;
            self.progress.send_replace(ShellStatus {
                exit: Some(exit),
                is_alone,
                is_finished: false,
            });
            watch.wait_all_exited().await;
        };
        let stopping = async {
            self.stop.cancelled().await;
            control.terminate();
            sleep(TERMINATE_TIMEOUT).await;
            control.kill();
            sleep(KILL_TIMEOUT).await;
        };
        tokio::select! { () = watching => control.release(), () = stopping => {} }
        // A process that left the process group may keep the pipe open.
        let _ = timeout(OUTPUT_DRAIN_TIMEOUT, reader.join_next()).await;
        reader.shutdown().await;
        self.output.lock().finish();
        self.progress
            .send_modify(|progress| progress.is_finished = true);
    }

    /// Runs the command in an environment, until it ends or `stop` is cancelled.
    async fn run_in(
        self: Arc<Self>,
        environment: Arc<dyn ExecutionEnvironment>,
        command: String,
        directory: Option<PathBuf>,
    ) {
        let output = |block: &[u8]| self.output.lock().push(block);
        let directory = directory.as_ref().and_then(|directory| directory.to_str());
        let exit = tokio::select! {
            ended = environment.run(&command, directory, &output) => ended,
            () = self.stop.cancelled() => Ok(-Signal::TERM.as_raw()),
        };
        let exit = match exit {
            Ok(code @ ..0) => Exit::Signal(-code),
            Ok(code) => Exit::Code(code),
            Err(error) => {
                output(format!("[the environment failed: {}]", error.message()).as_bytes());
                Exit::Lost
            }
        };
        self.output.lock().finish();
        self.progress.send_replace(ShellStatus {
            exit: Some(exit),
            is_alone: true,
            is_finished: true,
        });
    }

    /// Reads the output of the command until the pipe closes.
    async fn collect_output(self: Arc<Self>, mut pipe: Receiver) {
        let mut block = vec![0; 32 * 1024];
        while let Ok(length @ 1..) = pipe.read(&mut block).await {
            self.output
                .lock()
                .push(block.get(..length).unwrap_or_default());
        }
    }
}

fn new_shell_id() -> String {
    let random = RandomState::new().hash_one(std::process::id()) >> 32;
    format!("bash-{random:08x}")
}

fn cancelled_error() -> Error {
    Error::new(
        ErrorKind::Cancelled,
        "the command was cancelled and terminated",
    )
}

fn tool_error(text: String) -> Error {
    Error::new(ErrorKind::Tool, text)
}

/// Returns the first `bash` in `PATH`, or else the first `sh`.
fn find_shell_program(environment: &[(OsString, OsString)]) -> Option<PathBuf> {
    let mut variables = environment.iter().rev();
    let path = variables.find(|(name, _)| name == "PATH");
    let path = path.map(|(_, path)| path.as_os_str());
    let mut programs = ["bash", "sh"].into_iter();
    programs.find_map(|name| find_programs(path, name).next())
}

/// Returns all programs with this name in a `PATH`.
pub(crate) fn find_programs(path: Option<&OsStr>, name: &str) -> impl Iterator<Item = PathBuf> {
    let path = path.unwrap_or(DEFAULT_SHELL_PATH.as_ref());
    let candidates = std::env::split_paths(path).map(|directory| directory.join(name));
    let candidates: Vec<PathBuf> = candidates.collect();
    candidates
        .into_iter()
        .filter(|candidate| is_executable(candidate))
}

fn is_executable(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}
