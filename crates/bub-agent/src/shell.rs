//! The commands of the `bash` tool: started, watched, read, ended.
//!
//! * [`Shells`]: all of them, each owned by a session.
//! * `process`: one command, under the supervisor of `bub-sandbox` or directly.
//! * `output`: what it printed, bounded.

use std::{
    ffi::OsString,
    hash::{BuildHasher, RandomState},
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bub_kernel::{CancellationToken, Error, ErrorKind, Result, SessionId};
use bub_settings::Settings;
use futures_util::future::join_all;
use tokio::{
    io::AsyncReadExt,
    net::unix::pipe::Receiver,
    sync::{OwnedSemaphorePermit, Semaphore, mpsc::Sender, watch},
    task::JoinHandle,
    time::{sleep, timeout},
};

use output::OutputBuffer;
use process::{Process, SpawnRequest};

mod output;
mod process;

pub use bub_sandbox::{Launcher, SUBCOMMAND, supervise};
pub use process::Exit;

/// Most commands that run at a time.
const MAX_RUNNING_SHELLS: usize = 64;
/// So many that ended are kept to be read.
const MAX_FINISHED_SHELLS: usize = 32;
/// How long a command may take to end when it is asked to.
const TERMINATE_TIMEOUT: Duration = Duration::from_secs(3);
/// How long one that was killed is waited for. A process of another user is not ours to end.
const KILL_TIMEOUT: Duration = Duration::from_secs(1);
/// How long what a shell left running has to end, before the shell's end is all that is waited for.
const ORPHAN_GRACE_PERIOD: Duration = Duration::from_millis(150);
/// How long the end of the output is waited for. Somebody who got away may hold it open.
const OUTPUT_DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the supervisor may take to start a command.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Where a shell is when the search path has none.
const DEFAULT_SHELL_PATH: &str = "/bin:/usr/bin:/usr/local/bin";

/// The commands that run or ran, of all sessions.
#[derive(Debug)]
pub struct Shells {
    settings: Arc<Settings>,
    launcher: Option<Launcher>,
    all: Mutex<Vec<Arc<Shell>>>,
    room: Arc<Semaphore>,
}

/// A command to run.
#[derive(Clone, Debug, Default)]
pub struct ShellRequest {
    /// For the shell.
    pub command: String,
    /// The session that owns it.
    pub session: SessionId,
    /// Where it runs; where the program runs when there is none.
    pub directory: Option<PathBuf>,
    /// Variables beyond those every child gets.
    pub granted: Vec<(String, OsString)>,
    /// Who is told what it prints as it comes, as far as the beginning is kept.
    pub live: Option<Sender<String>>,
}

/// What a command in the foreground came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShellOutcome {
    /// How its shell ended; nothing if it took too long and was ended.
    pub exit: Option<Exit>,
    /// What it printed, stdout and stderr as they came.
    pub output: String,
    /// The shell to read or end what it left running.
    pub left_running: Option<String>,
}

/// One command, with all the processes it started.
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
    /// The shell was the last process: what is left to do takes no time.
    is_alone: bool,
    is_over: bool,
}

impl Shells {
    /// No commands yet. Without a launcher they run unsupervised: they survive a program that is killed.
    pub fn new(settings: Arc<Settings>, launcher: Option<Launcher>) -> Self {
        Self {
            settings,
            launcher,
            all: Mutex::default(),
            room: Arc::new(Semaphore::new(MAX_RUNNING_SHELLS)),
        }
    }

    /// Starts a command and lets it run.
    pub async fn start(&self, request: ShellRequest) -> Result<Arc<Shell>> {
        let room = Arc::clone(&self.room).try_acquire_owned().map_err(|_| {
            failed(format!(
                "{MAX_RUNNING_SHELLS} commands are running already; end one with bash.kill"
            ))
        })?;
        let process = self.launch(&request).await?;
        let shell = self.add(request.session, request.live);
        tokio::spawn(Arc::clone(&shell).supervise(process, room));
        Ok(shell)
    }

