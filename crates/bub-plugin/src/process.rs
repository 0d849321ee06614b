//! A plugin in another process: started when it is first needed, watched, started again when it ended.

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

/// A plugin that let a call wait too long has this long to show that it lives.
const PING_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a plugin that is asked to end may take for it.
const EXIT_GRACE_PERIOD: Duration = Duration::from_millis(500);
/// So many failures in a row are borne before it is left alone for a while.
const MAX_CONSECUTIVE_FAILURES: u32 = 3;
const INITIAL_BACKOFF: Duration = Duration::from_secs(1);
/// One that did not start is not started again at once: not by the next hook of the turn.
const START_BACKOFF: Duration = Duration::from_secs(10);
const MAX_BACKOFF: Duration = Duration::from_mins(1);

/// How long the calls of a plugin may take.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Starting, and saying what it is.
    pub start: Duration,
    /// A hook that may wait.
    pub hook: Duration,
    /// A hook for which everything else stands still.
    pub synchronous: Duration,
    /// A tool.
    pub tool: Duration,
    /// A model that says nothing.
    pub model: Duration,
    /// Single hooks, by name.
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

/// How a plugin is run.
#[derive(Clone, Debug)]
pub struct PluginConfig {
    /// Its name.
    pub name: String,
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// Where it runs: the directory of its manifest.
    pub directory: PathBuf,
    /// The names of the environment variables it was granted.
    pub granted: Vec<String>,
    /// Its part of the configuration.
    pub config: Value,
    /// How long its calls may take.
    pub limits: Limits,
    /// The most its channels may say a sender is.
    pub most_role: Role,
    /// The file or directory it consists of.
    pub pinned: PathBuf,
    /// What that was when it was added; what differs is refused.
    pub digest: Option<String>,
}

/// What a plugin has around it.
#[derive(Clone, Debug)]
pub struct HostContext {
    /// The framework it belongs to.
    pub framework: FrameworkRef,
    /// The workspace, absolute.
    pub workspace: PathBuf,
    /// The program's settings.
    pub settings: Arc<Settings>,
    /// The supervisor of its process.
    pub launcher: Option<Arc<Launcher>>,
    /// Asks the user at the terminal, if there is one.
    pub asker: Option<QuestionHandler>,
}

/// A plugin in another process.
pub struct PluginProcess {
    pub(crate) plugin_config: PluginConfig,
    pub(crate) descriptor: Descriptor,
    pub(crate) host: HostContext,
    current: Mutex<Option<Arc<RunningProcess>>>,
    /// Held while it starts.
    starting: Mutex<()>,
    /// Since when it does.
    starts_since: Mutex<Option<Instant>>,
    health: Mutex<Health>,
    /// A process has ended.
    gone: Notify,
    /// Where what it asks for is done, once it was used where things can wait.
    runtime: OnceLock<tokio::runtime::Handle>,
    /// Takes the messages of its channels, while a gateway runs.
    pub(crate) inbox: OnceLock<MessageHandler>,
    /// What its own desk knows it by.
    own: Weak<Self>,
}

/// A process of the plugin.
pub(crate) struct RunningProcess {
    pub(crate) peer: Arc<Peer>,
    process_guard: Mutex<ProcessGuard>,
}

impl Drop for RunningProcess {
    fn drop(&mut self) {
        self.peer.notify("shutdown", &Value::Null);
        self.peer.close("bub ends it");
        // What it does then ends with its leash.
        lock(&self.process_guard).wait_exit_timeout(EXIT_GRACE_PERIOD);
    }
}

#[derive(Default)]
struct Health {
    failures: u32,
    not_before: Option<Instant>,
    /// What went wrong last.
    cause: String,
}

impl PluginProcess {
    /// A plugin that is not started yet.
    pub fn new(
        plugin_config: PluginConfig,
        descriptor: Descriptor,
        host: HostContext,
    ) -> Arc<Self> {
        Arc::new_cyclic(|own| Self {
            plugin_config,
            descriptor,
            host,
            current: Mutex::default(),
            starting: Mutex::default(),
            starts_since: Mutex::default(),
            health: Mutex::default(),
            gone: Notify::new(),
            runtime: OnceLock::new(),
            inbox: OnceLock::new(),
            own: own.clone(),
        })
    }

    /// Asks a program what it is, without keeping it.
    pub fn describe(plugin_config: PluginConfig, host: HostContext) -> Result<Descriptor> {
        let plugin = Self::new(plugin_config, Descriptor::default(), host);
        let running = plugin.start()?;
        let described = plugin.initialize(&running)?;
        described.check()?;
        Ok(described)
    }

    /// The name of the plugin.
    pub fn name(&self) -> &str {
        &self.plugin_config.name
    }

    /// An error that says whose it is.
    pub(crate) fn error(&self, kind: ErrorKind, text: &str) -> Error {
        Error::new(kind, format!("plugin {}: {text}", self.name()))
    }

    /// A call had no answer in time.
    pub(crate) fn timeout_error(&self, limit: Duration) -> Error {
        self.error(
            ErrorKind::Temporary,
            &format!("no answer within {} s", limit.as_secs_f32()),
        )
    }

