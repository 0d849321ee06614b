//! The lifespan of a message is entered once and exited once, on every path.

use bub_kernel::{
    ChannelMessage, Error, Inbound, Lifespan, LifespanScope, Result, Turn, async_trait, hooks,
    hooks::{
        HookPoint,
        point::{BuildPrompt, DispatchOutbound, OnError, RenderOutbound, RunModel, SaveState},
    },
};

use crate::support::{FakePlugin, LogCapture, Trace, fail, none, some};

/// A scope that records when it is entered and exited. It fails where its name ends in `?`.
struct FakeScope(Trace, &'static str);

#[async_trait]
impl LifespanScope for FakeScope {
    async fn enter(&mut self) -> Result<()> {
        self.0.note("enter");
        if self.1 == "enter?" {
            Err(Error::unknown("closed today"))
        } else {
            Ok(())
        }
    }

    async fn exit(&mut self, error: Option<&Error>) -> Result<()> {
        self.0
            .note(format!("exit {:?}", error.map(ToString::to_string)));
        match self.1 {
            "exit?" => Err(Error::unknown("door is stuck")),
            "exit!" => panic!("door fell"),
            _ => Ok(()),
        }
    }
}

impl Drop for FakeScope {
    fn drop(&mut self) {
        self.0.note("dropped");
    }
}

/// Enters the lifespan in `load_state`, as the builtin plugin does.
struct EnterPlugin;

#[hooks(crate = bub_kernel)]
impl EnterPlugin {
    async fn load_state(&self, turn: &Turn) -> Result<Option<bub_kernel::StatePatch>> {
        if let Some(lifespan) = &turn.inbound().lifespan {
            lifespan.enter().await?;
        }
        Ok(None)
    }
}

fn message(trace: &Trace, scope: &'static str) -> Inbound {
    let lifespan = Lifespan::new(FakeScope(trace.clone(), scope));
    Inbound::new(ChannelMessage::new("s", "cli", "hi")).with_lifespan(lifespan)
}

async fn run(trace: &Trace, scope: &'static str, plugin: FakePlugin) -> Result<()> {
    let framework = bub_kernel::Framework::builder()
        .plugin("entering", EnterPlugin)
        .plugin("other", plugin)
        .build();
    let message = message(trace, scope);
    framework.process_inbound(message).await.map(|_| ())
}

async fn run_traced(plugin: FakePlugin) -> Vec<String> {
    let trace = Trace::default();
    let _ = run(&trace, "", plugin).await;
    trace.lines()
}

fn failing_plugin<P: HookPoint>() -> FakePlugin {
    FakePlugin::new().on::<P>(|_| fail("boom"))
}

// S-19, S-29: the lifespan is closed on every path. In the Python version, it stayed open if the turn failed before the
// model stage.
#[tokio::test]
async fn what_was_entered_is_left_with_the_error_of_the_turn() {
    let closed = ["enter", "exit None", "dropped"];
    let failed = ["enter", r#"exit Some("boom")"#, "dropped"];
    assert_eq!(run_traced(FakePlugin::new()).await, closed);
    assert_eq!(run_traced(failing_plugin::<BuildPrompt>()).await, failed);
    assert_eq!(run_traced(failing_plugin::<RunModel>()).await, failed);
    assert_eq!(run_traced(failing_plugin::<SaveState>()).await, failed);
    assert_eq!(run_traced(failing_plugin::<RenderOutbound>()).await, failed);
    assert_eq!(
        run_traced(failing_plugin::<DispatchOutbound>()).await,
        failed
    );
    let panicking = FakePlugin::new().on_async::<RunModel>(|_| panic!("fell"));
    let fell = r#"exit Some("[unknown] plugin code panicked: fell; see the log")"#;
    assert_eq!(run_traced(panicking).await, ["enter", fell, "dropped"]);
}

// S-19, S-32
#[tokio::test]
async fn a_plugin_may_leave_it_in_save_state_and_it_is_left_once() {
    struct ExitPlugin;
    #[hooks(crate = bub_kernel)]
    impl ExitPlugin {
        async fn save_state(&self, turn: &Turn, error: Option<&Error>) -> Result<()> {
            let Some(lifespan) = &turn.inbound().lifespan else {
                return Ok(());
            };
            lifespan.exit(error).await
        }
    }
    let trace = Trace::default();
    let framework = bub_kernel::Framework::builder()
        .plugin("entering", EnterPlugin)
        .plugin("leaving", ExitPlugin)
        .build();
    let message = message(&trace, "");
    framework.process_inbound(message).await.unwrap();
    assert_eq!(trace.lines(), ["enter", "exit None", "dropped"]);
}

#[tokio::test]
async fn a_lifespan_nobody_entered_is_not_left() {
    let trace = Trace::default();
    let message = message(&trace, "");
    crate::support::framework([])
        .process_inbound(message)
        .await
        .unwrap();
    assert_eq!(trace.lines(), ["dropped"]);
}

#[tokio::test]
async fn one_that_cannot_be_entered_fails_the_turn_and_is_not_left() {
    let trace = Trace::default();
    let error = run(&trace, "enter?", FakePlugin::new()).await.unwrap_err();
    assert_eq!(error.message(), "closed today");
    assert_eq!(trace.lines(), ["enter", "dropped"]);
}

#[tokio::test]
async fn one_that_cannot_be_left_is_logged_and_changes_nothing_else() {
    for (scope, reason) in [
        ("exit?", "[unknown] door is stuck"),
        (
            "exit!",
            "[unknown] plugin code panicked: door fell; see the log",
        ),
    ] {
        let (trace, log) = (Trace::default(), LogCapture::start());
        run(
            &trace,
            scope,
            FakePlugin::new().on::<RunModel>(|_| some("fine")),
        )
        .await
        .unwrap();
        assert_eq!(
            log.lines(),
            [format!("ERROR lifespan.exit_failed error={reason}")]
        );

        let seen = trace.clone();
        let observing = failing_plugin::<RunModel>().on::<OnError>(move |_| {
            seen.note("on_error");
            none()
        });
        let error = run(&trace, scope, observing).await.unwrap_err();
        assert_eq!(error.message(), "boom");
        assert_eq!(
            trace
                .lines()
                .iter()
                .filter(|line| *line == "on_error")
                .count(),
            1
        );
    }
}

#[tokio::test]
async fn entering_and_leaving_twice_does_nothing_more() {
    let trace = Trace::default();
    let lifespan = Lifespan::new(FakeScope(trace.clone(), ""));
    lifespan.exit(None).await.unwrap();
    lifespan.enter().await.unwrap();
    lifespan.enter().await.unwrap();
    lifespan.exit(None).await.unwrap();
    lifespan.exit(None).await.unwrap();
    lifespan.enter().await.unwrap();
    assert_eq!(trace.lines(), ["enter", "exit None", "dropped"]);
}

// If the caller drops the turn, `exit` cannot be awaited, but the scope's `Drop` runs.
#[tokio::test]
async fn a_dropped_turn_drops_the_scope() {
    struct HangingPlugin;
    #[hooks(crate = bub_kernel)]
    impl HangingPlugin {
        async fn run_model(&self) -> String {
            std::future::pending().await
        }
    }
    let trace = Trace::default();
    let message = message(&trace, "");
    let framework = bub_kernel::Framework::builder()
        .plugin("entering", EnterPlugin)
        .plugin("stuck", HangingPlugin)
        .build();
    {
        let mut turn = Box::pin(framework.process_inbound(message));
        let polled = futures_util::future::poll_immediate(turn.as_mut()).await;
        assert!(polled.is_none(), "the model never answers");
    }
    assert_eq!(trace.lines(), ["enter", "dropped"]);
}
