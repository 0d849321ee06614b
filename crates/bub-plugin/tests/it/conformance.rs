//! The same plugin linked in, as a Rust program and as a Python program: the same results.

use bub_kernel::{
    CancellationToken, Envelope, Framework, LlmRequest, Prompt, Role, Sender, State, ToolCall,
    ToolContext, ToolOutcome, TurnOptions, TurnSnapshot,
    hooks::{args, point},
};
use futures_util::StreamExt as _;
use serde_json::{Value, json};

#[path = "../programs/plugin.rs"]
mod plugin;

use super::world;

async fn turn(framework: &Framework, content: &str) -> Value {
    let message = Envelope::text(content)
        .with("channel", "lab")
        .with("chat_id", "1");
    let message = message.with_sender(Sender {
        role: Role::Member,
        ..Sender::default()
    });
    match framework
        .process_inbound(message, TurnOptions::default())
        .await
    {
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

/// Everything the probe does, as one document.
async fn observe(framework: &Framework) -> Value {
    let mut seen = serde_json::Map::new();
    let contents = [
        "hello",
        "session mine",
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
        seen.insert(format!("turn {content}"), turn(framework, content).await);
    }
    let hooks = framework.hooks();
    let state = State::new();
    state.set("doomed", 1);
    let message = Envelope::text("state");
    let args = args::BuildPrompt {
        message: &message,
        session_id: "s",
        state: &state,
    };
    let prompt = hooks
        .call_first::<point::BuildPrompt>(args)
        .await
        .unwrap()
        .unwrap();
    seen.insert("prompt".into(), json!([prompt, state.public_fields()]));
    let prompt = Prompt::Parts(vec![json!({"type": "text", "text": "parts"})]);
    seen.insert(
        "system prompt".into(),
        framework.system_prompt(&prompt, &state).unwrap().into(),
    );
    for model in ["finish", "change", "plain"] {
        let request = LlmRequest {
            run_id: "r".to_owned(),
            model: model.to_owned(),
            messages: vec![json!({"role": "user", "content": "hi"})].into(),
            tool_names: vec!["a".to_owned()],
            max_tokens: Some(5),
        };
        let args = args::BeforeLlmCall {
            request: &request,
            state: &state,
        };
        let decided = hooks.call_many::<point::BeforeLlmCall>(args).await.unwrap();
        seen.insert(format!("before {model}"), format!("{decided:?}").into());
    }
    for tool in ["deny", "replace", "change", "fail", "plain"] {
        let arguments = [("a".to_owned(), json!(1))].into_iter().collect();
        let call = ToolCall {
            run_id: "r".to_owned(),
            tool: tool.to_owned(),
            arguments,
        };
        let args = args::BeforeToolCall {
            call: &call,
            state: &state,
        };
        let decided = hooks.call_many::<point::BeforeToolCall>(args).await;
        let decided = decided.map_err(|error| error.message().to_owned());
        seen.insert(format!("guard {tool}"), format!("{decided:?}").into());
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
                state: &state,
            };
            let after = hooks.call_many::<point::AfterToolCall>(args).await.unwrap();
            seen.insert(
                format!("after {tool} {:?}", result.result.is_ok()),
                format!("{after:?}").into(),
            );
        }
    }
    let arguments: serde_json::Map<_, _> = [("a".to_owned(), json!(1))].into_iter().collect();
    let call = ToolCall {
        run_id: "r".to_owned(),
        tool: "allow".to_owned(),
        arguments,
    };
    let gate = hooks.before_tool_call(call, &state).await;
    seen.insert(
        "guard allow".into(),
        format!("{:?} {:?}", gate.decision, gate.call.arguments).into(),
    );
    for content in ["drop", "steer", "follow_up", "hello"] {
        let (message, snapshot) = (
            Envelope::text(content),
            TurnSnapshot {
                running_count: 2,
                ..TurnSnapshot::default()
            },
        );
        let admitted = framework.admit_message("s", &message, &snapshot).await;
        seen.insert(format!("admit {content}"), format!("{admitted:?}").into());
    }
    let tool = framework
        .tools()
        .iter()
        .find(|tool| tool.spec().name == "probe.add")
        .unwrap();
    let spec = tool.spec();
    seen.insert(
        "tool".into(),
        json!([
            spec.description,
            spec.parameters,
            spec.read_only,
            spec.agent_use
        ]),
    );
    for arguments in [
        json!({"a": 1}),
        json!({"a": 1, "b": 5}),
        json!({"a": 13}),
        json!({"b": "x"}),
    ] {
        let context = ToolContext {
            run_id: String::new(),
            tape: None,
            state: State::new(),
            cancel: CancellationToken::new(),
        };
        let result = bub_kernel::run_tool(
            tool.as_ref(),
            arguments.as_object().unwrap().clone(),
            context,
        )
        .await;
        let result = result.map_err(|error| error.message().to_owned());
        seen.insert(format!("tool {arguments}"), format!("{result:?}").into());
    }
    seen.into()
}

