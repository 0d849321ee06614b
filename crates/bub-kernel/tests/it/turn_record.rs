//! After any end of a turn, its record is complete and its session is free.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bub_kernel::{
    BoxFuture, CancellationToken, Error, ErrorKind, Framework, Inbound, InboundAttempt, Lifespan,
    LifespanScope, ModelStream, Plugin as _, Result, SessionId, Stage, StatePatch, StreamEvent,
    Turn, async_trait, hooks,
    hooks::{
        AsyncHook, HookCall, HookPoint, HookReturn, HookSet,
        point::{
            BuildPrompt, DispatchOutbound, LoadState, OnError, RenderOutbound, ResolveSession,
            RunModel, RunModelStream, SaveState,
        },
    },
};
use bub_tape::{Entry, EntryKind, LeaseWait, MemoryStore};
use futures_util::{FutureExt as _, StreamExt as _};
use serde_json::{Value, json};

use crate::support::{
    FakePlugin, FullStore, LateWrite, entries, framework, hi, none, some, store_plugin,
};

/// How a hook ends a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    Error,
    Panic,
    /// The turn is cancelled, and the hook returns.
    Cancel,
    /// The turn is cancelled, and the hook does not return.
    CancelAndHang,
    Timeout,
}

/// A hook that ends the turn.
#[derive(Clone)]
struct FailingHook {
    failure: Failure,
    cancel: CancellationToken,
}

impl FailingHook {
    async fn fail<T>(&self) -> HookReturn<T> {
        tokio::task::yield_now().await;
        match self.failure {
            Failure::Error => Err("boom".into()),
            Failure::Panic => panic!("boom"),
            Failure::Cancel => {
                self.cancel.cancel();
                tokio::task::yield_now().await;
                Ok(None)
            }
            Failure::CancelAndHang => {
                self.cancel.cancel();
                std::future::pending().await
            }
            Failure::Timeout => std::future::pending().await,
        }
    }
}

impl<P: HookPoint> AsyncHook<P> for FailingHook {
    fn call<'a>(&'a self, _call: HookCall<'a, P>) -> BoxFuture<'a, HookReturn<P::Output>> {
        Box::pin(self.fail())
    }
}

/// The point at which a turn fails: the stage, and the hook or other code that fails in it.
#[derive(Clone, Copy)]
struct FailurePoint {
    name: &'static str,
    stage: Stage,
    add: fn(&mut HookSet, FailingHook),
}

impl fmt::Debug for FailurePoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

fn hook<P: HookPoint>(stage: Stage) -> FailurePoint {
    FailurePoint {
        name: P::SPEC.name,
        stage,
        add: |hooks, failing| hooks.add_async::<P>(failing),
    }
}

/// Returns the failure point of a stream that fails after its first event.
fn stream() -> FailurePoint {
    fn answer(hooks: &mut HookSet, failing: FailingHook) {
        let plugin = FakePlugin::new().on::<RunModelStream>(move |_| {
            let failing = failing.clone();
            let first = futures_util::stream::iter([Ok(StreamEvent::Text("half".into()))]);
            let failure = async move { failing.fail::<()>().await }
                .map(|outcome| outcome.err().map(|error| Err(Error::from_boxed(error))));
            let failure = futures_util::stream::once(failure).filter_map(std::future::ready);
            Ok(Some(ModelStream::new(first.chain(failure))))
        });
        Arc::new(plugin).register(hooks);
    }
    FailurePoint {
        name: "a model stream",
        stage: Stage::RunModel,
        add: answer,
    }
}

fn failure_points() -> [FailurePoint; 9] {
    [
        hook::<ResolveSession>(Stage::ResolveSession),
        hook::<LoadState>(Stage::LoadState),
        hook::<BuildPrompt>(Stage::BuildPrompt),
        hook::<RunModel>(Stage::RunModel),
        hook::<RunModelStream>(Stage::RunModel),
        stream(),
        hook::<SaveState>(Stage::SaveState),
        hook::<RenderOutbound>(Stage::Render),
        hook::<DispatchOutbound>(Stage::Dispatch),
    ]
}

/// Counts calls that must happen once.
#[derive(Clone, Default)]
struct Counts(Arc<CountsInner>);

