//! `bub gateway`: runs the channels until it is told to stop.

use std::{
    ffi::OsStr,
    fmt::Write as _,
    os::unix::{
        ffi::OsStrExt as _,
        net::{SocketAddr, UnixDatagram},
    },
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use bub::{AppCommand, CommandContext};
use bub_gateway::settings::ENABLED_CHANNELS;
use bub_gateway::{Gateway, GatewayOptions};
use bub_kernel::Result;
use bub_kernel::settings::OWNERS;
use bub_settings::{Environment, Settings};
use clap::{Arg, ArgAction, ArgMatches, Command};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{output, prompt};
use bub::signals;

pub(super) fn command() -> AppCommand {
    let command = Command::new("gateway")
        .about("Run the gateway: receive messages and deliver replies")
        .long_about(
            "Run the configured channels until SIGTERM or SIGINT. On a signal, the gateway stops accepting messages and \
             finishes running turns within `gateway.drain_seconds`. A second signal stops it immediately. Unfinished work \
             resumes at the next start.",
        )
        .after_help(
            "Exit codes: 0 stopped by a signal, 1 failure or no channel enabled, 2 invalid arguments or configuration, \
             130 or 143 stopped immediately by a second signal",
        )
        .arg(name_arg())
        .arg(
            Arg::new("enable-channel")
                .long("enable-channel")
                .value_name("NAME")
                .value_delimiter(',')
                .action(ArgAction::Append)
                .help("Channel to run, `all`, or `!NAME` to exclude one [default: `enabled_channels`]"),
        );
    AppCommand::new(command, run).multi_threaded()
}

/// The option that names a gateway.
pub(super) fn name_arg() -> Arg {
    Arg::new("name")
        .long("name")
        .value_name("NAME")
        .default_value("main")
        .value_parser(plain_name)
        .help("Gateway name, if several share one home")
}

pub(super) fn name(matches: &ArgMatches) -> &str {
    matches
        .get_one::<String>("name")
        .map_or("main", String::as_str)
}

fn plain_name(name: &str) -> Result<String, String> {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_';
    if !name.is_empty() && name.len() <= 64 && name.chars().all(is_plain) {
        Ok(name.to_owned())
    } else {
        Err("expected 1 to 64 letters, digits, `-` or `_`".to_owned())
    }
}

async fn run(context: CommandContext) -> Result<ExitCode> {
    let CommandContext {
        framework,
        matches,
        settings,
        ..
    } = context;
    let name = name(&matches);
    let flags: Option<Vec<String>> = matches
        .get_many("enable-channel")
        .map(|names| names.cloned().collect());
    let names = flags.unwrap_or_else(|| settings.get(&ENABLED_CHANNELS));
    let mut options = GatewayOptions::new(&settings, name);
    options.turns = options.turns.min(raise_file_limit());
    let stop = signals::listen();
    let systemd = ServiceNotifier::new(settings.environment());
    let work = async {
        let gateway = Gateway::open(&framework, options, &names)?;
        gateway.validate()?;
        let (report, channels) = (report(name, &gateway, &settings), gateway.channels().len());
        let (token, ready, remote) = (stop.token(), systemd.clone(), gateway.remote());
        ready.watchdog(settings.environment());
        let stopping = tokio::spawn({
            let (token, systemd) = (stop.token(), systemd.clone());
            async move {
                token.cancelled().await;
                systemd.notify("STOPPING=1");
            }
        });
        let outcome = gateway
            .run(token, || {
                // A closed standard output is no reason not to run.
                let _ = output::print(&report);
                report_no_running_channel(&remote.not_running(), channels);
                ready.notify("READY=1");
            })
            .await;
        // What stops at once has said so, too.
        if stop.token().is_cancelled() {
            let _ = stopping.await;
        } else {
            stopping.abort();
        }
        if remote.unfinished() > 0 {
            let unfinished = remote.unfinished();
            let hint = "the next start processes these messages";
            tracing::warn!(unfinished, hint, "gateway.stopped");
        }
        outcome
    };
    framework.run_scoped(work).await?;
    Ok(ExitCode::SUCCESS)
}

/// Many chats at once need many files and connections at once. Not more than this, because what the agent starts inherits
/// it, and some programs go through every number that a file could have.
const TARGET_FILE_LIMIT: u64 = 65_536;

/// With fewer a handful of clients takes what turns need.
const MIN_FILE_LIMIT: u64 = 512;

/// A turn has its lease, its tape with the lock, and a connection to the model.
const FILES_PER_TURN: u64 = 4;

/// Raises the limit of open files, and says how many turns it leaves room for.
fn raise_file_limit() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit
        .maximum
        .unwrap_or(TARGET_FILE_LIMIT)
        .min(TARGET_FILE_LIMIT);
    let mut files = limit.current.unwrap_or(TARGET_FILE_LIMIT);
    if files < wanted {
        let raised = setrlimit(
            Resource::Nofile,
            Rlimit {
                current: Some(wanted),
                ..limit
            },
        )
        .is_ok();
        tracing::debug!(from = files, to = wanted, raised, "gateway.file_limit");
        files = if raised { wanted } else { files };
    }
    if files < MIN_FILE_LIMIT {
        let hint = "raise `ulimit -n`: many messages at once may fail";
        tracing::warn!(limit = files, hint, "gateway.low_file_limit");
    }
    // Half of them are for everything else.
    usize::try_from(files / 2 / FILES_PER_TURN)
        .unwrap_or(usize::MAX)
        .max(1)
}

