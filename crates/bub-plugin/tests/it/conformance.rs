//! A plugin gives the same results linked in, as a Rust program and as a Python program.

use bub_kernel::{
    Envelope, Framework, Inbound, LlmRequest, Prompt, Role, Sender, SessionId, State, ToolCall,
    ToolContext, ToolOutcome, Turn, TurnSnapshot,
    hooks::{args, point},
};
use futures_util::StreamExt as _;
use serde_json::{Map, Value, json};

#[path = "../programs/plugin.rs"]
mod plugin;

use super::harness;

/// Returns a message from a member.
fn inbound(content: &str) -> Inbound {
    let message = Envelope::from_text(content)
        .with("channel", "lab")
        .with("chat_id", "1");
    Inbound::new(message).with_sender(Sender {
        role: Role::Member,
        channel: "lab".to_owned(),
        chat_id: "1".to_owned(),
        ..Sender::default()
    })
}

/// Returns a turn for hooks that are called individually.
fn detached_turn(framework: &Framework, content: &str, session_id: &str) -> Turn {
    let mut inbound = inbound(content);
    inbound.set_session_id(SessionId::from(session_id));
    let state = State::new();
    state.set("session_id", session_id);
    Turn::detached(framework, inbound, state)
}

async fn turn(framework: &Framework, content: &str) -> Value {
    match framework.process_inbound(inbound(content)).await {
        Ok(result) => json!({
            "session": result.session_id, "prompt": result.prompt, "output": result.model_output,
            "replies": result.outbounds.iter().map(|reply| reply.content().into_owned()).collect::<Vec<_>>(),
            "state": result.state.public_fields(),
        }),
        Err(error) => {
            let origin = error
                .origin()
                .map(|origin| format!("{}@{}", origin.hook, origin.plugin));
            json!({"error": error.message(), "kind": error.kind().name(), "origin": origin})
        }
    }
}

/// Calls everything that the probe implements and returns the results as one document.
async fn observe(framework: &Framework) -> Value {
    let mut results = Map::new();
    let contents = [
        "hello",
        "session mine",
        "session of a role",
        "build nothing",
        "build wrong",
        "build wrapped",
        "build other",
        "build panic",
        "many",
        "upper",
        "broken",
        "empty",
        "render two",
        "ünïcödé ☃ \u{1f600}",
    ];
    for content in contents {
        results.insert(format!("turn {content}"), turn(framework, content).await);
    }
    let detached = detached_turn(framework, "state", "s");
    observe_model_hooks(&detached, &mut results).await;
    observe_tool_hooks(&detached, &mut results).await;
    observe_admission(&detached, &mut results).await;
    observe_tools(&detached, &mut results).await;
    results.into()
}

async fn observe_model_hooks(turn: &Turn, results: &mut Map<String, Value>) {
    let (framework, state) = (turn.framework(), turn.state());
    let hooks = framework.hooks();
    state.set("doomed", 1);
    let args = args::BuildPrompt {
        message: turn.message(),
        session_id: turn.session_id(),
        state,
        turn,
    };
    let prompt = hooks
        .call_first::<point::BuildPrompt>(args)
        .await
        .unwrap()
        .unwrap();
    results.insert("prompt".into(), json!([prompt, state.public_fields()]));
    let prompt = Prompt::Parts(vec![json!({"type": "text", "text": "parts"})]);
    results.insert(
        "system prompt".into(),
        framework.system_prompt(&prompt, turn).unwrap().into(),
    );
    for model in ["finish", "change", "plain"] {
        let messages = vec![json!({"role": "user", "content": "hi"})];
        let mut request = LlmRequest::new("r".into(), model, messages);
        request.tool_names = vec!["a".to_owned()];
        request.max_tokens = Some(5);
        let args = args::BeforeLlmCall {
            request: &request,
            state,
            turn,
        };
        let decided = hooks.call_all::<point::BeforeLlmCall>(args).await.unwrap();
        results.insert(format!("before {model}"), format!("{decided:?}").into());
    }
}

