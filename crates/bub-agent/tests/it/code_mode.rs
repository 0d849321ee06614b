//! Code mode. The tests run a real Python interpreter.

use std::sync::{Arc, Mutex};

use bub_kernel::{
    ChannelMessage, FrameworkBuilder, Inbound, Role, Sender, ToolCall, ToolDecision, hooks, tool,
};
use bub_testkit::model::{ModelServer, Reply};
use serde_json::{Value, json};

use crate::{
    harness::AgentFixture,
    turn_loop::{entries, events},
};

/// Add two numbers.
#[tool(crate = bub_kernel, name = "lab.add")]
async fn lab_add(a: i64, #[default(1)] b: i64) -> Value {
    json!({"sum": a + b})
}

/// Say a secret.
#[tool(crate = bub_kernel, name = "lab.secret", code_only)]
async fn lab_secret() -> String {
    "it is correct-horse-battery".to_owned()
}

fn with_tools(builder: FrameworkBuilder) -> FrameworkBuilder {
    builder.tool(lab_add()).tool(lab_secret())
}

struct CodeFixture {
    fixture: AgentFixture,
    server: ModelServer,
}

impl CodeFixture {
    fn new() -> Self {
        Self::with(with_tools)
    }

    fn with(add: impl FnOnce(FrameworkBuilder) -> FrameworkBuilder) -> Self {
        let server = ModelServer::start();
        let fixture = AgentFixture::asking_so(&server.url(), &[], add);
        Self { fixture, server }
    }

    async fn say(&self, text: &str) -> String {
        let message = ChannelMessage::new("s", "lab", text);
        self.fixture.own_turn(message).await.unwrap().model_output
    }

    /// Enables code mode, lets the model run code, and returns the result that the model sees.
    async fn run(&self, arguments: Value) -> Value {
        self.say(",code_mode true").await;
        let call = Reply::new().call("a", "run_code", &arguments.to_string());
        self.server.script(call);
        self.server.otherwise(Reply::text("done"));
        self.say("go").await;
        let requests = self.server.requests();
        let request = requests.last().unwrap().json();
        let messages = request["messages"].as_array().unwrap();
        let result = messages.iter().rfind(|message| message["role"] == "tool");
        let text = result.unwrap()["content"].as_str().unwrap();
        serde_json::from_str(text).unwrap_or_else(|_| text.into())
    }

    async fn run_code(&self, code: &str) -> Value {
        self.run(json!({"code": code})).await
    }
}

fn tool_names(request: &Value) -> Vec<String> {
    let tools = request["tools"].as_array().unwrap().iter();
    let names = tools.map(|tool| tool["function"]["name"].as_str().unwrap().to_owned());
    names.collect()
}

// P-44, P-55, P-56, P-58, P-61
#[tokio::test]
async fn in_code_mode_the_model_gets_only_direct_tools_and_a_stub() {
    let fixture = CodeFixture::new();
    let running = fixture.fixture.framework.open_scope().await.unwrap();
    fixture.server.otherwise(Reply::text("done"));
    fixture.say("go").await;
    for (line, answer) in [
        (",code_mode enable=yes", "enabled"),
        (",code_mode false", "disabled"),
        (",code_mode 1", "enabled"),
    ] {
        let expected = format!("Session code mode {answer} (applies from the next turn).");
        assert_eq!(fixture.say(line).await, expected);
    }
    let recorded = events(&entries(&fixture.fixture, "s").await, "code_mode_switch");
    let switch = |value: bool| json!({"code_mode": value});
    assert_eq!(recorded, [switch(true), switch(false), switch(true)]);
    fixture.say("go").await;
    let requests = fixture.server.requests();
    let names = tool_names(&requests[0].json());
    assert!(!names.contains(&"run_code".to_owned()) && !names.contains(&"lab_secret".to_owned()));
    let names = tool_names(&requests[1].json());
    let direct = ["run_code", "spill_read", "bash", "bash_output", "bash_kill"];
    assert_eq!(names[..5], direct);
    assert_eq!(names[5..], ["fs_read", "fs_write", "fs_edit"]);
    let system = requests[1].json()["messages"][0]["content"]
        .as_str()
        .unwrap()
        .to_owned();
    let (_, block) = system.split_once("<code_mode>\n").unwrap();
    let path = block
        .split("signatures are in ")
        .nth(1)
        .unwrap()
        .split(": ")
        .next()
        .unwrap();
    let stub = std::fs::read_to_string(path).unwrap();
    let signature =
        "async def lab_add(*, a: int, b: int = 1) -> Any:\n    \"\"\"Add two numbers.\"\"\"";
    assert!(
        stub.contains(signature) && stub.contains("async def lab_secret() -> "),
        "{stub}"
    );
    assert!(
        !stub.contains("def bash") && !stub.contains("def code_mode"),
        "{stub}"
    );
    let name = path.rsplit('/').next().unwrap();
    assert!(
        name.starts_with("tools-") && name.len() == "tools-123456789012.pyi".len(),
        "{path}"
    );
    // The model can read the stub, although it is in bub's home.
    let read = json!({"path": path});
    fixture
        .server
        .script(Reply::new().call("a", "fs_read", &read.to_string()));
    fixture.say("go").await;
    let body = fixture.server.requests().last().unwrap().json().to_string();
    assert!(body.contains("async def lab_add"), "{body}");
    running.close().await.unwrap();
}

