//! `save_state` runs after the model stage and never before it.

use bub_kernel::{
    BoxError,
    hooks::point::{BuildPrompt, LoadState, RenderOutbound, ResolveSession, RunModel, SaveState},
};
use bub_tape::EntryKind;

use crate::support::{
    FakePlugin, FullStore, LogCapture, Trace, fail, failing_turn, framework, none, observer, some,
    store_plugin, turn,
};

/// Returns a plugin that records the arguments of `save_state`.
fn save_plugin(trace: &Trace) -> FakePlugin {
    let trace = trace.clone();
    FakePlugin::new().on::<SaveState>(move |call| {
        let error = call.args.error.map(ToString::to_string);
        trace.note(format!("save {:?} {error:?}", call.args.model_output));
        none()
    })
}

// S-17
#[tokio::test]
async fn a_good_turn_is_saved_with_its_output() {
    let trace = Trace::default();
    turn(&framework([
        save_plugin(&trace).on::<RunModel>(|_| some("out"))
    ]))
    .await
    .unwrap();
    assert_eq!(trace.lines(), [r#"save "out" None"#]);
}

// S-17, S-19: the output is empty, and the error is passed. The Python version passed it as exception info.
#[tokio::test]
async fn a_failed_model_stage_is_saved_with_empty_output_and_the_error() {
    let trace = Trace::default();
    let plugins = [
        save_plugin(&trace),
        save_plugin(&trace),
        FakePlugin::new().on::<RunModel>(|_| fail("no model")),
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
        FakePlugin::new().on::<ResolveSession>(|_| fail("early")),
        FakePlugin::new().on::<LoadState>(|_| fail("early")),
        FakePlugin::new().on::<BuildPrompt>(|_| fail("early")),
    ];
    for plugin in failing {
        let trace = Trace::default();
        assert_eq!(
            failing_turn(&framework([save_plugin(&trace), plugin]))
                .await
                .to_string(),
            "early"
        );
        assert!(trace.lines().is_empty());
    }
}

// S-17: one failing implementation does not stop the others. In the Python version, it did.
#[tokio::test]
async fn one_that_cannot_save_does_not_stop_the_others() {
    let (trace, log) = (Trace::default(), LogCapture::start());
    let plugins = [
        save_plugin(&trace),
        FakePlugin::new().on::<SaveState>(|_| fail("second")),
        FakePlugin::new().on_async::<SaveState>(|_| panic!("first")),
        observer(&trace).on::<RunModel>(|_| some("out")),
    ];
    let error = failing_turn(&framework(plugins)).await;
    assert_eq!(error.message(), "plugin code panicked: first; see the log");
    assert_eq!(
        trace.lines(),
        [
            r#"save "out" None"#,
            "on_error turn: [unknown] plugin code panicked: first; see the log"
        ]
    );
    assert_eq!(
        log.lines()[..2],
        [
            "ERROR save_state.failed adapter=p2 error=[unknown] plugin code panicked: first; see the log",
            "ERROR save_state.failed adapter=p1 error=second",
        ]
    );
}

// S-17: a failing `save_state` does not hide the error of the turn. In the Python version, it replaced that error.
#[tokio::test]
async fn a_failing_save_does_not_hide_the_error_of_the_model() {
    let plugins = [
        FakePlugin::new().on::<SaveState>(|_| fail("disk is full")),
        FakePlugin::new().on::<RunModel>(|_| fail("no model")),
    ];
    assert_eq!(
        failing_turn(&framework(plugins)).await.to_string(),
        "no model"
    );
}

// S-17: if `save_state` fails, nothing is rendered.
#[tokio::test]
async fn a_failing_save_ends_the_turn_before_rendering() {
    let plugin = FakePlugin::new()
        .on::<SaveState>(|_| fail("disk is full"))
        .on::<RenderOutbound>(|_| -> Result<_, BoxError> { panic!("not reached") });
    let error = failing_turn(&framework([plugin])).await;
    assert_eq!(error.to_string(), "disk is full");
    assert_eq!(error.origin().unwrap().hook, "save_state");
}

// S-17: `save_state` sees the changes that the model stage made to the state.
#[tokio::test]
async fn saving_sees_what_the_model_stage_put_into_the_state() {
    let trace = Trace::default();
    let saved = trace.clone();
    let plugin = FakePlugin::new()
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

// A partial answer is not lost.
#[tokio::test]
async fn save_state_is_given_what_there_is_of_a_broken_answer() {
    struct FailingStreamPlugin(Trace);

    #[bub_kernel::hooks(crate = bub_kernel)]
    impl FailingStreamPlugin {
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
        .plugin("breaking", FailingStreamPlugin(trace.clone()))
        .build();
    crate::support::failing_turn(&framework).await;
    assert_eq!(trace.lines(), ["\"\" \"half an \""]);
}

// L1: the prompt is recorded before the model stage, whichever plugin runs it. If that fails, the model is not called.
#[tokio::test]
async fn no_model_is_called_with_a_prompt_that_cannot_be_recorded() {
    let model = FakePlugin::new().on::<RunModel>(|_| panic!("called"));
    let store = FullStore::without_space_for(EntryKind::Message);
    let framework = framework([store_plugin(store), model]);
    let running = framework.open_scope().await.unwrap();
    let error = failing_turn(&framework).await;
    assert!(error.message().contains("no space left"), "{error}");
    running.close().await.unwrap();
}
