//! Plugins that hang, crash, flood and send invalid data. The turn ends in time, memory stays bounded, the next turn
//! works, and no process is left.

use std::{
    collections::HashMap,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use bub_kernel::{
    ApprovalRequest, Envelope, Error, Framework, Inbound, LlmRequest, PluginContext, Prompt,
    SessionId, State, ToolCall, ToolContext, Turn, TurnSnapshot,
    hooks::{args, point},
};
use bub_plugin::{
    Descriptor, ExternalPlugin, HookDecl, HostContext, Limits, PROTOCOL_VERSION, PluginConfig,
    PluginProcess, ToolDecl,
};
use bub_sandbox::Launcher;
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::harness;

/// How long a turn with a hostile plugin may take: the timeouts below, and the time to start programs on a busy
/// machine.
const BUDGET: Duration = Duration::from_secs(30);
/// Maximum growth of the memory while a plugin floods, in kilobytes. Other tests run at the same time.
const MAX_GROWTH_KB: u64 = 300 * 1024;

struct HostilePluginFixture {
    framework: Framework,
    directory: TempDir,
    starts: bool,
}

impl HostilePluginFixture {
    /// Creates a framework whose top plugin misbehaves in the given hooks. `how` selects the misbehavior in
    /// `hostile.py`.
    fn new(how: &str, hooks: &[HookDecl], launcher: Option<Launcher>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/hostile.py");
        let notes = directory.path().join("notes");
        let described = serde_json::to_string(hooks).unwrap();
        let command = [
            "python3",
            "-I",
            "-S",
            "-B",
            program.to_str().unwrap(),
            how,
            notes.to_str().unwrap(),
            &described,
        ];
        let limits = Limits {
            start: Duration::from_secs(10),
            hook: Duration::from_secs(if matches!(how, "logs" | "stderr") {
                10
            } else {
                2
            }),
            synchronous: Duration::from_secs(2),
            tool: Duration::from_secs(20),
            model: Duration::from_secs(2),
            // For a silent plugin, only the model timeout applies.
            hooks: if matches!(how, "silent" | "unread") {
                HashMap::new()
            } else {
                HashMap::from([("run_model_stream".to_owned(), Duration::from_secs(2))])
            },
        };
        let plugin_config = PluginConfig {
            limits,
            ..harness::plugin_config(&command)
        };
        let tool = ToolDecl {
            name: "t".to_owned(),
            input_schema: json!({}),
            ..ToolDecl::default()
        };
        let tools = vec![tool];
        let descriptor = Descriptor {
            protocol: PROTOCOL_VERSION,
            hooks: hooks.to_vec(),
            tools,
            ..Descriptor::default()
        };
        let make = move |context: &PluginContext<'_>| {
            let host = HostContext {
                framework: context.framework.clone(),
                workspace: context.workspace.to_owned(),
                settings: harness::settings(),
                launcher: launcher.map(Arc::new),
                question_handler: None,
                group: bub_plugin::PluginGroup::default(),
            };
            Ok::<_, Error>(ExternalPlugin::new(
                PluginProcess::new(plugin_config, descriptor, host),
                context,
            ))
        };
        let framework = Framework::builder()
            .plugin("bottom", harness::BottomPlugin)
            .plugin_with("hostile", make)
            .build();
        Self {
            framework,
            directory,
            starts: how != "start",
        }
    }

    /// Starts the plugin with a tool call, which has a long timeout, so that the start time does not count in the test.
    async fn warm_up(&self) {
        if self.starts {
            let _ = self.call_tool().await;
        }
    }

    async fn call_tool(&self) -> Result<Value, String> {
        let context = ToolContext::new(self.detached_turn());
        let tool = Arc::clone(self.framework.tools().first().unwrap());
        let called = bub_kernel::run_tool(tool.as_ref(), serde_json::Map::new(), context).await;
        called.map_err(|error| error.message().to_owned())
    }

    /// Returns a turn for hooks that are called individually.
    fn detached_turn(&self) -> Turn {
        Turn::detached(&self.framework, Envelope::from_text("m"), State::new())
    }

    fn with(how: &str, hook: &str) -> Self {
        Self::new(how, &[entry(hook)], None)
    }

    /// Runs a turn. Returns the prompt and the output of the model, or the error. Panics if the turn exceeds
    /// [`BUDGET`].
    async fn turn(&self, content: &str) -> Result<(String, String), String> {
        self.warm_up().await;
        let started = Instant::now();
        let message = Envelope::from_text(content)
            .with("channel", "lab")
            .with("chat_id", "1");
        let turn = self.framework.process_inbound(message);
        let turn = tokio::time::timeout(BUDGET, turn).await;
        let turn =
            turn.unwrap_or_else(|_| panic!("the turn took longer than {:?}", started.elapsed()));
        turn.map(|result| (result.prompt.text(), result.model_output))
            .map_err(|error| error.message().to_owned())
    }

    /// Returns the decision of the guard about a tool call.
    async fn guard_decision(&self, tool: &str) -> String {
        self.warm_up().await;
        let call = ToolCall {
            run_id: "r".into(),
            tool: tool.to_owned(),
            arguments: serde_json::Map::new(),
            code_mode: false,
        };
        let turn = self.detached_turn();
        let deciding = self.framework.hooks().before_tool_call(call, &turn);
        format!(
            "{:?}",
            tokio::time::timeout(BUDGET, deciding)
                .await
                .unwrap()
                .decision
        )
    }

    /// Returns the ids of all processes that were started.
    fn pids(&self) -> Vec<u32> {
        let notes =
            std::fs::read_to_string(self.directory.path().join("notes")).unwrap_or_default();
        notes.lines().map(|line| line.parse().unwrap()).collect()
    }

    /// Drops the framework and checks that all processes end.
    async fn end(self) {
        let pids = self.pids();
        assert!(!pids.is_empty(), "it was never started");
        let Self {
            framework,
            directory,
            ..
        } = self;
        tokio::task::spawn_blocking(move || drop(framework))
            .await
            .unwrap();
        eventually("its processes are gone", || {
            !pids.iter().copied().any(is_alive)
        })
        .await;
        drop(directory);
    }
}

