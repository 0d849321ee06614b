//! The chains around model and tool calls when a hook fails, panics, hangs or lies.

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
    support::{Fake, Log, Trace, any_turn, fail, framework, none},
};

/// The ways to misbehave, each with its log line and its words.
const MISBEHAVIOURS: [(&str, &str, &str); 4] = [
    (
        "fails",
        "hook.agent_hook_failed hook={hook} adapter=p1 error=broke",
        "broke",
    ),
    (
        "panics",
        "hook.agent_hook_failed hook={hook} adapter=p1 error=[unknown] plugin code panicked: fell",
        "[unknown] plugin code panicked: fell",
    ),
    (
        "lies",
        "hook.agent_hook_bad_return hook={hook} adapter=p1 got=int expected=a map",
        "the hook returned int, expected a map",
    ),
    (
        "hangs",
        "hook.agent_hook_failed hook={hook} adapter=p1 error=[temporary] no answer within 300 s",
        "[temporary] no answer within 300 s",
    ),
];

/// A plugin that implements `P` in a bad way.
fn misbehaving<P: HookPoint>(how: &'static str) -> Fake {
    if how == "hangs" {
        return Fake::new().adding(|hooks| hooks.add_async::<P>(Hanging));
    }
    Fake::new().on_async::<P>(move |_| match how {
        "fails" => fail("broke"),
        "panics" => panic!("fell"),
        _ => Err(InvalidReturn {
            got: "int".into(),
            expected: "a map",
        }
        .into()),
    })
}

struct Hanging;

impl<P: HookPoint> AsyncHook<P> for Hanging {
    fn call<'a>(&'a self, _call: HookCall<'a, P>) -> BoxFuture<'a, HookReturn<P::Output>> {
        Box::pin(std::future::pending())
    }
}

fn logged(line: &str, hook: &str) -> String {
    format!("WARN {}", line.replace("{hook}", hook))
}

// H-32, H-33
#[tokio::test(start_paused = true)]
async fn before_llm_call_that_misbehaves_is_logged_and_skipped() {
    for (how, line, words) in MISBEHAVIOURS {
        let log = Log::capture();
        let finishing =
            Fake::new().on::<BeforeLlmCall>(|_| Ok(Some(LlmDecision::Finish("done".into()))));
        let set = framework([finishing, misbehaving::<BeforeLlmCall>(how)]);
        let gate = set.hooks().before_llm_call(request("m"), &any_turn()).await;
        assert_eq!(gate.finish.as_deref(), Some("done"), "{how}");
        assert_eq!(actions(&gate.notes), ["p1 failed", "p0 finished"]);
        assert_eq!(gate.notes[0].detail.as_deref(), Some(words));
        assert_eq!(log.lines(), [logged(line, "before_llm_call")]);
    }
}

// H-32, H-34
#[tokio::test(start_paused = true)]
async fn after_llm_call_that_misbehaves_is_logged_and_skipped() {
    for (how, line, _) in MISBEHAVIOURS {
        let (log, trace) = (Log::capture(), Trace::default());
        let seen = trace.clone();
        let watching = Fake::new().on::<AfterLlmCall>(move |_| {
            seen.note("seen");
            none()
        });
        let set = framework([watching, misbehaving::<AfterLlmCall>(how)]);
        let notes = set
            .hooks()
            .after_llm_call(&request("m"), &LlmResult::default(), &any_turn())
            .await;
        assert_eq!(actions(&notes), ["p1 failed"]);
        assert_eq!(trace.lines(), ["seen"]);
        assert_eq!(log.lines(), [logged(line, "after_llm_call")]);
    }
}

