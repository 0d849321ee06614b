//! `on_error` observes errors and cannot affect the turn.

use bub_kernel::{
    Error,
    hooks::{
        args,
        point::{OnError, RunModel},
    },
};

use crate::support::{
    FakePlugin, LogCapture, Trace, fail, failing_turn, framework, hi, none, observer,
};

// S-25
#[tokio::test]
async fn a_failing_observer_is_logged_and_neither_stops_others_nor_hides_the_error() {
    let (trace, log) = (Trace::default(), LogCapture::start());
    let plugins = [
        observer(&trace),
        FakePlugin::new().on::<OnError>(|_| fail("observer broke")),
        FakePlugin::new().on_async::<OnError>(|_| panic!("observer fell")),
        FakePlugin::new().on::<RunModel>(|_| fail("original")),
    ];
    let error = failing_turn(&framework(plugins)).await;
    assert_eq!(error.to_string(), "original");
    assert_eq!(trace.lines(), ["on_error turn: original"]);
    assert_eq!(
        log.lines(),
        [
            "ERROR turn.failed error=original",
            "ERROR hook.on_error_failed stage=turn adapter=p2 error=[unknown] plugin code panicked: observer fell; see the log",
            "ERROR hook.on_error_failed stage=turn adapter=p1 error=observer broke",
        ]
    );
}

// S-25
#[test]
fn the_sync_notifier_skips_async_observers_with_a_warning() {
    let (trace, log) = (Trace::default(), LogCapture::start());
    let plugins = [
        observer(&trace),
        FakePlugin::new().on_async::<OnError>(|_| panic!("not called")),
        FakePlugin::new().on::<OnError>(|_| fail("observer broke")),
    ];
    let framework = framework(plugins);
    framework.hooks().notify_error_sync(args::OnError {
        stage: "startup",
        error: &Error::unknown("boom"),
        message: Some(&hi()),
        turn: None,
    });
    assert_eq!(trace.lines(), ["on_error startup: [unknown] boom"]);
    assert_eq!(
        log.lines(),
        [
            "ERROR hook.on_error_failed stage=startup adapter=p2 error=observer broke",
            "WARN hook.async_not_supported hook=on_error adapter=p1",
        ]
    );
}

// S-25, S-51
#[tokio::test]
async fn an_observer_may_be_told_without_a_message() {
    let trace = Trace::default();
    let seen = trace.clone();
    let plugin = FakePlugin::new().on::<OnError>(move |call| {
        seen.note(format!(
            "{} {}",
            call.args.stage,
            call.args.message.is_none()
        ));
        none()
    });
    framework([plugin])
        .hooks()
        .notify_error(args::OnError {
            stage: "gateway",
            error: &Error::unknown("boom"),
            message: None,
            turn: None,
        })
        .await;
    assert_eq!(trace.lines(), ["gateway true"]);
}
