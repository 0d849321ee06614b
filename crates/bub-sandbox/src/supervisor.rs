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
        unix::{net::UnixStream, process::CommandExt},
    },
    process::{Child, Command, ExitCode, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use rustix::process::{Pid, Resource, Rlimit, Signal, WaitId, WaitIdOptions, WaitOptions};

use crate::{Confinement, Launcher};

/// First argument that makes a [`Launcher`](crate::Launcher) run as the supervisor.
pub const SUBCOMMAND: &str = "__exec";

/// Second argument of a supervisor that starts a program which bub talks to. The supervisor's stdout becomes the
/// program's stdin and stdout.
pub(crate) const PIPED_FLAG: &str = "--talk";

/// Argument before the command of a supervisor that confines it. The next argument is a [`Confinement`] as JSON.
pub(crate) const CONFINE_FLAG: &str = "--confine";

/// Second argument of the process that confines itself and becomes the command.
pub(crate) const ENTER_FLAG: &str = "--enter";

/// Exit code of a command that was not started because it could not be confined.
pub const CONFINEMENT_FAILED_CODE: u8 = 125;

/// The supervisor's name in process lists.
pub const PROCESS_NAME: &str = "shell-guard";

/// Control byte: send `SIGTERM` to every process of the command.
pub const TERMINATE: u8 = b't';
/// Control byte: kill every process of the command.
pub const KILL: u8 = b'k';

/// How long the command may clean up after bub exited, before it is killed.
const EXIT_GRACE_PERIOD: Duration = Duration::from_millis(500);
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
        [flag, confinement, command @ ..] if flag == ENTER_FLAG => {
            return become_command(confinement, command);
        }
        [flag, confinement, rest @ ..] if flag == CONFINE_FLAG => (Some(confinement), rest),
        _ => (None, args),
    };
    match (args, control_socket()) {
        ([flag, command @ ..], Ok(control)) if flag == PIPED_FLAG => {
            let input = io::stdout().as_fd().try_clone_to_owned();
            let input = input.map_or_else(|_| Stdio::null(), Stdio::from);
            run_command(control, command, confinement, input);
            ExitCode::SUCCESS
        }
        ([shell, command], Ok(control)) => {
            let command = [shell.clone(), "-c".into(), command.clone()];
            run_command(control, &command, confinement, Stdio::null());
            ExitCode::SUCCESS
        }
        // Not started by bub.
        _ => ExitCode::from(2),
    }
}

fn parse_confinement(json: &OsString) -> io::Result<Confinement> {
    Ok(serde_json::from_slice(json.as_encoded_bytes())?)
}

/// Confines this process and replaces it with the command. Returns only if that fails.
fn become_command(confinement: &OsString, command: &[OsString]) -> ExitCode {
    let [program, arguments @ ..] = command else {
        return ExitCode::from(2);
    };
    let enter = || {
        let confinement = parse_confinement(confinement)?;
        confinement.enter()?;
        Ok(confinement.inner_command(program))
    };
    let error = match enter() {
        Ok(mut command) => command.args(arguments).exec(),
        Err(error) => error,
    };
    let program = program.display();
    // Ignore errors: without stderr, only the exit code is left.
    let _ = writeln!(
        io::stderr(),
        "bub: the sandbox cannot start `{program}`: {error}"
    );
    ExitCode::from(CONFINEMENT_FAILED_CODE)
}

fn control_socket() -> io::Result<UnixStream> {
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
    input: Stdio,
) {
    set_up_process();
    let checked = confinement.and_then(|json| parse_confinement(json).ok());
    let was_redirected = checked
        .as_ref()
        .is_some_and(|confinement| confinement.redirection().exists());
    let child = match start_command(command, confinement, input) {
        Ok(child) => child,
        Err(error) => return drop(writeln!(control, "failed {error}")),
    };
    let Some(shell) = Pid::from_raw(child.id().cast_signed()) else {
        return;
    };
    close_output();
    let group = Group::new(Mutex::new(shell));
    let _ = writeln!(control, "started {}", child.id());
    let controller = control.try_clone().and_then(|control| {
        let group = Arc::clone(&group);
        thread::Builder::new().spawn(move || handle_control(control, &group))
    });
    if controller.is_err() {
        signal_group(&group, Signal::KILL);
    }
    reap_children(&control, shell, &group);
    if let Some(confinement) = checked {
        confinement.remove_planted(was_redirected);
    }
}

/// Starts the command, or the process that confines itself and becomes the command.
///
/// The supervisor stays outside, so that the command can neither see nor stop it.
fn start_command(
    command: &[OsString],
    confinement: Option<&OsString>,
    input: Stdio,
) -> io::Result<Child> {
    let [program, arguments @ ..] = command else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let mut command = match confinement {
        None => Command::new(program),
        Some(confinement) => {
            let launcher = Launcher::current_program();
            let launcher = launcher.ok_or_else(|| io::Error::other("unknown program path"))?;
            let mut command = Command::new(launcher.0);
            command.args([SUBCOMMAND, ENTER_FLAG]);
            command.arg(confinement).arg(program);
            command
        }
    };
    command.args(arguments).stdin(input);
    command.process_group(0).spawn()
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
fn close_output() {
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

/// Reaps child processes until all have ended, and reports the exit of the command.
fn reap_children(mut control: &UnixStream, shell: Pid, group: &Group) {
    loop {
        match rustix::process::waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => break,
        }
        let _guard = lock_group(group);
        let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) else {
            continue;
        };
        if pid == shell {
            let others = if descendant_pids().is_some_and(|pids| pids.is_empty()) {
                "alone"
            } else {
                "others"
            };
            let _ = match status.terminating_signal() {
                Some(signal) => writeln!(control, "signalled {signal} {others}"),
                None => writeln!(
                    control,
                    "exited {} {others}",
                    status.exit_status().unwrap_or_default()
                ),
            };
        }
    }
    let is_alive = || rustix::process::test_kill_process_group(*lock_group(group)).is_ok();
    while descendant_pids().is_none() && is_alive() {
        thread::sleep(POLL_INTERVAL);
    }
}

/// Sends a signal to every process of the command. Ignores processes that have already ended.
fn signal_group(group: &Group, signal: Signal) {
    let group = lock_group(group);
    let descendants = descendant_pids();
    // A stopped process handles the signal only after `SIGCONT`.
    for signal in [signal, Signal::CONT] {
        let Some(all) = &descendants else {
            let _ = rustix::process::kill_process_group(*group, signal);
            continue;
        };
        for pid in all {
            let _ = rustix::process::kill_process(*pid, signal);
        }
    }
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