#[derive(Default)]
struct CountsInner {
    exits: AtomicUsize,
    saves: AtomicUsize,
    errors: AtomicUsize,
}

impl Counts {
    /// Returns the number of lifespan exits, `save_state` calls and `on_error` calls.
    fn all(&self) -> [usize; 3] {
        [&self.0.exits, &self.0.saves, &self.0.errors].map(|count| count.load(Ordering::Relaxed))
    }

    /// Returns a plugin with a model that answers and observers that count.
    fn plugin(&self) -> FakePlugin {
        let (saves, errors) = (self.clone(), self.clone());
        FakePlugin::new()
            .on::<RunModel>(|_| some("answer"))
            .on::<SaveState>(move |_| {
                saves.0.saves.fetch_add(1, Ordering::Relaxed);
                none()
            })
            .on::<OnError>(move |call| {
                assert_eq!(call.args.stage, "turn");
                let turn = call.args.turn.unwrap();
                assert_eq!(
                    turn.failure().unwrap().to_string(),
                    call.args.error.to_string()
                );
                errors.0.errors.fetch_add(1, Ordering::Relaxed);
                none()
            })
    }
}

#[async_trait]
impl LifespanScope for Counts {
    async fn enter(&mut self) -> Result<()> {
        Ok(())
    }

    async fn exit(&mut self, _error: Option<&Error>) -> Result<()> {
        self.0.exits.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

fn with_memory(plugins: impl IntoIterator<Item = FakePlugin>) -> Framework {
    let store = store_plugin(Arc::new(MemoryStore::new()));
    framework(std::iter::once(store).chain(plugins))
}

/// Returns a message whose session differs from the default session of its chat, `cli:room`.
fn message() -> Inbound {
    Inbound::from(hi().with("session_id", "own"))
}

fn field<'a>(entry: &'a Entry, name: &str) -> &'a str {
    entry
        .payload
        .get(name)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// Returns the messages of the `turn.start` events, which views omit.
fn start_events(entries: &[Entry]) -> Vec<&str> {
    let data = entries
        .iter()
        .filter(|entry| entry.name() == Some("turn.start"))
        .filter_map(Entry::data);
    data.filter_map(|data| data.get("content")?.as_str())
        .collect()
}

fn user_messages(entries: &[Entry]) -> Vec<&str> {
    let messages = entries
        .iter()
        .filter(|entry| entry.kind == EntryKind::Message && field(entry, "role") == "user");
    messages.map(|entry| field(entry, "content")).collect()
}

/// Returns the kinds of the error entries.
fn errors(entries: &[Entry]) -> Vec<&str> {
    let errors = entries
        .iter()
        .filter(|entry| entry.kind == EntryKind::Error);
    errors.map(|entry| field(entry, "kind")).collect()
}

fn events<'a>(entries: &'a [Entry], name: &str) -> Vec<&'a Entry> {
    let events = entries
        .iter()
        .filter(|entry| entry.kind == EntryKind::Event);
    events.filter(|entry| entry.name() == Some(name)).collect()
}

async fn is_free(framework: &Framework, session_id: &str) -> bool {
    let tape = framework
        .session_tape(&SessionId::from(session_id))
        .unwrap()
        .unwrap();
    tape.lease(LeaseWait::No).await.is_ok()
}

/// Returns the kind of the error that ends the turn.
fn expected_error(failure: Failure) -> ErrorKind {
    match failure {
        Failure::Error | Failure::Panic => ErrorKind::Unknown,
        Failure::Timeout => ErrorKind::Temporary,
        Failure::Cancel | Failure::CancelAndHang => ErrorKind::Cancelled,
    }
}

// Design 2, law 1; S-17, S-18, S-19, S-23
#[tokio::test(start_paused = true)]
async fn a_turn_is_closed_once_however_it_ends() {
    for point in failure_points() {
        for failure in [
            Failure::Error,
            Failure::Panic,
            Failure::Cancel,
            Failure::CancelAndHang,
            Failure::Timeout,
        ] {
            // A model has no time limit.
            if failure == Failure::Timeout && point.stage == Stage::RunModel {
                continue;
            }
            closes_once(point, failure).await;
        }
    }
}

