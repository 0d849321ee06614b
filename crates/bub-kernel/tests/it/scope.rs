//! The running scope.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use bub_kernel::{
    BoxFuture, Error, ExecutionEnvironment, Framework, OutputSink, Provided, Result, ScopeGuard,
    async_trait,
    hooks::point::{ProvideEnvironment, ProvideSteeringInbox, ProvideTapeStore},
};
use bub_tape::{MemoryStore, TapeStore};

use crate::{
    admission_and_steering::FakeInbox,
    support::{FakePlugin, LogCapture, Trace, detached, fail, framework, hi, none},
};

/// A guard that records when it is closed. Its name determines whether it fails or panics.
struct FakeGuard(&'static str, Trace);

impl ScopeGuard for FakeGuard {
    fn close(self: Box<Self>) -> BoxFuture<'static, Result<()>> {
        Box::pin(async move {
            tokio::task::yield_now().await;
            self.1.note(format!("close {}", self.0));
            match self.0 {
                "failing" => Err(Error::unknown("would not close")),
                "panicking" => panic!("fell"),
                _ => Ok(()),
            }
        })
    }
}

fn store_plugin(guard: &'static str, trace: &Trace) -> FakePlugin {
    let trace = trace.clone();
    FakePlugin::new().on::<ProvideTapeStore>(move |_| {
        trace.note("open store");
        let store: Arc<dyn TapeStore> = Arc::new(MemoryStore::new());
        Ok(Some(Provided::with_guard(
            store,
            FakeGuard(guard, trace.clone()),
        )))
    })
}

fn inbox_plugin(guard: &'static str, trace: &Trace) -> FakePlugin {
    let trace = trace.clone();
    FakePlugin::new().on::<ProvideSteeringInbox>(move |_| {
        trace.note("open inbox");
        Ok(Some(Provided::with_guard(
            FakeInbox::shared(1),
            FakeGuard(guard, trace.clone()),
        )))
    })
}

fn is_open(framework: &Framework) -> (bool, bool) {
    (
        framework.tape_store().is_some(),
        framework.steering_inbox().is_some(),
    )
}

// S-53
#[tokio::test]
async fn the_store_is_resolved_once_for_a_scope_and_gone_after_it() {
    let trace = Trace::default();
    let framework = framework([store_plugin("store", &trace), inbox_plugin("inbox", &trace)]);
    assert_eq!(is_open(&framework), (false, false));
    let running = framework.open_scope().await.unwrap();
    let store = framework.tape_store().unwrap();
    for _ in 0..3 {
        crate::support::turn(&framework).await.unwrap();
        assert!(Arc::ptr_eq(&store, &framework.tape_store().unwrap()));
    }
    assert_eq!(trace.lines(), ["open store", "open inbox"]);
    running.close().await.unwrap();
    assert_eq!(is_open(&framework), (false, false));
    assert_eq!(trace.lines()[2..], ["close inbox", "close store"]);
}

// S-53, S-42
#[tokio::test]
async fn the_store_of_the_latest_plugin_with_one_is_used() {
    let trace = Trace::default();
    let plugins = [
        FakePlugin::new().on::<ProvideTapeStore>(|_| panic!("not asked")),
        store_plugin("store", &trace),
        FakePlugin::new().on::<ProvideTapeStore>(|_| none()),
    ];
    framework(plugins)
        .open_scope()
        .await
        .unwrap()
        .close()
        .await
        .unwrap();
    assert_eq!(trace.lines(), ["open store", "close store"]);
}

// S-5: inside the scope, every turn can use the inbox. It is part of the turn and not of the state.
#[tokio::test]
async fn a_turn_takes_its_steering_messages_from_the_inbox_of_the_scope() {
    let framework = framework([inbox_plugin("inbox", &Trace::default())]);
    let outside = detached(&framework);
    let running = framework.open_scope().await.unwrap();
    let inside = detached(&framework);
    assert!(!inside.has_steering_messages());
    let session_id = inside.session_id();
    assert!(
        framework
            .steer_message(session_id, hi().into())
            .await
            .unwrap()
    );
    assert!(inside.has_steering_messages() && !outside.has_steering_messages());
    let (messages, commands) = inside.take_steering_messages().await.unwrap();
    assert_eq!((messages.len(), commands.len()), (1, 0));
    assert_eq!(messages[0].prompt.text(), "hi");
    assert!(!inside.has_steering_messages());
    running.close().await.unwrap();
}

