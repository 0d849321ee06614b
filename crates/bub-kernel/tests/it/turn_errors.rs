//! The effects of a failing stage.

use bub_kernel::{
    BoxError, BoxFuture, Envelope, Error, ErrorKind, Framework, FrameworkRef, Result, hooks,
    hooks::{
        AsyncHook, HOOK_TIMEOUT, HookCall, HookPoint, HookReturn, args,
        point::{
            BuildPrompt, DispatchOutbound, LoadState, OnError, RenderOutbound, ResolveSession,
            RunModel, RunModelStream,
        },
    },
};

use crate::support::{
    FakePlugin, LogCapture, Trace, fail, failing_turn, framework, hi, none, observer, some, turn,
};

fn failing_plugin<P: HookPoint>() -> (&'static str, FakePlugin) {
    (P::SPEC.name, FakePlugin::new().on::<P>(|_| fail("boom")))
}

// S-23
#[tokio::test]
async fn a_failing_stage_is_logged_told_to_on_error_as_turn_and_returned() {
    let stages = [
        failing_plugin::<ResolveSession>(),
        failing_plugin::<LoadState>(),
        failing_plugin::<BuildPrompt>(),
        failing_plugin::<RunModel>(),
        failing_plugin::<RunModelStream>(),
        failing_plugin::<RenderOutbound>(),
        failing_plugin::<DispatchOutbound>(),
    ];
    for (stage, plugin) in stages {
        let (trace, log) = (Trace::default(), LogCapture::start_with_spans());
        let answering = observer(&trace).on::<RunModel>(|_| some("out"));
        let error = failing_turn(&framework([answering, plugin])).await;
        assert_eq!(error.to_string(), "boom", "{stage}");
        assert_eq!(error.origin().unwrap().hook, stage);
        assert_eq!(&*error.origin().unwrap().plugin, "p1");
        assert_eq!(trace.lines(), ["on_error turn: boom"], "{stage}");
        let lines = log.lines();
        let [line] = lines.as_slice() else {
            panic!("{stage}: {lines:?}")
        };
        let (span, event) = line.split_once("}: ").unwrap();
        assert_eq!(event, "turn.failed error=boom");
        for field in [
            "ERROR turn{",
            "session_id=cli:room",
            "channel=\"cli\"",
            "run_id=",
        ] {
            assert_eq!(span.matches(field).count(), 1, "{stage}: {line}");
        }
    }
}

// S-23: the plugin's error is returned unchanged.
#[tokio::test]
async fn the_original_error_is_returned() {
    #[derive(Debug, thiserror::Error)]
    #[error("quota of {0}")]
    struct Quota(u32);
    let plugin = FakePlugin::new().on_async::<RunModel>(|_| Err(BoxError::from(Quota(5))));
    let error = failing_turn(&framework([plugin])).await;
    assert_eq!(error.downcast_ref::<Quota>().unwrap().0, 5);
    assert_eq!(error.to_string(), "quota of 5");

    let config_error = || Error::new(ErrorKind::Config, "no key").with_detail("env", "KEY");
    let plugin = FakePlugin::new().on::<RunModel>(move |_| Err(config_error().into()));
    let error = failing_turn(&framework([plugin])).await;
    assert_eq!(
        (error.kind(), error.message()),
        (ErrorKind::Config, "no key")
    );
    assert_eq!(error.details()["env"], "KEY");
}

// S-23
#[tokio::test]
async fn on_error_is_given_the_inbound_message_with_its_session() {
    let trace = Trace::default();
    let seen = trace.clone();
    let watcher = FakePlugin::new().on::<OnError>(move |call| {
        let message = call.args.message.unwrap();
        seen.note(format!(
            "{} {}",
            message.session_id().unwrap(),
            message.content()
        ));
        none()
    });
    failing_turn(&framework([
        watcher,
        FakePlugin::new().on::<LoadState>(|_| fail("boom")),
    ]))
    .await;
    assert_eq!(trace.lines(), ["cli:room hi"]);
}

// S-45
#[tokio::test]
async fn the_first_failure_of_a_broadcast_stops_it() {
    let plugins = [
        FakePlugin::new().on::<LoadState>(|_| panic!("not called")),
        FakePlugin::new().on::<LoadState>(|_| fail("boom")),
    ];
    assert_eq!(failing_turn(&framework(plugins)).await.to_string(), "boom");
}

