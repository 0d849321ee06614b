//! The default steering inbox.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
};

use bub_kernel::{BoxFuture, Inbound, Result, SessionId, SteeringInbox};

/// Maximum number of queued steering messages per session.
const STEERING_CAPACITY: usize = 256;

/// A steering inbox in memory. It needs no file: the gateway's journal keeps the messages until their turn ends.
#[derive(Debug, Default)]
pub(crate) struct MemorySteeringInbox(Mutex<HashMap<SessionId, VecDeque<Inbound>>>);

impl MemorySteeringInbox {
    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, VecDeque<Inbound>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SteeringInbox for MemorySteeringInbox {
    fn enqueue<'a>(
        &'a self,
        session_id: &'a SessionId,
        message: Inbound,
    ) -> BoxFuture<'a, Result<bool>> {
        let mut sessions = self.lock();
        let queue = sessions.entry(session_id.clone()).or_default();
        let fits = queue.len() < STEERING_CAPACITY;
        if fits {
            queue.push_back(message);
        }
        Box::pin(std::future::ready(Ok(fits)))
    }

    fn drain<'a>(&'a self, session_id: &'a SessionId) -> BoxFuture<'a, Result<Vec<Inbound>>> {
        let messages = self.lock().remove(session_id).unwrap_or_default();
        Box::pin(std::future::ready(Ok(messages.into())))
    }

    fn count(&self, session_id: &SessionId) -> usize {
        self.lock().get(session_id).map_or(0, VecDeque::len)
    }
}