#[tokio::test]
async fn without_providers_the_scope_is_empty() {
    let framework = framework([]);
    let running = framework.open_scope().await.unwrap();
    assert_eq!(is_open(&framework), (false, false));
    running.close().await.unwrap();
}

#[tokio::test]
async fn what_was_opened_is_closed_when_the_rest_cannot_be_opened() {
    let trace = Trace::default();
    let failing = FakePlugin::new().on::<ProvideSteeringInbox>(|_| fail("no inbox"));
    let framework = framework([store_plugin("store", &trace), failing]);
    let error = framework.open_scope().await.unwrap_err();
    assert_eq!(error.to_string(), "no inbox");
    assert_eq!(trace.lines(), ["open store", "close store"]);
    assert_eq!(is_open(&framework), (false, false));
}

#[tokio::test]
async fn a_guard_that_fails_or_panics_does_not_keep_the_others_open() {
    for (guard, message) in [
        ("failing", "would not close"),
        ("panicking", "plugin code panicked: fell; see the log"),
    ] {
        let trace = Trace::default();
        let framework = framework([store_plugin("store", &trace), inbox_plugin(guard, &trace)]);
        let error = framework
            .open_scope()
            .await
            .unwrap()
            .close()
            .await
            .unwrap_err();
        assert_eq!(error.message(), message);
        assert_eq!(
            trace.lines()[2..],
            [format!("close {guard}"), "close store".to_owned()]
        );
    }
}

#[tokio::test]
async fn the_first_failure_of_closing_is_returned_and_the_others_logged() {
    let (trace, log) = (Trace::default(), LogCapture::start());
    let framework = framework([
        store_plugin("failing", &trace),
        inbox_plugin("panicking", &trace),
    ]);
    let error = framework
        .open_scope()
        .await
        .unwrap()
        .close()
        .await
        .unwrap_err();
    assert_eq!(error.message(), "plugin code panicked: fell; see the log");
    assert_eq!(
        log.lines(),
        ["ERROR scope.close_failed error=[unknown] would not close"]
    );
}

#[tokio::test]
async fn run_scoped_closes_whatever_the_work_came_to() {
    let trace = Trace::default();
    let set = framework([store_plugin("store", &trace)]);
    assert!(
        set.run_scoped(async { Ok(set.tape_store().is_some()) })
            .await
            .unwrap()
    );
    let failed: Result<()> = set
        .run_scoped(async { Err(Error::unknown("work failed")) })
        .await;
    assert_eq!(failed.unwrap_err().message(), "work failed");
    assert_eq!(
        trace.lines(),
        ["open store", "close store", "open store", "close store"]
    );

    let set = framework([store_plugin("failing", &trace)]);
    let failed: Result<()> = set
        .run_scoped(async { Err(Error::unknown("work failed")) })
        .await;
    assert_eq!(
        failed.unwrap_err().message(),
        "work failed",
        "closing does not hide it"
    );
    assert_eq!(
        set.run_scoped(async { Ok(()) })
            .await
            .unwrap_err()
            .message(),
        "would not close"
    );
}

#[tokio::test]
async fn a_scope_that_is_dropped_is_out_of_use_and_says_what_was_left_open() {
    let (trace, log) = (Trace::default(), LogCapture::start());
    let framework = framework([store_plugin("store", &trace)]);
    drop(framework.open_scope().await.unwrap());
    assert_eq!(is_open(&framework), (false, false));
    assert_eq!(trace.lines(), ["open store"]);
    assert_eq!(log.lines(), ["WARN scope.dropped_unclosed guards=1"]);
}