    pub(crate) fn framework(&self) -> Result<Framework> {
        self.host
            .framework
            .get()
            .ok_or_else(|| Error::unknown("the framework is gone"))
    }

    pub(crate) fn runtime(&self) -> Option<&tokio::runtime::Handle> {
        self.runtime.get()
    }

    /// A text without secrets.
    pub(crate) fn redact(&self, text: &str) -> String {
        self.host.settings.redactor().redact(text).into_owned()
    }

    /// How long a call of that hook may take.
    pub(crate) fn limit(
        &self,
        hook: &str,
        is_synchronous: bool,
        is_open: bool,
    ) -> Option<Duration> {
        let limits = &self.plugin_config.limits;
        let own = limits.hooks.get(hook).copied();
        own.or_else(|| {
            (!is_open).then_some(if is_synchronous {
                limits.synchronous
            } else {
                limits.hook
            })
        })
    }

    /// The running process, started if need be; an error when that takes longer, and while the plugin is left alone.
    pub(crate) async fn connect(&self, limit: Option<Duration>) -> Result<Arc<Peer>> {
        self.runtime.get_or_init(tokio::runtime::Handle::current);
        if let Some(peer) = self.running_peer() {
            return Ok(peer);
        }
        let own = self
            .own
            .upgrade()
            .ok_or_else(|| self.error(ErrorKind::Temporary, "it is gone"))?;
        let starting = tokio::task::spawn_blocking(move || own.connect_blocking(limit));
        starting
            .await
            .unwrap_or_else(|error| Err(self.error(ErrorKind::Unknown, &error.to_string())))
    }

    /// The same on a thread that may block.
    pub(crate) fn connect_blocking(&self, limit: Option<Duration>) -> Result<Arc<Peer>> {
        if let Some(peer) = self.running_peer() {
            return Ok(peer);
        }
        let Some(own) = self.own.upgrade() else {
            return Err(self.error(ErrorKind::Temporary, "it is gone"));
        };
        // Who comes while it starts waits for the rest of its own time only: it hangs once, not at every hook of a turn.
        let limit = limit
            .unwrap_or(Duration::MAX)
            .min(self.plugin_config.limits.start + EXIT_GRACE_PERIOD);
        let begun = *lock(&self.starts_since);
        // One result, for which there is room: the starting thread never waits for a caller that is gone.
        let (to, started) = std::sync::mpsc::sync_channel(1);
        // It goes on starting when this call cannot wait any longer: the next one may find it there.
        let starting = move || drop(to.send(own.connect_unbounded()));
        std::thread::Builder::new()
            .name("plugin-start".to_owned())
            .spawn(starting)?;
        let left = limit.saturating_sub(begun.map_or(Duration::ZERO, |begun| begun.elapsed()));
        started.recv_timeout(left).unwrap_or_else(|_| {
            let cause = format!("it did not start within {} s", limit.as_secs_f32());
            Err(self.error(ErrorKind::Temporary, &cause))
        })
    }

    fn connect_unbounded(&self) -> Result<Arc<Peer>> {
        let _one_at_a_time = lock(&self.starting);
        if let Some(peer) = self.running_peer() {
            return Ok(peer);
        }
        {
            let health = lock(&self.health);
            if health.not_before.is_some_and(|when| Instant::now() < when) {
                let cause = format!("it is left alone for a while, because: {}", health.cause);
                return Err(self.error(ErrorKind::Temporary, &cause));
            }
        }
        *lock(&self.starts_since) = Some(Instant::now());
        let started = self.start().and_then(|running| {
            let described = self.initialize(&running)?;
            self.compare(&described)?;
            Ok(running)
        });
        *lock(&self.starts_since) = None;
        match started {
            Ok(running) => {
                let peer = Arc::clone(&running.peer);
                let before = lock(&self.current).replace(running);
                if let Some(before) = before {
                    lock(&before.process_guard).kill();
                }
                Ok(peer)
            }
            Err(error) => {
                self.note_failure(error.message(), true);
                Err(self.error(error.kind(), error.message()))
            }
        }
    }

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

    /// Waits until the process that runs has ended.
    pub(crate) async fn process_ended(&self) {
        let ended = self.gone.notified();
        if self.is_running() {
            ended.await;
        }
    }

    fn start(&self) -> Result<Arc<RunningProcess>> {
        crate::pin::verify(&self.plugin_config)?;
        let environment = self
            .host
            .settings
            .plugin_environment(&self.plugin_config.granted)
            .into_iter();
        // Python would otherwise run whatever bytecode lies beside the plugin, which is not pinned.
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
        let talk = PipedCommand {
            launcher: self.host.launcher.as_deref(),
            command: &self.plugin_config.command,
            directory: &self.plugin_config.directory,
            environment: environment.chain([bytecode]).collect(),
        };
        let PipedProcess {
            stream,
            errors,
            process_guard,
        } = talk.start().map_err(|error| {
            let program = self
                .plugin_config
                .command
                .first()
                .map(|program| program.to_string_lossy().into_owned());
            Error::config(format!(
                "its program `{}` cannot be started: {error}",
                program.unwrap_or_default()
            ))
        })?;
        stderr::log(self.name(), errors, self.host.settings.redactor().clone())?;
        let handler = Arc::new(HostRequestHandler::new(self.own.clone()));
        let peer = Peer::start(stream.try_clone()?, stream, self.name(), handler)?;
        Ok(Arc::new(RunningProcess {
            peer,
            process_guard: Mutex::new(process_guard),
        }))
    }