    /// Runs a command to its end. It is ended after `limit`, on `cancel`, and when nobody waits any more.
    ///
    /// What its shell leaves running goes on; it ends with the session or the program.
    pub async fn run(
        &self,
        request: ShellRequest,
        limit: Duration,
        cancel: &CancellationToken,
    ) -> Result<ShellOutcome> {
        if cancel.is_cancelled() {
            return Err(cancelled());
        }
        let shell = self.start(request).await?;
        let abandoned = shell.stop.clone().drop_guard();
        let exit = tokio::select! {
            exit = shell.wait_exit() => Some(exit),
            () = sleep(limit) => None,
            () = cancel.cancelled() => {
                shell.end().await;
                self.forget(&shell);
                return Err(cancelled());
            }
        };
        if exit.is_none() {
            shell.stop.cancel();
        }
        let may_go_on = exit.is_some() && !shell.progress.borrow().is_alone;
        let wait_timeout = if may_go_on {
            ORPHAN_GRACE_PERIOD
        } else {
            TERMINATE_TIMEOUT + KILL_TIMEOUT + OUTPUT_DRAIN_TIMEOUT
        };
        let is_over = timeout(wait_timeout, shell.wait_all()).await.is_ok();
        abandoned.disarm();
        if is_over {
            self.forget(&shell);
        }
        let left_running = (!is_over).then(|| shell.id.clone());
        Ok(ShellOutcome {
            exit,
            output: shell.lock_output().all(),
            left_running,
        })
    }

    /// The shell of that id, if it belongs to that session.
    pub fn find(&self, session: &str, id: &str) -> Result<Arc<Shell>> {
        let all = self.lock();
        let own = all
            .iter()
            .find(|shell| shell.id == id && shell.session == session);
        own.cloned()
            .ok_or_else(|| Error::not_found(format!("unknown shell id: {id}")))
    }

    /// Ends and forgets every shell of a session.
    pub async fn stop_session(&self, session: &str) {
        let own: Vec<_> = self
            .lock()
            .extract_if(.., |shell| shell.session == session)
            .collect();
        join_all(own.iter().map(|shell| shell.end())).await;
    }

    /// Ends every shell. What does not end within `deadline` is killed with the program.
    pub async fn stop_all(&self, deadline: Duration) {
        let all = std::mem::take(&mut *self.lock());
        if timeout(deadline, join_all(all.iter().map(|shell| shell.end())))
            .await
            .is_err()
        {
            tracing::warn!(timeout = ?deadline, "shell.stop_timeout");
        }
    }

    async fn launch(&self, request: &ShellRequest) -> Result<Process> {
        if request.command.contains('\0') {
            return Err(failed(
                "the command contains a NUL byte, which no program can be given".into(),
            ));
        }
        if let Some(directory) = request
            .directory
            .as_deref()
            .filter(|directory| !directory.is_dir())
        {
            return Err(failed(format!(
                "the working directory '{}' does not exist",
                directory.display()
            )));
        }
        let environment = self.environment(&request.granted);
        let shell = find_shell(&environment)
            .ok_or_else(|| failed("neither bash nor sh was found in PATH; install one".into()))?;
        let start = SpawnRequest {
            launcher: self.launcher.as_ref().map(|launcher| launcher.0.as_path()),
            shell,
            command: &request.command,
            directory: request.directory.as_deref(),
            environment,
        };
        let started = timeout(START_TIMEOUT, start.start()).await;
        started.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(|error| match error.kind() {
            io::ErrorKind::ArgumentListTooLong => failed(format!(
                "the command is too long for the system ({} bytes); write it to a file and run that",
                request.command.len()
            )),
            _ => failed(format!("the command could not be started: {error}")),
        })
    }

    fn environment(&self, granted: &[(String, OsString)]) -> Vec<(OsString, OsString)> {
        let usual = self.settings.child_environment().into_iter();
        let usual = usual.map(|(name, value)| (name.into(), value.to_owned()));
        usual
            .chain(
                granted
                    .iter()
                    .map(|(name, value)| (name.into(), value.clone())),
            )
            .collect()
    }

    fn add(&self, session: SessionId, live: Option<Sender<String>>) -> Arc<Shell> {
        let mut all = self.lock();
        let mut excess = all
            .iter()
            .filter(|shell| shell.is_finished())
            .count()
            .saturating_sub(MAX_FINISHED_SHELLS - 1);
        all.retain(|shell| {
            let is_evicted = excess > 0 && shell.is_finished();
            excess -= usize::from(is_evicted);
            !is_evicted
        });
        let mut id = new_id();
        while all.iter().any(|shell| shell.id == id) {
            id = new_id();
        }
        let shell = Arc::new(Shell {
            id,
            session,
            output: Mutex::new(OutputBuffer::with_live_output(live)),
            progress: watch::Sender::default(),
            stop: CancellationToken::new(),
        });
        all.push(Arc::clone(&shell));
        shell
    }