#[tokio::test]
async fn an_inner_scope_gives_way_to_the_outer_one_again() {
    let trace = Trace::default();
    let framework = framework([store_plugin("store", &trace)]);
    let outer = framework.open_scope().await.unwrap();
    let of_outer = framework.tape_store().unwrap();
    let inner = framework.open_scope().await.unwrap();
    assert!(!Arc::ptr_eq(&of_outer, &framework.tape_store().unwrap()));
    inner.close().await.unwrap();
    assert!(Arc::ptr_eq(&of_outer, &framework.tape_store().unwrap()));
    outer.close().await.unwrap();
    assert!(framework.tape_store().is_none());
}

#[tokio::test]
async fn closing_the_outer_scope_first_leaves_the_inner_one_in_use() {
    let framework = framework([store_plugin("store", &Trace::default())]);
    let outer = framework.open_scope().await.unwrap();
    let inner = framework.open_scope().await.unwrap();
    let of_inner = framework.tape_store().unwrap();
    outer.close().await.unwrap();
    assert!(Arc::ptr_eq(&of_inner, &framework.tape_store().unwrap()));
    inner.close().await.unwrap();
    assert!(framework.tape_store().is_none());
}

/// An environment that records when it is closed. It is gone when the flag is set.
#[derive(Debug)]
struct FakeEnvironment(String, Trace, Arc<AtomicBool>);

#[async_trait]
impl ExecutionEnvironment for FakeEnvironment {
    fn workspace(&self) -> Option<&str> {
        Some(&self.0)
    }

    async fn run(&self, _: &str, _: Option<&str>, _: &OutputSink<'_>) -> Result<i32> {
        Ok(0)
    }

    async fn read_text(&self, _: &str) -> Result<String> {
        Ok(String::new())
    }

    async fn write_text(&self, _: &str, _: &str) -> Result<()> {
        Ok(())
    }

    fn is_open(&self) -> bool {
        !self.2.load(Ordering::Relaxed)
    }

    async fn close(&self) -> Result<()> {
        self.1.note(format!("close {}", self.0));
        Err(Error::unknown("would not close"))
    }
}

fn environment_plugin(trace: &Trace, is_gone: &Arc<AtomicBool>) -> FakePlugin {
    let (trace, is_gone) = (trace.clone(), Arc::clone(is_gone));
    FakePlugin::new().on::<ProvideEnvironment>(move |call| {
        let session = call.args.session_id.to_string();
        trace.note(format!("open {session}"));
        if session == "lab:failing" {
            return Err(Error::unknown("no container").into());
        }
        let environment = || FakeEnvironment(session.clone(), trace.clone(), Arc::clone(&is_gone));
        Ok((session != "lab:local").then(|| Arc::new(environment()) as _))
    })
}

// P-94: the environment of a session is asked for once, again if it is gone, and closed with the scope. A failure fails
// the turn: nothing may run on this machine by mistake.
#[tokio::test]
async fn a_session_has_one_environment_until_the_scope_ends() {
    let (trace, is_gone) = (Trace::default(), Arc::default());
    let framework = framework([environment_plugin(&trace, &is_gone)]);
    let scope = framework.open_scope().await.unwrap();
    for (session, expected) in [
        ("lab:a", Some("lab:a")),
        ("lab:a", Some("lab:a")),
        ("lab:local", None),
        ("lab:local", None),
        ("lab:b", Some("lab:b")),
    ] {
        let message = hi().with("session_id", session);
        let (turn, result) = framework.process_turn(message).await;
        result.unwrap();
        let environment = turn.environment();
        let workspace = environment.and_then(|environment| environment.workspace());
        assert_eq!(workspace, expected);
    }
    let failing = hi().with("session_id", "lab:failing");
    let error = framework.process_inbound(failing).await.unwrap_err();
    assert_eq!(error.message(), "no container");
    is_gone.store(true, Ordering::Relaxed);
    let again = hi().with("session_id", "lab:a");
    framework.process_inbound(again).await.unwrap();
    scope.close().await.unwrap();
    let mut notes = trace.lines();
    let (opened, closed) = notes.split_at_mut(5);
    assert_eq!(
        opened,
        [
            "open lab:a",
            "open lab:local",
            "open lab:b",
            "open lab:failing",
            "open lab:a"
        ]
    );
    closed.sort();
    assert_eq!(closed, ["close lab:a", "close lab:b"]);
}
