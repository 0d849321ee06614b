//! `bub gateway`: runs the channels until a signal stops it, or installs it as a service.

mod service;

use std::{
    ffi::OsStr,
    os::unix::{
        ffi::OsStrExt as _,
        net::{SocketAddr, UnixDatagram},
    },
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use bub::CommandContext;
use bub_agent::WorkspaceExposure;
use bub_gateway::settings::ChannelSettings;
use bub_gateway::{Gateway, GatewayOptions, JournalKind};
use bub_kernel::Result;
use bub_kernel::settings::OWNERS;
use bub_settings::{Environment, Settings};
use bub_terminal::channel::CHANNEL_NAME;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use self::service::GatewayService;
use super::{listing::Listing, output, tape::text::format_count};
use bub::signals;

/// Run the gateway: receive messages and deliver replies
///
/// Runs the configured channels until SIGTERM or SIGINT. On a signal, the gateway stops accepting messages and finishes
/// running turns within `gateway.drain_seconds`. A second signal stops it immediately. Unfinished work resumes at the
/// next start.
#[derive(clap::Args)]
#[command(
    after_help = "Exit codes: 0 stopped by a signal, 1 failure, or neither a channel nor a service, 2 invalid arguments or \
                  configuration, 130 or 143 stopped immediately by a second signal"
)]
pub(super) struct GatewayArgs {
    /// Gateway name, if several share one home
    #[arg(long, default_value = "main", value_parser = parse_name)]
    name: String,
    /// Channel to run, `all`, or `!NAME` to exclude one [default: the setting `enabled_channels`]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    enable_channel: Option<Vec<String>>,
    /// Install the gateway as a service of your user, and start it now and at every login
    #[arg(long, conflicts_with = "uninstall")]
    install: bool,
    /// Stop the service and remove it
    #[arg(long)]
    uninstall: bool,
}

pub(super) fn parse_name(name: &str) -> Result<String, &'static str> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if !name.is_empty() && name.len() <= 64 && name.chars().all(is_allowed) {
        Ok(name.to_owned())
    } else {
        Err("expected 1 to 64 letters, digits, `-` or `_`")
    }
}

pub(super) async fn run(context: CommandContext, args: GatewayArgs) -> Result<ExitCode> {
    if args.install || args.uninstall {
        return change_service(&context, &args);
    }
    let (framework, settings) = (context.framework, context.settings);
    let name = args.name.as_str();
    let names = args.enable_channel;
    let mut names = names.unwrap_or_else(|| settings.get(ChannelSettings::ENABLED_CHANNELS));
    if names.iter().any(|name| name.trim() == CHANNEL_NAME) {
        notice!("the gateway has no channel `{CHANNEL_NAME}`; run `bub chat` in another terminal");
        names.retain(|name| name.trim() != CHANNEL_NAME);
    }
    let mut options = GatewayOptions::new(&settings, name);
    options.turns = options.turns.min(raise_file_limit());
    let stop = signals::listen_for_stop();
    let systemd = ServiceNotifier::new(settings.environment());
    if let Some(exposure) = WorkspaceExposure::find(&settings, framework.workspace()) {
        let hint = "start the gateway with `-w DIR`, where DIR has no private files";
        tracing::warn!(reason = %exposure, hint, "gateway.workspace_exposed");
        notice!("warning: {exposure}; {hint}");
    }
    let work = async {
        let gateway = Gateway::open(&framework, options, &names)?;
        gateway.validate_settings()?;
        let report = start_report(name, &gateway, &settings);
        let channels = gateway.channel_names().len();
        let (token, ready, remote) = (stop.token(), systemd.clone(), gateway.handle());
        ready.start_watchdog(settings.environment());
        let stopping = tokio::spawn({
            let (token, systemd) = (stop.token(), systemd.clone());
            async move {
                token.cancelled().await;
                systemd.notify("STOPPING=1");
            }
        });
        let outcome = gateway
            .run(token, || {
                // The gateway also runs if stdout is closed.
                let _ = report.print(&settings);
                report_no_running_channel(&remote.stopped_channels(), channels);
                ready.notify("READY=1");
            })
            .await;
        // Wait until `STOPPING=1` is sent, also if the gateway stopped immediately.
        if stop.token().is_cancelled() {
            let _ = stopping.await;
        } else {
            stopping.abort();
        }
        let unfinished = remote.unfinished_count();
        if unfinished > 0 {
            let hint = "the next start processes these messages";
            tracing::warn!(unfinished, hint, "gateway.stopped");
        }
        outcome
    };
    framework.run_scoped(work).await?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the file of the service `bub-gateway`, which the Python version has in the same place.
pub(super) fn service_file(settings: &Settings, workspace: &Path) -> Option<PathBuf> {
    let service = GatewayService::new(settings, workspace, "main", &[]).ok()?;
    Some(service.file().to_owned())
}

/// Installs the gateway as a service, or removes the service.
fn change_service(context: &CommandContext, args: &GatewayArgs) -> Result<ExitCode> {
    let (framework, settings) = (&context.framework, &context.settings);
    let channels = args.enable_channel.as_deref().unwrap_or_default();
    let service = GatewayService::new(settings, framework.workspace(), &args.name, channels)?;
    if args.uninstall {
        service.uninstall()?;
        return Ok(ExitCode::SUCCESS);
    }
    // A service that cannot start would fail where no user sees it.
    let enabled = settings.get(ChannelSettings::ENABLED_CHANNELS);
    let names = args.enable_channel.as_deref().unwrap_or(&enabled);
    let mut options = GatewayOptions::new(settings, &args.name);
    options.journal = JournalKind::Memory;
    Gateway::open(framework, options, names)?.validate_settings()?;
    service.install()?;
    let models = super::models(settings, &context.logins)?;
    let variables = models.catalog().iter();
    let variables = variables.flat_map(|provider| &provider.key_variables);
    let variables: Vec<&str> = variables.map(String::as_str).collect();
    let missing = service::missing_variables(settings, &variables).join(", ");
    if !missing.is_empty() {
        let file = settings.config_file().display();
        notice!(
            "The service does not get these variables of your shell: {missing}. Put their values into {file}."
        );
    }
    if cfg!(target_os = "linux") {
        notice!("To keep the gateway running after you log out, run: loginctl enable-linger");
    }
    Ok(ExitCode::SUCCESS)
}

/// File descriptor limit that the gateway requests, because many concurrent chats need many files and connections.
///
/// It is not higher because child processes inherit the limit, and some programs iterate over all possible descriptors.
const TARGET_FILE_LIMIT: u64 = 65_536;

/// File descriptor limit below which a few clients can use up the descriptors that turns need.
const MIN_FILE_LIMIT: u64 = 512;

/// File descriptors per turn: the lease, the tape, its lock, and a connection to the model.
const FILES_PER_TURN: u64 = 4;

/// Raises the file descriptor limit and returns the number of concurrent turns that it allows.
fn raise_file_limit() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let target = limit
        .maximum
        .map_or(TARGET_FILE_LIMIT, |maximum| maximum.min(TARGET_FILE_LIMIT));
    let mut files = limit.current.unwrap_or(TARGET_FILE_LIMIT);
    if files < target {
        let current = Some(target);
        let raised = setrlimit(Resource::Nofile, Rlimit { current, ..limit }).is_ok();
        tracing::debug!(from = files, to = target, raised, "gateway.file_limit");
        files = if raised { target } else { files };
    }
    if files < MIN_FILE_LIMIT {
        let hint = "raise `ulimit -n`: many messages at once may fail";
        tracing::warn!(limit = files, hint, "gateway.low_file_limit");
    }
    // Turns get half of the descriptors. The other half is for all other files and connections.
    usize::try_from(files / 2 / FILES_PER_TURN)
        .unwrap_or(usize::MAX)
        .max(1)
}