async fn observe_tool_hooks(turn: &Turn, results: &mut Map<String, Value>) {
    let (hooks, state) = (turn.framework().hooks(), turn.state());
    for tool in ["deny", "replace", "change", "fail", "plain", "turn"] {
        let arguments = [("a".to_owned(), json!(1))].into_iter().collect();
        let call = ToolCall {
            run_id: turn.id().clone(),
            tool: tool.to_owned(),
            arguments,
            code_mode: false,
        };
        let args = args::BeforeToolCall {
            call: &call,
            state,
            turn,
        };
        let decided = hooks.call_all::<point::BeforeToolCall>(args).await;
        let decided = decided.map_err(|error| error.message().to_owned());
        results.insert(format!("guard {tool}"), format!("{decided:?}").into());
        for result in [
            Ok(json!("text")),
            Ok(json!(5)),
            Err(bub_kernel::Error::unknown("bad")),
        ] {
            let result = ToolOutcome {
                result,
                duration: std::time::Duration::from_millis(3),
            };
            let args = args::AfterToolCall {
                call: &call,
                result: &result,
                state,
                turn,
            };
            let after = hooks.call_all::<point::AfterToolCall>(args).await.unwrap();
            results.insert(
                format!("after {tool} {:?}", result.result.is_ok()),
                format!("{after:?}").into(),
            );
        }
    }
    let arguments: Map<_, _> = [("a".to_owned(), json!(1))].into_iter().collect();
    let call = ToolCall {
        run_id: turn.id().clone(),
        tool: "allow".to_owned(),
        arguments,
        code_mode: false,
    };
    let gate = hooks.before_tool_call(call, turn).await;
    results.insert(
        "guard allow".into(),
        format!("{:?} {:?}", gate.decision, gate.call.arguments).into(),
    );
}

async fn observe_admission(turn: &Turn, results: &mut Map<String, Value>) {
    for content in ["drop", "steer", "follow_up", "hello"] {
        let snapshot = TurnSnapshot {
            running_count: 2,
            ..TurnSnapshot::default()
        };
        let (session_id, inbound) = (turn.session_id(), inbound(content));
        let framework = turn.framework();
        let admitted = framework
            .admit_message(session_id, &inbound, &snapshot)
            .await;
        results.insert(format!("admit {content}"), format!("{admitted:?}").into());
    }
}

async fn observe_tools(turn: &Turn, results: &mut Map<String, Value>) {
    let tools = turn.framework().tools();
    let named = |name: &str| tools.iter().find(|tool| tool.spec().name == name).unwrap();
    let tool = named("probe.add");
    let spec = tool.spec();
    results.insert(
        "tool".into(),
        json!([
            spec.description,
            spec.parameters,
            spec.read_only,
            spec.exposure.is_for_model()
        ]),
    );
    for arguments in [
        json!({"a": 1}),
        json!({"a": 1, "b": 5}),
        json!({"a": 13}),
        json!({"b": "x"}),
    ] {
        let context = ToolContext::new(turn.clone());
        let result = bub_kernel::run_tool(
            tool.as_ref(),
            arguments.as_object().unwrap().clone(),
            context,
        )
        .await;
        let result = result.map_err(|error| error.message().to_owned());
        results.insert(format!("tool {arguments}"), format!("{result:?}").into());
    }
    let context = ToolContext::new(turn.clone());
    let tool = named("probe.context").as_ref();
    let mut known = bub_kernel::run_tool(tool, Map::new(), context)
        .await
        .unwrap();
    assert_eq!(known["run_id"].take(), turn.id().as_str());
    results.insert("tool context".into(), known);
}

fn assert_same(linked: &Value, other: &Value, which: &str) {
    for (name, expected) in linked.as_object().unwrap() {
        assert_eq!(other.get(name), Some(expected), "{which}: {name}");
    }
}

