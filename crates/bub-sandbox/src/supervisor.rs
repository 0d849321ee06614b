//! The supervisor: a hidden subcommand that starts a shell command or program and ends its process tree.
//!
//! bub and the supervisor share a socket. When bub exits for any reason, the socket closes, and the supervisor
//! ends every process the command started. A parent death signal is not enough. The kernel sends it when the
//! *thread* that started the child ends, and only to one process. The supervisor has no terminal and a process
//! name different from `bub`, so that `killall bub` does not end it before it has cleaned up.
//!
//! On Linux the supervisor adopts orphans. Processes that left the process group (`setsid`, `timeout`, job control) are
//! therefore ended too. On other systems, the supervisor ends only the process group.
//!
//! # Protocol
//!
//! The socket is the supervisor's stdin. The supervisor writes one line when it starts the command: `started <group>`
//! or `failed <reason>`. When the command exits, the supervisor writes `exited <code>` or `signalled <number>`,
//! followed by `alone` or `others` (other processes may still run). The supervisor closes the socket when all processes
//! have ended. It reads the control bytes [`TERMINATE`] and [`KILL`].

use std::{
    ffi::OsString,
    fs::File,
    io::{self, Read, Write},
    os::{
        fd::AsFd,
        unix::{net::UnixStream, process::CommandExt as _},
    },
    process::{Child, Command, ExitCode, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus,
};

#[cfg(target_os = "linux")]
use crate::confine::EndSignals;
use crate::{
    Confinement,
    init::{self, InitMode},
    protection::WorkspaceRecord,
};

/// First argument that makes a [`Launcher`](crate::Launcher) run as the supervisor.
pub const SUBCOMMAND: &str = "__exec";

/// Second argument of a supervisor that starts a program which bub talks to. The supervisor's stdout becomes the
/// program's stdin and stdout.
pub(crate) const PIPED_FLAG: &str = "--talk";

/// Argument before the command of a supervisor that confines it. The next argument is a [`Confinement`] as JSON.
pub(crate) const CONFINE_FLAG: &str = "--confine";

/// Second argument of a process that runs a confined command without bub. The next argument is a [`Confinement`] as
/// JSON.
pub(crate) const ENTER_FLAG: &str = "--enter";

/// Second argument of the first process of a confined command.
pub(crate) const INIT_FLAG: &str = "--init";

/// Exit code of a command that was not started because it could not be confined.
pub const CONFINEMENT_FAILED_CODE: u8 = 125;

/// The supervisor's name in process lists.
pub const PROCESS_NAME: &str = "shell-guard";

/// Control byte: send `SIGTERM` to every process of the command.
pub const TERMINATE: u8 = b't';
/// Control byte: kill every process of the command.
pub const KILL: u8 = b'k';

/// How long the command may clean up after bub exited, before it is killed.
pub(crate) const EXIT_GRACE_PERIOD: Duration = Duration::from_millis(500);
/// How often the supervisor repeats `SIGKILL`, and how often it checks for processes that are not its children.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The process group of the command. It is locked while processes are signaled or reaped. The system may reuse the
/// number of a reaped process, so no thread may send signals while another thread reaps.
type Group = Arc<Mutex<Pid>>;

/// Runs the supervisor until all processes of the command have ended.
///
/// `args` are the arguments after [`SUBCOMMAND`]: the shell and its command, or `PIPED_FLAG` and a program with its
/// arguments. [`Confinement::to_args`] may come first. Returns exit code 2 for any other arguments, or if stdin is not
/// a socket.
pub fn supervise(args: &[OsString]) -> ExitCode {
    // bub may have inherited open files from its parent process. The command must not get them.
    close_fds::set_fds_cloexec(3, &[]);
    let (confinement, args) = match args {
        [flag, rest @ ..] if flag == INIT_FLAG => return init::run(rest),
        [flag, confinement, command @ ..] if flag == ENTER_FLAG => {
            return run_unsupervised(confinement, command);
        }
        [flag, confinement, rest @ ..] if flag == CONFINE_FLAG => (Some(confinement), rest),
        _ => (None, args),
    };
    match (args, control_socket()) {
        ([flag, command @ ..], Ok(control)) if flag == PIPED_FLAG => {
            run_command(control, command, confinement, InitMode::Piped);
            ExitCode::SUCCESS
        }
        ([shell, command], Ok(control)) => {
            let command = [shell.clone(), "-c".into(), command.clone()];
            run_command(control, &command, confinement, InitMode::Shell);
            ExitCode::SUCCESS
        }
        // Not started by bub.
        _ => ExitCode::from(2),
    }
}

/// Parses a confinement, and records what it protects in the workspace.
fn parse_confinement(json: &OsString) -> io::Result<(Confinement, WorkspaceRecord)> {
    let mut confinement: Confinement = serde_json::from_slice(json.as_encoded_bytes())?;
    let record = WorkspaceRecord::new(&mut confinement)?;
    Ok((confinement, record))
}

/// Runs a confined command until it ends, and returns its exit code.
fn run_unsupervised(confinement: &OsString, command: &[OsString]) -> ExitCode {
    let start = || {
        let signals = EndSignals::block()?;
        let (confinement, record) = parse_confinement(confinement)?;
        let mut init = init::confined_command(&confinement, InitMode::Direct, command)?;
        Ok((init.spawn()?, record, signals))
    };
    let (mut child, record, signals) = match start() {
        Ok(started) => started,
        Err(error) => return init::report_failure(command, &error),
    };
    if let Some(first) = Pid::from_raw(child.id().cast_signed())
        && signals.watch(first).is_err()
    {
        // Without the first process, the kernel ends all others.
        let _ = child.kill();
    }
    let status = child.wait();
    record.restore(&mut io::stderr());
    status.map_or(ExitCode::FAILURE, |status| {
        let code = status.code().and_then(|code| u8::try_from(code).ok());
        // The first process of the command was killed.
        code.map_or(ExitCode::FAILURE, ExitCode::from)
    })
}

/// Nothing: other systems have no way to read signals without `unsafe`.
#[cfg(not(target_os = "linux"))]
struct EndSignals;

#[cfg(not(target_os = "linux"))]
impl EndSignals {
    fn block() -> io::Result<Self> {
        Ok(Self)
    }

    fn watch(&self, _first: Pid) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the socket to bub, which is stdin.
pub(crate) fn control_socket() -> io::Result<UnixStream> {
    let control = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    control.peer_addr()?;
    Ok(control)
}

/// Starts the command, reports to `control` and waits for all processes.
///
/// Ignores write errors on `control`: bub may exit at any time.
fn run_command(
    mut control: UnixStream,
    command: &[OsString],
    confinement: Option<&OsString>,
    mode: InitMode,
) {
    set_up_process();
    #[cfg(target_os = "linux")]
    let _control_group = confinement
        .and_then(|json| serde_json::from_slice::<Confinement>(json.as_encoded_bytes()).ok())
        .and_then(|confinement| crate::confine::ControlGroup::enter(&confinement.limits));
    let (child, record) = match start_command(command, confinement, mode) {
        Ok(started) => started,
        Err(error) => return drop(writeln!(control, "failed {error}")),
    };
    let Some(first) = Pid::from_raw(child.id().cast_signed()) else {
        return;
    };
    let errors = io::stderr().as_fd().try_clone_to_owned().map(File::from);
    close_output();
    if record.is_none() {
        let _ = writeln!(control, "started {}", child.id());
    }
    #[cfg(target_os = "linux")]
    if let Some(record) = record {
        if crate::confine::watch(&control, first).is_err() {
            // Without the first process, the kernel ends all others.
            let _ = rustix::process::kill_process(first, Signal::KILL);
        }
        report_children(&control, first, true, || ());
        // A plugin runs for a long time. What is new in the workspace may be from the user.
        if mode == InitMode::Shell || record.is_of_command() {
            restore(record, errors);
        }
        return;
    }
    let group = Group::new(Mutex::new(first));
    let controller = control.try_clone().and_then(|control| {
        let group = Arc::clone(&group);
        thread::Builder::new().spawn(move || handle_control(control, &group))
    });
    if controller.is_err() {
        signal_group(&group, Signal::KILL);
    }
    let is_confined = record.is_some();
    report_children(&control, first, is_confined, || lock_group(&group));
    let is_alive = || rustix::process::test_kill_process_group(*lock_group(&group)).is_ok();
    while descendant_pids().is_none() && is_alive() {
        thread::sleep(POLL_INTERVAL);
    }
    if let Some(record) = record {
        restore(record, errors);
    }
}

/// Restores protected paths. Notes about them go to the command's stderr.
fn restore(record: WorkspaceRecord, errors: io::Result<File>) {
    match errors {
        Ok(mut errors) => record.restore(&mut errors),
        Err(_) => record.restore(&mut io::sink()),
    }
}

/// Starts the command, or the first process of its confinement. That one reports the start and the exit of the command.
fn start_command(
    command: &[OsString],
    confinement: Option<&OsString>,
    mode: InitMode,
) -> io::Result<(Child, Option<WorkspaceRecord>)> {
    let Some(confinement) = confinement else {
        let [program, arguments @ ..] = command else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let input = match mode {
            InitMode::Piped => Stdio::from(io::stdout().as_fd().try_clone_to_owned()?),
            _ => Stdio::null(),
        };
        let mut command = Command::new(program);
        let child = command
            .args(arguments)
            .stdin(input)
            .process_group(0)
            .spawn();
        return Ok((child?, None));
    };
    let (confinement, record) = parse_confinement(confinement)?;
    let mut init = init::confined_command(&confinement, mode, command)?;
    Ok((init.process_group(0).spawn()?, Some(record)))
}

/// Detaches the supervisor from the terminal and disables core files. On Linux, also sets the process name and adopts
/// orphans.
fn set_up_process() {
    let _ = rustix::process::setsid();
    let core = rustix::process::getrlimit(Resource::Core);
    let _ = rustix::process::setrlimit(
        Resource::Core,
        Rlimit {
            current: Some(0),
            ..core
        },
    );
    #[cfg(target_os = "linux")]
    {
        let _ = std::ffi::CString::new(PROCESS_NAME).map(|name| rustix::thread::set_name(&name));
        let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    }
}

/// Closes stdout and stderr, so that only the command's own processes keep its output open.
pub(crate) fn close_output() {
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(&null);
        let _ = rustix::stdio::dup2_stderr(&null);
    }
}

/// Handles the control bytes that bub sends. Ends all processes after [`KILL`] or when bub exits.
fn handle_control(mut control: UnixStream, group: &Group) {
    let mut byte = [0];
    loop {
        match control.read(&mut byte) {
            Ok(1) if byte == [KILL] => break,
            Ok(1) => signal_group(group, Signal::TERM),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            _ => {
                signal_group(group, Signal::TERM);
                thread::sleep(EXIT_GRACE_PERIOD);
                break;
            }
        }
    }
    // Kill repeatedly: the first attempt can miss a process that was just forked.
    loop {
        signal_group(group, Signal::KILL);
        thread::sleep(POLL_INTERVAL);
    }
}

/// Reaps child processes until all have ended, and reports the exit of the first one. If that belongs to a confinement, it
/// has already reported the exit of the command, unless it failed. `lock` is held while a process is reaped.
fn report_children<Lock>(
    mut control: &UnixStream,
    first: Pid,
    is_confined: bool,
    lock: impl Fn() -> Lock,
) {
    loop {
        match rustix::process::waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return,
        }
        let _guard = lock();
        let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) else {
            continue;
        };
        if pid == first && !(is_confined && status.exit_status() == Some(0)) {
            let is_alone = descendant_pids().is_some_and(|pids| pids.is_empty());
            let _ = writeln!(control, "{}", format_exit(status, is_alone));
        }
    }
}