/// Returns the report at the start: channels, roles, access, and recovered work.
fn start_report(name: &str, gateway: &Gateway, settings: &Settings) -> Listing {
    let channels = gateway.channel_names().join(", ");
    let channels = if channels.is_empty() {
        "no channels"
    } else {
        &channels
    };
    let roles = super::status::roles_line(&settings.get(&OWNERS));
    let mut listing = Listing::default();
    listing.row(format!("gateway {name}: {channels}"));
    listing.row(roles);
    for (channel, access) in gateway.access_summaries() {
        listing.row(format!("{channel}: {access}"));
    }
    let recovered = gateway.recovery();
    if recovered.messages + recovered.replies > 0 {
        let (one, many) = ("unfinished message", "unfinished messages");
        let messages = format_count(recovered.messages, one, many);
        let (one, many) = ("undelivered reply", "undelivered replies");
        let replies = format_count(recovered.replies, one, many);
        listing.row(format!("recovered {messages} and {replies}"));
    }
    if recovered.torn_bytes > 0 {
        let bytes = format_count(recovered.torn_bytes, "byte", "bytes");
        listing.row(format!(
            "journal: {bytes} of an unfinished, unacknowledged write skipped"
        ));
    }
    if recovered.damaged_lines > 0 {
        let lines = format_count(recovered.damaged_lines, "damaged line", "damaged lines");
        listing.row(format!("journal: {lines} skipped; the old file is kept"));
    }
    listing
}

/// Prints a line if no channel runs. The log reports each failed channel, but this line also explains why the gateway
/// receives no messages.
fn report_no_running_channel(failed: &[(String, String)], channels: usize) {
    if !failed.is_empty() && failed.len() == channels {
        let describe = |(name, reason): &(String, String)| {
            format!("{name}: {}", output::sanitize_line(reason))
        };
        let failed = failed.iter().map(describe).collect::<Vec<_>>().join("; ");
        notice!("no channel is running; retrying (see `bub status`): {failed}");
    }
}

/// Reports the start, the stop and the health of the gateway to the service manager that started the program, if any.
///
/// The crate sd-notify is not used, because it reads the variables of the process instead of the settings.
#[derive(Clone)]
struct ServiceNotifier(Option<Arc<(UnixDatagram, SocketAddr)>>);

impl ServiceNotifier {
    fn new(environment: &Environment) -> Self {
        let address = environment.get("NOTIFY_SOCKET").and_then(socket_address);
        let socket = address.and_then(|address| Some((UnixDatagram::unbound().ok()?, address)));
        Self(socket.map(Arc::new))
    }

    fn notify(&self, state: &str) {
        if let Some(to) = &self.0
            && let Err(error) = to.0.send_to_addr(state.as_bytes(), &to.1)
        {
            tracing::warn!(%error, "gateway.notify_failed");
        }
    }

    /// Starts a task that sends keep-alive notifications at half the interval that the service manager requires. If the
    /// async runtime hangs, the notifications stop.
    fn start_watchdog(&self, environment: &Environment) {
        let micros = environment.get("WATCHDOG_USEC");
        let Some(micros) = micros.and_then(|text| text.to_str()?.parse().ok()) else {
            return;
        };
        let interval = Duration::from_micros(micros).div_f64(2.0);
        let interval = interval.max(Duration::from_millis(10));
        let systemd = self.clone();
        tokio::spawn(async move {
            loop {
                systemd.notify("WATCHDOG=1");
                tokio::time::sleep(interval).await;
            }
        });
    }
}

fn socket_address(path: &OsStr) -> Option<SocketAddr> {
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
