//! The lane of a session: its messages become turns one after the other.
//!
//! A lane is a task that exists only while its session has something to do. It decides about every message that
//! arrives (admission), collects quick ones (debounce), runs turns, and settles each message exactly once.

pub(crate) use self::debounce::merge;
mod debounce;
pub(crate) mod turn;
mod waiting;

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bub_kernel::{Admission, CancellationToken, Decision, Envelope, Role, Sender, TurnSnapshot};
use futures_util::FutureExt as _;
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc, oneshot},
    task::{Id, JoinError, JoinSet},
    time::Instant,
};

use self::{debounce::Debounce, turn::Ended};
use crate::{
    gateway::Core,
    journal::{Record, lock},
    ticket::{Outcome, Ticket},
};

/// A channel has so long to decide about a message.
const ADMISSION_LIMIT: Duration = Duration::from_secs(30);
/// So long cancelled turns have to end.
const QUIT_LIMIT: Duration = Duration::from_secs(10);

/// The lanes that exist.
#[derive(Debug, Default)]
pub(crate) struct Lanes(Mutex<HashMap<String, Handle>>);

#[derive(Debug)]
struct Handle {
    events: mpsc::UnboundedSender<Event>,
    load: Arc<Load>,
}

/// How busy a lane is, for others to see.
#[derive(Debug, Default)]
pub(crate) struct Load {
    pub(crate) unfinished: AtomicUsize,
    /// Turns that have begun; others wait for room.
    pub(crate) running: AtomicUsize,
}

#[derive(Debug)]
enum Event {
    // In a box, because the queue of a lane has room for many events from the start.
    Message(Box<Item>),
    Quit {
        except: Option<String>,
        done: oneshot::Sender<()>,
    },
    /// Cancels what runs, and only that.
    Cancel,
    /// Drops the last of what has not begun, for this reason.
    Withdraw(String),
}

/// A message in a lane, with the room it takes.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) id: String,
    /// Empty while its turn runs: the turn has it.
    pub(crate) envelope: Envelope,
    pub(crate) ticket: Option<Arc<Ticket>>,
    /// How often a turn for it began.
    pub(crate) attempt: u32,
    pub(crate) is_recovered: bool,
    /// It waited for a turn already, of another session: nobody decides about it again.
    pub(crate) has_waited: bool,
    /// What was merged into it, oldest first.
    pub(crate) merged: Vec<Item>,
    /// What its turn was given in an earlier process, until it begins.
    pub(crate) steered: Vec<Item>,
    pub(crate) permit: Option<OwnedSemaphorePermit>,
    pub(crate) seat: Option<Seat>,
}

