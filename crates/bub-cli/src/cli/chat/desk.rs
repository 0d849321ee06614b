//! What stands between the terminal and the gateway: lines go in here, and what turns do is heard here.

use std::{
    path::PathBuf,
    process::ExitCode,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bub_agent::{NO_MODEL, SWITCH, policy::Approvals, usage::Tokens};
use bub_gateway::{Outcome, Remote, Ticket};
use bub_kernel::{
    ApprovalAnswer, ApprovalRequest, BoxFuture, Channel, ChannelMessage, Delivery, Envelope, Error,
    ErrorKind, Framework, LlmRequest, LlmResult, MessageHandler, Result, Sender, State, StatePatch,
};
use bub_model::Catalogue;
use bub_settings::{Settings, core};
use bub_tape::{Tape, Wait};
use bub_terminal::{
    Happening, Host,
    channel::{Cli, EARLIER, LineId, NAME, Teller, WITHDRAWN},
    view::Status,
};

use super::session::{self, Session};

/// So long the end of a turn is waited for to tell of it.
const LOOK_LIMIT: Duration = Duration::from_secs(5);

/// The chat of this process, once there is one: the hooks by which it takes part in turns.
#[derive(Default)]
pub(crate) struct Chat(OnceLock<Arc<Desk>>);

impl Chat {
    pub(super) fn sit_down(&self, desk: &Arc<Desk>) {
        // There is one chat in a process.
        let _ = self.0.set(Arc::clone(desk));
    }
}

#[bub_macros::hooks(crate = bub_kernel)]
impl Chat {
    fn provide_channels(&self, message_handler: &MessageHandler) -> Vec<Arc<dyn Channel>> {
        let Some(desk) = self.0.get() else {
            return Vec::new();
        };
        *lock(&desk.handler) = Some(Arc::clone(message_handler));
        let taking = desk.itself.clone();
        let take_up = move |message: &mut Envelope| {
            if let Some(desk) = taking.upgrade() {
                desk.take_up(message);
            }
        };
        vec![Arc::new(Cli::new(
            desk.teller.clone(),
            desk.settings.redactor().clone(),
            Box::new(take_up),
        ))]
    }

    /// What waited while `,new` or `,resume` ran belongs to the session that it led to.
    async fn resolve_session(&self, message: &Envelope) -> Result<Option<String>> {
        let Some(desk) = self.0.get().filter(|_| LineId::of(message).is_some()) else {
            return Ok(None);
        };
        let now = desk.follow().await?;
        let is_other = message.session_id().as_deref() != Some(now.as_str())
            || lock(&desk.session).is_chosen();
        Ok(is_other.then_some(now))
    }

    async fn request_approval(
        &self,
        request: &ApprovalRequest,
        state: &State,
    ) -> Result<Option<ApprovalAnswer>> {
        let desk = self
            .0
            .get()
            .filter(|desk| desk.asks && request.sender == Sender::terminal());
        let (Some(desk), Some(approvals)) = (desk, state.slot::<Approvals>()) else {
            return Ok(None);
        };
        let answer = desk.teller.ask(request).await;
        approvals.answer(&request.id, &request.sender, answer.clone())?;
        Ok(Some(answer))
    }

    fn after_llm_call(&self, request: &LlmRequest, result: &LlmResult) {
        if let Some(desk) = self.0.get() {
            desk.count(&request.model, result);
        }
    }

    async fn load_state(&self, message: &Envelope) -> Option<StatePatch> {
        let desk = self.of(message)?;
        let (line, content) = (LineId::of(message), message.content().into_owned());
        desk.teller.tell(Happening::Began { line, content }).await;
        None
    }

    async fn save_state(&self, state: &State, message: &Envelope) {
        let Some(desk) = self.of(message) else { return };
        if state.get(NO_MODEL).is_some() {
            *lock(&desk.failure) = Some(Failure::NoModel);
        }
        // Also where it leads to what the tape has said before.
        if let Some(id) = state.get_str(SWITCH) {
            let mut session = lock(&desk.session).clone();
            session.go(&id);
            desk.go(session);
        }
        desk.teller.tell(Happening::Ended).await;
        desk.look_soon(message);
    }

    async fn on_error(&self, stage: &str, error: &Error, message: Option<&Envelope>) {
        let Some((desk, message)) = message.and_then(|message| Some((self.of(message)?, message)))
        else {
            return;
        };
        if error.kind() != ErrorKind::Cancelled {
            let is_usage = error.kind() == ErrorKind::Config;
            *lock(&desk.failure) = Some(Failure::Code(if is_usage { 2 } else { 1 }));
        }
        if stage == "turn" {
            desk.teller.tell(Happening::Ended).await;
            desk.look_soon(message);
        }
    }
}

impl Chat {
    /// The desk that a message of the chat went over.
    fn of(&self, message: &Envelope) -> Option<&Arc<Desk>> {
        let is_own = message.slot::<Delivery>().is_some()
            && message.channel().is_some_and(|name| name == NAME);
        self.0.get().filter(|_| is_own)
    }
}

/// The last turn that failed.
#[derive(Clone, Copy, Debug)]
enum Failure {
    NoModel,
    Code(u8),
}

/// What stands between the terminal and the gateway.
pub(super) struct Desk {
    framework: Framework,
    settings: Arc<Settings>,
    catalogue: Option<Catalogue>,
    teller: Teller,
    /// Whether the person can be asked here.
    asks: bool,
    session: Mutex<Session>,
    handler: Mutex<Option<MessageHandler>>,
    gateway: OnceLock<Remote>,
    failure: Mutex<Option<Failure>>,
    /// The number of the next line of an earlier chat.
    next_found: AtomicU64,
    spent: Mutex<Spent>,
    /// The session that was last told of.
    told: tokio::sync::Mutex<String>,
    itself: Weak<Self>,
}

/// What the model calls of this chat came to.
#[derive(Clone, Debug, Default)]
struct Spent {
    model: Option<String>,
    tokens: Option<u64>,
    cost: Option<f64>,
}

impl Desk {
    pub(super) fn new(
        framework: &Framework,
        settings: &Arc<Settings>,
        teller: Teller,
        asks: bool,
        session: Session,
    ) -> Arc<Self> {
        Arc::new_cyclic(|itself| Self {
            framework: framework.clone(),
            settings: Arc::clone(settings),
            catalogue: Catalogue::new(settings).ok(),
            teller,
            asks,
            session: Mutex::new(session),
            handler: Mutex::new(None),
            gateway: OnceLock::new(),
            failure: Mutex::new(None),
            next_found: AtomicU64::new(EARLIER),
            spent: Mutex::default(),
            told: tokio::sync::Mutex::default(),
            itself: itself.clone(),
        })
    }

    pub(super) fn hold(&self, gateway: Remote) {
        // There is one gateway in a chat.
        let _ = self.gateway.set(gateway);
    }

    /// The session in use.
    pub(super) fn session(&self) -> String {
        lock(&self.session).id.clone()
    }

    /// The name of the chat's journal: one for each chat of each workspace.
    pub(super) fn journal(&self) -> String {
        let session = lock(&self.session);
        let tape = bub_tape::TapeName::for_session(self.framework.workspace_text(), session.chat());
        let name: String = tape
            .as_str()
            .split("__")
            .flat_map(|half| half.chars().take(8))
            .collect();
        format!("chat-{name}")
    }

    pub(super) fn directory(&self) -> PathBuf {
        bub_gateway::directory(&self.settings, &self.journal())
    }

    pub(super) fn begin_another(&self) {
        let mut session = lock(&self.session);
        *session = session.another();
    }

    /// How the session is.
    pub(super) async fn status(&self) -> Status {
        let session = lock(&self.session).clone();
        let summary = match self.framework.tape_store() {
            Some(store) => store
                .summary(&session.tape(&self.framework))
                .await
                .unwrap_or_default(),
            None => bub_tape::Summary::default(),
        };
        let spent = lock(&self.spent).clone();
        let configured = || self.settings.get(&core::MODEL);
        let last = summary
            .usage
            .and_then(|usage| u64::try_from(usage.total_tokens).ok());
        Status {
            session: session.id,
            model: summary
                .model
                .or(spent.model)
                .or_else(configured)
                .unwrap_or_default(),
            entries: summary.entries,
            anchors: summary.anchors,
            last_tokens: spent.tokens.or(last),
            cost: spent.cost,
        }
    }

    /// What the pipe came to.
    pub(super) fn verdict(&self) -> Result<ExitCode> {
        match *lock(&self.failure) {
            None => Ok(ExitCode::SUCCESS),
            Some(Failure::Code(code)) => Ok(ExitCode::from(code)),
            Some(Failure::NoModel) => Err(super::no_model()),
        }
    }

    fn count(&self, model: &str, result: &LlmResult) {
        let mut spent = lock(&self.spent);
        spent.model = Some(model.to_owned());
        let Some(tokens) = result.usage.as_ref().and_then(Tokens::from_usage) else {
            return;
        };
        spent.tokens = Some(tokens.total());
        let price = |model: &str| self.catalogue.as_ref()?.price(&model.parse().ok()?);
        if let Some(price) = price(model) {
            *spent.cost.get_or_insert(0.0) += tokens.cost(price);
        }
    }

    fn message(&self, line: u64, text: String, ticket: &Arc<Ticket>) -> Envelope {
        let session = lock(&self.session).clone();
        let message = ChannelMessage::new(&session.id, NAME, text)
            .chat_id(&session.chat_id)
            .context("thread_id", session.id.clone())
            .active();
        let mut message = Envelope::from(message).with_sender(Sender::terminal());
        message.put_slot(Arc::new(LineId(line)));
        message.put_slot(Arc::clone(ticket));
        message
    }

    /// Goes where `,new` or `,resume` led, and says where that is.
    async fn follow(&self) -> Result<String> {
        let mut session = lock(&self.session).clone();
        session.follow(&self.framework).await?;
        let now = session.id.clone();
        self.go(session);
        Ok(now)
    }

    fn go(&self, session: Session) {
        let now = session.id.clone();
        let before = std::mem::replace(&mut *lock(&self.session), session);
        if now != before.id {
            // The money is that of the chat.
            let mut spent = lock(&self.spent);
            (spent.model, spent.tokens) = (None, None);
        }
    }

    /// Tells how the session is: which may be another one now.
    pub(super) async fn look(&self) {
        // One after the other: what is told last is what is so.
        let mut known = self.told.lock().await;
        if let Err(error) = self.follow().await {
            tracing::warn!("chat.session_unknown error={error}");
        }
        let status = self.status().await;
        let is_new = std::mem::replace(&mut *known, status.session.clone()) != status.session;
        self.teller.tell(Happening::Status(status)).await;
        if is_new && let Ok(mut all) = session::all(&self.framework).await {
            let chat = session::chat_of(&known);
            // The current one may have no tape yet.
            all.retain(|id| session::chat_of(id) == chat && *id != *known);
            all.insert(0, known.clone());
            self.teller.tell(Happening::Sessions(all)).await;
        }
    }

    /// The same, once a turn is on its tape that no line of this chat waits for.
    fn look_soon(&self, message: &Envelope) {
        if LineId::of(message).is_some() {
            return;
        }
        let desk = self.itself.clone();
        drop(tokio::spawn(async move {
            let Some(desk) = desk.upgrade() else { return };
            let session = lock(&desk.session).clone();
            if let Some(store) = desk.framework.tape_store() {
                let tape = Tape::new(store, session.tape(&desk.framework));
                drop(tape.lease(Wait::For(LOOK_LIMIT)).await);
            }
            desk.look().await;
        }));
    }

    /// A line of an earlier chat on this session is a line of this one, from now on.
    fn take_up(&self, message: &mut Envelope) {
        if message.session_id().as_deref() != Some(self.session().as_str()) {
            return;
        }
        let line = self.next_found.fetch_add(1, Ordering::Relaxed);
        let ticket = Arc::new(Ticket::new(None));
        message.put_slot(Arc::new(LineId(line)));
        message.put_slot(Arc::clone(&ticket));
        self.teller.tell_soon(Happening::Found {
            line,
            content: message.content().into_owned(),
        });
        self.watch(line, ticket);
    }

    /// Tells what becomes of a line.
    fn watch(&self, line: u64, ticket: Arc<Ticket>) {
        let desk = self.itself.clone();
        drop(tokio::spawn(async move {
            let outcome = ticket.settled().await;
            if let Some(desk) = desk.upgrade() {
                desk.settled(line, outcome).await;
            }
        }));
    }

    /// A line is settled.
    async fn settled(&self, line: u64, outcome: Outcome) {
        self.look().await;
        let (dropped, replies) = match outcome {
            Outcome::Dropped { reason } => (Some(reason), 0),
            Outcome::Done { replies } => (None, replies),
            Outcome::Joined { .. } => (None, 0),
        };
        self.teller
            .tell(Happening::Settled {
                line,
                dropped,
                replies,
            })
            .await;
    }
}

impl Host for Desk {
    fn submit(&self, line: u64, text: String) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let handler = lock(&self.handler).clone();
            let handler = handler.ok_or_else(|| Error::unknown("the chat is not running"))?;
            let ticket = Arc::new(Ticket::new(None));
            handler(self.message(line, text, &ticket)).await?;
            self.watch(line, ticket);
            Ok(())
        })
    }

    fn cancel(&self) -> BoxFuture<'_, ()> {
        if let Some(gateway) = self.gateway.get() {
            gateway.cancel(&self.session());
        }
        Box::pin(std::future::ready(()))
    }

    fn withdraw(&self) {
        if let Some(gateway) = self.gateway.get() {
            gateway.withdraw(&self.session(), WITHDRAWN);
        }
    }

    fn quit(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            if let Some(router) = self.framework.router() {
                let _ = router.quit(&self.session()).await;
            }
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
