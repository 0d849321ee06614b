//! Cancelling a turn.

use bub_kernel::{
    ErrorKind, Inbound, ModelStream, StreamEvent, hooks,
    hooks::point::{BuildPrompt, RunModel, SaveState},
};
use futures_util::StreamExt;
use tokio_util::sync::CancellationToken;

use crate::support::{Fake, Trace, framework, hi, none, observer, some};

struct Endless(CancellationToken);

#[hooks(crate = bub_kernel)]
impl Endless {
    fn run_model_stream(&self) -> ModelStream {
        let cancel = self.0.clone();
        let words = futures_util::stream::repeat_with(move || {
            cancel.cancel();
            Ok(StreamEvent::Text("word ".into()))
        });
        ModelStream::new(words.take(2).chain(futures_util::stream::pending()))
    }
}

fn cancelled_by(token: &CancellationToken) -> Inbound {
    Inbound::from(hi()).with_cancel(token.clone())
}

fn saving(trace: &Trace) -> Fake {
    let trace = trace.clone();
    Fake::new().on::<SaveState>(move |call| {
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
        .plugin("saving", saving(&trace))
        .plugin("endless", Endless(token.clone()))
        .build();
    let error = framework
        .process_inbound(cancelled_by(&token))
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
    let model = Fake::new()
        .on::<RunModel>(|_| panic!("not called"))
        .on::<BuildPrompt>(|_| none());
    let set = framework([observer(&trace), saving(&trace), model]);
    let error = set.process_inbound(cancelled_by(&token)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    assert_eq!(
        trace.lines(),
        ["on_error turn: [cancelled] the turn was cancelled"]
    );
}

#[tokio::test]
async fn a_token_that_never_fires_changes_nothing() {
    let set = framework([Fake::new().on_async::<RunModel>(|_| some("done"))]);
    let result = set
        .process_inbound(cancelled_by(&CancellationToken::new()))
        .await
        .unwrap();
    assert_eq!(result.model_output, "done");
}

// L8: a stream that is always ready does not keep the turn from being cancelled.
#[tokio::test]
async fn a_stream_that_never_pauses_can_be_cancelled() {
    struct Busy(CancellationToken);

    #[hooks(crate = bub_kernel)]
    impl Busy {
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
        .plugin("busy", Busy(token.clone()))
        .build();
    let error = framework
        .process_inbound(cancelled_by(&token))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
}

// A turn can be cancelled in the stages before the model as well.
#[tokio::test]
async fn a_hook_before_the_model_stage_can_be_cancelled() {
    struct Stuck(CancellationToken);

    #[hooks(crate = bub_kernel)]
    impl Stuck {
        async fn build_prompt(&self) -> Option<bub_kernel::Prompt> {
            self.0.cancel();
            std::future::pending().await
        }
    }

    let token = CancellationToken::new();
    let framework = bub_kernel::Framework::builder()
        .plugin("stuck", Stuck(token.clone()))
        .build();
    let error = framework
        .process_inbound(cancelled_by(&token))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
}