/// Formats the report of an exit. `is_alone` is true if no other process of the command is running.
pub(crate) fn format_exit(status: WaitStatus, is_alone: bool) -> String {
    let others = if is_alone { "alone" } else { "others" };
    match status.terminating_signal() {
        Some(signal) => format!("signalled {signal} {others}"),
        None => format!(
            "exited {} {others}",
            status.exit_status().unwrap_or_default()
        ),
    }
}

/// Sends a signal to every process of the command. Ignores processes that have already ended.
fn signal_group(group: &Group, signal: Signal) {
    let group = lock_group(group);
    if !signal_descendants(signal) {
        for signal in [signal, Signal::CONT] {
            let _ = rustix::process::kill_process_group(*group, signal);
        }
    }
}

/// Sends a signal to every descendant of this process. Returns whether the system lists them.
pub(crate) fn signal_descendants(signal: Signal) -> bool {
    let Some(all) = descendant_pids() else {
        return false;
    };
    // A stopped process handles the signal only after `SIGCONT`.
    for signal in [signal, Signal::CONT] {
        for pid in &all {
            let _ = rustix::process::kill_process(*pid, signal);
        }
    }
    true
}

fn lock_group(group: &Group) -> MutexGuard<'_, Pid> {
    group.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns all descendants of this process, or `None` if the system does not list them.
fn descendant_pids() -> Option<Vec<Pid>> {
    let mut pids = child_pids(rustix::process::getpid())?;
    let mut index = 0;
    while let Some(&pid) = pids.get(index) {
        pids.extend(child_pids(pid).unwrap_or_default());
        index += 1;
    }
    Some(pids)
}

/// Returns the children of a process, or `None` if the system does not list them.
fn child_pids(pid: Pid) -> Option<Vec<Pid>> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero()))
        .ok()?
        .flatten();
    // The file `children` is missing for a thread that just ended. On kernels without this feature, it is missing for
    // all threads.
    let lists: Vec<_> = tasks
        .filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok())
        .collect();
    let pids = lists.iter().flat_map(|list| list.split_whitespace());
    (!lists.is_empty()).then(|| {
        pids.filter_map(|pid| Pid::from_raw(pid.parse().ok()?))
            .collect()
    })
}