async fn closes_once(point: FailurePoint, failure: Failure) {
    let case = format!("{failure:?} in {point:?}");
    let (counts, cancel) = (Counts::default(), CancellationToken::new());
    let failing = FailingHook {
        failure,
        cancel: cancel.clone(),
    };
    let failing = FakePlugin::new().register_with(move |hooks| (point.add)(hooks, failing.clone()));
    let framework = with_memory([counts.plugin(), failing]);
    let running = framework.open_scope().await.unwrap();
    let inbound = message()
        .with_cancel(cancel)
        .with_lifespan(Lifespan::new(counts.clone()));
    inbound.lifespan.as_ref().unwrap().enter().await.unwrap();

    let (turn, outcome) = framework.process_turn(inbound).await;

    let expected = expected_error(failure);
    assert_eq!(outcome.unwrap_err().kind(), expected, "{case}");
    assert_eq!(turn.failure().unwrap().kind(), expected, "{case}");
    assert_eq!(turn.report().error.unwrap().kind(), expected, "{case}");
    // `save_state` runs even if the model stage failed.
    let reached = match point.stage {
        Stage::RunModel => Stage::SaveState,
        stage => stage,
    };
    assert_eq!(turn.stage(), reached, "{case}");

    let session_id = match point.stage {
        Stage::ResolveSession => "cli:room",
        _ => "own",
    };
    assert_eq!(turn.session_id(), session_id, "{case}");
    let entries = entries(&framework, session_id).await;
    if point.stage == Stage::ResolveSession {
        // The sender may send the message again, and the model must not see it twice.
        assert_eq!(start_events(&entries), ["hi"], "{case}");
        assert!(user_messages(&entries).is_empty(), "{case}");
    } else {
        assert_eq!(user_messages(&entries), ["hi"], "{case}");
    }
    assert_eq!(errors(&entries), [expected.name()], "{case}");
    assert!(is_free(&framework, session_id).await, "{case}");

    let is_saved = point.stage >= Stage::RunModel;
    assert_eq!(counts.all(), [1, usize::from(is_saved), 1], "{case}");
    running.close().await.unwrap();
}

/// Waits until a dropped turn is recorded, and returns the entries.
async fn wait_for_record(framework: &Framework, session_id: &str) -> Vec<Entry> {
    for _ in 0..1000 {
        let entries = entries(framework, session_id).await;
        if !errors(&entries).is_empty() && is_free(framework, session_id).await {
            return entries;
        }
        tokio::task::yield_now().await;
    }
    panic!("the turn is not recorded");
}

#[tokio::test]
async fn a_turn_whose_future_is_dropped_is_recorded_as_cancelled() {
    // Before the session is resolved, the turn does not exist.
    for point in failure_points()
        .into_iter()
        .filter(|point| point.stage > Stage::ResolveSession)
    {
        let counts = Counts::default();
        let failing = FailingHook {
            failure: Failure::Timeout,
            cancel: CancellationToken::new(),
        };
        let hanging =
            FakePlugin::new().register_with(move |hooks| (point.add)(hooks, failing.clone()));
        let framework = with_memory([counts.plugin(), hanging]);
        let running = framework.open_scope().await.unwrap();
        {
            let mut turn = Box::pin(framework.process_inbound(message()));
            for _ in 0..100 {
                assert!(turn.as_mut().now_or_never().is_none(), "{point:?}");
            }
        }
        let entries = wait_for_record(&framework, "own").await;
        assert_eq!(user_messages(&entries), ["hi"], "{point:?}");
        assert_eq!(errors(&entries), ["cancelled"], "{point:?}");
        running.close().await.unwrap();
    }
}

