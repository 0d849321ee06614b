//! The tools `bash`, `bash.output` and `bash.kill`, as a model calls them.

use std::sync::Arc;

use bub_agent::{LoadedSkills, Skills, shell::Shells, tools::BashTools};
use bub_kernel::{
    ChannelMessage, ErrorKind, Framework, Result, State, Tool, ToolCaller, ToolContext, Turn,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::load_settings;
use crate::skills::SkillFixture;

struct BashFixture {
    dir: TempDir,
    shells: Arc<Shells>,
    tools: Vec<Arc<dyn Tool>>,
    context: ToolContext,
}

impl BashFixture {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        std::fs::create_dir(dir.path().join("inner")).unwrap();
        let variables = [("BUB_HOME", dir.path().join("home").into_os_string())];
        let settings = load_settings(variables);
        let settings = Arc::new(settings);
        let skills = Skills::new(&settings);
        let shells = Arc::new(Shells::new(settings, None));
        Self {
            context: context(&dir, "s"),
            tools: Arc::new(BashTools::new(Arc::clone(&shells), Arc::new(skills))).tools(),
            shells,
            dir,
        }
    }

    fn with_secret(secret: &str) -> Self {
        let fixture = Self::new();
        let home = fixture.dir.path().join("home").into_os_string();
        let settings = Arc::new(load_settings([("BUB_HOME", home)]));
        settings.redactor().register(&secret.into());
        let skills = Arc::new(Skills::new(&settings));
        let shells = Arc::new(Shells::new(settings, None));
        Self {
            tools: Arc::new(BashTools::new(Arc::clone(&shells), skills)).tools(),
            shells,
            ..fixture
        }
    }

    fn with_skills(skills: Skills) -> Self {
        let fixture = Self::new();
        let tools = BashTools::new(Arc::clone(&fixture.shells), Arc::new(skills));
        Self {
            tools: Arc::new(tools).tools(),
            ..fixture
        }
    }

    async fn call(&self, name: &str, arguments: Value) -> Result<String> {
        let mut tools = self.tools.iter();
        let tool = tools.find(|tool| tool.spec().name == name).unwrap();
        let arguments = arguments.as_object().cloned().unwrap();
        let result = tool.call(arguments, self.context.clone()).await?;
        Ok(result.as_str().unwrap().to_owned())
    }

    async fn bash(&self, arguments: Value) -> Result<String> {
        self.call("bash", arguments).await
    }

    /// Starts a command in the background and returns its shell id (P-83).
    async fn background(&self, command: &str) -> String {
        let started = self
            .bash(json!({"cmd": command, "background": true}))
            .await
            .unwrap();
        let first = started.lines().next().unwrap();
        let id = first.strip_prefix("Shell started, shell_id: ");
        id.unwrap().to_owned()
    }
}

/// Returns the context of a model's call in a session whose workspace is `dir`.
fn context(dir: &TempDir, session_id: &str) -> ToolContext {
    let state = State::new();
    state.set(
        "_runtime_workspace",
        dir.path().canonicalize().unwrap().to_str().unwrap(),
    );
    let framework = Framework::builder().workspace(dir.path()).build();
    let message = ChannelMessage::new(session_id, "lab", "hi");
    ToolContext::new(Turn::detached(&framework, message, state))
}

// H-112
#[tokio::test]
async fn a_command_that_succeeds_gives_its_output_trimmed() {
    let fixture = BashFixture::new();
    let workspace = fixture.dir.path().canonicalize().unwrap();
    let workspace = workspace.to_str().unwrap();
    let inner = format!("{workspace}/inner");
    let cases = [
        (json!({"cmd": "echo; echo ' a  b '; echo"}), "a  b"),
        (json!({"cmd": "true"}), "(no output)"),
        (json!({"cmd": "pwd"}), workspace),
        (json!({"cmd": "pwd", "cwd": "inner"}), &inner),
        (json!({"cmd": "pwd", "cwd": "/"}), "/"),
        (
            json!({"cmd": "echo out; echo err >&2", "timeout_seconds": "5"}),
            "out\nerr",
        ),
    ];
    for (arguments, expected) in cases {
        assert_eq!(
            fixture.bash(arguments.clone()).await.unwrap(),
            expected,
            "{arguments}"
        );
    }
}

