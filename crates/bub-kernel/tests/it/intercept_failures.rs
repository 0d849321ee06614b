//! The chains around model and tool calls if a hook fails, panics, hangs or returns an invalid value.

use bub_kernel::{
    BoxFuture, LlmDecision, LlmResult, ToolDecision, hooks,
    hooks::{
        AsyncHook, HOOK_TIMEOUT, HookCall, HookPoint, HookReturn, InvalidReturn,
        point::{AfterLlmCall, AfterToolCall, BeforeLlmCall, BeforeToolCall},
    },
};
use serde_json::json;

use crate::{
    intercept::{actions, outcome, request, tool_call},
    support::{FakePlugin, LogCapture, Trace, any_turn, fail, framework, none},
};

/// The failures under test, each with its log line and its error message.
const FAILURES: [(&str, &str, &str); 4] = [
    (
        "fails",
        "hook.agent_hook_failed hook={hook} adapter=p1 error=broke",
        "broke",
    ),
    (
        "panics",
        "hook.agent_hook_failed hook={hook} adapter=p1 error=[unknown] plugin code panicked: fell; see the log",
        "[unknown] plugin code panicked: fell; see the log",
    ),
    (
        "lies",
        "hook.agent_hook_bad_return hook={hook} adapter=p1 got=int expected=a map",
        "invalid hook result: expected a map, got int",
    ),
    (
        "hangs",
        "hook.agent_hook_failed hook={hook} adapter=p1 error=[temporary] plugin code timed out: no answer within 300 s; try again",
        "[temporary] plugin code timed out: no answer within 300 s; try again",
    ),
];

/// Returns a plugin whose implementation of `P` fails.
fn failing_plugin<P: HookPoint>(failure: &'static str) -> FakePlugin {
    if failure == "hangs" {
        return FakePlugin::new().register_with(|hooks| hooks.add_async::<P>(HangingHook));
    }
    FakePlugin::new().on_async::<P>(move |_| match failure {
        "fails" => fail("broke"),
        "panics" => panic!("fell"),
        _ => Err(InvalidReturn {
            got: "int".into(),
            expected: "a map",
        }
        .into()),
    })
}

struct HangingHook;

impl<P: HookPoint> AsyncHook<P> for HangingHook {
    fn call<'a>(&'a self, _call: HookCall<'a, P>) -> BoxFuture<'a, HookReturn<P::Output>> {
        Box::pin(std::future::pending())
    }
}

fn expected_line(line: &str, hook: &str) -> String {
    format!("WARN {}", line.replace("{hook}", hook))
}

// H-32, H-33
#[tokio::test(start_paused = true)]
async fn before_llm_call_that_misbehaves_is_logged_and_skipped() {
    for (failure, line, message) in FAILURES {
        let log = LogCapture::start();
        let finishing =
            FakePlugin::new().on::<BeforeLlmCall>(|_| Ok(Some(LlmDecision::Finish("done".into()))));
        let set = framework([finishing, failing_plugin::<BeforeLlmCall>(failure)]);
        let outcome = set.hooks().before_llm_call(request("m"), &any_turn()).await;
        assert_eq!(outcome.finish.as_deref(), Some("done"), "{failure}");
        assert_eq!(actions(&outcome.notes), ["p1 failed", "p0 finished"]);
        assert_eq!(outcome.notes[0].detail.as_deref(), Some(message));
        assert_eq!(log.lines(), [expected_line(line, "before_llm_call")]);
    }
}

// H-32, H-34
#[tokio::test(start_paused = true)]
async fn after_llm_call_that_misbehaves_is_logged_and_skipped() {
    for (failure, line, _) in FAILURES {
        let (log, trace) = (LogCapture::start(), Trace::default());
        let seen = trace.clone();
        let observing = FakePlugin::new().on::<AfterLlmCall>(move |_| {
            seen.note("seen");
            none()
        });
        let set = framework([observing, failing_plugin::<AfterLlmCall>(failure)]);
        let notes = set
            .hooks()
            .after_llm_call(&request("m"), &LlmResult::default(), &any_turn())
            .await;
        assert_eq!(actions(&notes), ["p1 failed"]);
        assert_eq!(trace.lines(), ["seen"]);
        assert_eq!(log.lines(), [expected_line(line, "after_llm_call")]);
    }
}