// A tool that continues in the background may keep its turn, but not the session.
#[tokio::test]
async fn a_clone_of_a_dropped_turn_does_not_keep_its_session() {
    struct TurnKeepingPlugin(Arc<std::sync::Mutex<Option<Turn>>>);

    #[hooks(crate = bub_kernel)]
    impl TurnKeepingPlugin {
        async fn run_model(&self, turn: &Turn) -> String {
            *self.0.lock().unwrap() = Some(turn.clone());
            std::future::pending().await
        }
    }

    let kept = Arc::default();
    let framework = Framework::builder()
        .plugin("store", store_plugin(Arc::new(MemoryStore::new())))
        .plugin("keeping", TurnKeepingPlugin(Arc::clone(&kept)))
        .build();
    let running = framework.open_scope().await.unwrap();
    let turn = framework.process_inbound(message()).now_or_never();
    assert!(turn.is_none());
    assert_eq!(
        errors(&wait_for_record(&framework, "own").await),
        ["cancelled"],
        "recorded while the clone is kept"
    );
    let turn = kept.lock().unwrap().take().unwrap();
    assert_eq!(turn.failure().unwrap().kind(), ErrorKind::Cancelled);
    running.close().await.unwrap();
}

#[tokio::test]
async fn a_message_without_a_session_is_recorded_in_its_chat() {
    let counts = Counts::default();
    let framework = with_memory([counts.plugin()]);
    let running = framework.open_scope().await.unwrap();
    let turn = framework
        .reject_inbound(message(), &Error::config("no such session"))
        .await;
    assert_eq!(turn.session_id(), "cli:room");
    let entries = entries(&framework, "cli:room").await;
    assert_eq!(start_events(&entries), ["hi"]);
    assert!(user_messages(&entries).is_empty());
    assert_eq!(errors(&entries), ["config"]);
    assert_eq!(counts.all(), [0, 0, 1]);
    assert!(is_free(&framework, "cli:room").await);
    running.close().await.unwrap();
}

/// A plugin that checks the tape in `load_state`.
struct TapeReader(fn(&[Entry]));

#[hooks(crate = bub_kernel)]
impl TapeReader {
    async fn load_state(&self, turn: &Turn) -> Option<StatePatch> {
        let entries = entries(turn.framework(), turn.session_id()).await;
        assert!(
            !is_free(turn.framework(), turn.session_id()).await,
            "leased"
        );
        (self.0)(&entries);
        None
    }
}

fn attempt(is_durable: bool) -> InboundAttempt {
    InboundAttempt {
        message_id: "m1".into(),
        number: 1,
        is_durable,
    }
}

// L1: the message is on the tape or in a journal before any hook of the turn runs.
#[tokio::test]
async fn the_message_is_recorded_before_load_state_unless_a_journal_holds_it() {
    let cases = [
        (None, true),
        (Some(attempt(false)), true),
        (Some(attempt(true)), false),
    ];
    for (attempt, is_recorded) in cases {
        let check: fn(&[Entry]) = if is_recorded {
            |entries| {
                let start = events(entries, "turn.start");
                assert_eq!(start.len(), 1);
                assert_eq!(start[0].data().unwrap()["content"], "hi");
            }
        } else {
            |entries| assert!(events(entries, "turn.start").is_empty())
        };
        let framework = Framework::builder()
            .plugin("store", store_plugin(Arc::new(MemoryStore::new())))
            .plugin("model", Counts::default().plugin())
            .plugin("reader", TapeReader(check))
            .build();
        let running = framework.open_scope().await.unwrap();
        let mut inbound = message();
        inbound.attempt = attempt;
        let (turn, outcome) = framework.process_turn(inbound).await;
        outcome.unwrap();

        let entries = entries(&framework, "own").await;
        let starts = events(&entries, "turn.start");
        assert_eq!(starts.len(), usize::from(is_recorded));
        assert_eq!(user_messages(&entries), ["hi"]);

        let view = turn.tape().build_view("test:model", None).await.unwrap();
        let is_shown = starts.iter().any(|start| view.entries.contains(&start.id));
        assert!(!is_shown, "in no view");
        let messages = serde_json::to_value(&view.messages).unwrap();
        let user_messages = messages.as_array().unwrap().iter();
        let user_messages: Vec<_> = user_messages
            .filter(|message| message["content"] == "hi")
            .collect();
        assert_eq!(user_messages, [&json!({"role": "user", "content": "hi"})]);
        running.close().await.unwrap();
    }
}