// L8, design §8: one contract.
#[tokio::test(flavor = "multi_thread")]
async fn a_rust_program_does_what_the_linked_plugin_does() {
    let linked = observe(&harness::linked(plugin::Probe::new)).await;
    assert_eq!(linked["turn many"]["output"].as_str().unwrap().len(), 3890);
    assert_eq!(linked["turn upper"]["output"], "BELOW BUILT: UPPER");
    // The authenticated sender is known before the turn and during it.
    assert_eq!(linked["turn session of a role"]["session"], "member");
    assert_eq!(linked["turn hello"]["state"]["built"], "member");
    assert!(
        linked["admit drop"]
            .as_str()
            .unwrap()
            .contains("2 running, member"),
        "{}",
        linked["admit drop"]
    );
    let replaced = linked["guard turn"].as_str().unwrap();
    assert!(
        replaced.contains(r#"Bool(true), String("s"), String("member")"#),
        "{replaced}"
    );
    let program = harness::program("probe");
    let external = harness::external(harness::plugin_config(&[&program]));
    assert_same(&linked, &observe(&external).await, "Rust program");
}

// L8, design §8. The results differ only where they must: a panic is an exception in Python.
#[tokio::test(flavor = "multi_thread")]
async fn a_python_program_does_what_the_linked_plugin_does() {
    if !harness::has_python() {
        return;
    }
    let mut linked = observe(&harness::linked(plugin::Probe::new)).await;
    let external = harness::external(harness::plugin_config(&harness::python_program("probe.py")));
    let mut python = observe(&external).await;
    let name = "turn build panic";
    assert_eq!(
        linked[name]["error"].take(),
        "plugin code panicked: the probe panics; see the log"
    );
    assert_eq!(
        python[name]["error"].take(),
        "RuntimeError: the probe panics"
    );
    assert_same(&linked, &python, "Python program");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_nobody_reads_blocks_no_other_call() {
    let program = harness::program("probe");
    let framework = harness::external(harness::plugin_config(&[&program]));
    let detached = detached_turn(&framework, "many", "s");
    let prompt = Prompt::from("built: many");
    let args = args::RunModel {
        prompt: &prompt,
        session_id: detached.session_id(),
        state: detached.state(),
        turn: &detached,
    };
    let mut unread = framework
        .hooks()
        .run_model_stage(args)
        .await
        .unwrap()
        .unwrap();
    for _ in 0..20 {
        assert_eq!(turn(&framework, "hello").await["prompt"], "built: hello");
    }
    // The stream resumes without losing events.
    let mut text = String::new();
    while let Some(event) = unread.next().await {
        if let bub_kernel::StreamEvent::Text(delta) = event.unwrap() {
            text.push_str(&delta);
        }
    }
    assert!(
        text.starts_with("0,1,2,") && text.ends_with("998,999,"),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_that_are_given_up_leave_nothing_behind() {
    let mut commands = vec![vec![harness::program("probe").into()]];
    if harness::has_python() {
        commands.push(harness::python_program("probe.py"));
    }
    for command in commands {
        let framework = harness::external(harness::plugin_config(&command));
        // More streams than may be open at a time, in both directions.
        for prompt in std::iter::repeat_n(["built: many", "built: upper"], 300).flatten() {
            let detached = detached_turn(&framework, prompt, "s");
            let prompt = Prompt::from(prompt);
            let args = args::RunModel {
                prompt: &prompt,
                session_id: detached.session_id(),
                state: detached.state(),
                turn: &detached,
            };
            let mut stream = framework
                .hooks()
                .run_model_stage(args)
                .await
                .unwrap()
                .unwrap();
            stream.next().await.unwrap().unwrap();
        }
        assert_eq!(
            turn(&framework, "upper").await["output"],
            "BELOW BUILT: UPPER",
            "{command:?}"
        );
    }
}

// A plugin can forward what the host sends.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_answer_passes_through_a_plugin() {
    let mut commands = vec![vec![harness::program("probe").into()]];
    if harness::has_python() {
        commands.push(harness::python_program("probe.py"));
    }
    for command in commands {
        let framework = harness::external(harness::plugin_config(&command));
        let detached = detached_turn(&framework, "upper", "long");
        let prompt = Prompt::from("built: upper");
        let args = args::RunModel {
            prompt: &prompt,
            session_id: detached.session_id(),
            state: detached.state(),
            turn: &detached,
        };
        let mut stream = framework
            .hooks()
            .run_model_stage(args)
            .await
            .unwrap()
            .unwrap();
        let (mut text, mut last) = (String::new(), None);
        while let Some(event) = stream.next().await {
            match event.unwrap() {
                bub_kernel::StreamEvent::Text(delta) => {
                    assert!(delta.len() <= 64 * 1024, "{}", delta.len());
                    text.push_str(&delta);
                }
                other => last = Some(other),
            }
        }
        assert!(
            text.starts_with("XÄÄ") && text.len() == 3_000_001,
            "{}",
            text.len()
        );
        let Some(bub_kernel::StreamEvent::Final(last)) = last else {
            panic!("{last:?}")
        };
        assert_eq!(last["text"].as_str().unwrap().len(), 3_000_000);
    }
}
