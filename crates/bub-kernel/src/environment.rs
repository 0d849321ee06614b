//! Environments: where the commands and file tools of a session act.

use std::{collections::HashMap, fmt, sync::Arc};

use bub_tape::async_trait;
use futures_util::future::join_all;
use parking_lot::Mutex;

use crate::{
    error::Result,
    framework::Framework,
    hooks::{HookPoint as _, args, guard, point::ProvideEnvironment},
    ids::SessionId,
};

/// Maximum number of sessions whose environments stay open.
const MAX_OPEN_ENVIRONMENTS: usize = 1000;

/// Receives the output of a command.
pub type OutputSink<'a> = dyn Fn(&[u8]) + Send + Sync + 'a;

/// A place where the commands and file tools of a session act, such as a container. A plugin provides it with the hook
/// `provide_environment`; without one, tools act on this machine.
///
/// The policy, approvals, redaction and the tape apply as on this machine. The sandbox of bub does not: the environment
/// decides what a command can reach.
#[async_trait]
pub trait ExecutionEnvironment: fmt::Debug + Send + Sync + 'static {
    /// Returns the absolute path of the directory that commands start in and relative paths refer to.
    fn workspace(&self) -> Option<&str>;

    /// Runs a shell command to its end and returns its exit code, which is the negated signal if one ended it. Passes its
    /// output to `output` as it arrives. The command starts in `directory`, or else in the workspace. Dropping the future
    /// terminates the command with all its processes.
    async fn run(
        &self,
        command: &str,
        directory: Option<&str>,
        output: &OutputSink<'_>,
    ) -> Result<i32>;

    /// Reads a text file.
    async fn read_text(&self, path: &str) -> Result<String>;

    /// Replaces the content of a file. Creates the file and its directories if they are missing.
    async fn write_text(&self, path: &str, content: &str) -> Result<()>;

    /// Returns whether the environment can still be used. bub asks for another one if not.
    fn is_open(&self) -> bool {
        true
    }

    /// Releases the environment. bub calls it when it closes its resources.
    async fn close(&self) -> Result<()> {
        Ok(())
    }
}

/// The environment of a session and when it was last used.
type CachedEnvironment = (u64, Option<Arc<dyn ExecutionEnvironment>>);

/// The environments of a running scope, by session.
#[derive(Default)]
pub(crate) struct Environments(Mutex<HashMap<SessionId, CachedEnvironment>>);

impl Environments {
    /// Returns the open environment of a session, if plugins were asked for it.
    fn get(&self, session_id: &SessionId) -> Option<CachedEnvironment> {
        let mut by_session = self.0.lock();
        let now = next_use(&by_session);
        let (used, environment) = by_session.get_mut(session_id)?;
        if environment.as_ref().is_some_and(|known| !known.is_open()) {
            return None;
        }
        *used = now;
        Some((now, environment.clone()))
    }

    /// Adds the environment of a session. Returns the one that must be closed because too many are open.
    fn insert(
        &self,
        session_id: SessionId,
        environment: Option<Arc<dyn ExecutionEnvironment>>,
    ) -> Option<Arc<dyn ExecutionEnvironment>> {
        let mut by_session = self.0.lock();
        let now = next_use(&by_session);
        by_session.insert(session_id, (now, environment));
        if by_session.len() <= MAX_OPEN_ENVIRONMENTS {
            return None;
        }
        let oldest = by_session.iter().min_by_key(|(_, (used, _))| *used);
        let oldest = oldest.map(|(session_id, _)| session_id.clone())?;
        by_session.remove(&oldest)?.1
    }

    /// Closes all environments at the same time. Failures are logged.
    pub(crate) async fn close_all(&self) {
        let closed = std::mem::take(&mut *self.0.lock());
        let open = closed
            .into_values()
            .filter_map(|(_, environment)| environment);
        join_all(open.map(close)).await;
    }
}

fn next_use(by_session: &HashMap<SessionId, CachedEnvironment>) -> u64 {
    let newest = by_session.values().map(|(used, _)| *used).max();
    newest.map_or(0, |used| used + 1)
}

async fn close(environment: Arc<dyn ExecutionEnvironment>) {
    let closed = guard::run_with_timeout(|| environment.close()).await;
    if let Err(error) = closed.flatten() {
        tracing::error!(%error, "environment.close_failed");
    }
}

impl Framework {
    /// Returns the environment of a session, or `None` if its tools act on this machine. Plugins are asked once per session
    /// while the running scope is open, and again if the environment is no longer open.
    ///
    /// # Errors
    ///
    /// Fails if a plugin fails: tools must not act on this machine by mistake.
    pub async fn environment(
        &self,
        session_id: &SessionId,
    ) -> Result<Option<Arc<dyn ExecutionEnvironment>>> {
        if ProvideEnvironment::implementations(self.hooks()).is_empty() {
            return Ok(None);
        }
        let scope = self.current_scope();
        let known = scope
            .as_ref()
            .and_then(|scope| scope.environments.get(session_id));
        if let Some((_, known)) = known {
            return Ok(known);
        }
        let args = args::ProvideEnvironment {
            session_id,
            workspace: self.workspace(),
        };
        let provided = self.hooks().call_first::<ProvideEnvironment>(args).await?;
        if let Some(scope) = scope {
            let excess = scope
                .environments
                .insert(session_id.clone(), provided.clone());
            if let Some(excess) = excess {
                close(excess).await;
            }
        }
        Ok(provided)
    }
}