// Commands are not recorded as messages, because the model never sees them.
#[tokio::test]
async fn a_command_that_cannot_run_is_recorded_as_an_event() {
    let counts = Counts::default();
    let failing = FakePlugin::new().on::<LoadState>(|_| Err("boom".into()));
    let framework = with_memory([counts.plugin(), failing]);
    let running = framework.open_scope().await.unwrap();
    let mut inbound = message();
    inbound.message.set("content", ",tape.info");
    framework.process_inbound(inbound).await.unwrap_err();
    let entries = entries(&framework, "own").await;
    let commands = events(&entries, "command");
    assert_eq!(commands.len(), 1);
    let data = commands[0].data().unwrap();
    assert_eq!(
        (&data["raw"], &data["status"], &data["output"]),
        (&json!("tape.info"), &json!("error"), &json!("boom"))
    );
    assert!(user_messages(&entries).is_empty());
    running.close().await.unwrap();
}

// If the tape cannot be written, the turn fails before any hook runs, and the session is free.
#[tokio::test]
async fn a_turn_that_cannot_be_recorded_runs_no_stage() {
    let counts = Counts::default();
    let reached = FakePlugin::new().on::<LoadState>(|_| panic!("reached"));
    let store = FullStore::without_space_for(EntryKind::Event);
    let framework = framework([store_plugin(store), counts.plugin(), reached]);
    let running = framework.open_scope().await.unwrap();
    let error = framework.process_inbound(message()).await.unwrap_err();
    assert!(error.message().contains("no space left"), "{error}");
    assert!(is_free(&framework, "own").await);
    assert_eq!(counts.all(), [0, 0, 1]);
    running.close().await.unwrap();
}

// L4: a session runs one turn at a time.
#[tokio::test]
async fn a_second_turn_of_a_session_waits_for_the_first() {
    let framework = with_memory([Counts::default().plugin()]);
    let running = framework.open_scope().await.unwrap();
    let tape = framework.session_tape(&"own".into()).unwrap().unwrap();
    let lease = tape.lease(LeaseWait::No).await.unwrap();
    let mut turn = Box::pin(framework.process_inbound(message()));
    assert!(turn.as_mut().now_or_never().is_none());
    drop(lease);
    turn.await.unwrap();
    assert_eq!(user_messages(&entries(&framework, "own").await), ["hi"]);
    running.close().await.unwrap();
}

// A cancelled message is recorded even if another turn holds the session's lease.
#[tokio::test]
async fn a_message_cancelled_while_it_waits_for_its_session_is_recorded() {
    let counts = Counts::default();
    let framework = with_memory([counts.plugin()]);
    let running = framework.open_scope().await.unwrap();
    let tape = framework.session_tape(&"own".into()).unwrap().unwrap();
    let lease = tape.lease(LeaseWait::No).await.unwrap();
    let cancel = CancellationToken::new();
    let turn = framework.process_inbound(message().with_cancel(cancel.clone()));
    let cancelling = async {
        tokio::task::yield_now().await;
        cancel.cancel();
    };
    let (outcome, ()) = tokio::join!(turn, cancelling);
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Cancelled);
    let entries = entries(&framework, "own").await;
    assert_eq!(start_events(&entries), ["hi"]);
    assert_eq!(errors(&entries), ["cancelled"]);
    assert_eq!(counts.all(), [0, 0, 1]);
    drop(lease);
    running.close().await.unwrap();
}

// L1: a turn that is cancelled while its prompt is written has the message once, whenever the write ends.
#[tokio::test]
async fn a_message_whose_turn_is_cancelled_while_it_is_written_is_recorded_once() {
    let late_write = Arc::new(LateWrite::default());
    let store = FullStore::writing_late(EntryKind::Message, &late_write);
    let counts = Counts::default();
    let framework = framework([store_plugin(store), counts.plugin()]);
    let running = framework.open_scope().await.unwrap();
    let cancel = CancellationToken::new();
    let turn = framework.process_inbound(message().with_cancel(cancel.clone()));
    let cancelling = async {
        late_write.reached.notified().await;
        cancel.cancel();
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        late_write.release.notify_one();
    };
    let (outcome, ()) = tokio::join!(turn, cancelling);
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Cancelled);
    let entries = entries(&framework, "own").await;
    assert_eq!(user_messages(&entries), ["hi"]);
    assert_eq!(errors(&entries), ["cancelled"]);
    running.close().await.unwrap();
}