// H-112
#[tokio::test]
async fn a_command_that_fails_is_an_error_with_its_output() {
    let cases = [
        (
            "echo oops; exit 3",
            "command exited with code 3\noutput:\noops",
        ),
        ("exit 1", "command exited with code 1\noutput:\n(no output)"),
        (
            "echo x; kill -9 $$",
            "command exited with code -9 (killed by a signal)\noutput:\nx",
        ),
    ];
    for (command, expected) in cases {
        let error = BashFixture::new()
            .bash(json!({"cmd": command}))
            .await
            .unwrap_err();
        assert_eq!(
            (error.message(), error.kind()),
            (expected, ErrorKind::Tool),
            "{command}"
        );
    }
}

// P-80: older tapes have `cmd`.
#[tokio::test]
async fn the_command_has_two_names() {
    let fixture = BashFixture::new();
    let result = fixture.bash(json!({"command": "echo hi"})).await.unwrap();
    assert_eq!(result, "hi");
    let both = json!({"command": "echo hi", "cmd": "echo ho"});
    let error = fixture.bash(both).await.unwrap_err();
    let text = "unknown argument 'cmd' of bash; it takes command, cwd, timeout_seconds, background";
    assert!(error.message().ends_with(text), "{error}");
}

// P-82
#[tokio::test]
async fn a_command_that_takes_too_long_continues_in_the_background() {
    let mut fixture = BashFixture::new();
    for caller in [ToolCaller::Model, ToolCaller::User] {
        fixture.context.caller = caller;
        let command = "echo so far; until [ -e go ]; do sleep 0.01; done; echo done";
        let result = fixture
            .bash(json!({"command": command, "timeout_seconds": 1}))
            .await
            .unwrap();
        let id = result
            .strip_prefix("command timed out after 1 seconds; continuing in background\nshell_id: ")
            .and_then(|rest| rest.strip_suffix("\noutput:\nso far"))
            .unwrap_or_else(|| panic!("{result}"));
        let shell = fixture.shells.find("s", id).unwrap();
        assert!(!shell.is_finished());
        std::fs::write(fixture.dir.path().join("go"), "").unwrap();
        shell.wait_finished().await;
        let read = json!({"shell_id": id});
        let output = fixture.call("bash.output", read).await.unwrap();
        assert!(output.ends_with("output:\nso far\ndone"), "{output}");
        std::fs::remove_file(fixture.dir.path().join("go")).unwrap();
    }
    let result = fixture
        .bash(json!({"command": "exec sleep 9", "timeout_seconds": 1}))
        .await
        .unwrap();
    assert!(!result.contains("output:"), "{result}");
    let error = fixture
        .bash(json!({"cmd": "true", "timeout_seconds": 0}))
        .await
        .unwrap_err();
    assert_eq!(
        error.message(),
        "invalid `timeout_seconds`: expected at least 1"
    );
}

// W-24
#[tokio::test]
async fn what_a_command_left_running_is_named() {
    let fixture = BashFixture::new();
    let result = fixture
        .bash(json!({"cmd": "sleep 99 & echo started"}))
        .await
        .unwrap();
    let (output, note) = result.split_once('\n').unwrap();
    assert_eq!(output, "started");
    let id = note
        .strip_prefix("[processes of this command are still running as ")
        .unwrap()
        .split(';')
        .next()
        .unwrap();
    let killed = fixture
        .call("bash.kill", json!({"shell_id": id}))
        .await
        .unwrap();
    assert_eq!(killed, format!("id: {id}\nstatus: exited\nexit_code: 0"));
}

