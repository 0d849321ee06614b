//! The process of an external plugin. It starts on first use and restarts on the next use after it has ended.

use std::{
    collections::HashMap,
    ffi::OsString,
    path::PathBuf,
    sync::{Arc, Mutex, OnceLock, Weak},
    time::{Duration, Instant},
};

use bub_kernel::{Error, ErrorKind, Framework, FrameworkRef, MessageHandler, Result, Role};
use bub_sandbox::{Launcher, PipedCommand, PipedProcess, ProcessGuard};
use bub_settings::Settings;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::{
    QuestionHandler,
    callbacks::HostRequestHandler,
    descriptor::{Descriptor, HookDecl, PROTOCOL_VERSION},
    peer::{IncomingMessage, Peer, deadline_after, lock},
    stderr,
};

/// How long a plugin may take to answer `ping` after a call timed out.
const PING_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a plugin may take to exit after `shutdown` before it is killed.
const EXIT_GRACE_PERIOD: Duration = Duration::from_millis(500);
/// Number of consecutive failures after which bub suspends the plugin.
const MAX_CONSECUTIVE_FAILURES: u32 = 3;
/// Duration of the first suspension after repeated failures. It doubles with each further failure.
const INITIAL_BACKOFF: Duration = Duration::from_secs(1);
/// Duration of the first suspension after a failed start, so that the other hooks of the turn do not start the plugin
/// again.
const START_BACKOFF: Duration = Duration::from_secs(10);
/// Maximum duration of a suspension.
const MAX_BACKOFF: Duration = Duration::from_mins(1);

/// Timeouts for calls to a plugin.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Timeout for the start, including the response to `initialize`. Default: 10 seconds.
    pub start: Duration,
    /// Timeout for an asynchronous hook. Default: 30 seconds.
    pub hook: Duration,
    /// Timeout for a synchronous hook, which blocks its thread. Default: 5 seconds.
    pub synchronous: Duration,
    /// Timeout for a tool call. Default: 5 minutes.
    pub tool: Duration,
    /// Maximum time between two messages of a call without a timeout, such as a model stream. Default: 10 minutes.
    pub model: Duration,
    /// Timeouts for individual hooks by name. They override the other timeouts.
    pub hooks: HashMap<String, Duration>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            start: Duration::from_secs(10),
            hook: Duration::from_secs(30),
            synchronous: Duration::from_secs(5),
            tool: Duration::from_mins(5),
            model: Duration::from_mins(10),
            hooks: HashMap::new(),
        }
    }
}

/// Configuration of an external plugin.
#[derive(Clone, Debug)]
pub struct PluginConfig {
    /// Name of the plugin.
    pub name: String,
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// Working directory of the process: the directory of the manifest.
    pub directory: PathBuf,
    /// Names of the environment variables that the plugin may read.
    pub granted: Vec<String>,
    /// The plugin's section of the configuration.
    pub config: Value,
    /// Timeouts for calls to the plugin.
    pub limits: Limits,
    /// Highest role that the plugin's channels can assign to a sender.
    pub max_role: Role,
    /// File or directory that contains the plugin.
    pub pinned: PathBuf,
    /// Digest of the files when the plugin was added. If the files differ, the plugin does not start. `None` disables
    /// the check.
    pub digest: Option<String>,
}

/// Services that the host provides to an external plugin.
#[derive(Clone, Debug)]
pub struct HostContext {
    /// Framework that the plugin is registered in.
    pub framework: FrameworkRef,
    /// Absolute path of the workspace.
    pub workspace: PathBuf,
    /// Settings of the host.
    pub settings: Arc<Settings>,
    /// Launcher that supervises the process, if any.
    pub launcher: Option<Arc<Launcher>>,
    /// Asks the user at the terminal, if a terminal is available.
    pub question_handler: Option<QuestionHandler>,
}