fn entry(hook: &str) -> HookDecl {
    HookDecl {
        name: hook.to_owned(),
        ..HookDecl::default()
    }
}

/// Returns whether a process is running. A zombie is not.
fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, fields)| !fields.starts_with('Z'))
}

/// Runs three checks at a time, because they mostly wait for timeouts.
async fn a_few_at_a_time(checks: impl Iterator<Item = impl Future<Output = ()>>) {
    futures_util::stream::iter(checks)
        .buffer_unordered(3)
        .collect::<()>()
        .await;
}

async fn eventually(condition: &str, is_met: impl Fn() -> bool) {
    let started = Instant::now();
    while !is_met() {
        assert!(started.elapsed() < BUDGET, "not met in time: {condition}");
        tokio::task::yield_now().await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Returns the resident memory of this process in kilobytes.
fn memory_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap_or("0");
    line.trim().trim_end_matches(" kB").trim().parse().unwrap()
}

fn is_skipped() -> bool {
    !cfg!(target_os = "linux") || !harness::has_python()
}

// L8
#[tokio::test(flavor = "multi_thread")]
async fn a_bad_hook_fails_its_turn_in_time_and_the_next_turn_works() {
    if is_skipped() {
        return;
    }
    let cases = [
        ("hang", "no answer within 2 s"),
        ("deaf to signals", "no answer within 2 s"),
        ("exit in a reply", "the process ended"),
        ("half a line", "no answer within 2 s"),
        ("a gigabyte", "the process sent a line longer than"),
        ("garbage", "the process sent more than 100 invalid lines"),
        (
            "events",
            "the process sent more events than it has credits for",
        ),
        (
            "answers to nothing",
            "the process answered with unknown id 4711",
        ),
        ("another id", "answered with unknown id"),
        ("a text for an id", "answered with unknown id"),
    ];
    let check = async |(how, expected): (&str, &str)| {
        let fixture = HostilePluginFixture::with(how, "build_prompt");
        let before = memory_kb();
        assert_eq!(fixture.turn("good").await.unwrap().0, "fine", "{how}");
        let failed = fixture.turn("bad").await.unwrap_err();
        // The error names the plugin.
        assert!(
            failed.starts_with("plugin probe: ") && failed.contains(expected),
            "{how}: {failed}"
        );
        assert!(
            memory_kb() < before + MAX_GROWTH_KB,
            "{how}: {before} kB, now {} kB",
            memory_kb()
        );
        assert_eq!(
            fixture.turn("good").await.unwrap().0,
            "fine",
            "{how}: the next turn"
        );
        fixture.end().await;
    };
    a_few_at_a_time(cases.into_iter().map(check)).await;
}

// L8
#[tokio::test(flavor = "multi_thread")]
async fn what_a_plugin_says_beside_its_answers_is_bounded() {
    if is_skipped() {
        return;
    }
    for (how, is_fine) in [
        ("logs", true),
        ("stderr", true),
        ("an answer twice", true),
        ("requests", false),
    ] {
        let fixture = HostilePluginFixture::with(how, "build_prompt");
        let before = memory_kb();
        let turn = fixture.turn("bad").await;
        assert_eq!(turn.is_ok(), is_fine, "{how}: {turn:?}");
        assert!(
            memory_kb() < before + MAX_GROWTH_KB,
            "{how}: {before} kB, now {} kB",
            memory_kb()
        );
        assert_eq!(
            fixture.turn("good").await.unwrap().0,
            "fine",
            "{how}: the next turn"
        );
        fixture.end().await;
    }
}

// L8
#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_reads_nothing_is_ended() {
    if is_skipped() {
        return;
    }
    let fixture = HostilePluginFixture::with("deaf", "build_prompt");
    let before = memory_kb();
    let long = format!("bad{}", " ".repeat(4 << 20));
    let failed = fixture.turn(&long).await.unwrap_err();
    assert!(failed.contains("no answer within 2 s"), "{failed}");
    assert!(
        memory_kb() < before + MAX_GROWTH_KB,
        "{before} kB, now {} kB",
        memory_kb()
    );
    assert_eq!(fixture.turn("good").await.unwrap().0, "fine");
    fixture.end().await;
}

