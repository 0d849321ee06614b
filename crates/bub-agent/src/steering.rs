//! Messages for a turn that runs already.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
};

use bub_kernel::{
    BoxFuture, Envelope, Framework, Prompt, Result, State, SteeringHandle, SteeringInbox,
    hooks::{
        HookPoint,
        point::{RunModel, RunModelStream},
    },
};
use futures_util::future::try_join_all;

use crate::prompt;

/// More than this for one turn is no steering.
const MOST: usize = 256;

/// The default inbox, in memory: what is in it is safe in the journal of whoever put it there.
#[derive(Debug, Default)]
pub(crate) struct MemoryInbox(Mutex<HashMap<String, VecDeque<Envelope>>>);

impl MemoryInbox {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, VecDeque<Envelope>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SteeringInbox for MemoryInbox {
    fn enqueue<'a>(&'a self, session_id: &'a str, message: Envelope) -> BoxFuture<'a, Result<bool>> {
        let mut sessions = self.lock();
        let waiting = sessions.entry(session_id.to_owned()).or_default();
        let fits = waiting.len() < MOST;
        if fits {
            waiting.push_back(message);
        }
        Box::pin(std::future::ready(Ok(fits)))
    }

    fn drain<'a>(&'a self, session_id: &'a str) -> BoxFuture<'a, Result<Vec<Envelope>>> {
        let taken = self.lock().remove(session_id).unwrap_or_default();
        Box::pin(std::future::ready(Ok(taken.into())))
    }

    fn count(&self, session_id: &str) -> usize {
        self.lock().get(session_id).map_or(0, VecDeque::len)
    }
}

/// Takes what waits for the session: what is said to the model as prompts, and the commands, which are not.
pub(crate) async fn take(
    framework: &Framework,
    session_id: &str,
    state: &State,
) -> Result<(Vec<Prompt>, Vec<Envelope>)> {
    let Some(inbox) = state.slot::<SteeringHandle>() else { return Ok(<_>::default()) };
    if inbox.0.count(session_id) == 0 {
        return Ok(<_>::default());
    }
    let waiting = inbox.0.drain(session_id).await?;
    let is_command = |message: &Envelope| message.content().starts_with(prompt::COMMAND_PREFIX);
    let (commands, messages): (Vec<_>, Vec<_>) = waiting.into_iter().partition(is_command);
    let built: Vec<BoxFuture<'_, Result<Prompt>>> = messages
        .iter()
        .map(|message| Box::pin(framework.build_prompt(message, session_id, state)) as _)
        .collect();
    Ok((try_join_all(built).await?, commands))
}

/// Whether something waits for the session.
pub(crate) fn waits(session_id: &str, state: &State) -> bool {
    state.slot::<SteeringHandle>().is_some_and(|inbox| inbox.0.count(session_id) > 0)
}

/// What waited before the turn began belongs before its question. A plugin that runs the model itself is to find
/// its messages in the inbox, so they are left there.
pub(crate) async fn before_the_turn(
    framework: &Framework,
    prompt: &Prompt,
    state: &State,
) -> Result<Vec<Prompt>> {
    let hooks = framework.hooks();
    let is_ours =
        RunModel::implementations(hooks).is_empty() && RunModelStream::implementations(hooks).len() == 1;
    let session_id = state.get_str("session_id").filter(|_| is_ours && !prompt::is_command(prompt));
    match session_id {
        Some(session_id) => {
            let (waiting, commands) = take(framework, &session_id, state).await?;
            // They are run at the first step, like those that come later.
            if let Some(inbox) = state.slot::<SteeringHandle>() {
                for command in commands {
                    inbox.0.enqueue(&session_id, command).await?;
                }
            }
            Ok(waiting)
        }
        None => Ok(Vec::new()),
    }
}
