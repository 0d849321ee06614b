//! Panics in plugin code: the program continues, and the panic becomes the error of the hook.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bub_kernel::{
    BoxError, BoxFuture, Channel, ChannelRouter, Envelope, Framework, Inbound, MessageId,
    ModelStream, Plugin, PluginState, Result, SessionId, StreamEvent, async_trait, hooks,
    hooks::{
        AsyncHook, HookCall, HookReturn, HookSet,
        point::{LoadState, RunModel, RunModelStream, SaveState},
    },
};
use futures_core::Stream;

use crate::support::{FakePlugin, LogCapture, Trace, failing_turn, framework, hi, none, turn};

/// Returns a plugin that records the error passed to `save_state`.
fn save_plugin(trace: &Trace) -> FakePlugin {
    let trace = trace.clone();
    FakePlugin::new().on::<SaveState>(move |call| {
        trace.note(call.args.error.map(ToString::to_string).unwrap_or_default());
        none()
    })
}

#[tokio::test]
async fn a_panic_in_a_sync_hook_is_its_error() {
    let error = failing_turn(&framework([
        FakePlugin::new().on::<LoadState>(|_| panic!("number {}", 7))
    ]))
    .await;
    assert_eq!(
        error.to_string(),
        "[unknown] plugin code panicked: number 7; see the log"
    );
    assert_eq!(error.origin().unwrap().hook, "load_state");
    assert_eq!(&*error.origin().unwrap().plugin, "p0");
}

#[tokio::test]
async fn a_panic_after_an_await_is_the_error_of_the_hook() {
    let trace = Trace::default();
    let panicking = FakePlugin::new().on_async::<RunModel>(|_| panic!("in the middle"));
    let error = failing_turn(&framework([save_plugin(&trace), panicking])).await;
    assert_eq!(
        error.to_string(),
        "[unknown] plugin code panicked: in the middle; see the log"
    );
    assert_eq!(trace.lines(), [error.to_string()]);
}

#[tokio::test]
async fn a_panic_before_the_future_exists_is_the_error_of_the_hook() {
    struct PanickingHook;
    impl AsyncHook<RunModel> for PanickingHook {
        fn call<'a>(&'a self, _call: HookCall<'a, RunModel>) -> BoxFuture<'a, HookReturn<String>> {
            panic!("no future")
        }
    }
    let plugin =
        FakePlugin::new().register_with(|hooks| hooks.add_async::<RunModel>(PanickingHook));
    assert_eq!(
        failing_turn(&framework([plugin])).await.message(),
        "plugin code panicked: no future; see the log"
    );
}

#[tokio::test]
async fn a_panic_without_text_is_an_error_too() {
    let plugin = FakePlugin::new().on::<LoadState>(|_| std::panic::panic_any(7_u8));
    assert_eq!(
        failing_turn(&framework([plugin])).await.message(),
        "plugin code panicked: no message; see the log"
    );
}

/// A stream that yields one event and then panics. It must not be polled after that.
struct PanickingStream(u8);

impl Stream for PanickingStream {
    type Item = Result<StreamEvent>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0 += 1;
        match self.0 {
            1 => Poll::Ready(Some(Ok(StreamEvent::Text("partial".into())))),
            2 => panic!("stream tore"),
            _ => panic!("polled again"),
        }
    }
}

#[tokio::test]
async fn a_panic_inside_a_stream_fails_the_turn_and_it_is_saved() {
    let trace = Trace::default();
    let streaming =
        FakePlugin::new().on::<RunModelStream>(|_| Ok(Some(ModelStream::new(PanickingStream(0)))));
    let error = failing_turn(&framework([save_plugin(&trace), streaming])).await;
    assert_eq!(
        error.to_string(),
        "[unknown] plugin code panicked: stream tore; see the log"
    );
    assert_eq!(trace.lines(), [error.to_string()]);
}

#[tokio::test]
async fn a_stream_that_panicked_is_over() {
    use futures_util::StreamExt;
    let mut stream = ModelStream::new(PanickingStream(0));
    assert!(stream.next().await.unwrap().is_ok());
    assert!(stream.next().await.unwrap().is_err());
    assert!(stream.next().await.is_none());
    assert_eq!(
        stream.error().unwrap().message(),
        "plugin code panicked: stream tore; see the log"
    );
}