/// An external plugin and its current process, if it runs.
pub struct PluginProcess {
    pub(crate) plugin_config: PluginConfig,
    pub(crate) descriptor: Descriptor,
    pub(crate) host: HostContext,
    current: Mutex<Option<Arc<RunningProcess>>>,
    /// Held while the process starts, so that only one starts at a time.
    starting: Mutex<()>,
    /// When the current start began; `None` if the process is not starting.
    start_began: Mutex<Option<Instant>>,
    health: Mutex<Health>,
    /// Notified when the process ends.
    exited: Notify,
    /// Runtime that answers the plugin's requests. Set by the first asynchronous call.
    runtime: OnceLock<tokio::runtime::Handle>,
    /// Accepts messages from the plugin's channels. Set when a gateway starts.
    pub(crate) inbox: OnceLock<MessageHandler>,
    /// Weak reference to this value, for threads and request handlers.
    this: Weak<Self>,
}

/// A running process of the plugin.
pub(crate) struct RunningProcess {
    pub(crate) peer: Arc<Peer>,
    process_guard: Mutex<ProcessGuard>,
}

impl Drop for RunningProcess {
    fn drop(&mut self) {
        self.peer.notify("shutdown", &Value::Null);
        self.peer.close("bub stopped the process");
        // If the process is still running, dropping the process guard kills it.
        lock(&self.process_guard).wait_exit_timeout(EXIT_GRACE_PERIOD);
    }
}

/// Recent failures of the plugin.
#[derive(Default)]
struct Health {
    failures: u32,
    /// End of the current suspension.
    not_before: Option<Instant>,
    /// Reason of the last failure.
    cause: String,
}

