//! Cancelling a turn.

use bub_kernel::{
    ErrorKind, Inbound, ModelStream, StreamEvent, hooks,
    hooks::point::{BuildPrompt, RunModel, SaveState},
};
use futures_util::StreamExt;
use tokio_util::sync::CancellationToken;

use crate::support::{FakePlugin, Trace, framework, hi, none, observer, some};

struct EndlessPlugin(CancellationToken);

#[hooks(crate = bub_kernel)]
impl EndlessPlugin {
    fn run_model_stream(&self) -> ModelStream {
        let cancel = self.0.clone();
        let deltas = futures_util::stream::repeat_with(move || {
            cancel.cancel();
            Ok(StreamEvent::Text("word ".into()))
        });
        ModelStream::new(deltas.take(2).chain(futures_util::stream::pending()))
    }
}

fn inbound_with_token(token: &CancellationToken) -> Inbound {
    Inbound::from(hi()).with_cancel(token.clone())
}

fn save_plugin(trace: &Trace) -> FakePlugin {
    let trace = trace.clone();
    FakePlugin::new().on::<SaveState>(move |call| {
        trace.note(format!(
            "save {:?} {}",
            call.args.model_output,
            call.args.error.unwrap()
        ));
        none()
    })
}

#[tokio::test]
async fn a_cancelled_model_stage_ends_the_turn_and_is_saved() {
    let (trace, token) = (Trace::default(), CancellationToken::new());
    let framework = bub_kernel::Framework::builder()
        .plugin("saving", save_plugin(&trace))
        .plugin("endless", EndlessPlugin(token.clone()))
        .build();
    let error = framework
        .process_inbound(inbound_with_token(&token))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    assert_eq!(
        trace.lines(),
        [r#"save "" [cancelled] the turn was cancelled"#]
    );
}

#[tokio::test]
async fn a_turn_cancelled_before_it_starts_calls_no_model() {
    let (trace, token) = (Trace::default(), CancellationToken::new());
    token.cancel();
    let model = FakePlugin::new()
        .on::<RunModel>(|_| panic!("not called"))
        .on::<BuildPrompt>(|_| none());
    let set = framework([observer(&trace), save_plugin(&trace), model]);
    let error = set
        .process_inbound(inbound_with_token(&token))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    assert_eq!(
        trace.lines(),
        ["on_error turn: [cancelled] the turn was cancelled"]
    );
}

#[tokio::test]
async fn a_token_that_never_fires_changes_nothing() {
    let set = framework([FakePlugin::new().on_async::<RunModel>(|_| some("done"))]);
    let result = set
        .process_inbound(inbound_with_token(&CancellationToken::new()))
        .await
        .unwrap();
    assert_eq!(result.model_output, "done");
}

// L8: a stream that is always ready does not prevent cancellation.
#[tokio::test]
async fn a_stream_that_never_pauses_can_be_cancelled() {
    struct BusyStreamPlugin(CancellationToken);

    #[hooks(crate = bub_kernel)]
    impl BusyStreamPlugin {
        fn run_model_stream(&self) -> ModelStream {
            let token = self.0.clone();
            let mut count = 0;
            ModelStream::new(futures_util::stream::repeat_with(move || {
                count += 1;
                if count == 10 {
                    token.cancel();
                }
                Ok(StreamEvent::Reasoning("hm".into()))
            }))
        }
    }

    let token = CancellationToken::new();
    let framework = bub_kernel::Framework::builder()
        .plugin("busy", BusyStreamPlugin(token.clone()))
        .build();
    let error = framework
        .process_inbound(inbound_with_token(&token))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
}

// A turn can also be cancelled before the model stage.
#[tokio::test]
async fn a_hook_before_the_model_stage_can_be_cancelled() {
    struct HangingPlugin(CancellationToken);

    #[hooks(crate = bub_kernel)]
    impl HangingPlugin {
        async fn build_prompt(&self) -> Option<bub_kernel::Prompt> {
            self.0.cancel();
            std::future::pending().await
        }
    }

    let token = CancellationToken::new();
    let framework = bub_kernel::Framework::builder()
        .plugin("stuck", HangingPlugin(token.clone()))
        .build();
    let error = framework
        .process_inbound(inbound_with_token(&token))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
}
