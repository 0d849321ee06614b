//! The turn that runs in the current task, so that what it sends can be told apart from what an earlier attempt sent.

use std::{
    collections::hash_map::DefaultHasher,
    hash::{Hash, Hasher},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
};

use bub_kernel::Envelope;
use serde_json::Value;

use crate::journal::lock;

/// The field of a message that is copied to its replies, for its channel to know where they go after a restart.
pub(crate) const ROUTE: &str = "reply_route";

tokio::task_local! {
    static CURRENT: Arc<Current>;
}

/// A turn of a journaled message.
#[derive(Debug)]
pub(crate) struct Current {
    pub(crate) inbound_id: String,
    /// The channel that the message is answered by.
    channel: String,
    /// What that channel wants to find on the replies.
    route: Option<Value>,
    /// The fingerprints of replies of earlier attempts, which must not be sent again.
    said: Mutex<Vec<u64>>,
    replies: AtomicU32,
}

impl Current {
    pub(crate) fn new(inbound_id: String, message: &Envelope, said: Vec<u64>) -> Self {
        let replies = AtomicU32::new(u32::try_from(said.len()).unwrap_or(u32::MAX));
        let channel = message.output_channel().unwrap_or_default().into_owned();
        Self { inbound_id, channel, route: message.field(ROUTE).cloned(), said: Mutex::new(said), replies }
    }

    /// Runs a turn as the current one.
    pub(crate) async fn run<T>(self: &Arc<Self>, turn: impl Future<Output = T>) -> T {
        CURRENT.scope(Arc::clone(self), turn).await
    }

    /// The turn of the task that asks.
    pub(crate) fn get() -> Option<Arc<Self>> {
        CURRENT.try_with(Arc::clone).ok()
    }

    /// Whether an earlier attempt said the same. Each of its replies counts once.
    pub(crate) fn was_said(&self, print: u64) -> bool {
        let mut said = lock(&self.said);
        let at = said.iter().position(|known| *known == print);
        at.map(|at| said.swap_remove(at)).is_some()
    }

    /// Puts on a reply by the message's own channel what that channel put on the message.
    pub(crate) fn mark(&self, channel: &str, reply: &mut Envelope) {
        if let (Some(route), true) = (&self.route, channel == self.channel) {
            reply.set(ROUTE, route.clone());
        }
    }

    /// Counts a reply; one by another channel is nothing that the message's own could wait for.
    pub(crate) fn count_reply(&self, channel: &str) {
        if channel == self.channel {
            self.replies.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn replies(&self) -> u32 {
        self.replies.load(Ordering::Relaxed)
    }
}

/// What makes a reply the same as another: where it goes, what it is and what it says.
pub(crate) fn fingerprint(channel: &str, message: &Envelope) -> u64 {
    // The keys of this hasher are fixed, so that the next process comes to the same number.
    let mut hasher = DefaultHasher::new();
    channel.hash(&mut hasher);
    message.chat_id().hash(&mut hasher);
    message.kind().hash(&mut hasher);
    message.content().hash(&mut hasher);
    hasher.finish()
}