fn assert_same(linked: &Value, other: &Value, which: &str) {
    for (name, expected) in linked.as_object().unwrap() {
        assert_eq!(other.get(name), Some(expected), "{which}: {name}");
    }
}

// L8, design §8: one contract.
#[tokio::test(flavor = "multi_thread")]
async fn a_rust_program_does_what_the_linked_plugin_does() {
    let linked = observe(&world::linked(plugin::Probe::new)).await;
    assert_eq!(linked["turn many"]["output"].as_str().unwrap().len(), 3890);
    assert_eq!(linked["turn upper"]["output"], "BELOW BUILT: UPPER");
    let program = world::program("probe");
    let external = world::external(world::setup(&[&program]));
    assert_same(&linked, &observe(&external).await, "Rust program");
}

// L8, design §8. Only what cannot be the same is looked at more closely: a panic is an exception there.
#[tokio::test(flavor = "multi_thread")]
async fn a_python_program_does_what_the_linked_plugin_does() {
    if !world::has_python() {
        return;
    }
    let mut linked = observe(&world::linked(plugin::Probe::new)).await;
    let external = world::external(world::setup(&world::python_program("probe.py")));
    let mut python = observe(&external).await;
    let name = "turn build panic";
    assert_eq!(
        linked[name]["error"].take(),
        "plugin code panicked: the probe panics"
    );
    assert_eq!(
        python[name]["error"].take(),
        "RuntimeError: the probe panics"
    );
    assert_same(&linked, &python, "Python program");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_nobody_reads_blocks_no_other_call() {
    let program = world::program("probe");
    let framework = world::external(world::setup(&[&program]));
    let state = State::new();
    let prompt = Prompt::from("built: many");
    let args = args::RunModel {
        prompt: &prompt,
        session_id: "s",
        state: &state,
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
    // It goes on where it stood, and nothing of it is lost.
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
    let mut commands = vec![vec![world::program("probe").into()]];
    if world::has_python() {
        commands.push(world::python_program("probe.py"));
    }
    for command in commands {
        let framework = world::external(world::setup(&command));
        // More than may be open at a time, of those the plugin answers and of those it asks for.
        for prompt in std::iter::repeat_n(["built: many", "built: upper"], 300).flatten() {
            let (state, prompt) = (State::new(), Prompt::from(prompt));
            let args = args::RunModel {
                prompt: &prompt,
                session_id: "s",
                state: &state,
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

// What the host sends, a plugin may send back.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_answer_passes_through_a_plugin() {
    let mut commands = vec![vec![world::program("probe").into()]];
    if world::has_python() {
        commands.push(world::python_program("probe.py"));
    }
    for command in commands {
        let framework = world::external(world::setup(&command));
        let (state, prompt) = (State::new(), Prompt::from("built: upper"));
        let args = args::RunModel {
            prompt: &prompt,
            session_id: "long",
            state: &state,
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
