//! Saving: always after the model stage, never before it.

use bub_kernel::{
    BoxError,
    hooks::point::{BuildPrompt, LoadState, RenderOutbound, ResolveSession, RunModel, SaveState},
};
use bub_tape::EntryKind;

use crate::support::{
    Fake, FullStore, Log, Trace, fail, failing_turn, framework, none, observer, some, storing, turn,
};

/// Notes what it is asked to save.
fn saving(trace: &Trace) -> Fake {
    let trace = trace.clone();
    Fake::new().on::<SaveState>(move |call| {
        let error = call.args.error.map(ToString::to_string);
        trace.note(format!("save {:?} {error:?}", call.args.model_output));
        none()
    })
}

// S-17
#[tokio::test]
async fn a_good_turn_is_saved_with_its_output() {
    let trace = Trace::default();
    turn(&framework([saving(&trace).on::<RunModel>(|_| some("out"))]))
        .await
        .unwrap();
    assert_eq!(trace.lines(), [r#"save "out" None"#]);
}

// S-17, S-19: with empty output, and with the error that the original passed as exception info.
#[tokio::test]
async fn a_failed_model_stage_is_saved_with_empty_output_and_the_error() {
    let trace = Trace::default();
    let plugins = [
        saving(&trace),
        saving(&trace),
        Fake::new().on::<RunModel>(|_| fail("no model")),
    ];
    assert_eq!(
        failing_turn(&framework(plugins)).await.to_string(),
        "no model"
    );
    let line = r#"save "" Some("no model")"#;
    assert_eq!(trace.lines(), [line, line]);
}

// S-18
#[tokio::test]
async fn nothing_is_saved_when_the_turn_failed_before_the_model_stage() {
    let failing = [
        Fake::new().on::<ResolveSession>(|_| fail("early")),
        Fake::new().on::<LoadState>(|_| fail("early")),
        Fake::new().on::<BuildPrompt>(|_| fail("early")),
    ];
    for plugin in failing {
        let trace = Trace::default();
        assert_eq!(
            failing_turn(&framework([saving(&trace), plugin]))
                .await
                .to_string(),
            "early"
        );
        assert!(trace.lines().is_empty());
    }
}

// S-17: one failing implementation does not stop the others. The original stopped there.
#[tokio::test]
async fn one_that_cannot_save_does_not_stop_the_others() {
    let (trace, log) = (Trace::default(), Log::capture());
    let plugins = [
        saving(&trace),
        Fake::new().on::<SaveState>(|_| fail("second")),
        Fake::new().on_async::<SaveState>(|_| panic!("first")),
        observer(&trace).on::<RunModel>(|_| some("out")),
    ];
    let error = failing_turn(&framework(plugins)).await;
    assert_eq!(error.message(), "plugin code panicked: first");
    assert_eq!(
        trace.lines(),
        [
            r#"save "out" None"#,
            "on_error turn: [unknown] plugin code panicked: first"
        ]
    );
    assert_eq!(
        log.lines()[..2],
        [
            "ERROR save_state.failed adapter=p2 error=[unknown] plugin code panicked: first",
            "ERROR save_state.failed adapter=p1 error=second",
        ]
    );
}

// S-17: a failing save does not hide why the turn failed. In the original it replaced that error.
#[tokio::test]
async fn a_failing_save_does_not_hide_the_error_of_the_model() {
    let plugins = [
        Fake::new().on::<SaveState>(|_| fail("disk is full")),
        Fake::new().on::<RunModel>(|_| fail("no model")),
    ];
    assert_eq!(
        failing_turn(&framework(plugins)).await.to_string(),
        "no model"
    );
}

// S-17: nothing is rendered that could not be saved.
#[tokio::test]
async fn a_failing_save_ends_the_turn_before_rendering() {
    let plugin = Fake::new()
        .on::<SaveState>(|_| fail("disk is full"))
        .on::<RenderOutbound>(|_| -> Result<_, BoxError> { panic!("not reached") });
    let error = failing_turn(&framework([plugin])).await;
    assert_eq!(error.to_string(), "disk is full");
    assert_eq!(error.origin().unwrap().hook, "save_state");
}

// S-17: the state that is saved is the one the model stage left.
#[tokio::test]
async fn saving_sees_what_the_model_stage_put_into_the_state() {
    let trace = Trace::default();
    let saved = trace.clone();
    let plugin = Fake::new()
        .on_async::<RunModel>(|call| {
            call.args.state.set("usage", 7);
            some("out")
        })
        .on::<SaveState>(move |call| {
            saved.note(call.args.state.get("usage").unwrap().to_string());
            none()
        });
    turn(&framework([plugin])).await.unwrap();
    assert_eq!(trace.lines(), ["7"]);
}

// What there was of an answer is not lost with it.
#[tokio::test]
async fn save_state_is_given_what_there_is_of_a_broken_answer() {
    struct Breaking(Trace);

    #[bub_kernel::hooks(crate = bub_kernel)]
    impl Breaking {
        fn run_model_stream(&self) -> bub_kernel::ModelStream {
            let events = [
                Ok(bub_kernel::StreamEvent::Text("half an ".into())),
                Err(bub_kernel::Error::unknown("cut")),
            ];
            bub_kernel::ModelStream::new(futures_util::stream::iter(events))
        }

        fn save_state(&self, model_output: &str, partial_output: &str) {
            self.0.note(format!("{model_output:?} {partial_output:?}"));
        }
    }

    let trace = Trace::default();
    let framework = bub_kernel::Framework::builder()
        .plugin("breaking", Breaking(trace.clone()))
        .build();
    crate::support::failing_turn(&framework).await;
    assert_eq!(trace.lines(), ["\"\" \"half an \""]);
}

// L1: the prompt is recorded before the model stage, whichever plugin runs it. If that fails, the model is not called.
#[tokio::test]
async fn no_model_is_called_with_a_prompt_that_cannot_be_recorded() {
    let model = Fake::new().on::<RunModel>(|_| panic!("called"));
    let store = FullStore::without_space_for(EntryKind::Message);
    let framework = framework([storing(store), model]);
    let running = framework.running().await.unwrap();
    let error = failing_turn(&framework).await;
    assert!(error.message().starts_with("no space left"), "{error}");
    running.close().await.unwrap();
}
