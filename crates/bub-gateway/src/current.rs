//! The turn that runs in the current task, so that what it sends can be told apart from what an earlier attempt sent.

use std::{
    collections::hash_map::DefaultHasher,
    hash::{Hash, Hasher},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use bub_kernel::{ChannelMessage, Envelope, LastWord};
use serde_json::Value;

use crate::journal::lock;

/// The field of a message that is copied to its replies, for its channel to know where they go after a restart.
pub const ROUTE: &str = "reply_route";

/// The route of replies for which whoever wrote the message comes, in his own time: they wait for him.
pub const CLAIM: &str = "claim";

/// The field of a question for approval that names the request, for channels that have buttons.
pub const APPROVAL: &str = "approval_id";

/// The field of a reply to an answer that settled such a question.
pub const DECIDED: &str = "approval_decided";

tokio::task_local! {
    static CURRENT: Arc<Current>;
}

/// A turn of a journaled message.
#[derive(Debug)]
pub(crate) struct Current {
    pub(crate) inbound_id: String,
    /// The channel that the message is answered by.
    channel: String,
    /// The channel that it came from.
    origin: String,
    /// The chat that the message came from.
    chat: String,
    /// What that channel wants to find on the replies.
    route: Option<Value>,
    /// The fingerprints of replies of earlier attempts, which must not be sent again.
    said: Mutex<Vec<u64>>,
    replies: AtomicU32,
    /// Whether its person was told of a failure.
    is_excused: AtomicBool,
    /// How often it said something in its own chat by a tool.
    spoken: AtomicU32,
    /// Whether it is past the model: what comes now are its plain replies.
    is_rendered: AtomicBool,
}

impl Current {
    pub(crate) fn new(inbound_id: String, message: &Envelope, said: Vec<u64>) -> Self {
        let replies = AtomicU32::new(u32::try_from(said.len()).unwrap_or(u32::MAX));
        let channel = message.output_channel().unwrap_or_default().into_owned();
        Self {
            inbound_id,
            channel,
            origin: message.channel().unwrap_or_default().into_owned(),
            chat: message.chat_id().unwrap_or("default".into()).into_owned(),
            route: message.field(ROUTE).cloned(),
            said: Mutex::new(said),
            replies,
            is_excused: AtomicBool::default(),
            spoken: AtomicU32::default(),
            is_rendered: AtomicBool::default(),
        }
    }

    /// The same, when an earlier attempt said something in its chat by a tool.
    pub(crate) fn spoken(self, has_spoken: bool) -> Self {
        Self {
            spoken: AtomicU32::new(has_spoken.into()),
            ..self
        }
    }

    /// The same, when whoever wrote the message is told at once how it ended: nobody comes for its replies.
    pub(crate) fn not_claimed(self) -> Self {
        let route = self.route.filter(|route| route != CLAIM);
        Self { route, ..self }
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
        let is_own =
            (channel == self.channel || channel == self.origin) && reply.field(ROUTE).is_none();
        if let (Some(route), true) = (&self.route, is_own) {
            reply.set(ROUTE, route.clone());
        }
    }

    /// What the channel put on the message for its replies.
    pub(crate) fn route(&self) -> Option<&Value> {
        self.route.as_ref()
    }

    /// A word of the runtime's own about a failure, for whoever wrote the message.
    pub(crate) fn excuse(&self, session: &str, text: &str) -> Envelope {
        let message = ChannelMessage::new(session, &self.origin, text)
            .chat_id(&self.chat)
            .kind("error");
        let mut message = Envelope::from(message);
        message.put_slot(Arc::new(LastWord));
        message
    }

    pub(crate) fn note_excused(&self, is_error: bool) {
        self.is_excused.fetch_or(is_error, Ordering::Relaxed);
    }

    pub(crate) fn is_excused(&self) -> bool {
        self.is_excused.load(Ordering::Relaxed)
    }

    /// Counts a reply; one by another channel is nothing that the message's own could wait for.
    pub(crate) fn count_reply(&self, channel: &str) {
        if channel == self.channel {
            self.replies.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Notes that something was said in a chat by a tool; whether that is the turn's own chat.
    pub(crate) fn note_spoken(&self, channel: &str, chat: &str) -> bool {
        let is_own = self.is_own_chat(channel, chat);
        self.spoken.fetch_add(is_own.into(), Ordering::Relaxed);
        is_own
    }

    /// Notes that something which a tool said in a chat did not get there.
    pub(crate) fn note_unspoken(&self, channel: &str, chat: &str) {
        if self.is_own_chat(channel, chat) {
            self.spoken.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn has_spoken(&self) -> bool {
        self.spoken.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn is_own_chat(&self, channel: &str, chat: &str) -> bool {
        channel == self.channel && chat == self.chat
    }

    pub(crate) fn note_rendered(&self) {
        self.is_rendered.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_rendered(&self) -> bool {
        self.is_rendered.load(Ordering::Relaxed)
    }

    pub(crate) fn replies(&self) -> u32 {
        self.replies.load(Ordering::Relaxed)
    }
}

/// Returns the reply route that a channel put on the message whose turn runs in the calling task.
pub fn current_route() -> Option<Value> {
    Current::get()?.route().cloned()
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
