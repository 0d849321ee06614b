//! The first process of a confined command's process namespace. It restricts itself, starts the command and reaps
//! processes.
//!
//! When it ends, the kernel ends all other processes of the namespace. They cannot signal it. It ends with its parent, so
//! the command does not survive if the supervisor is killed.

use std::{
    ffi::OsString,
    io::{self, Write},
    os::fd::AsFd,
    process::{Child, Command, ExitCode, Stdio},
};

use rustix::process::{Pid, WaitId, WaitIdOptions, WaitOptions, WaitStatus, wait, waitid};

use crate::{
    Confinement, Launcher, SUBCOMMAND,
    supervisor::{CONFINEMENT_FAILED_CODE, INIT_FLAG, close_output, control_socket, format_exit},
};

/// How the process is connected to the supervisor and to the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InitMode {
    /// The command has the stdin of this process. When it ends, this process ends with its exit code.
    Direct,
    /// stdin is the socket to bub. The command has an empty stdin.
    Shell,
    /// stdin is the socket to bub. The stdin of the command is also its stdout.
    Piped,
}

impl InitMode {
    const ALL: [Self; 3] = [Self::Direct, Self::Shell, Self::Piped];

    fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Shell => "shell",
            Self::Piped => "piped",
        }
    }
}

/// Confines the next child of this process, and returns the command that starts it. Call it before this process has
/// threads.
pub(crate) fn confined_command(
    confinement: &Confinement,
    mode: InitMode,
    command: &[OsString],
) -> io::Result<Command> {
    confinement.prepare()?;
    let launcher = Launcher::current_program();
    let launcher = launcher.ok_or_else(|| io::Error::other("unknown program path"))?;
    let mut init = Command::new(launcher.0);
    init.args([SUBCOMMAND, INIT_FLAG, mode.name()]);
    init.arg(serde_json::to_string(confinement)?).args(command);
    Ok(init)
}

/// Runs the first process. `args` are the mode, the confinement as JSON, and the command.
pub(crate) fn run(args: &[OsString]) -> ExitCode {
    let [mode, confinement, command @ ..] = args else {
        return ExitCode::from(2);
    };
    let mode = InitMode::ALL.into_iter().find(|known| mode == known.name());
    let Some(mode) = mode else {
        return ExitCode::from(2);
    };
    // The number of this process in the namespace of the supervisor, whose `/proc` is still there.
    let id = std::fs::read_link("/proc/self");
    let id = id.unwrap_or_else(|_| std::process::id().to_string().into());
    let child = match start(mode, confinement, command) {
        Ok(child) => child,
        Err(error) if mode == InitMode::Direct => return report_failure(command, &error),
        Err(error) => {
            report(&format!("failed {error}"));
            return ExitCode::from(CONFINEMENT_FAILED_CODE);
        }
    };
    if mode != InitMode::Direct {
        report(&format!("started {}", id.display()));
    }
    close_output();
    reap(mode, &child)
}

/// Restricts this process and starts the command.
fn start(mode: InitMode, confinement: &OsString, command: &[OsString]) -> io::Result<Child> {
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    let confinement: Confinement = serde_json::from_slice(confinement.as_encoded_bytes())?;
    confinement.restrict()?;
    // The command has the same user. It must not read or change the memory of this process.
    #[cfg(target_os = "linux")]
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    let [program, arguments @ ..] = command else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let mut command = confinement.inner_command(program);
    command.args(arguments);
    // The repository around the workspace is attached to an empty directory, on another file system.
    command.env("GIT_DISCOVERY_ACROSS_FILESYSTEM", "1");
    match mode {
        InitMode::Direct => {}
        InitMode::Shell => drop(command.stdin(Stdio::null())),
        InitMode::Piped => {
            let stream = io::stdout().as_fd().try_clone_to_owned()?;
            command.stdin(stream);
        }
    }
    command.spawn()
}

/// Reports that the command could not be started, and returns the exit code for that.
pub(crate) fn report_failure(command: &[OsString], error: &io::Error) -> ExitCode {
    let program = command.first().cloned().unwrap_or_default();
    let program = program.display();
    // Ignore errors: without stderr, only the exit code is left.
    let _ = writeln!(
        io::stderr(),
        "bub: the sandbox cannot start `{program}`: {error}"
    );
    ExitCode::from(CONFINEMENT_FAILED_CODE)
}

/// Writes a line to bub. Ignores errors: bub may exit at any time.
fn report(line: &str) {
    let _ = control_socket().and_then(|mut control| writeln!(control, "{line}"));
}

/// Reaps processes until all have ended. Reports the exit of the command; in direct mode, returns it.
fn reap(mode: InitMode, command: &Child) -> ExitCode {
    let command = Pid::from_raw(command.id().cast_signed());
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if Some(pid) == command => {
                if mode == InitMode::Direct {
                    return exit_code(status);
                }
                let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
                let is_alone = waitid(WaitId::All, options).is_err();
                report(&format_exit(status, is_alone));
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return ExitCode::SUCCESS,
        }
    }
}

/// Returns the exit code of a command, as a shell reports it.
fn exit_code(status: WaitStatus) -> ExitCode {
    let signal = status.terminating_signal().map(|signal| 128 + signal);
    let code = signal.or_else(|| status.exit_status());
    let code = code.and_then(|code| u8::try_from(code).ok());
    code.map_or(ExitCode::FAILURE, ExitCode::from)
}