// H-113, W-27
#[tokio::test]
async fn output_of_a_background_shell_is_read_in_pages_also_after_its_end() {
    let fixture = BashFixture::new();
    let id = fixture.background("echo 0123456789; exit 4").await;
    assert!(id.len() == 13 && id.starts_with("bash-"), "{id}");
    fixture.shells.find("s", &id).unwrap().wait_finished().await;
    let pages = [
        (json!({}), "11\noutput:\n0123456789"),
        (json!({"limit": 4}), "4\noutput:\n0123"),
        (json!({"offset": 4, "limit": 4}), "8\noutput:\n4567"),
        (json!({"offset": 8}), "11\noutput:\n89"),
        (json!({"offset": 99}), "11\noutput:\n(no output)"),
        (json!({"offset": -5, "limit": 1}), "1\noutput:\n0"),
    ];
    for (mut arguments, page) in pages {
        arguments["shell_id"] = id.as_str().into();
        let expected = format!("id: {id}\nstatus: exited\nexit_code: 4\nnext_offset: {page}");
        assert_eq!(
            fixture.call("bash.output", arguments).await.unwrap(),
            expected
        );
    }
}

// Pages cannot be combined to a secret.
#[tokio::test]
async fn no_page_of_an_output_shows_a_part_of_a_secret() {
    let fixture = BashFixture::with_secret("correct-horse-battery");
    let id = fixture
        .background("echo correct-; echo is correct-horse-battery")
        .await;
    fixture.shells.find("s", &id).unwrap().wait_finished().await;
    let mut shown = String::new();
    for offset in 0..40 {
        let arguments = json!({"shell_id": id, "offset": offset, "limit": 1});
        let page = fixture.call("bash.output", arguments).await.unwrap();
        let output = page.split_once("\noutput:\n").unwrap().1;
        shown += output.strip_prefix("(no output)").unwrap_or(output);
    }
    shown.retain(|letter| !letter.is_whitespace());
    assert_eq!(shown, "correct-is***");
}

// H-113
#[tokio::test]
async fn a_background_shell_is_read_while_it_runs_and_killed() {
    let fixture = BashFixture::new();
    let id = fixture.background("sleep 99").await;
    let read = fixture
        .call("bash.output", json!({"shell_id": id}))
        .await
        .unwrap();
    assert_eq!(
        read,
        format!("id: {id}\nstatus: running\nexit_code: null\nnext_offset: 0\noutput:\n(no output)")
    );
    for _ in 0..2 {
        let killed = fixture
            .call("bash.kill", json!({"shell_id": id}))
            .await
            .unwrap();
        assert_eq!(killed, format!("id: {id}\nstatus: exited\nexit_code: -15"));
    }
}

// H-113, W-38
#[tokio::test]
async fn shells_of_other_sessions_are_unknown() {
    let mut fixture = BashFixture::new();
    let id = fixture.background("sleep 99").await;
    fixture.context = context(&fixture.dir, "other");
    for tool in ["bash.output", "bash.kill"] {
        for id in [id.as_str(), "bash-00000000", ""] {
            let error = fixture
                .call(tool, json!({"shell_id": id}))
                .await
                .unwrap_err();
            assert_eq!(error.message(), format!("unknown shell id: {id}"));
        }
    }
}

// W-36, W-37
#[tokio::test]
async fn a_command_gets_the_variables_of_loaded_skills_only() {
    let text = "---\nname: mine\ndescription: d\nmetadata:\n  env: \"FOO\"\n---\nbody";
    let skill_fixture =
        SkillFixture::with("skills: {env: {mine: [FOO]}}\n", &[("FOO", "foo-secret")]);
    skill_fixture.write(".agents/skills/mine/SKILL.md", text);
    let skills = Skills::new(&skill_fixture.settings);
    let fixture = BashFixture::with_skills(skill_fixture.skills);
    let arguments = json!({"cmd": "echo $FOO"});
    assert_eq!(
        fixture.bash(arguments.clone()).await.unwrap(),
        "(no output)"
    );
    let skill = skills.find(None, "mine").unwrap();
    skills.load(&skill, &LoadedSkills::from_state(fixture.context.state()));
    assert_eq!(fixture.bash(arguments.clone()).await.unwrap(), "foo-secret");
    // Another turn has loaded no skills.
    let fixture = BashFixture {
        context: context(&fixture.dir, "s"),
        ..fixture
    };
    assert_eq!(fixture.bash(arguments).await.unwrap(), "(no output)");
}

#[tokio::test]
async fn a_call_that_is_cancelled_says_so() {
    let fixture = BashFixture::new();
    fixture.context.cancel.cancel();
    let error = fixture.bash(json!({"cmd": "sleep 99"})).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
}