#[tokio::test]
async fn a_panic_in_what_wraps_the_stream_fails_the_turn() {
    struct PanickingRouter;
    #[async_trait]
    impl ChannelRouter for PanickingRouter {
        fn channel(&self, _name: &str) -> Option<Arc<dyn Channel>> {
            panic!("lost the list")
        }

        async fn quit_session(&self, _: &SessionId, _: Option<&MessageId>) -> Result<()> {
            Ok(())
        }
    }
    let trace = Trace::default();
    let framework = framework([save_plugin(&trace).on::<RunModel>(|_| Ok(Some("x".into())))]);
    framework.bind_router(Some(Arc::new(PanickingRouter)));
    let error = framework
        .process_inbound(Inbound::from(hi()).with_streaming())
        .await
        .unwrap_err();
    assert_eq!(
        error.message(),
        "plugin code panicked: lost the list; see the log"
    );
    assert_eq!(trace.lines(), [error.to_string()]);
}

#[tokio::test]
async fn a_panic_while_a_plugin_is_made_or_registered_leaves_it_out() {
    struct HalfRegisteredPlugin;
    impl Plugin for HalfRegisteredPlugin {
        fn register(self: Arc<Self>, hooks: &mut HookSet) {
            hooks.add_async::<RunModel>(UnusedHook);
            panic!("half way")
        }
    }
    struct UnusedHook;
    impl AsyncHook<RunModel> for UnusedHook {
        fn call<'a>(&'a self, _call: HookCall<'a, RunModel>) -> BoxFuture<'a, HookReturn<String>> {
            Box::pin(async { Ok(Some("from a plugin that is not there".into())) })
        }
    }
    let log = LogCapture::start();
    let framework = Framework::builder()
        .plugin_with("made", |_| -> Result<FakePlugin, BoxError> {
            panic!("no such file")
        })
        .plugin("registered", HalfRegisteredPlugin)
        .plugin("good", FakePlugin::new())
        .build();
    let states: Vec<_> = framework
        .plugins()
        .iter()
        .map(|status| status.state.clone())
        .collect();
    let failed = |text: &str| {
        PluginState::Failed(format!(
            "[unknown] plugin code panicked: {text}; see the log"
        ))
    };
    assert_eq!(
        states,
        [
            failed("no such file"),
            failed("half way"),
            PluginState::Active
        ]
    );
    assert_eq!(
        log.lines(),
        [
            "WARN plugin.init_failed plugin=made error=[unknown] plugin code panicked: no such file; see the log",
            "WARN plugin.init_failed plugin=registered error=[unknown] plugin code panicked: half way; see the log",
        ]
    );
    assert_eq!(turn(&framework).await.unwrap().model_output, "hi");
}

// A hook that panics while it holds the state's lock must not poison the state for other hooks.
#[tokio::test]
async fn a_panic_inside_the_state_leaves_it_usable() {
    struct PanickingPlugin;
    #[hooks(crate = bub_kernel)]
    impl PanickingPlugin {
        fn build_prompt(&self, state: &bub_kernel::State) -> Option<String> {
            let looked = std::panic::AssertUnwindSafe(|| {
                state.with_value("_runtime_workspace", |_| -> bool { panic!("rude") })
            });
            std::panic::catch_unwind(looked).unwrap_err();
            state.set("still", "fine");
            None
        }
    }
    let framework = Framework::builder().plugin("rude", PanickingPlugin).build();
    assert_eq!(
        turn(&framework)
            .await
            .unwrap()
            .state
            .get_str("still")
            .unwrap(),
        "fine"
    );
}

#[tokio::test]
async fn many_panics_in_a_row_do_no_harm() {
    let framework = framework([FakePlugin::new().on_async::<RunModel>(|call| {
        match call.args.session_id.len() % 2 {
            0 => panic!("even"),
            _ => Ok(Some("odd".into())),
        }
    })]);
    for number in 0..200 {
        let id = "s".repeat(number + 1);
        let message = Envelope::from_text("x").with("session_id", id);
        let result = framework.process_inbound(message).await;
        assert_eq!(result.is_ok(), number % 2 == 0);
    }
}

#[tokio::test]
async fn a_panic_in_a_blocking_tool_is_an_error_with_its_message() {
    let error = bub_kernel::tool::run_blocking::<u8>(|| panic!("no such disk"))
        .await
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "[tool] tool panicked: no such disk; see the log"
    );
}
