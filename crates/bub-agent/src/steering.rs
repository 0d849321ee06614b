//! The default steering inbox.

use std::collections::{HashMap, VecDeque};

use bub_kernel::{Inbound, Result, SessionId, SteeringInbox, async_trait};
use parking_lot::Mutex;

/// Maximum number of queued steering messages per session.
const STEERING_CAPACITY: usize = 256;

/// A steering inbox in memory. It needs no file: the gateway's journal keeps the messages until their turn ends.
#[derive(Debug, Default)]
pub(crate) struct MemorySteeringInbox(Mutex<HashMap<SessionId, VecDeque<Inbound>>>);

#[async_trait]
impl SteeringInbox for MemorySteeringInbox {
    async fn enqueue(&self, session_id: &SessionId, message: Inbound) -> Result<bool> {
        let mut sessions = self.0.lock();
        let queue = sessions.entry(session_id.clone()).or_default();
        let fits = queue.len() < STEERING_CAPACITY;
        if fits {
            queue.push_back(message);
        }
        Ok(fits)
    }

    async fn drain(&self, session_id: &SessionId) -> Result<Vec<Inbound>> {
        let messages = self.0.lock().remove(session_id).unwrap_or_default();
        Ok(messages.into())
    }

    fn count(&self, session_id: &SessionId) -> usize {
        self.0.lock().get(session_id).map_or(0, VecDeque::len)
    }
}
