//! Messages for a turn that runs already.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
};

use bub_kernel::{
    BoxFuture, Delivery, Envelope, Framework, Prompt, Result, State, SteeringHandle, SteeringInbox,
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
    fn enqueue<'a>(
        &'a self,
        session_id: &'a str,
        message: Envelope,
    ) -> BoxFuture<'a, Result<bool>> {
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

/// What somebody said to a turn that runs already.
#[derive(Debug)]
pub(crate) struct Steered {
    pub(crate) prompt: Prompt,
    /// Names the message, when it was delivered durably.
    pub(crate) inbound_id: Option<String>,
}

/// Takes what waits for the session: what is said to the model as prompts, and the commands, which are not.
pub(crate) async fn take(
    framework: &Framework,
    session_id: &str,
    state: &State,
) -> Result<(Vec<Steered>, Vec<Envelope>)> {
    let Some(inbox) = state.slot::<SteeringHandle>() else {
        return Ok(<_>::default());
    };
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
    let prompts = try_join_all(built).await?;
    let steered = prompts.into_iter().zip(&messages);
    let steered = steered.map(|(prompt, message)| Steered {
        prompt,
        inbound_id: inbound_id(message),
    });
    Ok((steered.collect(), commands))
}

fn inbound_id(message: &Envelope) -> Option<String> {
    message
        .slot::<Delivery>()
        .map(|delivery| delivery.inbound_id.clone())
}

/// A turn that goes on after a crash has heard what stands on its tape: that is not said to it again, and settled with
/// it. The rest waits on.
pub(crate) async fn drop_heard(
    framework: &Framework,
    session_id: &str,
    heard: &[String],
) -> Result<()> {
    let Some(inbox) = framework.steering_inbox().filter(|_| !heard.is_empty()) else {
        return Ok(());
    };
    for message in inbox.drain(session_id).await? {
        let is_heard = inbound_id(&message).is_some_and(|id| heard.contains(&id));
        if !is_heard && !inbox.enqueue(session_id, message).await? {
            tracing::error!("steering.overflow session={session_id}: a message is lost");
        }
    }
    Ok(())
}

/// Whether something waits for the session.
pub(crate) fn waits(session_id: &str, state: &State) -> bool {
    state
        .slot::<SteeringHandle>()
        .is_some_and(|inbox| inbox.0.count(session_id) > 0)
}

/// What waited before the turn began belongs before its question. A plugin that runs the model itself is to find
/// its messages in the inbox, so they are left there.
pub(crate) async fn before_the_turn(
    framework: &Framework,
    prompt: &Prompt,
    state: &State,
) -> Result<Vec<Steered>> {
    let hooks = framework.hooks();
    let is_ours = RunModel::implementations(hooks).is_empty()
        && RunModelStream::implementations(hooks).len() == 1;
    let session_id = state
        .get_str("session_id")
        .filter(|_| is_ours && !prompt::is_command(prompt));
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
