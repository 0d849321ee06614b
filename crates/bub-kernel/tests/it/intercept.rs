//! The chains around model and tool calls without failures.

use std::time::Duration;

use bub_kernel::{
    Error, LlmDecision, LlmRequest, LlmResult, ToolCall, ToolDecision, ToolOutcome,
    hooks::{
        HookDecision,
        point::{AfterLlmCall, AfterToolCall, BeforeLlmCall, BeforeToolCall},
    },
};
use serde_json::{Map, Value, json};

use crate::support::{FakePlugin, Trace, any_turn, framework, none};

pub(crate) fn request(model: &str) -> LlmRequest {
    let messages = vec![json!({"role": "user", "content": "hi"})];
    let mut request = LlmRequest::new("run".into(), model, messages);
    request.tool_names = vec!["fs_read".into()];
    request.max_tokens = Some(100);
    request
}

pub(crate) fn tool_call(path: &str) -> ToolCall {
    ToolCall {
        run_id: "run".into(),
        tool: "fs_read".into(),
        arguments: arguments(path),
        code_mode: false,
    }
}

fn arguments(path: &str) -> Map<String, Value> {
    Map::from_iter([("path".to_owned(), json!(path))])
}

pub(crate) fn outcome(result: Result<Value, Error>) -> ToolOutcome {
    ToolOutcome {
        result,
        duration: Duration::from_millis(3),
    }
}

pub(crate) fn actions(notes: &[HookDecision]) -> Vec<String> {
    notes
        .iter()
        .map(|note| format!("{} {}", note.plugin, note.action))
        .collect()
}

// H-33
#[tokio::test]
async fn requests_are_rewritten_in_turn_latest_first() {
    let appending = |suffix: &'static str| {
        FakePlugin::new().on_async::<BeforeLlmCall>(move |call| {
            let mut request = call.args.request.clone();
            request.model.push_str(suffix);
            request.max_tokens = Some(5);
            Ok(Some(LlmDecision::Proceed(request)))
        })
    };
    let set = framework([
        appending("+low"),
        FakePlugin::new().on::<BeforeLlmCall>(|_| none()),
        appending("+high"),
    ]);
    let outcome_of_chain = set.hooks().before_llm_call(request("m"), &any_turn()).await;
    assert_eq!(outcome_of_chain.request.model, "m+high+low");
    assert_eq!(outcome_of_chain.request.max_tokens, Some(5));
    assert_eq!(outcome_of_chain.finish, None);
    assert_eq!(
        actions(&outcome_of_chain.notes),
        ["p2 rewrote", "p0 rewrote"]
    );
}

// H-33
#[tokio::test]
async fn finishing_stops_the_chain() {
    let plugins = [
        FakePlugin::new().on::<BeforeLlmCall>(|_| panic!("not called")),
        FakePlugin::new().on::<BeforeLlmCall>(|_| Ok(Some(LlmDecision::Finish("cached".into())))),
    ];
    let outcome_of_chain = framework(plugins)
        .hooks()
        .before_llm_call(request("m"), &any_turn())
        .await;
    assert_eq!(outcome_of_chain.finish.as_deref(), Some("cached"));
    assert_eq!(actions(&outcome_of_chain.notes), ["p1 finished"]);
}

// H-34
#[tokio::test]
async fn everyone_sees_a_finished_model_call_with_its_error() {
    let trace = Trace::default();
    let watching = |trace: Trace| {
        FakePlugin::new().on::<AfterLlmCall>(move |call| {
            trace.note(format!(
                "{} {}",
                call.args.request.model,
                call.args.result.error.as_ref().unwrap()
            ));
            none()
        })
    };
    let set = framework([watching(trace.clone()), watching(trace.clone())]);
    let mut result = LlmResult::default();
    result.error = Some(Error::unknown("refused"));
    let notes = set
        .hooks()
        .after_llm_call(&request("m"), &result, &any_turn())
        .await;
    assert_eq!(
        trace.lines(),
        ["m [unknown] refused", "m [unknown] refused"]
    );
    assert!(notes.is_empty());
}

// H-35
#[tokio::test]
async fn new_arguments_are_visible_to_later_hooks() {
    let trace = Trace::default();
    let seen = trace.clone();
    let plugins = [
        FakePlugin::new().on::<BeforeToolCall>(move |call| {
            seen.note(call.args.call.arguments["path"].to_string());
            Ok(Some(ToolDecision::Proceed(None)))
        }),
        FakePlugin::new()
            .on_async::<BeforeToolCall>(|_| Ok(Some(ToolDecision::Proceed(Some(arguments("b")))))),
    ];
    let outcome_of_chain = framework(plugins)
        .hooks()
        .before_tool_call(tool_call("a"), &any_turn())
        .await;
    assert_eq!(outcome_of_chain.decision, ToolDecision::Proceed(None));
    assert_eq!(outcome_of_chain.call, tool_call("b"));
    assert_eq!(trace.lines(), ["\"b\""]);
    assert_eq!(actions(&outcome_of_chain.notes), ["p1 rewrote"]);
}