// L8
#[tokio::test(flavor = "multi_thread")]
async fn a_bad_stream_fails_its_turn_in_time_and_the_next_turn_works() {
    if is_skipped() {
        return;
    }
    let cases = [
        ("hang", "no answer within 2 s"),
        ("exit in a stream", "the process ended"),
        ("hang in a stream", "no answer within 2 s"),
        (
            "events",
            "the process sent more events than it has credits for",
        ),
        // It answers `ping`, but sends no events.
        ("silent", "no answer within 2 s"),
        // It waits for the chain below, which waits for credits.
        ("unread", "no answer within 2 s"),
        (
            r#"{"event": {"kind": 5}, "answer": {}}"#,
            "invalid result: expected an event of a known `kind`, with its `data`, got {\"kind\":5}",
        ),
        (
            r#"{"event": {"kind": "tekst", "data": {}}, "answer": {}}"#,
            "expected an event of a known `kind`",
        ),
        (
            r#"{"event": {"kind": "text", "data": {}}, "answer": {}}"#,
            "expected an event of a known `kind`",
        ),
        (
            r#"{"event": {"kind": "text", "data": {"delta": "x"}}, "answer": {"state": 5}}"#,
            "expected a `state` of",
        ),
    ];
    let check = async |(how, expected): (&str, &str)| {
        let fixture = HostilePluginFixture::with(how, "run_model_stream");
        let before = memory_kb();
        let failed = fixture.turn("bad").await.unwrap_err();
        assert!(
            failed.starts_with("plugin probe: ") && failed.contains(expected),
            "{how}: {failed}"
        );
        assert!(
            memory_kb() < before + MAX_GROWTH_KB,
            "{how}: {before} kB, now {} kB",
            memory_kb()
        );
        if !how.starts_with('{') {
            assert_eq!(
                fixture.turn("good").await.unwrap().1,
                "below bottom: good",
                "{how}: the next turn"
            );
        }
        fixture.end().await;
    };
    a_few_at_a_time(cases.into_iter().map(check)).await;
}

// Design §8
#[tokio::test(flavor = "multi_thread")]
async fn without_credits_the_model_below_answers_as_a_whole() {
    if is_skipped() {
        return;
    }
    let fixture = HostilePluginFixture::with("no credits", "run_model_stream");
    assert_eq!(
        fixture.turn("bad").await.unwrap().1,
        "whole: below bad luck"
    );
    fixture.end().await;
}