impl PluginProcess {
    /// Creates a plugin without starting its process.
    pub fn new(
        plugin_config: PluginConfig,
        descriptor: Descriptor,
        host: HostContext,
    ) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            plugin_config,
            descriptor,
            host,
            current: Mutex::default(),
            starting: Mutex::default(),
            start_began: Mutex::default(),
            health: Mutex::default(),
            exited: Notify::new(),
            runtime: OnceLock::new(),
            inbox: OnceLock::new(),
            this: this.clone(),
        })
    }

    /// Starts the program, requests its descriptor and stops the program.
    ///
    /// # Errors
    ///
    /// Fails if the program does not start in time or if its descriptor is invalid.
    pub fn request_descriptor(
        plugin_config: PluginConfig,
        host: HostContext,
    ) -> Result<Descriptor> {
        let plugin = Self::new(plugin_config, Descriptor::default(), host);
        let running = plugin.start_process()?;
        let described = plugin.initialize(&running)?;
        described.check()?;
        Ok(described)
    }

    /// Returns the name of the plugin.
    pub fn name(&self) -> &str {
        &self.plugin_config.name
    }

    /// Builds an error with the name of the plugin as prefix.
    pub(crate) fn plugin_error(&self, kind: ErrorKind, text: &str) -> Error {
        Error::new(kind, format!("plugin {}: {text}", self.name()))
    }

    /// Builds the error for a call that was not answered in time.
    pub(crate) fn timeout_error(&self, limit: Duration) -> Error {
        self.plugin_error(
            ErrorKind::Temporary,
            &format!(
                "no answer within {} s; increase `plugins.{}.limits` if the plugin needs longer",
                limit.as_secs_f32(),
                self.name()
            ),
        )
    }

    pub(crate) fn framework(&self) -> Result<Framework> {
        self.host
            .framework
            .get()
            .ok_or_else(|| Error::unknown("cannot handle the request: bub is shutting down"))
    }

    pub(crate) fn runtime(&self) -> Option<&tokio::runtime::Handle> {
        self.runtime.get()
    }

    /// Redacts the secrets in a text.
    pub(crate) fn redact(&self, text: &str) -> String {
        self.host.settings.redactor().redact(text).into_owned()
    }

    /// Returns the configured timeout of a hook, or its default. With `has_no_default`, the default is no timeout
    /// (`None`).
    pub(crate) fn hook_timeout(
        &self,
        hook: &str,
        is_synchronous: bool,
        has_no_default: bool,
    ) -> Option<Duration> {
        let limits = &self.plugin_config.limits;
        let configured = limits.hooks.get(hook).copied();
        configured.or_else(|| {
            (!has_no_default).then_some(if is_synchronous {
                limits.synchronous
            } else {
                limits.hook
            })
        })
    }

    /// Returns the connection to the running process. Starts the process if necessary.
    ///
    /// # Errors
    ///
    /// Fails if the start takes longer than `limit` or if the plugin is suspended.
    pub(crate) async fn connect(&self, limit: Option<Duration>) -> Result<Arc<Peer>> {
        self.runtime.get_or_init(tokio::runtime::Handle::current);
        if let Some(peer) = self.running_peer() {
            return Ok(peer);
        }
        let this = self.this.upgrade().ok_or_else(|| {
            self.plugin_error(
                ErrorKind::Temporary,
                "cannot start the process: bub is shutting down",
            )
        })?;
        let starting = tokio::task::spawn_blocking(move || this.connect_blocking(limit));
        starting.await.unwrap_or_else(|_| {
            let text = "cannot start the process: the start was interrupted; see the log";
            Err(self.plugin_error(ErrorKind::Unknown, text))
        })
    }

    /// Blocking variant of [`Self::connect`].
    pub(crate) fn connect_blocking(&self, limit: Option<Duration>) -> Result<Arc<Peer>> {
        if let Some(peer) = self.running_peer() {
            return Ok(peer);
        }
        let Some(this) = self.this.upgrade() else {
            return Err(self.plugin_error(
                ErrorKind::Temporary,
                "cannot start the process: bub is shutting down",
            ));
        };
        // During a start, further callers wait only for the remaining time of that start, so that a hanging start delays
        // a turn once and not at every hook.
        let limit = limit
            .unwrap_or(Duration::MAX)
            .min(self.plugin_config.limits.start + EXIT_GRACE_PERIOD);
        let start_began = *lock(&self.start_began);
        // The channel has capacity for the only result, so the thread never blocks if the caller is gone.
        let (sender, started) = std::sync::mpsc::sync_channel(1);
        // The start continues after this call has timed out: the next call may find the process running.
        let starting = move || drop(sender.send(this.connect_unbounded()));
        std::thread::Builder::new()
            .name("plugin-start".to_owned())
            .spawn(starting)?;
        let elapsed = start_began.map_or(Duration::ZERO, |instant| instant.elapsed());
        let remaining = limit.saturating_sub(elapsed);
        started.recv_timeout(remaining).unwrap_or_else(|_| {
            let cause = format!(
                "the process did not start within {} s; increase `plugins.{}.limits.start` if it needs longer",
                limit.as_secs_f32(),
                self.name()
            );
            Err(self.plugin_error(ErrorKind::Temporary, &cause))
        })
    }

    /// Returns the connection to the running process. Starts the process if necessary; the start continues after the
    /// timeout of the caller.
    fn connect_unbounded(&self) -> Result<Arc<Peer>> {
        let _start_guard = lock(&self.starting);
        if let Some(peer) = self.running_peer() {
            return Ok(peer);
        }
        {
            let health = lock(&self.health);
            if health.not_before.is_some_and(|when| Instant::now() < when) {
                let cause = format!(
                    "suspended after a failure: {}; bub restarts the plugin later",
                    health.cause
                );
                return Err(self.plugin_error(ErrorKind::Temporary, &cause));
            }
        }
        *lock(&self.start_began) = Some(Instant::now());
        let started = self.start_process().and_then(|running| {
            let described = self.initialize(&running)?;
            self.check_declared_hooks(&described)?;
            Ok(running)
        });
        *lock(&self.start_began) = None;
        match started {
            Ok(running) => {
                let peer = Arc::clone(&running.peer);
                let previous = lock(&self.current).replace(running);
                if let Some(previous) = previous {
                    lock(&previous.process_guard).kill();
                }
                Ok(peer)
            }
            Err(error) => {
                self.record_failure(error.message(), true);
                Err(self.plugin_error(error.kind(), error.message()))
            }
        }
    }

    /// Returns the connection to the process, if it is running.
    pub(crate) fn running_peer(&self) -> Option<Arc<Peer>> {
        let current = lock(&self.current);
        current
            .as_ref()
            .filter(|running| !running.peer.is_closed())
            .map(|running| Arc::clone(&running.peer))
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running_peer().is_some()
    }

    /// Waits until the running process has ended. Returns immediately if no process is running.
    pub(crate) async fn wait_for_exit(&self) {
        let ended = self.exited.notified();
        if self.is_running() {
            ended.await;
        }
    }

    /// Verifies the pinned files and starts the process, without sending `initialize`.
    fn start_process(&self) -> Result<Arc<RunningProcess>> {
        crate::pin::verify_pin(&self.plugin_config)?;
        let environment = self
            .host
            .settings
            .plugin_environment(&self.plugin_config.granted)
            .into_iter();
        // Otherwise, Python would load bytecode files from the plugin directory, which are not pinned.
        let cache = self
            .host
            .settings
            .home()
            .join("cache/python")
            .join(self.name());
        let bytecode = (
            OsString::from("PYTHONPYCACHEPREFIX"),
            cache.into_os_string(),
        );
        let command = PipedCommand {
            launcher: self.host.launcher.as_deref(),
            command: &self.plugin_config.command,
            directory: &self.plugin_config.directory,
            environment: environment.chain([bytecode]).collect(),
        };
        let PipedProcess {
            stream,
            errors,
            process_guard,
        } = command.start().map_err(|error| {
            let program = self
                .plugin_config
                .command
                .first()
                .map(|program| program.to_string_lossy().into_owned());
            Error::config(format!(
                "cannot start program `{}`: {error}; check that it is installed and executable",
                program.unwrap_or_default()
            ))
        })?;
        stderr::spawn_stderr_logger(self.name(), errors, self.host.settings.redactor().clone())?;
        let handler = Arc::new(HostRequestHandler::new(self.this.clone()));
        let peer = Peer::start(stream.try_clone()?, stream, self.name(), handler)?;
        Ok(Arc::new(RunningProcess {
            peer,
            process_guard: Mutex::new(process_guard),
        }))
    }

    /// Sends `initialize` and returns the descriptor of the response.
    fn initialize(&self, running: &RunningProcess) -> Result<Descriptor> {
        let params = json!({
            "protocol": PROTOCOL_VERSION,
            "bub": env!("CARGO_PKG_VERSION"),
            "name": self.name(),
            "workspace": self.host.workspace.to_string_lossy(),
            "config": self.plugin_config.config,
        });
        let mut request = running.peer.send_request_blocking("initialize", &params);
        let limit = self.plugin_config.limits.start;
        let deadline = deadline_after(limit);
        loop {
            match request.next_message_before(deadline) {
                Some(IncomingMessage::Response(answer)) => {
                    request.is_over = true;
                    let answer = answer.map_err(|error| {
                        let prefix = format!("plugin {}: ", self.name());
                        let cause = error.message();
                        let cause = cause.strip_prefix(&prefix).unwrap_or(cause);
                        Error::config(format!("the process did not start: {cause}"))
                    })?;
                    return crate::parse::deserialize_map(&answer).map_err(|cause| {
                        Error::config(format!("invalid response to `initialize`: {cause}"))
                    });
                }
                Some(IncomingMessage::Question { id, .. }) => {
                    let error = Error::invalid_input(
                        "request rejected: answer `initialize` before you send requests",
                    );
                    running.peer.respond(&id, Err(error));
                }
                Some(IncomingMessage::Event(_)) => {}
                None => {
                    lock(&running.process_guard).kill();
                    let seconds = limit.as_secs_f32();
                    return Err(Error::new(
                        ErrorKind::Temporary,
                        format!(
                            "the process did not answer `initialize` within {seconds} s; increase `plugins.{}.limits.start` if it needs longer",
                            self.name()
                        ),
                    ));
                }
            }
        }
    }

    /// Fails if the plugin now implements hooks that it did not declare when the user added it.
    fn check_declared_hooks(&self, described: &Descriptor) -> Result<()> {
        described.check()?;
        let is_declared = |hook: &HookDecl| {
            self.descriptor
                .hooks
                .iter()
                .any(|declared| declared.name == hook.name)
        };
        match described.hooks.iter().find(|hook| !is_declared(hook)) {
            Some(hook) => Err(Error::config(format!(
                "the plugin now implements hook `{}`, which it did not declare when it was added; review it and run `bub plugin add` again",
                hook.name
            ))),
            None => Ok(()),
        }
    }

    /// Creates the log span of one call to the plugin's process.
    pub(crate) fn call_span(&self, hook: Option<&str>) -> tracing::Span {
        tracing::error_span!("plugin_call", plugin = self.name(), hook)
    }

    /// Resets the failure count after a successful call.
    pub(crate) fn record_success(&self) {
        let mut health = lock(&self.health);
        if health.failures > 0 {
            *health = Health::default();
        }
    }

    /// Counts a failure and suspends the plugin if it failed too often or did not start.
    fn record_failure(&self, cause: &str, at_start: bool) {
        let mut health = lock(&self.health);
        health.failures += 1;
        let (excess, initial_backoff) = if at_start {
            (health.failures.checked_sub(1), START_BACKOFF)
        } else {
            (
                health.failures.checked_sub(MAX_CONSECUTIVE_FAILURES),
                INITIAL_BACKOFF,
            )
        };
        let pause = excess.map(|excess| {
            initial_backoff
                .saturating_mul(1 << excess.min(10))
                .min(MAX_BACKOFF)
        });
        health.not_before = pause.map(deadline_after);
        let cause = self.redact(cause);
        health.cause.clone_from(&cause);
        let (name, failures) = (self.name(), health.failures);
        if let Some(pause) = pause {
            let delay_ms = pause.as_millis();
            tracing::error!(plugin = name, failures, delay_ms, error = %cause, "plugin.suspended");
        } else {
            tracing::warn!(plugin = name, error = %cause, "plugin.failed");
        }
    }

    /// Handles the end of a connection: records the failure and kills the process.
    pub(crate) fn handle_exit(&self, peer: &Peer, cause: &str) {
        let mut current = lock(&self.current);
        if current
            .as_ref()
            .is_some_and(|running| std::ptr::eq(Arc::as_ptr(&running.peer), peer))
        {
            let running = current.take();
            drop(current);
            self.record_failure(cause, false);
            if let Some(running) = running {
                lock(&running.process_guard).kill();
            }
            self.exited.notify_waiters();
        }
    }

    /// Kills the process after a timeout if it does not answer `ping`. Returns after this check, so that the next call does
    /// not reach a hanging process.
    pub(crate) async fn handle_timeout(&self, peer: &Arc<Peer>) {
        let (this, peer) = (self.this.clone(), Arc::clone(peer));
        let check = move || {
            this.upgrade()
                .map(|plugin| plugin.handle_timeout_blocking(&peer))
        };
        let _ = tokio::task::spawn_blocking(check).await;
    }

    /// Blocking variant of [`Self::handle_timeout`].
    pub(crate) fn handle_timeout_blocking(&self, peer: &Arc<Peer>) {
        let mut ping = peer.send_request_blocking("ping", &Value::Null);
        if ping
            .next_message_before(deadline_after(PING_TIMEOUT))
            .is_none()
        {
            self.kill(
                peer,
                "the process did not answer `ping`; answer it also while a hook runs",
            );
        }
    }

    /// Kills the process of a connection.
    fn kill(&self, peer: &Peer, cause: &str) {
        let running = lock(&self.current).clone();
        if let Some(running) =
            running.filter(|running| std::ptr::eq(Arc::as_ptr(&running.peer), peer))
        {
            running.peer.close(cause);
            lock(&running.process_guard).kill();
        }
        self.handle_exit(peer, cause);
    }
}

impl std::fmt::Debug for PluginProcess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PluginProcess")
            .field("name", &self.name())
            .finish_non_exhaustive()
    }
}