// H-35
#[tokio::test]
async fn replacing_or_denying_stops_the_chain() {
    let cases = [
        (ToolDecision::Replace(json!("instead")), "p1 replaced"),
        (ToolDecision::Deny(Some("not here".into())), "p1 denied"),
        (ToolDecision::Deny(None), "p1 denied"),
    ];
    for (decision, note) in cases {
        let answer = decision.clone();
        let plugins = [
            FakePlugin::new().on::<BeforeToolCall>(|_| panic!("not called")),
            FakePlugin::new().on::<BeforeToolCall>(move |_| Ok(Some(answer.clone()))),
        ];
        let outcome_of_chain = framework(plugins)
            .hooks()
            .before_tool_call(tool_call("a"), &any_turn())
            .await;
        assert_eq!(outcome_of_chain.decision, decision);
        assert_eq!(actions(&outcome_of_chain.notes), [note]);
    }
}

// H-35
#[test]
fn a_denial_is_a_tool_error_with_the_reason_or_a_default() {
    let denial = ToolDecision::denial_error("bash", Some("not on Sundays"));
    assert_eq!(denial.to_string(), "[tool] not on Sundays");
    let default = ToolDecision::denial_error("bash", None);
    assert_eq!(
        default.to_string(),
        "[tool] Tool 'bash' call denied by policy hook."
    );
}

// H-36
#[tokio::test]
async fn a_replaced_result_is_what_later_hooks_and_the_caller_see() {
    let appending = |suffix: &'static str| {
        FakePlugin::new().on::<AfterToolCall>(move |call| {
            let text = call.args.result.result.as_ref().unwrap().as_str().unwrap();
            Ok(Some(json!(format!("{text}{suffix}"))))
        })
    };
    let set = framework([
        appending(" low"),
        FakePlugin::new().on::<AfterToolCall>(|_| none()),
        appending(" high"),
    ]);
    let (after, notes) = set
        .hooks()
        .after_tool_call(&tool_call("a"), outcome(Ok(json!("raw"))), &any_turn())
        .await;
    assert_eq!(after.result.unwrap(), json!("raw high low"));
    assert_eq!(actions(&notes), ["p2 rewrote", "p0 rewrote"]);
}

// P-89
#[tokio::test]
async fn the_error_of_a_tool_is_seen_and_can_be_replaced() {
    let trace = Trace::default();
    let seen = trace.clone();
    let plugin = FakePlugin::new().on::<AfterToolCall>(move |call| {
        seen.note(call.args.result.result.as_ref().unwrap_err().to_string());
        Ok(Some(json!("all is well")))
    });
    let error = ToolDecision::denial_error("bash", None);
    let (after, notes) = framework([plugin])
        .hooks()
        .after_tool_call(&tool_call("a"), outcome(Err(error)), &any_turn())
        .await;
    assert_eq!(after.result.unwrap(), json!("all is well"));
    assert_eq!(actions(&notes), ["p0 rewrote"]);
    assert_eq!(
        trace.lines(),
        ["[tool] Tool 'bash' call denied by policy hook."]
    );
}

#[tokio::test]
async fn without_hooks_a_call_is_what_it_was() {
    let set = framework([]);
    let outcome_of_chain = set
        .hooks()
        .before_tool_call(tool_call("a"), &any_turn())
        .await;
    assert_eq!(
        (
            outcome_of_chain.call,
            outcome_of_chain.decision,
            outcome_of_chain.notes
        ),
        (tool_call("a"), ToolDecision::Proceed(None), vec![])
    );
    let outcome_of_chain = set.hooks().before_llm_call(request("m"), &any_turn()).await;
    assert_eq!(
        (
            outcome_of_chain.request.model.as_str(),
            outcome_of_chain.finish
        ),
        ("m", None)
    );
}

#[test]
fn a_note_is_data_for_the_tape() {
    let note = HookDecision {
        hook: "before_tool_call",
        plugin: "policy".into(),
        action: "denied",
        detail: Some("no".into()),
    };
    let expected =
        json!({"hook": "before_tool_call", "plugin": "policy", "action": "denied", "detail": "no"});
    assert_eq!(note.to_value(), expected);
}