/// What a person wants to know at the start: what runs, who may do what, what was left over.
fn report(name: &str, gateway: &Gateway, settings: &Settings) -> String {
    let mut text = format!("gateway {name}: {}\n", gateway.channels().join(", "));
    let _ = writeln!(text, "{}", super::status::rights(&settings.get(&OWNERS)));
    for (channel, audience) in gateway.audiences() {
        let _ = writeln!(text, "{channel}: {}", output::one_line(&audience));
    }
    let found = gateway.recovered();
    if found.messages + found.replies > 0 {
        let _ = writeln!(
            text,
            "recovered: {} unanswered messages, {} undelivered replies",
            found.messages, found.replies
        );
    }
    if found.torn_bytes > 0 {
        let _ = writeln!(
            text,
            "recovered: {} bytes of an unfinished, unacknowledged write left out",
            found.torn_bytes
        );
    }
    if found.damaged_lines > 0 {
        let _ = writeln!(
            text,
            "damaged: {} lines of the journal; the file is kept beside it",
            found.damaged_lines
        );
    }
    text
}

/// A channel that failed is in the log; a gateway that takes no message at all is worth a line of its own.
fn report_no_running_channel(failed: &[(String, String)], channels: usize) {
    if failed.len() == channels {
        let failed: Vec<_> = failed
            .iter()
            .map(|(name, reason)| format!("{name}: {}", output::one_line(reason)))
            .collect();
        let failed = failed.join("; ");
        prompt::print_stderr(&format!(
            "no channel runs yet, each is tried again (`bub status`): {failed}\n"
        ));
    }
}

/// The service manager that started the program, if one did.
#[derive(Clone)]
struct ServiceNotifier(Option<Arc<(UnixDatagram, SocketAddr)>>);

impl ServiceNotifier {
    fn new(environment: &Environment) -> Self {
        let address = environment.get("NOTIFY_SOCKET").and_then(address);
        let socket =
            address.and_then(|address| Some(Arc::new((UnixDatagram::unbound().ok()?, address))));
        Self(socket)
    }

    fn notify(&self, state: &str) {
        if let Some(to) = &self.0
            && let Err(error) = to.0.send_to_addr(state.as_bytes(), &to.1)
        {
            tracing::warn!(%error, "gateway.notify_failed");
        }
    }

    /// Says that all is well, as often as the service manager wants to hear it, for as long as tasks run.
    fn watchdog(&self, environment: &Environment) {
        let micros = environment
            .get("WATCHDOG_USEC")
            .and_then(|text| text.to_str()?.parse().ok());
        let Some(micros) = micros else { return };
        let pause = Duration::from_micros(micros)
            .div_f64(2.0)
            .max(Duration::from_millis(10));
        let systemd = self.clone();
        tokio::spawn(async move {
            loop {
                systemd.notify("WATCHDOG=1");
                tokio::time::sleep(pause).await;
            }
        });
    }
}

fn address(path: &OsStr) -> Option<SocketAddr> {
    match path.as_bytes().strip_prefix(b"@") {
        #[cfg(target_os = "linux")]
        Some(name) => {
            use std::os::linux::net::SocketAddrExt as _;
            SocketAddr::from_abstract_name(name).ok()
        }
        #[cfg(not(target_os = "linux"))]
        Some(_) => None,
        None => SocketAddr::from_pathname(path).ok(),
    }
}