// H-32, H-36
#[tokio::test(start_paused = true)]
async fn after_tool_call_that_misbehaves_is_logged_and_skipped() {
    for (how, line, _) in MISBEHAVIOURS {
        let log = Log::capture();
        let replacing = Fake::new().on::<AfterToolCall>(|_| Ok(Some(json!("new"))));
        let set = framework([replacing, misbehaving::<AfterToolCall>(how)]);
        let (after, notes) = set
            .hooks()
            .after_tool_call(&tool_call("a"), outcome(Ok(json!("raw"))), &any_turn())
            .await;
        assert_eq!(after.result.unwrap(), json!("new"));
        assert_eq!(actions(&notes), ["p1 failed", "p0 rewrote"]);
        assert_eq!(log.lines(), [logged(line, "after_tool_call")]);
    }
}

// H-35: here a hook that cannot decide denies the call; in the original it never vetoed.
#[tokio::test(start_paused = true)]
async fn before_tool_call_that_misbehaves_denies_the_call() {
    for (how, line, words) in MISBEHAVIOURS {
        let log = Log::capture();
        let below = Fake::new().on::<BeforeToolCall>(|_| panic!("not called"));
        let set = framework([below, misbehaving::<BeforeToolCall>(how)]);
        let gate = set
            .hooks()
            .before_tool_call(tool_call("a"), &any_turn())
            .await;
        let reason = format!("`p1` could not decide about this call: {words}");
        assert_eq!(
            gate.decision,
            ToolDecision::Deny(Some(reason.clone())),
            "{how}"
        );
        assert_eq!(actions(&gate.notes), ["p1 failed", "p1 denied"]);
        assert_eq!(gate.notes[1].detail, Some(reason));
        assert_eq!(log.lines(), [logged(line, "before_tool_call")]);
    }
}

#[tokio::test(start_paused = true)]
async fn an_observe_only_before_tool_call_cannot_veto_by_failing() {
    for (how, line, _) in MISBEHAVIOURS {
        let log = Log::capture();
        let observing =
            misbehaving::<BeforeToolCall>(how).adding(bub_kernel::hooks::HookSet::observe_only);
        let below = Fake::new().on::<BeforeToolCall>(|_| Ok(Some(ToolDecision::Deny(None))));
        let gate = framework([below, observing])
            .hooks()
            .before_tool_call(tool_call("a"), &any_turn())
            .await;
        assert_eq!(
            gate.decision,
            ToolDecision::Deny(None),
            "the policy below still decides"
        );
        assert_eq!(actions(&gate.notes), ["p1 failed", "p0 denied"]);
        assert_eq!(log.lines(), [logged(line, "before_tool_call")]);
    }
}

#[tokio::test]
async fn the_observe_only_attribute_marks_that_method_alone() {
    struct Watching;
    #[hooks(crate = bub_kernel)]
    impl Watching {
        #[observe_only]
        fn before_tool_call(&self) -> Result<Option<ToolDecision>, bub_kernel::BoxError> {
            Err("broke".into())
        }
    }
    struct Deciding;
    #[hooks(crate = bub_kernel)]
    impl Deciding {
        fn before_tool_call(&self) -> Result<Option<ToolDecision>, bub_kernel::BoxError> {
            Err("broke".into())
        }
    }
    let turn = any_turn();
    let watching = bub_kernel::Framework::builder()
        .plugin("watching", Watching)
        .build();
    let gate = watching
        .hooks()
        .before_tool_call(tool_call("a"), &turn)
        .await;
    assert_eq!(gate.decision, ToolDecision::Proceed(None));
    let both = bub_kernel::Framework::builder()
        .plugin("watching", Watching)
        .plugin("deciding", Deciding)
        .build();
    let gate = both.hooks().before_tool_call(tool_call("a"), &turn).await;
    assert!(matches!(gate.decision, ToolDecision::Deny(_)));
}

#[tokio::test(start_paused = true)]
async fn a_hook_may_take_its_time_up_to_the_limit() {
    struct Slow;
    impl AsyncHook<BeforeToolCall> for Slow {
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
    let plugin = Fake::new().adding(|hooks| hooks.add_async::<BeforeToolCall>(Slow));
    let gate = framework([plugin])
        .hooks()
        .before_tool_call(tool_call("a"), &any_turn())
        .await;
    assert_eq!(
        gate.decision,
        ToolDecision::Deny(Some("asked a person".into()))
    );
}