// H-32, H-36
#[tokio::test(start_paused = true)]
async fn after_tool_call_that_misbehaves_is_logged_and_skipped() {
    for (failure, line, _) in FAILURES {
        let log = LogCapture::start();
        let replacing = FakePlugin::new().on::<AfterToolCall>(|_| Ok(Some(json!("new"))));
        let set = framework([replacing, failing_plugin::<AfterToolCall>(failure)]);
        let (after, notes) = set
            .hooks()
            .after_tool_call(&tool_call("a"), outcome(Ok(json!("raw"))), &any_turn())
            .await;
        assert_eq!(after.result.unwrap(), json!("new"));
        assert_eq!(actions(&notes), ["p1 failed", "p0 rewrote"]);
        assert_eq!(log.lines(), [expected_line(line, "after_tool_call")]);
    }
}

// H-35: a failing hook denies the call. In the Python version, it did not.
#[tokio::test(start_paused = true)]
async fn before_tool_call_that_misbehaves_denies_the_call() {
    for (failure, line, message) in FAILURES {
        let log = LogCapture::start();
        let below = FakePlugin::new().on::<BeforeToolCall>(|_| panic!("not called"));
        let set = framework([below, failing_plugin::<BeforeToolCall>(failure)]);
        let outcome = set
            .hooks()
            .before_tool_call(tool_call("a"), &any_turn())
            .await;
        let reason = format!("the `before_tool_call` hook of plugin `p1` failed: {message}");
        assert_eq!(
            outcome.decision,
            ToolDecision::Deny(Some(reason.clone())),
            "{failure}"
        );
        assert_eq!(actions(&outcome.notes), ["p1 failed", "p1 denied"]);
        assert_eq!(outcome.notes[1].detail, Some(reason));
        assert_eq!(log.lines(), [expected_line(line, "before_tool_call")]);
    }
}

#[tokio::test(start_paused = true)]
async fn an_observe_only_before_tool_call_cannot_veto_by_failing() {
    for (failure, line, _) in FAILURES {
        let log = LogCapture::start();
        let observing = failing_plugin::<BeforeToolCall>(failure)
            .register_with(bub_kernel::hooks::HookSet::set_last_observe_only);
        let below = FakePlugin::new().on::<BeforeToolCall>(|_| Ok(Some(ToolDecision::Deny(None))));
        let outcome = framework([below, observing])
            .hooks()
            .before_tool_call(tool_call("a"), &any_turn())
            .await;
        assert_eq!(
            outcome.decision,
            ToolDecision::Deny(None),
            "the policy below still decides"
        );
        assert_eq!(actions(&outcome.notes), ["p1 failed", "p0 denied"]);
        assert_eq!(log.lines(), [expected_line(line, "before_tool_call")]);
    }
}

#[tokio::test]
async fn the_observe_only_attribute_marks_that_method_alone() {
    struct ObservingPlugin;
    #[hooks(crate = bub_kernel)]
    impl ObservingPlugin {
        #[observe_only]
        fn before_tool_call(&self) -> Result<Option<ToolDecision>, bub_kernel::BoxError> {
            Err("broke".into())
        }
    }
    struct DecidingPlugin;
    #[hooks(crate = bub_kernel)]
    impl DecidingPlugin {
        fn before_tool_call(&self) -> Result<Option<ToolDecision>, bub_kernel::BoxError> {
            Err("broke".into())
        }
    }
    let turn = any_turn();
    let observing = bub_kernel::Framework::builder()
        .plugin("watching", ObservingPlugin)
        .build();
    let outcome = observing
        .hooks()
        .before_tool_call(tool_call("a"), &turn)
        .await;
    assert_eq!(outcome.decision, ToolDecision::Proceed(None));
    let both = bub_kernel::Framework::builder()
        .plugin("watching", ObservingPlugin)
        .plugin("deciding", DecidingPlugin)
        .build();
    let outcome = both.hooks().before_tool_call(tool_call("a"), &turn).await;
    assert!(matches!(outcome.decision, ToolDecision::Deny(_)));
}

#[tokio::test(start_paused = true)]
async fn a_hook_may_take_its_time_up_to_the_limit() {
    struct SlowHook;
    impl AsyncHook<BeforeToolCall> for SlowHook {
        fn call<'a>(
            &'a self,
            _call: HookCall<'a, BeforeToolCall>,
        ) -> BoxFuture<'a, HookReturn<ToolDecision>> {
            Box::pin(async {
                tokio::time::sleep(HOOK_TIMEOUT.mul_f32(0.99)).await;
                Ok(Some(ToolDecision::Deny(Some("asked a person".into()))))
            })
        }
    }
    let plugin =
        FakePlugin::new().register_with(|hooks| hooks.add_async::<BeforeToolCall>(SlowHook));
    let outcome = framework([plugin])
        .hooks()
        .before_tool_call(tool_call("a"), &any_turn())
        .await;
    assert_eq!(
        outcome.decision,
        ToolDecision::Deny(Some("asked a person".into()))
    );
}
