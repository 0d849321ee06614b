//! The process of an external plugin. It starts on first use and restarts on the next use after it has ended.

mod confinement;
mod group;
mod tools;

use std::{
    collections::HashMap,
    ffi::OsString,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock, Weak},
    time::{Duration, Instant},
};

use bub_kernel::{
    Error, ErrorKind, Framework, FrameworkRef, MessageHandler, Result, Role, State, Tool, Turn,
    WORKSPACE_KEY, hooks::HookSpec,
};
use bub_sandbox::{Launcher, PipedCommand, PipedProcess, ProcessGuard};
use bub_settings::Settings;
use bub_tape::Fork;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{Notify, oneshot};
use tracing::Instrument as _;

use self::confinement::{plugin_confinement, share_home_files};
pub use self::group::PluginGroup;
use crate::{
    QuestionHandler,
    callbacks::{self, HostRequestHandler},
    descriptor::{Descriptor, HookDecl, MIN_PROTOCOL_VERSION, PROTOCOL_VERSION},
    manifest::Permissions,
    peer::{Peer, block_until},
    serve::PROTOCOL_VARIABLE,
    stderr::{self, LastLines},
};

/// How long a plugin may take to answer `ping` after a call timed out.
const PING_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a plugin may take to exit after `shutdown` before it is killed.
const EXIT_GRACE_PERIOD: Duration = Duration::from_millis(500);
/// Number of consecutive failures after which bub suspends the plugin.
const MAX_CONSECUTIVE_FAILURES: u32 = 3;
/// Duration of the first suspension after repeated failures. It doubles with each further failure.
const INITIAL_BACKOFF: Duration = Duration::from_secs(1);
/// Duration of the first suspension after a failed start. It is long, so that the other hooks of the turn do not start
/// the plugin again.
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
    /// Maximum time between two protocol messages that the plugin sends during a call without a timeout, such as a
    /// model stream. Default: 10 minutes.
    pub model: Duration,
    /// Timeouts for individual hooks, by the name of the hook. They override `hook`, `synchronous` and `model`.
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
    /// What the plugin can reach. `None` runs it without a sandbox.
    pub permissions: Option<Permissions>,
    /// Names of files in bub's home that the plugin uses.
    pub home_files: Vec<String>,
    /// The plugin's section of the configuration.
    pub config: Value,
    /// Digest of the settings and variables of the plugin.
    pub fingerprint: String,
    /// Whether the plugin was described with other settings. Its tools may depend on them.
    pub is_stale: bool,
    /// Timeouts for calls to the plugin.
    pub limits: Limits,
    /// Highest role that the plugin's channels can assign to a sender.
    pub max_role: Role,
    /// File or directory of the plugin. `digest` is computed from its content.
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
    /// Executable that supervises the process. With `None`, the process runs without a supervisor.
    pub launcher: Option<Arc<Launcher>>,
    /// Asks the user at the terminal, if a terminal is available.
    pub question_handler: Option<QuestionHandler>,
    /// The plugins that start at the same time as this one.
    pub group: PluginGroup,
}

/// An external plugin and its current process, if it runs.
pub struct PluginProcess {
    pub(crate) plugin_config: PluginConfig,
    pub(crate) descriptor: Descriptor,
    pub(crate) host: HostContext,
    current: Mutex<Option<Arc<RunningProcess>>>,
    /// Locked while the process starts, so that only one thread starts it at a time.
    starting: Mutex<()>,
    /// When the current start began; `None` if the process is not starting.
    start_began: Mutex<Option<Instant>>,
    health: Mutex<Health>,
    /// Notified when the process ends.
    exited: Notify,
    /// Tokio runtime for the tasks that answer the plugin's requests. Set by the first asynchronous call.
    runtime: OnceLock<tokio::runtime::Handle>,
    /// Accepts messages from the plugin's channels. Set when a gateway starts.
    pub(crate) inbox: OnceLock<MessageHandler>,
    /// Tools that the plugin has now, as they are registered with the framework. Each tool has a reference to this value,
    /// which must not keep itself alive: its process ends with it.
    pub(crate) tools: Mutex<Vec<Weak<dyn Tool>>>,
    /// Forks that the plugin has opened, by id.
    pub(crate) forks: Mutex<HashMap<String, Fork>>,
    /// Whether the process must describe everything that it needs, because it is being added.
    is_described: bool,
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
        self.process_guard
            .lock()
            .wait_exit_timeout(EXIT_GRACE_PERIOD);
    }
}