// A parameter of the wrong type is not treated as absent.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_plugin_asks_for_in_a_wrong_way_is_refused_with_the_reason() {
    if is_skipped() {
        return;
    }
    let check = async |(method, params, expected): (&str, &str, &str)| {
        for hook in ["run_model", "run_model_stream"] {
            let how =
                format!(r#"ask {{"method": "{method}", "params": {{"call": ID, {params}}}}}"#);
            let fixture = HostilePluginFixture::with(&how, hook);
            let output = fixture.turn("bad").await.unwrap().1;
            assert!(
                output.starts_with("invalid_input: ") && output.contains(expected),
                "{how}: {output}"
            );
            fixture.end().await;
        }
    };
    let cases = [
        (
            "tape/query",
            r#""kinds": "event""#,
            "`kinds`: must be a list, not the text \"event\"",
        ),
        (
            "tape/query",
            r#""kinds": [5]"#,
            "`kinds`: must be text, not the number `5`",
        ),
        (
            "tape/query",
            r#""limit": -1"#,
            "`limit`: must be a whole number, not the number `-1`",
        ),
        (
            "tape/query",
            r#""session_id": 5"#,
            "`session_id`: must be text, not the number `5`",
        ),
        (
            "tape/append",
            r#""name": 5"#,
            "`name`: must be text, not the number `5`",
        ),
        ("tape/append", r#""data": 5"#, "`name` is missing"),
        (
            "next/call",
            r#""args": ["x"]"#,
            "invalid `args`: expected an object",
        ),
        (
            "next/call",
            r#""args": {"promt": "x"}"#,
            "cannot replace argument `promt`; replaceable arguments: prompt, ",
        ),
        (
            "next/call",
            r#""args": {"state": {}}"#,
            "cannot replace argument `state`",
        ),
        (
            "next/call",
            r#""args": {"prompt": 5}"#,
            "`args`: expected a string or a list of parts, got 5",
        ),
        (
            "next/call",
            r#""credits": -1"#,
            "invalid `credits`: expected a non-negative integer",
        ),
        (
            "next/call",
            r#""credits": "many""#,
            "invalid `credits`: expected a non-negative integer",
        ),
        (
            "next/call",
            r#""credits": 1.5"#,
            "invalid `credits`: expected a non-negative integer",
        ),
    ];
    a_few_at_a_time(cases.into_iter().map(check)).await;
}

// L8
#[tokio::test(flavor = "multi_thread")]
async fn what_waits_for_a_reader_is_bounded() {
    if is_skipped() {
        return;
    }
    let fixture = HostilePluginFixture::with("long events", "run_model_stream");
    fixture.warm_up().await;
    let before = memory_kb();
    let (turn, prompt) = (fixture.detached_turn(), Prompt::from("bad"));
    let args = args::RunModel {
        prompt: &prompt,
        session_id: turn.session_id(),
        state: turn.state(),
        turn: &turn,
    };
    let mut stream = fixture
        .framework
        .hooks()
        .run_model_stage(args)
        .await
        .unwrap()
        .unwrap();
    eventually("it is ended", || {
        !fixture.pids().iter().copied().any(is_alive)
    })
    .await;
    assert!(
        memory_kb() < before + MAX_GROWTH_KB,
        "{before} kB, now {} kB",
        memory_kb()
    );
    let mut last = None;
    while let Some(event) = stream.next().await {
        last = event.err();
    }
    let failed = last.unwrap();
    assert!(
        failed
            .message()
            .contains("the unread events of the stream exceed"),
        "{failed}"
    );
    drop(stream);
    fixture.end().await;
}

// L8: questions about a call are queued until the call is read, even if the plugin has cancelled them.
#[tokio::test(flavor = "multi_thread")]
async fn questions_that_nobody_takes_are_bounded() {
    if is_skipped() {
        return;
    }
    let fixture = HostilePluginFixture::with("questions taken back", "run_model_stream");
    fixture.warm_up().await;
    let before = memory_kb();
    let (turn, prompt) = (fixture.detached_turn(), Prompt::from("bad"));
    let args = args::RunModel {
        prompt: &prompt,
        session_id: turn.session_id(),
        state: turn.state(),
        turn: &turn,
    };
    let hooks = fixture.framework.hooks();
    let mut stream = hooks.run_model_stage(args).await.unwrap().unwrap();
    // The first event was read; the test reads on only after the plugin has asked everything.
    eventually("it has asked", || fixture.pids().len() == 2).await;
    assert!(
        memory_kb() < before + MAX_GROWTH_KB,
        "{before} kB, now {} kB",
        memory_kb()
    );
    let mut text = String::new();
    while let Some(event) = stream.next().await {
        if let bub_kernel::StreamEvent::Text(delta) = event.unwrap() {
            text.push_str(&delta);
        }
    }
    // Questions beyond the limit were rejected, not lost. The others were cancelled.
    assert!(
        text.starts_with('x') && text.ends_with(" refused"),
        "{text}"
    );
    let refused: usize = text[1..].trim_end_matches(" refused").parse().unwrap();
    assert!(refused >= 2000 - 256, "{text}");
    // The turn keeps the framework alive, and with it the plugin.
    drop((stream, turn));
    fixture.end().await;
}

// L8
#[tokio::test(flavor = "multi_thread")]
async fn turns_go_on_without_a_plugin_that_does_not_start() {
    if is_skipped() {
        return;
    }
    let fixture = HostilePluginFixture::with("start", "build_prompt");
    for _ in 0..4 {
        assert_eq!(fixture.turn("good").await.unwrap().0, "bottom: good");
    }
    // Neither the next hook nor the next turn retries the start at once.
    assert_eq!(fixture.pids().len(), 1);
    fixture.end().await;
}

// Design §3: a guard that fails denies the call; an observer does not.
#[tokio::test(flavor = "multi_thread")]
async fn a_guard_that_hangs_crashes_or_does_not_start_denies_unless_it_only_observes() {
    if is_skipped() {
        return;
    }
    let check = async |(how, observe_only): (&str, bool)| {
        let hook = HookDecl {
            observe_only,
            ..entry("before_tool_call")
        };
        let fixture = HostilePluginFixture::new(how, &[hook], None);
        let decided = fixture.guard_decision("bad").await;
        assert_eq!(
            decided.starts_with("Deny("),
            !observe_only,
            "{how}, {observe_only}: {decided}"
        );
        if how == "start" && !observe_only {
            // The timeout of the hook includes the start.
            assert!(
                decided.contains("plugin probe: the process did not start within 2 s"),
                "{decided}"
            );
        }
        fixture.end().await;
    };
    let hows = [
        "hang",
        "exit in a reply",
        "start",
        r#"{"answer": {"value": {"allow": true}}}"#,
    ];
    a_few_at_a_time(
        hows.into_iter()
            .flat_map(|how| [(how, false), (how, true)])
            .map(check),
    )
    .await;
}

// Design §3: only an empty result lets the call proceed.
#[tokio::test(flavor = "multi_thread")]
async fn a_guard_whose_answer_nobody_understands_denies() {
    if is_skipped() {
        return;
    }
    let check = async |(answer, is_allowed): (&str, bool)| {
        let fixture = HostilePluginFixture::with(&format!("raw {answer}"), "before_tool_call");
        let decided = fixture.guard_decision("t").await;
        assert_eq!(
            decided.starts_with("Proceed("),
            is_allowed,
            "{answer}: {decided}"
        );
        assert!(
            is_allowed || decided.contains("plugin probe: invalid res"),
            "{answer}: {decided}"
        );
        fixture.end().await;
    };
    let cases = [
        (r#"{"id": ID, "result": null}"#, true),
        (r#"{"id": ID, "result": {}, "error": null}"#, true),
        (r#"{"id": ID, "result": {"state": {}}}"#, true),
        (r#"{"id": ID, "result": {"value": {"proceed": {}}}}"#, true),
        (r#"{"id": ID, "result": {"deny": "no!"}}"#, false),
        (r#"{"id": ID, "result": {"vaule": {"deny": "no!"}}}"#, false),
        (
            r#"{"id": ID, "result": {"value": {"proceed": {}}, "deny": true}}"#,
            false,
        ),
        (r#"{"id": ID, "result": {"stream": true}}"#, false),
        (r#"{"id": ID}"#, false),
        (r#"{"id": ID, "error": null}"#, false),
        (
            r#"{"id": ID, "result": {"value": {"deny": "no!"}}, "result": {}}"#,
            false,
        ),
        (r#"{"id": ID, "result": {"value": null}}"#, false),
        (
            r#"{"id": ID, "result": {"value": {"proceed": null}}}"#,
            false,
        ),
        (
            r#"{"id": ID, "result": {"value": {"proceed": {}, "deny": "no!"}}}"#,
            false,
        ),
        (r#"{"id": ID, "result": {"value": {}}}"#, false),
    ];
    a_few_at_a_time(cases.into_iter().map(check)).await;
}

// L8: an invalid response fails its call before the timeout.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_cannot_be_read_fails_its_call_at_once() {
    if is_skipped() {
        return;
    }
    let deep = format!(
        r#"{{"id": ID, "result": {{"value": {}{}}}}}"#,
        "[".repeat(500),
        "]".repeat(500)
    );
    let check = async |(answer, expected): (&str, &str)| {
        let fixture = HostilePluginFixture::with(&format!("raw {answer}"), "build_prompt");
        let outcome = format!("{:?}", fixture.turn("x").await);
        assert!(outcome.contains(expected), "{answer}: {outcome}");
        fixture.end().await;
    };
    let unreadable = "plugin probe: invalid response: ";
    let cases = [
        (r#"{"id": ID, "result": {"value": NaN}}"#, unreadable),
        (r#"{"result": {"value": 1e999}, "id" : ID}"#, unreadable),
        (r#"{"id": ID, "result": {"value": "\ud800"}}"#, unreadable),
        (
            "{\"id\": ID, \"result\": {\"value\": \"\u{e9}\"}}",
            unreadable,
        ),
        (&deep, unreadable),
        (r#"{"id": ID, "id": ID, "result": {}}"#, unreadable),
        (
            r#"[{"id": ID, "result": {"value": "x"}}, {"id": ID, "result": null}]"#,
            unreadable,
        ),
        // A response without a usable id belongs to the only unanswered request.
        (r#"{"result": {"value": NaN}}"#, unreadable),
        (
            r#"{"result": {"value": "x"}}"#,
            "invalid response: `id` is missing",
        ),
        // Variants that are accepted.
        (r#"[{"id": ID, "result": {"value": "x"}}]"#, "Ok((\"x\","),
        (
            "\u{ef}\u{bb}\u{bf}{\"id\": ID, \"result\": {\"value\": \"x\"}}",
            "Ok((\"x\",",
        ),
        // Lines that are not responses do not end the call.
        (
            "debug {1}\n{\"a\": NaN}\n{\"id\": ID, \"result\": {\"value\": \"x\"}}",
            "Ok((\"x\",",
        ),
        (r#"{"id": ID, "error": "just text"}"#, "Err(\"just text\")"),
        (
            r#"{"id": ID, "error": {}}"#,
            "Err(\"the plugin returned an error without a message\")",
        ),
    ];
    a_few_at_a_time(cases.into_iter().map(check)).await;
}

// L8
#[tokio::test(flavor = "multi_thread")]
async fn what_a_plugin_started_ends_with_it() {
    if is_skipped() {
        return;
    }
    let launcher = Some(Launcher(harness::program("probe").into()));
    let fixture = HostilePluginFixture::new("children", &[entry("build_prompt")], launcher);
    let failed = fixture.turn("bad").await.unwrap_err();
    // The children keep the pipe open, but the call times out.
    assert!(
        failed.contains("no answer within 2 s") || failed.contains("the process ended"),
        "{failed}"
    );
    let left = fixture.pids();
    assert_eq!(left.len(), 3);
    eventually("what it left behind is gone", || {
        !left.iter().copied().any(is_alive)
    })
    .await;
    assert_eq!(fixture.turn("good").await.unwrap().0, "fine");
    fixture.end().await;
}

// L8: the supervisor of a plugin may be killed, too.
#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_ends_with_its_supervisor_and_its_call_fails_at_once() {
    if is_skipped() {
        return;
    }
    let launcher = Some(Launcher(harness::program("probe").into()));
    let fixture = HostilePluginFixture::new("note and hang", &[entry("build_prompt")], launcher);
    let kill = async {
        eventually("it was asked", || fixture.pids().len() == 2).await;
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", fixture.pids()[0])).unwrap();
        let (_, fields) = stat.rsplit_once(") ").unwrap();
        let supervisor = fields.split(' ').nth(1).unwrap();
        let status = std::process::Command::new("kill")
            .args(["-9", supervisor])
            .status()
            .unwrap();
        assert!(status.success());
    };
    let (failed, ()) = tokio::join!(fixture.turn("bad"), kill);
    assert_eq!(
        failed.unwrap_err(),
        "plugin probe: the process ended; see the log"
    );
    let pid = fixture.pids()[0];
    eventually("it is gone, too", || !is_alive(pid)).await;
    assert_eq!(fixture.turn("good").await.unwrap().0, "fine");
    fixture.end().await;
}

// L8
#[tokio::test(flavor = "multi_thread")]
async fn a_result_of_the_wrong_type_is_an_error_of_its_hook() {
    if is_skipped() {
        return;
    }
    let failed = "Err(\"plugin probe: invalid result: expected ";
    for (hook, expected) in [
        ("resolve_session", failed),
        ("load_state", failed),
        ("build_prompt", failed),
        ("run_model", failed),
        ("run_model_stream", failed),
        ("dispatch_outbound", failed),
        ("system_prompt", failed),
        ("build_tape_context", failed),
        ("provide_model_options", failed),
        ("request_approval", failed),
        ("save_state", "Ok("),
        ("before_llm_call", "m None"),
        ("before_tool_call", "Deny("),
        // Without a decision, the message is processed.
        ("admit_message", "None"),
    ] {
        let fixture = HostilePluginFixture::with(r#"{"answer": {"value": 5}}"#, hook);
        let outcome = outcome(&fixture, hook).await;
        assert!(outcome.contains(expected), "{hook}: {outcome}");
        fixture.end().await;
    }
    for (answer, expected) in [
        (r#"["fine"]"#, "expected an object with `value`"),
        (r#"{"value": "p", "state": "x"}"#, "expected a `state` of"),
        (
            r#"{"value": "p", "state": {"set": []}}"#,
            "expected a `state` of",
        ),
    ] {
        let fixture =
            HostilePluginFixture::with(&format!(r#"{{"answer": {answer}}}"#), "build_prompt");
        let failed = fixture.turn("x").await.unwrap_err();
        assert!(failed.contains(expected), "{answer}: {failed}");
        fixture.end().await;
    }
    for answer in [r#"{"content": "nope"}"#, "{}", "5", r#"{"content": [5]}"#] {
        let fixture =
            HostilePluginFixture::with(&format!(r#"{{"answer": {answer}}}"#), "build_prompt");
        let failed = fixture.call_tool().await.unwrap_err();
        assert!(
            failed.starts_with("plugin probe: invalid result: ") && failed.contains("`content`"),
            "{failed}"
        );
        fixture.end().await;
    }
}

/// Calls a hook and returns its result as text.
async fn outcome(fixture: &HostilePluginFixture, hook: &str) -> String {
    fixture.warm_up().await;
    let (turn, prompt, session_id) = (
        fixture.detached_turn(),
        Prompt::from("p"),
        SessionId::from("s"),
    );
    let framework = &fixture.framework;
    let hooks = framework.hooks();
    let text = |error: Error| error.message().to_owned();
    match hook {
        "system_prompt" => format!(
            "{:?}",
            framework.system_prompt(&prompt, &turn).map_err(text)
        ),
        "build_tape_context" => {
            format!(
                "{:?}",
                hooks
                    .call_first_sync::<point::BuildTapeContext>(())
                    .map(drop)
                    .map_err(text)
            )
        }
        "provide_model_options" => {
            let args = args::ProvideModelOptions {
                session_id: &session_id,
                workspace: Path::new("/"),
            };
            format!(
                "{:?}",
                hooks
                    .call_all::<point::ProvideModelOptions>(args)
                    .await
                    .map(drop)
                    .map_err(text)
            )
        }
        "request_approval" => {
            let mut request = ApprovalRequest::default();
            request.tool = "t".into();
            request.session_id = session_id.clone();
            request.expires = BUDGET;
            let args = args::RequestApproval {
                request: &request,
                state: turn.state(),
                turn: &turn,
            };
            format!(
                "{:?}",
                hooks
                    .call_first::<point::RequestApproval>(args)
                    .await
                    .map(drop)
                    .map_err(text)
            )
        }
        "before_llm_call" => {
            let request = LlmRequest::new("r".into(), "m", Vec::new());
            let gate = hooks.before_llm_call(request, &turn).await;
            format!("{} {:?}", gate.request.model, gate.finish)
        }
        "before_tool_call" => fixture.guard_decision("t").await,
        "admit_message" => {
            format!(
                "{:?}",
                framework
                    .admit_message(
                        &session_id,
                        &Inbound::from(Envelope::from_text("m")),
                        &TurnSnapshot::default()
                    )
                    .await
            )
        }
        _ => format!("{:?}", fixture.turn("x").await),
    }
}