    fn initialize(&self, running: &RunningProcess) -> Result<Descriptor> {
        let params = json!({
            "protocol": PROTOCOL_VERSION,
            "bub": env!("CARGO_PKG_VERSION"),
            "name": self.name(),
            "workspace": self.host.workspace.to_string_lossy(),
            "config": self.plugin_config.config,
        });
        let mut request = running.peer.ask_blocking("initialize", &params);
        let limit = self.plugin_config.limits.start;
        let deadline = deadline_after(limit);
        loop {
            match request.next_before(deadline) {
                Some(IncomingMessage::Response(answer)) => {
                    request.is_over = true;
                    let answer = answer.map_err(|error| {
                        let prefix = format!("plugin {}: ", self.name());
                        let cause = error.message();
                        let cause = cause.strip_prefix(&prefix).unwrap_or(cause);
                        Error::config(format!("it did not start: {cause}"))
                    })?;
                    return crate::parse::read(&answer).map_err(|cause| {
                        Error::config(format!(
                            "its answer to `initialize` cannot be used: {cause}"
                        ))
                    });
                }
                Some(IncomingMessage::Question { id, .. }) => {
                    let early = Error::invalid_input("not before `initialize` is answered");
                    running.peer.respond(&id, Err(early));
                }
                Some(IncomingMessage::Event(_)) => {}
                None => {
                    lock(&running.process_guard).kill();
                    let seconds = limit.as_secs_f32();
                    return Err(Error::new(
                        ErrorKind::Temporary,
                        format!("it did not answer `initialize` within {seconds} s"),
                    ));
                }
            }
        }
    }

    /// A plugin that became another since it was added was not granted what it wants now.
    fn compare(&self, described: &Descriptor) -> Result<()> {
        described.check()?;
        let is_known = |hook: &HookDecl| {
            self.descriptor
                .hooks
                .iter()
                .any(|known| known.name == hook.name)
        };
        match described.hooks.iter().find(|hook| !is_known(hook)) {
            Some(hook) => Err(Error::config(format!(
                "it now implements {} too, which it did not when it was added; add it again with `bub plugin add`",
                hook.name
            ))),
            None => Ok(()),
        }
    }

    /// The span of one call into the plugin's process.
    pub(crate) fn call_span(&self, hook: Option<&str>) -> tracing::Span {
        tracing::error_span!("plugin_call", plugin = self.name(), hook)
    }

    /// A call worked: what went wrong before is forgotten.
    pub(crate) fn note_success(&self) {
        let mut health = lock(&self.health);
        if health.failures > 0 {
            *health = Health::default();
        }
    }

    fn note_failure(&self, cause: &str, at_start: bool) {
        let mut health = lock(&self.health);
        health.failures += 1;
        let (over, first) = if at_start {
            (health.failures.checked_sub(1), START_BACKOFF)
        } else {
            (
                health.failures.checked_sub(MAX_CONSECUTIVE_FAILURES),
                INITIAL_BACKOFF,
            )
        };
        let pause = over.map(|over| first.saturating_mul(1 << over.min(10)).min(MAX_BACKOFF));
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

    /// The conversation with a process is over.
    pub(crate) fn handle_exit(&self, peer: &Peer, cause: &str) {
        let mut current = lock(&self.current);
        if current
            .as_ref()
            .is_some_and(|running| std::ptr::eq(Arc::as_ptr(&running.peer), peer))
        {
            let running = current.take();
            drop(current);
            self.note_failure(cause, false);
            if let Some(running) = running {
                lock(&running.process_guard).kill();
            }
            self.gone.notify_waiters();
        }
    }

    /// A call took too long. The process is ended unless it shows that it lives; the next call finds that settled.
    pub(crate) async fn handle_timeout(&self, peer: &Arc<Peer>) {
        let (own, peer) = (self.own.clone(), Arc::clone(peer));
        let check = move || own.upgrade().map(|plugin| plugin.note_late_blocking(&peer));
        let _ = tokio::task::spawn_blocking(check).await;
    }

    /// The same on a thread that may block.
    pub(crate) fn note_late_blocking(&self, peer: &Arc<Peer>) {
        let mut ping = peer.ask_blocking("ping", &Value::Null);
        if ping.next_before(deadline_after(PING_TIMEOUT)).is_none() {
            self.end(peer, "it did not answer");
        }
    }

    /// Ends a process of the plugin.
    fn end(&self, peer: &Peer, cause: &str) {
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