#[tokio::test]
async fn a_failed_turn_leaves_the_framework_usable() {
    let plugin = FakePlugin::new().on::<RunModel>(|call| {
        if call.args.prompt.text() == "hi" {
            panic!("bad day")
        } else {
            some("fine")
        }
    });
    let framework = framework([plugin]);
    failing_turn(&framework).await;
    let good = framework
        .process_inbound(hi().with("content", "more"))
        .await;
    assert_eq!(good.unwrap().model_output, "fine");
}

// S-24: an observer can report a failure to the chat of the message. The builtin plugin does this.
#[tokio::test]
async fn an_observer_can_send_the_failure_through_dispatch_outbound() {
    struct ErrorReplyPlugin(FrameworkRef);
    #[hooks(crate = bub_kernel)]
    impl ErrorReplyPlugin {
        async fn on_error(
            &self,
            stage: &str,
            error: &Error,
            message: Option<&Envelope>,
        ) -> Result<()> {
            let (Some(framework), Some(message)) = (self.0.get(), message) else {
                return Ok(());
            };
            let reply =
                Envelope::from_text(format!("An error occurred at stage '{stage}': {error}"))
                    .with("kind", "error")
                    .with(
                        "chat_id",
                        message.chat_id().unwrap_or_default().into_owned(),
                    );
            let args = args::DispatchOutbound {
                message: &reply,
                turn: None,
            };
            framework
                .hooks()
                .call_all::<DispatchOutbound>(args)
                .await
                .map(|_| ())
        }
    }
    let trace = Trace::default();
    let sent = trace.clone();
    let sending = FakePlugin::new().on_async::<DispatchOutbound>(move |call| {
        let message = call.args.message;
        sent.note(format!(
            "{} {} {}",
            message.kind().name(),
            message.chat_id().unwrap(),
            message.content()
        ));
        some(true)
    });
    let framework = Framework::builder()
        .plugin_with("reporting", |context| {
            Ok::<_, Error>(ErrorReplyPlugin(context.framework.clone()))
        })
        .plugin("sending", sending)
        .plugin(
            "failing",
            FakePlugin::new().on::<RunModel>(|_| fail("boom")),
        )
        .build();
    failing_turn(&framework).await;
    assert_eq!(
        trace.lines(),
        ["error room An error occurred at stage 'turn': boom"]
    );
}

struct SlowHook<P>(std::time::Duration, std::marker::PhantomData<P>);

impl<P: HookPoint<Output = T>, T: From<String> + Send + 'static> AsyncHook<P> for SlowHook<P> {
    fn call<'a>(&'a self, _call: HookCall<'a, P>) -> BoxFuture<'a, HookReturn<T>> {
        Box::pin(async {
            tokio::time::sleep(self.0).await;
            Ok(Some("done".to_owned().into()))
        })
    }
}

fn slow_framework<P: HookPoint<Output = T>, T: From<String> + Send + 'static>(
    time: std::time::Duration,
) -> Framework {
    let plugin = FakePlugin::new()
        .register_with(move |hooks| hooks.add_async::<P>(SlowHook(time, std::marker::PhantomData)));
    framework([plugin])
}

// L8: a hook that takes too long fails, and the turn ends with a clear error.
#[tokio::test(start_paused = true)]
async fn a_hook_that_hangs_ends_the_turn_in_time() {
    let started = tokio::time::Instant::now();
    let error = failing_turn(&slow_framework::<BuildPrompt, _>(HOOK_TIMEOUT * 10)).await;
    assert_eq!(
        error.to_string(),
        "[temporary] plugin code timed out: no answer within 300 s; try again"
    );
    assert_eq!(error.origin().unwrap().hook, "build_prompt");
    assert!(started.elapsed() < HOOK_TIMEOUT * 2);
}

// A model has no time limit.
#[tokio::test(start_paused = true)]
async fn a_model_has_no_time_limit() {
    let result = turn(&slow_framework::<RunModel, _>(HOOK_TIMEOUT * 100))
        .await
        .unwrap();
    assert_eq!(result.model_output, "done");
}
