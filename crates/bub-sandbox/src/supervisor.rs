//! The hidden subcommand between bub and a command or another program: it starts it and outlives it.
//!
//! It holds one end of a socket whose other end is bub's. When bub is gone, however that happened, the
//! socket is closed and everything the command started is ended. A death signal would not do: it comes
//! when the *thread* that started the child ends, and reaches one process only. The supervisor has no
//! terminal, and a name of its own: ending all that is called bub does not end it before its work is done.
//!
//! On Linux it adopts orphans, so processes that left the group (`setsid`, `timeout`, job control) end
//! with it as well. Elsewhere only the process group does.
//!
//! The socket is its standard input. It writes `started <group>` or `failed <why>`, then
//! `exited <code>` or `signalled <number>` with `alone` or `others` (processes may be left); the socket
//! closes when no process is left. It reads [`TERMINATE`] and [`KILL`].

use std::{
    ffi::OsString,
    fs::File,
    io::{self, Read, Write},
    os::{
        fd::AsFd,
        unix::{net::UnixStream, process::CommandExt},
    },
    process::{Command, ExitCode, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use rustix::process::{Pid, Resource, Rlimit, Signal, WaitId, WaitIdOptions, WaitOptions};

/// The first argument of a program that is to be the supervisor.
pub const SUBCOMMAND: &str = "__exec";

/// The argument after it for a program that is talked to: its standard output is also its standard input.
pub(crate) const PIPED_FLAG: &str = "--talk";

/// What it is called in lists of processes.
pub const PROCESS_NAME: &str = "shell-guard";

/// Asks every process of the command to end.
pub const TERMINATE: u8 = b't';
/// Ends every process of the command.
pub const KILL: u8 = b'k';

/// What the command gets to clean up when bub is gone.
const EXIT_GRACE_PERIOD: Duration = Duration::from_millis(500);
/// How often what cannot be waited for is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The group of the command. Locked while processes are signalled or waited for: the number of one that
/// was waited for is free for others, so nobody may be about to signal it.
type Group = Arc<Mutex<Pid>>;

/// Runs the supervisor; `args` are those after [`SUBCOMMAND`]: the shell and the command, or [`PIPED_FLAG`] and a program.
pub fn supervise(args: &[OsString]) -> ExitCode {
    // Whoever started bub may have left files open.
    close_fds::set_fds_cloexec(3, &[]);
    match (args, control()) {
        ([talk, program, arguments @ ..], Ok(control)) if talk == PIPED_FLAG => {
            let input = io::stdout().as_fd().try_clone_to_owned();
            let input = input.map_or_else(|_| Stdio::null(), Stdio::from);
            run(control, Command::new(program).args(arguments).stdin(input));
            ExitCode::SUCCESS
        }
        ([shell, command], Ok(control)) => {
            run(
                control,
                Command::new(shell)
                    .arg("-c")
                    .arg(command)
                    .stdin(Stdio::null()),
            );
            ExitCode::SUCCESS
        }
        // Started by somebody who is curious.
        _ => ExitCode::from(2),
    }
}

fn control() -> io::Result<UnixStream> {
    let control = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    control.peer_addr()?;
    Ok(control)
}

/// Whoever listens may be gone at any time, so what is written may get lost.
fn run(mut control: UnixStream, command: &mut Command) {
    detach();
    let child = match command.process_group(0).spawn() {
        Ok(child) => child,
        Err(error) => return drop(writeln!(control, "failed {error}")),
    };
    let Some(shell) = Pid::from_raw(child.id().cast_signed()) else {
        return;
    };
    release_output();
    let group = Group::new(Mutex::new(shell));
    let _ = writeln!(control, "started {}", child.id());
    let obeying = control.try_clone().and_then(|control| {
        let group = Arc::clone(&group);
        thread::Builder::new().spawn(move || handle_control(control, &group))
    });
    if obeying.is_err() {
        signal_group(&group, Signal::KILL);
    }
    reap(&control, shell, &group);
}

/// No terminal, no core files, and on Linux a name of its own and all orphans.
fn detach() {
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

/// Only the command's own processes may hold its output open.
fn release_output() {
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(&null);
        let _ = rustix::stdio::dup2_stderr(&null);
    }
}

/// Does what bub asks for, and ends everything when bub is gone.
fn handle_control(mut control: UnixStream, group: &Group) {
    let mut order = [0];
    loop {
        match control.read(&mut order) {
            Ok(1) if order == [KILL] => break,
            Ok(1) => signal_group(group, Signal::TERM),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            _ => {
                signal_group(group, Signal::TERM);
                thread::sleep(EXIT_GRACE_PERIOD);
                break;
            }
        }
    }
    // More than once: who forks at the right moment is not seen the first time.
    loop {
        signal_group(group, Signal::KILL);
        thread::sleep(POLL_INTERVAL);
    }
}

/// Waits until no process is left.
fn reap(mut control: &UnixStream, shell: Pid, group: &Group) {
    loop {
        match rustix::process::waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => break,
        }
        let _held = lock(group);
        let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) else {
            continue;
        };
        if pid == shell {
            let rest = if descendants().is_some_and(|rest| rest.is_empty()) {
                "alone"
            } else {
                "others"
            };
            let _ = match status.terminating_signal() {
                Some(signal) => writeln!(control, "signalled {signal} {rest}"),
                None => writeln!(
                    control,
                    "exited {} {rest}",
                    status.exit_status().unwrap_or_default()
                ),
            };
        }
    }
    let is_alive = || rustix::process::test_kill_process_group(*lock(group)).is_ok();
    while descendants().is_none() && is_alive() {
        thread::sleep(POLL_INTERVAL);
    }
}

/// Sends a signal to every process of the command. Those that are gone already do not matter.
fn signal_group(group: &Group, signal: Signal) {
    let group = lock(group);
    let descendants = descendants();
    // One that is stopped hears only after it was told to go on.
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

fn lock(group: &Group) -> MutexGuard<'_, Pid> {
    group.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Every process below this one; nothing where the system does not tell.
fn descendants() -> Option<Vec<Pid>> {
    let mut found = children(rustix::process::getpid())?;
    let mut at = 0;
    while let Some(&pid) = found.get(at) {
        found.extend(children(pid).unwrap_or_default());
        at += 1;
    }
    Some(found)
}

fn children(pid: Pid) -> Option<Vec<Pid>> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero()))
        .ok()?
        .flatten();
    // A thread may have ended since; a kernel that does not tell has the file for none.
    let lists: Vec<_> = tasks
        .filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok())
        .collect();
    let pids = lists.iter().flat_map(|list| list.split_whitespace());
    (!lists.is_empty()).then(|| {
        pids.filter_map(|pid| Pid::from_raw(pid.parse().ok()?))
            .collect()
    })
}