    fn forget(&self, shell: &Arc<Shell>) {
        self.lock().retain(|known| !Arc::ptr_eq(known, shell));
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Shell>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shell {
    /// Its name for the model: `bash-<8 hex>`.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// How its shell ended, once it has.
    pub fn exit(&self) -> Option<Exit> {
        self.progress.borrow().exit
    }

    /// Whether no process of it is left.
    pub fn is_finished(&self) -> bool {
        self.progress.borrow().is_over
    }

    /// At most `limit` characters of the output from `offset` on, and the offset after them.
    pub fn read(&self, offset: usize, limit: Option<usize>) -> (String, usize) {
        let output = self.lock_output();
        let start = offset.min(output.chars());
        let end = limit.map_or(output.chars(), |limit| {
            start.saturating_add(limit).min(output.chars())
        });
        (output.slice(start, end), end)
    }

    /// Ends all its processes: asked first, killed after a grace period.
    pub async fn end(&self) {
        self.stop.cancel();
        self.wait_all().await;
    }

    /// Waits until its shell has ended.
    pub async fn wait_exit(&self) -> Exit {
        let mut progress = self.progress.subscribe();
        let ended = progress.wait_for(|progress| progress.exit.is_some()).await;
        ended
            .ok()
            .and_then(|progress| progress.exit)
            .unwrap_or(Exit::Signal(0))
    }

    /// Waits until none of its processes is left and all their output is there.
    pub async fn wait_all(&self) {
        let _ = self
            .progress
            .subscribe()
            .wait_for(|progress| progress.is_over)
            .await;
    }

    /// Watches the command until it is over.
    async fn supervise(self: Arc<Self>, process: Process, _room: OwnedSemaphorePermit) {
        let Process {
            mut watch,
            control,
            output,
        } = process;
        let mut reader = tokio::spawn(Arc::clone(&self).collect(output));
        let _reader = AbortOnDrop(reader.abort_handle());
        let watching = async {
            let (exit, is_alone) = watch.exited().await;
            self.progress.send_replace(ShellStatus {
                exit: Some(exit),
                is_alone,
                is_over: false,
            });
            watch.wait_gone().await;
        };
        let stopping = async {
            self.stop.cancelled().await;
            control.terminate();
            sleep(TERMINATE_TIMEOUT).await;
            control.kill();
            sleep(KILL_TIMEOUT).await;
        };
        tokio::select! { () = watching => control.release(), () = stopping => {} }
        self.finish_reading(&mut reader).await;
        self.progress
            .send_modify(|progress| progress.is_over = true);
    }

    async fn finish_reading(&self, reader: &mut JoinHandle<()>) {
        if timeout(OUTPUT_DRAIN_TIMEOUT, &mut *reader).await.is_err() {
            reader.abort();
        }
        self.lock_output().finish();
    }

    async fn collect(self: Arc<Self>, mut pipe: Receiver) {
        let mut block = vec![0; 32 * 1024];
        while let Ok(length @ 1..) = pipe.read(&mut block).await {
            self.lock_output()
                .push(block.get(..length).unwrap_or_default());
        }
    }

    fn lock_output(&self) -> MutexGuard<'_, OutputBuffer> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends a task with the one that started it.
struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn new_id() -> String {
    let random = RandomState::new().hash_one(std::process::id()) >> 32;
    format!("bash-{random:08x}")
}

fn cancelled() -> Error {
    Error::new(
        ErrorKind::Cancelled,
        "the command was cancelled and terminated",
    )
}

fn failed(text: String) -> Error {
    Error::new(ErrorKind::Tool, text)
}

/// `bash` before `sh`, wherever in the search path.
fn find_shell(environment: &[(OsString, OsString)]) -> Option<PathBuf> {
    let path = environment
        .iter()
        .rev()
        .find(|(name, _)| name == "PATH")
        .map(|(_, path)| path.as_os_str());
    let directories: Vec<_> =
        std::env::split_paths(path.unwrap_or(DEFAULT_SHELL_PATH.as_ref())).collect();
    let mut candidates = ["bash", "sh"].iter().flat_map(|name| {
        directories
            .iter()
            .map(move |directory| directory.join(name))
    });
    candidates.find(|candidate| is_program(candidate))
}

fn is_program(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}