/// Failures of the plugin since its last successful call, and the suspension that they caused.
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
        Self::create(plugin_config, descriptor, host, false)
    }

    fn create(
        plugin_config: PluginConfig,
        descriptor: Descriptor,
        host: HostContext,
        is_described: bool,
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
            tools: Mutex::default(),
            forks: Mutex::default(),
            is_described,
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
        let plugin = Self::create(plugin_config, Descriptor::default(), host, true);
        let (_running, described) = plugin.start_process()?;
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
    fn timeout_error(&self, limit: Duration) -> Error {
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

    /// Adds the workspace of the turn to the JSON of its state. Version 1 of the protocol does not have it.
    pub(crate) fn add_workspace(&self, state: &State, encoded: &mut Value) {
        if self.descriptor.protocol >= 2
            && let (Some(fields), Some(workspace)) =
                (encoded.as_object_mut(), state.get(WORKSPACE_KEY))
        {
            fields.insert(WORKSPACE_KEY.to_owned(), workspace);
        }
    }

    /// Returns the directory for the plugin's own data, which it can write to.
    pub(crate) fn data_directory(&self) -> PathBuf {
        data_directory(self.host.settings.home(), self.name())
    }

    /// Returns the configured timeout of a hook, the timeout that the plugin declares, or the default. `None` means no
    /// timeout.
    pub(crate) fn hook_timeout(
        &self,
        hook: &HookSpec,
        declared: Option<Duration>,
    ) -> Option<Duration> {
        let limits = &self.plugin_config.limits;
        match limits.hooks.get(hook.name) {
            Some(configured) => Some(*configured),
            None if declared.is_some() && hook.time_limit.is_some() => declared,
            None if hook.time_limit.is_none() => None,
            None if hook.sync_only => Some(limits.synchronous),
            None => Some(limits.hook),
        }
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
        let (limit, remaining) = self.start_limit(limit);
        let started = tokio::time::timeout(remaining, self.start_on_thread()).await;
        started.unwrap_or_else(|_| Err(self.start_timeout_error(limit)))
    }

    /// Blocking variant of [`Self::connect`].
    pub(crate) fn connect_blocking(&self, limit: Duration) -> Result<Arc<Peer>> {
        if let Some(peer) = self.running_peer() {
            return Ok(peer);
        }
        let (limit, remaining) = self.start_limit(Some(limit));
        let started = block_until(self.start_on_thread(), Instant::now() + remaining);
        started.unwrap_or_else(|| Err(self.start_timeout_error(limit)))
    }

    /// Returns the time limit of a start, and the time that is left of it.
    ///
    /// If another call is starting the process, that is the remaining time of that start. A hanging start then delays a
    /// turn once and not at every hook.
    fn start_limit(&self, limit: Option<Duration>) -> (Duration, Duration) {
        let start = self.plugin_config.limits.start + EXIT_GRACE_PERIOD;
        let limit = limit.unwrap_or(start).min(start);
        let start_began = *self.start_began.lock();
        let elapsed = start_began.map_or(Duration::ZERO, |instant| instant.elapsed());
        (limit, limit.saturating_sub(elapsed))
    }

    fn start_timeout_error(&self, limit: Duration) -> Error {
        let cause = format!(
            "the process did not start within {} s; increase `plugins.{}.limits.start` if it needs longer",
            limit.as_secs_f32(),
            self.name()
        );
        self.plugin_error(ErrorKind::Temporary, &cause)
    }

    /// Runs [`Self::connect_unbounded`] on a separate thread. The start continues if the returned future is dropped: the
    /// next call may find the process running.
    async fn start_on_thread(&self) -> Result<Arc<Peer>> {
        let error = |reason| self.plugin_error(ErrorKind::Temporary, reason);
        let this = self.this.upgrade();
        let this = this.ok_or_else(|| error("cannot start the process: bub is shutting down"))?;
        let (sender, started) = oneshot::channel();
        std::thread::Builder::new()
            .name("plugin-start".to_owned())
            .spawn(move || drop(sender.send(this.connect_unbounded())))?;
        let interrupted = "cannot start the process: the start was interrupted; see the log";
        started.await.unwrap_or_else(|_| Err(error(interrupted)))
    }

    /// Starts the process on a separate thread, unless it runs or starts already. The log has the reason if that fails.
    pub(crate) fn start_in_background(&self) {
        if self.is_running() || self.start_began.lock().is_some() {
            return;
        }
        if let Some(this) = self.this.upgrade() {
            let thread = std::thread::Builder::new().name("plugin-start".to_owned());
            // If this fails, the plugin starts when it is called.
            let _ = thread.spawn(move || drop(this.connect_unbounded()));
        }
    }

    /// Sends a request and returns the response. Answers the requests that the plugin sends meanwhile; they belong to
    /// `turn`. The time limit includes the start of the process.
    pub(crate) async fn call(
        self: &Arc<Self>,
        method: &str,
        params: &Value,
        turn: Option<&Turn>,
        limit: Duration,
    ) -> Result<Value> {
        let deadline = tokio::time::Instant::now() + limit;
        let exchange = async {
            let peer = self.connect(Some(limit)).await?;
            let mut request = peer.send_request(method, params, 0);
            let response = callbacks::wait_for_response(&mut request, self, turn);
            let Ok(answer) = tokio::time::timeout_at(deadline, response).await else {
                drop(request);
                return Err(self.handle_timeout(&peer, limit).await);
            };
            answer.inspect(|_| self.record_success())
        };
        exchange.instrument(self.call_span(None)).await
    }

    /// Returns the connection to the running process. Starts the process if necessary. Has no timeout.
    fn connect_unbounded(&self) -> Result<Arc<Peer>> {
        let _start_guard = self.starting.lock();
        if let Some(peer) = self.running_peer() {
            return Ok(peer);
        }
        {
            let health = self.health.lock();
            if health.not_before.is_some_and(|when| Instant::now() < when) {
                let cause = format!(
                    "suspended after a failure: {}; bub restarts the plugin later",
                    health.cause
                );
                return Err(self.plugin_error(ErrorKind::Temporary, &cause));
            }
        }
        *self.start_began.lock() = Some(Instant::now());
        let started = self.start_process().and_then(|(running, described)| {
            self.check_declared_hooks(&described)?;
            if described.protocol >= 2 {
                self.set_tools(&described);
                if self.plugin_config.is_stale {
                    self.save_tools(described);
                }
            }
            Ok(running)
        });
        *self.start_began.lock() = None;
        match started {
            Ok(running) => {
                let peer = Arc::clone(&running.peer);
                let previous = self.current.lock().replace(running);
                if let Some(previous) = previous {
                    previous.process_guard.lock().kill();
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
        let current = self.current.lock();
        let peer = &current.as_ref()?.peer;
        (!peer.is_closed()).then(|| Arc::clone(peer))
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

    /// Verifies the pinned files and starts the process. Returns the process and its descriptor.
    fn start_process(&self) -> Result<(Arc<RunningProcess>, Descriptor)> {
        crate::pin::verify_pin(&self.plugin_config)?;
        let settings = &self.host.settings;
        let environment = settings.plugin_environment(&self.plugin_config.granted);
        let cache = settings.home().join("cache/python").join(self.name());
        // Without this variable, Python would load bytecode files from the plugin directory. They are not part of the
        // digest.
        let is_pinned = self.plugin_config.digest.is_some();
        let bytecode = is_pinned.then(|| ("PYTHONPYCACHEPREFIX".into(), cache.clone().into()));
        let data = self.data_directory();
        share_home_files(settings.home(), &data, &self.plugin_config.home_files)?;
        let protocol = (
            PROTOCOL_VARIABLE.into(),
            MIN_PROTOCOL_VERSION.to_string().into(),
        );
        let command = PipedCommand {
            launcher: self.host.launcher.as_deref(),
            command: &self.plugin_config.command,
            directory: &self.plugin_config.directory,
            environment: environment
                .into_iter()
                .chain(bytecode)
                .chain([protocol])
                .collect(),
            confinement: plugin_confinement(&self.plugin_config, &self.host, &[cache, data])?,
        };
        let PipedProcess {
            stream,
            errors,
            process_guard,
        } = command.start().map_err(|error| {
            let program = self.plugin_config.command.first().map(OsString::as_os_str);
            Error::config(format!(
                "cannot start program `{}`: {error}; check that it is installed and executable, or set `plugins.{}.sandbox: false` if the sandbox is the reason",
                program.unwrap_or_default().display(),
                self.name()
            ))
        })?;
        let redactor = settings.redactor().clone();
        let last_lines = stderr::spawn_stderr_logger(self.name(), errors, redactor)?;
        let handler = Arc::new(HostRequestHandler::new(self.this.clone()));
        let peer = Peer::start(stream.try_clone()?, stream, self.name(), handler)?;
        let running = Arc::new(RunningProcess {
            peer,
            process_guard: Mutex::new(process_guard),
        });
        let described = self.initialize(&running, last_lines)?;
        Ok((running, described))
    }

    /// Sends `initialize` and returns the descriptor in the response.
    fn initialize(&self, running: &RunningProcess, last_lines: LastLines) -> Result<Descriptor> {
        let params = json!({
            "protocol": MIN_PROTOCOL_VERSION,
            "max_protocol": PROTOCOL_VERSION,
            "bub": env!("CARGO_PKG_VERSION"),
            "name": self.name(),
            "workspace": self.host.workspace.to_string_lossy(),
            "config": self.plugin_config.config,
            "data": self.data_directory().to_string_lossy(),
            "describe": self.is_described,
        });
        let mut request = running.peer.send_request("initialize", &params, 0);
        let limit = self.plugin_config.limits.start;
        let deadline = Instant::now() + limit;
        let answer = request.wait_blocking(deadline, |question| {
            let text = "request rejected: answer `initialize` before you send requests";
            running
                .peer
                .respond(&question.id, Err(Error::invalid_input(text)));
        });
        let Some(answer) = answer else {
            running.process_guard.lock().kill();
            let (seconds, name) = (limit.as_secs_f32(), self.name());
            let text = format!(
                "the process did not answer `initialize` within {seconds} s; increase `plugins.{name}.limits.start` if it needs longer"
            );
            return Err(Error::new(ErrorKind::Temporary, text));
        };
        let answer = answer.map_err(|error| {
            let prefix = format!("plugin {}: ", self.name());
            let cause = error.message();
            let cause = cause.strip_prefix(&prefix).unwrap_or(cause);
            let cause = if running.peer.is_closed() {
                last_lines.append_to(cause, EXIT_GRACE_PERIOD)
            } else {
                cause.to_owned()
            };
            Error::config(format!("the process did not start: {cause}"))
        })?;
        crate::parse::deserialize_map(&answer)
            .map_err(|cause| Error::config(format!("invalid response to `initialize`: {cause}")))
    }

    /// Fails if the plugin now implements hooks that it did not declare when the user added it. Also fails if the new
    /// descriptor is invalid.
    fn check_declared_hooks(&self, described: &Descriptor) -> Result<()> {
        described.check()?;
        let declared = &self.descriptor.hooks;
        let is_new = |hook: &&HookDecl| declared.iter().all(|other| other.name != hook.name);
        match described.hooks.iter().find(is_new) {
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
        let mut health = self.health.lock();
        if health.failures > 0 {
            *health = Health::default();
        }
    }

    /// Reports to the framework that the plugin has no effect on the current turn, or only a part of it.
    pub(crate) fn report_failure(&self, error: &Error) {
        if let Some(framework) = self.host.framework.get() {
            framework.hooks().record_failure(self.name(), error);
        }
    }

    /// Counts a failure and suspends the plugin if it failed too often or did not start.
    fn record_failure(&self, cause: &str, at_start: bool) {
        let mut health = self.health.lock();
        health.failures += 1;
        let (tolerated, backoff) = if at_start {
            (1, START_BACKOFF)
        } else {
            (MAX_CONSECUTIVE_FAILURES, INITIAL_BACKOFF)
        };
        let excess = health.failures.checked_sub(tolerated);
        let pause = excess.map(|excess| (backoff * (1 << excess.min(10))).min(MAX_BACKOFF));
        health.not_before = pause.map(|pause| Instant::now() + pause);
        let cause = self.redact(cause);
        self.report_failure(&self.plugin_error(ErrorKind::Temporary, &cause));
        health.cause.clone_from(&cause);
        let (name, failures) = (self.name(), health.failures);
        if let Some(pause) = pause {
            let delay_ms = pause.as_millis();
            tracing::error!(plugin = name, failures, delay_ms, error = %cause, "plugin.suspended");
        } else {
            tracing::warn!(plugin = name, error = %cause, "plugin.failed");
        }
    }

    /// Handles the end of a connection: records the failure and kills the process. Does nothing if `peer` is not the
    /// current connection.
    pub(crate) fn handle_exit(&self, peer: &Peer, cause: &str) {
        let is_current =
            |running: &mut Arc<RunningProcess>| std::ptr::eq(Arc::as_ptr(&running.peer), peer);
        let running = self.current.lock().take_if(is_current);
        if let Some(running) = running {
            self.record_failure(cause, false);
            running.process_guard.lock().kill();
            self.exited.notify_waiters();
        }
    }

    /// Handles a call that timed out, and returns its error; see [`Self::check_alive`].
    pub(crate) async fn handle_timeout(&self, peer: &Arc<Peer>, limit: Duration) -> Error {
        self.check_alive(peer).await;
        self.timeout_error(limit)
    }

    /// Checks the process: sends `ping`, and kills the process if it does not answer. The next call therefore does not
    /// reach a hanging process.
    pub(crate) async fn check_alive(&self, peer: &Arc<Peer>) {
        let mut ping = peer.send_request("ping", &Value::Null, 0);
        let answer = tokio::time::timeout(PING_TIMEOUT, ping.next_message()).await;
        self.end_if_hanging(peer, answer.is_err());
    }

    /// Blocking variant of [`Self::handle_timeout`].
    pub(crate) fn handle_timeout_blocking(&self, peer: &Arc<Peer>, limit: Duration) -> Error {
        let mut ping = peer.send_request("ping", &Value::Null, 0);
        let answer = ping.wait_blocking(Instant::now() + PING_TIMEOUT, |_| {});
        self.end_if_hanging(peer, answer.is_none());
        self.timeout_error(limit)
    }

    fn end_if_hanging(&self, peer: &Peer, is_hanging: bool) {
        if is_hanging {
            let cause = "the process did not answer `ping`; answer it also while a hook runs";
            peer.close(cause);
            self.handle_exit(peer, cause);
        }
    }
}

/// Returns the directory for the data of a plugin.
pub(crate) fn data_directory(home: &Path, plugin: &str) -> PathBuf {
    home.join("plugins/data").join(plugin)
}

impl std::fmt::Debug for PluginProcess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PluginProcess")
            .field("name", &self.name())
            .finish_non_exhaustive()
    }
}