// P-77: code gets the data of results, not their text.
#[tokio::test]
async fn tools_of_the_agent_return_data_to_code() {
    let fixture = CodeFixture::new();
    let running = fixture.fixture.framework.open_scope().await.unwrap();
    let code = r"
print(await tools.tape_anchors())
print(*sorted(await tools.tape_info()))
print(await tools.tape_search(query='found nowhere else'))
print(*await tools.skill())
";
    let result = fixture.run_code(code).await;
    let lines: Vec<&str> = result.as_str().unwrap().lines().collect();
    assert_eq!(lines[0], "{'anchors': ['session/start']}");
    assert_eq!(
        lines[1],
        "anchors entries entries_since_last_anchor last_anchor last_token_cache_hit_rate last_token_usage name"
    );
    assert!(lines[2].starts_with("{'matches': ["), "{result}");
    assert!(lines[2].contains("'filtered': "), "{result}");
    assert_eq!(lines[3], "skills");
    running.close().await.unwrap();
}

// P-57, P-62, P-65, P-66, P-67
#[tokio::test]
async fn code_calls_tools_and_prints() {
    struct WatchingPlugin(Arc<Mutex<Vec<(String, bool)>>>);

    #[hooks(crate = bub_kernel)]
    impl WatchingPlugin {
        fn before_tool_call(&self, call: &ToolCall) -> Option<ToolDecision> {
            let call = (call.tool.clone(), call.code_mode);
            self.0.lock().unwrap().push(call);
            None
        }
    }

    let seen = Arc::new(Mutex::new(Vec::new()));
    let plugin = WatchingPlugin(Arc::clone(&seen));
    let fixture = CodeFixture::with(|builder| with_tools(builder).plugin("watching", plugin));
    let running = fixture.fixture.framework.open_scope().await.unwrap();
    let code = r#"
import asyncio, os, sys
print("name", __name__)
both = await asyncio.gather(tools.lab_add(a=1), tools.lab_add(a=2, b=5))
print(both, flush=True)
print("not shown", file=sys.stderr)
os.system("echo by a child")
for call in (lambda: tools.lab_add(1), lambda: tools.nothing, lambda: tools.fs_read):
    try:
        await call()
    except (TypeError, AttributeError) as error:
        print(type(error).__name__, error)
try:
    await tools.lab_add(a="x")
except BubError as error:
    print(str(error)[:40])
print("é\ud800", end="")
"#;
    let result = fixture.run_code(code).await;
    assert_eq!(
        result,
        "name __run_code__\n[{'sum': 2}, {'sum': 7}]\nby a child\nTypeError lab_add() takes keyword arguments only\n\
         AttributeError unknown tool 'nothing'\nAttributeError unknown tool 'fs_read'\n\
         [invalid_input] Tool 'lab.add' argument \né?"
    );
    let call = |name: &str, code_mode| (name.to_owned(), code_mode);
    let lab = || call("lab.add", true);
    let calls = [
        call("code_mode", false),
        call("run_code", false),
        lab(),
        lab(),
        lab(),
    ];
    assert_eq!(*seen.lock().unwrap(), calls);
    // The calls are on the tape.
    let recorded = events(&entries(&fixture.fixture, "s").await, "code.call");
    let status = recorded.iter().map(|call| {
        (
            call["tool"].as_str().unwrap(),
            call["status"].as_str().unwrap(),
        )
    });
    let status: Vec<_> = status.collect();
    assert_eq!(
        status,
        [("lab.add", "ok"), ("lab.add", "ok"), ("lab.add", "error")]
    );
    assert!(
        recorded.iter().any(|call| call["result"] == r#"{"sum":7}"#),
        "{recorded:?}"
    );
    running.close().await.unwrap();
}

/// A recorded conversation is a test, so the result of a tool must not contain random names.
#[tokio::test]
async fn the_error_of_equal_code_is_equal_in_each_run() {
    let fixture = CodeFixture::new();
    let running = fixture.fixture.framework.open_scope().await.unwrap();
    for code in ["def f():\n    raise ValueError('bad')\nf()", "1 +"] {
        let first = fixture.run(json!({"code": code})).await;
        assert!(first.to_string().contains("<run_code-"), "{first}");
        assert_eq!(first, fixture.run(json!({"code": code})).await);
    }
    running.close().await.unwrap();
}

// P-63
#[tokio::test]
async fn errors_of_code_have_the_output_so_far() {
    let cases = [
        (
            json!({"code": "print('so far')\ndef f():\n    raise ValueError('bad')\nf()"}),
            "Code raised ValueError: bad",
            "so far\n",
            Some("in f\n    raise ValueError('bad')\n"),
        ),
        (
            json!({"code": "raise SystemExit(3)"}),
            "Code raised SystemExit: 3",
            "",
            Some("SystemExit: 3"),
        ),
        (
            json!({"code": "1 +"}),
            "Code raised SyntaxError: invalid syntax (",
            "",
            Some("SyntaxError: invalid syntax"),
        ),
        (
            json!({"code": "import time\nprint('so far')\ntime.sleep(60)", "timeout_seconds": 1}),
            "Code timed out after 1 seconds",
            "so far\n",
            None,
        ),
        (
            json!({"code": "import os, sys\nprint('lost?')\nsys.stdout.flush()\nprint('why', file=sys.stderr)\nos._exit(7)"}),
            "Code runner exited unexpectedly with code 7",
            "lost?\n",
            None,
        ),
    ];
    for (arguments, message, output, traceback) in cases {
        let fixture = CodeFixture::new();
        let running = fixture.fixture.framework.open_scope().await.unwrap();
        let error = fixture.run(arguments.clone()).await;
        assert_eq!(error["kind"], "tool", "{error}");
        assert!(
            error["message"].as_str().unwrap().starts_with(message),
            "{error}"
        );
        assert_eq!(error["details"]["output"], output, "{error}");
        if let Some(traceback) = traceback {
            let text = error["details"]["traceback"].as_str().unwrap();
            assert!(text.contains(traceback), "{text}");
            assert!(
                !text.contains("<string>"),
                "only frames of the code: {text}"
            );
        }
        if message.ends_with('7') {
            assert_eq!(error["details"]["stderr"], "why\n", "{error}");
        }
        running.close().await.unwrap();
    }
}

// P-63, P-68
#[tokio::test]
async fn code_runs_only_in_code_mode() {
    let fixture = CodeFixture::new();
    let running = fixture.fixture.framework.open_scope().await.unwrap();
    let message = ChannelMessage::new("s", "lab", ",run_code code='print(1)'");
    let error = fixture.fixture.own_turn(message).await.unwrap_err();
    assert!(
        error
            .message()
            .contains("Code mode is not enabled for this run."),
        "{error}"
    );
    fixture.say(",code_mode true").await;
    assert_eq!(fixture.say(",run_code code='print(1)'").await, "1\n");
    fixture
        .server
        .script(Reply::new().call("a", "lab_add", r#"{"a": 1}"#));
    fixture.server.otherwise(Reply::text("done"));
    fixture.say("go").await;
    let body = fixture.server.requests().last().unwrap().json().to_string();
    assert!(
        body.contains("use `await tools.lab_add(…)` in `run_code`"),
        "{body}"
    );
    running.close().await.unwrap();
}

// L7
#[tokio::test]
async fn code_gets_no_secrets_and_obeys_the_policy() {
    let fixture = CodeFixture::new();
    let running = fixture.fixture.framework.open_scope().await.unwrap();
    let code = "import os\nprint(await tools.lab_secret(), 'BUB_TELEGRAM_TOKEN' in os.environ)\nprint('correct-horse' + '-battery')";
    assert_eq!(fixture.run_code(code).await, "it is *** False\n***\n");
    running.close().await.unwrap();
    // A member may not run code, and a rule about a tool applies to calls from code.
    let rules = r#"[{"tools": ["lab.add"], "action": "deny", "reason": "no sums"}, {"tools": ["run_code", "code_mode"], "roles": ["member"], "action": "deny"}]"#;
    let server = ModelServer::start();
    let variables = [("BUB_POLICY_RULES", rules)];
    let fixture = CodeFixture {
        fixture: AgentFixture::asking_so(&server.url(), &variables, with_tools),
        server,
    };
    let running = fixture.fixture.framework.open_scope().await.unwrap();
    let code = "try:\n    await tools.lab_add(a=1)\nexcept BubError as error:\n    print(error)";
    let denied = fixture.run_code(code).await;
    assert_eq!(denied, "[tool] Tool 'lab.add' denied by policy: no sums\n");
    fixture
        .server
        .script(Reply::new().call("b", "run_code", r#"{"code": "print(1)"}"#));
    let member = Sender {
        role: Role::Member,
        ..Sender::default()
    };
    let message = ChannelMessage::new("s", "lab", "go");
    let message = Inbound::from(message).with_sender(member);
    fixture.fixture.turn(message).await.unwrap();
    let body = fixture.server.requests().last().unwrap().json().to_string();
    assert!(body.contains("Tool 'run_code' denied by policy"), "{body}");
    running.close().await.unwrap();
}

// P-64
#[tokio::test]
async fn code_is_limited_in_calls_and_ends_with_all_its_processes() {
    let fixture = CodeFixture::new();
    let running = fixture.fixture.framework.open_scope().await.unwrap();
    let code = r"
import asyncio, subprocess
child = subprocess.Popen(['sleep', '60'])
print(child.pid)
results = await asyncio.gather(*[tools.lab_add(a=n) for n in range(510)], return_exceptions=True)
print(sum(isinstance(result, dict) for result in results), results[-1])
";
    let result = fixture.run_code(code).await;
    let (pid, counts) = result.as_str().unwrap().split_once('\n').unwrap();
    assert_eq!(
        counts,
        "500 [tool] too many tool calls: the maximum is 500 per run; split the work\n"
    );
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    assert!(state.is_empty() || state.contains(") Z "), "{state}");
    running.close().await.unwrap();
}

#[tokio::test]
async fn without_python_code_mode_says_why() {
    let server = ModelServer::start();
    let variables = [("PATH", "/nowhere")];
    let fixture = AgentFixture::asking_so(&server.url(), &variables, |builder| builder);
    let names = fixture
        .framework
        .tools()
        .iter()
        .map(|tool| tool.spec().name.clone());
    let names: Vec<_> = names.collect();
    assert!(!names.contains(&"run_code".to_owned()) && names.contains(&"code_mode".to_owned()));
    let message = ChannelMessage::new("s", "lab", ",code_mode true");
    let error = fixture.own_turn(message).await.unwrap_err();
    assert!(
        error.message().contains("`python3` not found in PATH"),
        "{error}"
    );
}