/// A place in the queue of a session.
#[derive(Debug)]
pub(crate) struct Seat(Arc<Load>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.unfinished.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A turn that has begun, with the room it takes; control has room always.
struct Begun {
    load: Arc<Load>,
    _room: Option<OwnedSemaphorePermit>,
}

impl Begun {
    fn new(load: &Arc<Load>, room: Option<OwnedSemaphorePermit>) -> Self {
        load.running.fetch_add(1, Ordering::Relaxed);
        Self {
            load: Arc::clone(load),
            _room: room,
        }
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        self.load.running.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Item {
    pub(crate) fn new(id: String, envelope: Envelope) -> Self {
        let ticket = envelope.slot::<Ticket>();
        Self {
            id,
            envelope,
            ticket,
            attempt: 0,
            is_recovered: false,
            has_waited: false,
            merged: Vec::new(),
            steered: Vec::new(),
            permit: None,
            seat: None,
        }
    }

    fn is_command(&self) -> bool {
        self.envelope.content().trim_start().starts_with(',')
    }

    fn ids(&self) -> Vec<String> {
        let others = self.merged.iter().chain(&self.steered).flat_map(Self::ids);
        others.chain([self.id.clone()]).collect()
    }

    /// Tells whoever waits what became of it.
    fn settle(self, outcome: Outcome) {
        for item in self.merged.into_iter().chain(self.steered) {
            let joined = match &outcome {
                Outcome::Done { .. } => Outcome::Joined {
                    inbound_id: self.id.clone(),
                },
                other => other.clone(),
            };
            item.settle(joined);
        }
        if let Some(ticket) = self.ticket {
            ticket.settle(outcome);
        }
    }
}

impl Lanes {
    /// How many messages of a session are unfinished.
    pub(crate) fn unfinished(&self, session: &str) -> usize {
        let load = lock(&self.0)
            .get(session)
            .map(|lane| Arc::clone(&lane.load));
        load.map_or(0, |load| load.unfinished.load(Ordering::Relaxed))
    }

    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }

    /// The sessions that are busy: id, unfinished messages, running turns.
    pub(crate) fn loads(&self) -> Vec<(String, usize, usize)> {
        let lanes = lock(&self.0);
        let load = |(session, lane): (&String, &Handle)| {
            let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
            (
                session.clone(),
                count(&lane.load.unfinished),
                count(&lane.load.running),
            )
        };
        lanes.iter().map(load).collect()
    }

    /// Puts a message into the lane of its session, which is made if need be.
    pub(crate) fn push(core: &Arc<Core>, session: &str, mut item: Item) {
        let mut lanes = lock(&core.lanes.0);
        let lane = match lanes.get(session) {
            Some(lane) if !lane.events.is_closed() => lane,
            _ => {
                let (events, received) = mpsc::unbounded_channel();
                let load = Arc::<Load>::default();
                tokio::spawn(Lane::new(core, session, received, Arc::clone(&load)).run());
                lanes
                    .entry(session.to_owned())
                    .insert_entry(Handle { events, load })
                    .into_mut()
            }
        };
        lane.load.unfinished.fetch_add(1, Ordering::Relaxed);
        item.seat = Some(Seat(Arc::clone(&lane.load)));
        // The lane cannot retire while its map is locked.
        let _ = lane.events.send(Event::Message(Box::new(item)));
    }

    /// Cancels what runs in a session.
    pub(crate) fn cancel(&self, session: &str) {
        if let Some(lane) = lock(&self.0).get(session) {
            let _ = lane.events.send(Event::Cancel);
        }
    }

    /// Drops the last of what waits in a session.
    pub(crate) fn withdraw(&self, session: &str, reason: &str) {
        if let Some(lane) = lock(&self.0).get(session) {
            let _ = lane.events.send(Event::Withdraw(reason.to_owned()));
        }
    }

    /// Ends what runs and waits in a session, except one turn.
    pub(crate) async fn quit(&self, session: &str, except: Option<String>) {
        let (done, ended) = oneshot::channel();
        if let Some(lane) = lock(&self.0).get(session) {
            let _ = lane.events.send(Event::Quit { except, done });
        } else {
            return;
        }
        // An error means that the lane is gone: so is what ran in it.
        let _ = ended.await;
    }
}

struct Lane {
    core: Arc<Core>,
    session: String,
    events: mpsc::UnboundedReceiver<Event>,
    load: Arc<Load>,
    debounce: Debounce,
    pending: VecDeque<Item>,
    /// In the steering inbox, or taken from it by the running turn.
    steered: Vec<Item>,
    turns: JoinSet<Ended>,
    running: HashMap<Id, Running>,
    /// Whether a turn has ended here.
    has_run: bool,
    quit: Option<Quit>,
}

/// A turn that runs, seen from its lane.
struct Running {
    item: Item,
    sender: Arc<Sender>,
    cancel: CancellationToken,
    is_quit: bool,
}

struct Quit {
    except: Option<String>,
    deadline: Instant,
    waiting: Vec<oneshot::Sender<()>>,
}

impl Lane {
    fn new(
        core: &Arc<Core>,
        session: &str,
        events: mpsc::UnboundedReceiver<Event>,
        load: Arc<Load>,
    ) -> Self {
        Self {
            core: Arc::clone(core),
            session: session.to_owned(),
            events,
            load,
            debounce: Debounce::default(),
            pending: VecDeque::new(),
            steered: Vec::new(),
            turns: JoinSet::new(),
            running: HashMap::new(),
            has_run: false,
            quit: None,
        }
    }

    async fn run(mut self) {
        let (halt, drain) = (self.core.halt.clone(), self.core.drain.clone());
        loop {
            if self.running.is_empty() && !self.pending.is_empty() {
                Box::pin(self.start_next()).await;
            }
            if self.retire() {
                return;
            }
            let wake = self.wake_at(drain.is_cancelled());
            tokio::select! {
                biased;
                () = halt.cancelled() => return Box::pin(self.halted()).await,
                Some(ended) = self.turns.join_next_with_id(), if !self.turns.is_empty() => Box::pin(self.ended(ended)).await,
                Some(event) = self.events.recv() => Box::pin(self.handle(event)).await,
                () = sleep_until(wake) => Box::pin(self.on_time()).await,
                () = drain.cancelled(), if !drain.is_cancelled() => {}
            }
        }
    }

    /// Starts what waits first. A turn may have led its chat to another session: what waited for it goes there.
    async fn start_next(&mut self) {
        while let Some(mut item) = self.pending.pop_front() {
            let resolved = if self.has_run {
                self.core
                    .framework
                    .resolve_session(&item.envelope)
                    .await
                    .ok()
            } else {
                None
            };
            match resolved.filter(|session| *session != self.session) {
                Some(session) => {
                    item.has_waited = true;
                    Lanes::push(&self.core, &session, item);
                }
                None => return self.start(item).await,
            }
        }
    }

    /// Leaves the map when there is nothing to do, and so nothing to remember.
    fn retire(&mut self) -> bool {
        let is_busy =
            !self.running.is_empty() || self.quit.is_some() || self.debounce.is_needed(&self.core);
        if is_busy {
            return false;
        }
        let mut lanes = lock(&self.core.lanes.0);
        if !self.events.is_empty() {
            return false;
        }
        lanes.remove(&self.session);
        true
    }

    fn wake_at(&self, is_draining: bool) -> Option<Instant> {
        let debounce = if is_draining {
            self.debounce.is_holding().then(Instant::now)
        } else {
            self.debounce.wake_at(&self.core)
        };
        let quit = self.quit.as_ref().map(|quit| quit.deadline);
        [debounce, quit].into_iter().flatten().min()
    }

    async fn on_time(&mut self) {
        if self
            .quit
            .as_ref()
            .is_some_and(|quit| quit.deadline <= Instant::now())
        {
            tracing::error!("lane.quit_forced session={}", self.session);
            self.turns.abort_all();
        }
        if (self.debounce.is_due() || self.core.drain.is_cancelled())
            && let Some(item) = self.debounce.flush()
        {
            self.admit(item).await;
        }
    }

    async fn handle(&mut self, event: Event) {
        match event {
            Event::Message(item) => {
                let item = *item;
                if is_quit(&item.envelope) {
                    self.quit(None).await;
                    // It has its own turn, which also ends what is not a turn.
                    self.pending.push_back(item);
                } else if let Some(item) = self.hold(item) {
                    self.admit(item).await;
                }
            }
            Event::Cancel => {
                for turn in self.running.values_mut() {
                    turn.is_quit = true;
                    turn.cancel.cancel();
                }
            }
            Event::Withdraw(reason) => {
                if let Some(item) = self.last_waiting().await {
                    self.drop_item(item, &reason);
                }
            }
            Event::Quit { except, done } => {
                self.quit(except).await;
                match &mut self.quit {
                    Some(quit) => quit.waiting.push(done),
                    None => drop(done),
                }
            }
        }
    }

    /// Lets the debounce have a message that it wants; `None` when it was kept or dropped.
    fn hold(&mut self, item: Item) -> Option<Item> {
        let channel = item
            .envelope
            .channel()
            .and_then(|name| self.core.channel(&name));
        let wants = channel.is_some_and(|channel| channel.needs_debounce());
        if !wants
            || item.has_waited
            || item.is_command()
            || item.attempt > 0
            || !item.merged.is_empty()
        {
            return Some(item);
        }
        if let Some(item) = self.debounce.take(item, &self.core) {
            self.drop_item(item, "bub was not addressed");
        }
        None
    }

    async fn admit(&mut self, mut item: Item) {
        if item.has_waited {
            return self.pending.push_back(item);
        }
        let snapshot = TurnSnapshot {
            session_id: self.session.clone(),
            is_running: !self.running.is_empty(),
            running_count: self.running.len(),
            pending_count: self.pending.len(),
            steering_count: self.steered.len(),
        };
        let admission = self.decide(&item.envelope, &snapshot).await;
        let reason = admission
            .as_ref()
            .and_then(|admission| admission.reason.clone());
        match admission.map(|admission| admission.decision) {
            Some(Decision::Drop) => {
                self.drop_item(item, reason.as_deref().unwrap_or("it was not admitted"));
            }
            Some(Decision::Process) => self.start(item).await,
            Some(Decision::Steer) if self.can_steer(&item) => {
                if let Some(reason) = reason {
                    note_reason(&mut item.envelope, reason);
                }
                if let Some(refused) = self.steer(item).await {
                    self.pending.push_back(refused);
                }
            }
            _ => self.pending.push_back(item),
        }
    }

    async fn decide(&self, message: &Envelope, snapshot: &TurnSnapshot) -> Option<Admission> {
        let decided = self
            .core
            .framework
            .admit_message(&self.session, message, snapshot)
            .await;
        if decided.is_some() {
            return decided;
        }
        let channel = message
            .channel()
            .and_then(|name| self.core.channel(&name))?;
        let asking =
            std::panic::AssertUnwindSafe(async { channel.admit_message(message, snapshot).await });
        let failed = match tokio::time::timeout(ADMISSION_LIMIT, asking.catch_unwind()).await {
            Ok(Ok(Ok(decided))) => return decided,
            Ok(Ok(Err(error))) => error,
            Ok(Err(_)) => bub_kernel::Error::unknown("the channel panicked"),
            Err(_) => bub_kernel::Error::unknown("the channel took too long"),
        };
        // Whoever cannot decide lets everybody in; the lane keeps the order all the same.
        self.core
            .framework
            .hooks()
            .notify_error("admit_message", &failed, Some(message))
            .await;
        None
    }

    /// Only what the same person says may reach a turn that runs with that person's rights, and nothing that may be on
    /// the tape already.
    fn can_steer(&self, item: &Item) -> bool {
        let by = item.envelope.sender();
        let is_same = |turn: &Running| {
            (&by.channel, &by.id, by.role)
                == (&turn.sender.channel, &turn.sender.id, turn.sender.role)
        };
        let is_known = !by.id.is_empty() || by.role == Role::Guest;
        let is_new = item.attempt == 0 && !item.is_command();
        is_known && is_new && !self.running.is_empty() && self.running.values().all(is_same)
    }

    /// Cancels what runs and drops what waits, except one turn.
    async fn quit(&mut self, except: Option<String>) {
        let steered = std::mem::take(&mut self.steered);
        if let Some(inbox) = self
            .core
            .framework
            .steering_inbox()
            .filter(|_| !steered.is_empty())
        {
            let _ = inbox.drain(&self.session).await;
        }
        let waiting: Vec<_> = self
            .pending
            .drain(..)
            .chain(self.debounce.flush())
            .chain(steered)
            .collect();
        for item in waiting {
            self.drop_item(item, "the session was quit");
        }
        for turn in self
            .running
            .values_mut()
            .filter(|turn| Some(&turn.item.id) != except.as_ref())
        {
            turn.is_quit = true;
            turn.cancel.cancel();
        }
        if self.running.values().any(|turn| turn.is_quit) {
            let deadline = Instant::now() + QUIT_LIMIT;
            self.quit.get_or_insert(Quit {
                except,
                deadline,
                waiting: Vec::new(),
            });
        }
    }

    fn drop_item(&self, item: Item, reason: &str) {
        tracing::info!(
            "lane.dropped session={} id={} reason={reason}",
            self.session,
            item.id
        );
        self.core.journal.post(Record::Dropped {
            ids: item.ids(),
            reason: reason.to_owned(),
        });
        item.settle(Outcome::Dropped {
            reason: reason.to_owned(),
        });
    }

    async fn start(&mut self, mut item: Item) {
        item.attempt += 1;
        self.steer_again(&mut item).await;
        let cancel = self.core.halt.child_token();
        let sender = item.envelope.sender();
        let turn = turn::Turn {
            core: Arc::clone(&self.core),
            session: self.session.clone(),
            id: item.id.clone(),
            message: std::mem::take(&mut item.envelope),
            attempt: item.attempt,
            with: item.merged.iter().map(|item| item.id.clone()).collect(),
            cancel: cancel.clone(),
            load: Arc::clone(&self.load),
        };
        let task = self.turns.spawn(turn.run());
        self.running.insert(
            task.id(),
            Running {
                item,
                sender,
                cancel,
                is_quit: false,
            },
        );
    }

    async fn ended(&mut self, ended: Result<(Id, Ended), JoinError>) {
        let (id, ended) = match ended {
            Ok((id, ended)) => (id, ended),
            Err(error) => {
                if error.is_panic() {
                    tracing::error!("lane.turn_panicked session={}", self.session);
                }
                (
                    error.id(),
                    Ended {
                        is_cancelled: error.is_cancelled(),
                        is_left: error.is_panic(),
                        replies: 0,
                    },
                )
            }
        };
        let Some(turn) = self.running.remove(&id) else {
            return;
        };
        self.has_run = true;
        if ended.is_cancelled && self.core.halt.is_cancelled() {
            return turn::interrupted(&self.core, &turn.item);
        }
        let into = turn.item.id.clone();
        let mut done = turn.item.ids();
        if ended.is_left {
            tracing::error!(
                "lane.left session={} id={into}: it is tried again at the next start",
                self.session
            );
        } else if turn.is_quit && ended.is_cancelled {
            self.drop_item(turn.item, "the session was quit");
            done.clear();
        } else {
            turn.item.settle(Outcome::Done {
                replies: ended.replies,
            });
        }
        if self.running.is_empty() {
            for item in self.taken().await {
                done.extend(item.ids());
                if !ended.is_left {
                    item.settle(Outcome::Joined {
                        inbound_id: into.clone(),
                    });
                }
            }
        }
        if !done.is_empty() && !ended.is_left {
            self.core.journal.post(Record::Done { ids: done });
        }
        let is_over = self.quit.as_ref().is_some_and(|quit| {
            self.running
                .values()
                .all(|turn| Some(&turn.item.id) == quit.except.as_ref() || !turn.is_quit)
        });
        if is_over && let Some(quit) = self.quit.take() {
            for waiting in quit.waiting {
                let _ = waiting.send(());
            }
        }
    }

    /// The gateway stops now: turns end as they can; everything else is in the journal.
    async fn halted(mut self) {
        let ending = async {
            while let Some(ended) = self.turns.join_next_with_id().await {
                self.ended(ended).await;
            }
        };
        let _ = tokio::time::timeout(Duration::from_secs(2), ending).await;
        lock(&self.core.lanes.0).remove(&self.session);
    }
}

async fn sleep_until(when: Option<Instant>) {
    match when {
        Some(when) => tokio::time::sleep_until(when).await,
        None => std::future::pending().await,
    }
}

/// A person who may command wants everything of the session to stop.
pub(crate) fn is_quit(message: &Envelope) -> bool {
    message.content().trim() == ",quit" && message.sender().role > Role::Guest
}

fn note_reason(message: &mut Envelope, reason: String) {
    let mut context = message
        .field("context")
        .and_then(|context| context.as_object().cloned())
        .unwrap_or_default();
    context.insert("steering_reason".to_owned(), reason.into());
    message.set("context", context);
}
