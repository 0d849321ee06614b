//! Tools in the environment that a plugin provides for a session.

use std::{collections::HashMap, sync::Arc};

use bub::{
    Error, ExecutionEnvironment, OutputSink, Result, Role, Sender, async_trait, hooks,
    testing::{self, TestedTurn},
};
use parking_lot::Mutex;
use serde_json::{Value, json};

/// An environment with files in memory. The command `hang` runs until it is dropped.
#[derive(Clone, Debug, Default)]
struct FakeEnvironment {
    files: Arc<Mutex<HashMap<String, String>>>,
    log: Arc<Mutex<Vec<String>>>,
}

struct HangGuard(FakeEnvironment);

impl Drop for HangGuard {
    fn drop(&mut self) {
        self.0.log.lock().push("terminated".to_owned());
    }
}

#[async_trait]
impl ExecutionEnvironment for FakeEnvironment {
    fn workspace(&self) -> Option<&str> {
        Some("/box")
    }

    async fn run(
        &self,
        command: &str,
        directory: Option<&str>,
        output: &OutputSink<'_>,
    ) -> Result<i32> {
        self.log.lock().push(format!("{command} in {directory:?}"));
        match command {
            "hang" => {
                let _guard = HangGuard(self.clone());
                output(b"waiting");
                std::future::pending().await
            }
            "lose" => Err(Error::unknown("the container is gone")),
            _ => {
                // A character can be split between two blocks.
                output("gr\u{fc}".as_bytes().get(..3).unwrap());
                output("gr\u{fc}\n".as_bytes().get(3..).unwrap());
                Ok(0)
            }
        }
    }

    async fn read_text(&self, path: &str) -> Result<String> {
        let content = self.files.lock().get(path).cloned();
        content.ok_or_else(|| Error::not_found(format!("no file {path}")))
    }

    async fn write_text(&self, path: &str, content: &str) -> Result<()> {
        self.files
            .lock()
            .insert(path.to_owned(), content.to_owned());
        Ok(())
    }
}

struct BoxPlugin(FakeEnvironment);

#[hooks]
impl BoxPlugin {
    async fn provide_environment(&self) -> Arc<dyn ExecutionEnvironment> {
        Arc::new(self.0.clone())
    }
}

/// Runs a turn in which the model makes these calls.
async fn run(environment: &FakeEnvironment, role: Role, calls: &[(&str, Value)]) -> TestedTurn {
    let sender = Sender {
        role,
        ..Sender::default()
    };
    let plugin = BoxPlugin(environment.clone());
    let mut turn = testing::turn("go").plugin("box", plugin).sender(sender);
    for (tool, arguments) in calls {
        turn = turn.model_calls(*tool, arguments.clone());
    }
    turn.model_says("done").run().await.unwrap()
}

/// P-95: commands and file tools act in the environment.
#[tokio::test]
async fn commands_and_files_of_a_turn_are_in_its_environment() {
    let environment = FakeEnvironment::default();
    let calls = [
        ("bash", json!({"command": "greet"})),
        ("bash", json!({"command": "greet", "cwd": "sub"})),
        ("bash", json!({"command": "lose"})),
        (
            "fs.write",
            json!({"path": "a.txt", "content": "one\ntwo\nthree\n"}),
        ),
        (
            "fs.edit",
            json!({"path": "./x/../a.txt", "old": "two", "new": "2"}),
        ),
        (
            "fs.read",
            json!({"path": "/box/a.txt", "offset": 1, "limit": 1}),
        ),
        ("fs.grep", json!({"pattern": "x"})),
    ];
    let turn = run(&environment, Role::Owner, &calls).await;
    let results = turn.tool_results();
    let expected = [
        "grü",
        "grü",
        "[the environment failed: the container is gone]",
        "wrote: /box/a.txt",
        "edited: /box/a.txt",
        "2",
        "use bash",
    ];
    assert_eq!(results.len(), expected.len(), "{results:#?}");
    for (result, expected) in results.iter().zip(expected) {
        assert!(result.contains(expected), "{expected}: {results:#?}");
    }
    let content = environment.files.lock().get("/box/a.txt").cloned();
    assert_eq!(content.as_deref(), Some("one\n2\nthree\n"));
    let log = environment.log.lock().clone();
    assert_eq!(
        log,
        [
            "greet in None",
            "greet in Some(\"/box/sub\")",
            "lose in None"
        ]
    );
    assert!(!turn.workspace().join("a.txt").exists());
    let prompt = turn.requests().first().unwrap().system_prompt();
    assert!(prompt.contains("Working directory: /box."), "{prompt}");
}

/// A command over its limit continues, and is terminated with bub.
#[tokio::test]
async fn a_command_in_an_environment_can_run_in_the_background() {
    let environment = FakeEnvironment::default();
    let calls = [("bash", json!({"command": "hang", "timeout_seconds": 1}))];
    let turn = run(&environment, Role::Owner, &calls).await;
    let result = turn.tool_results().pop().unwrap();
    assert!(result.contains("continuing in background"), "{result}");
    assert!(result.contains("waiting"), "{result}");
    // The end of the turn's resources ends the command.
    drop(turn);
    let last = environment.log.lock().last().cloned();
    assert_eq!(last.as_deref(), Some("terminated"));
}

/// bub does not know the files of an environment, so it checks their paths, and what it read.
#[tokio::test]
async fn paths_of_members_are_checked_in_an_environment() {
    let environment = FakeEnvironment::default();
    for path in ["/box/open.txt", "/box/.env", "/etc/passwd"] {
        environment.write_text(path, "content").await.unwrap();
    }
    let key = "-----BEGIN OPENSSH PRIVATE KEY-----\ncontent";
    environment.write_text("/box/deploy", key).await.unwrap();
    let read = |path: &str| ("fs.read", json!({"path": path}));
    let outside = "outside the workspace";
    let cases = [
        ("open.txt", "content", "content"),
        (".env", "visible only to owners", "content"),
        ("deploy", "visible only to owners", "content"),
        ("../etc/passwd", outside, "content"),
        ("/etc/passwd", outside, "content"),
        ("/box/x/../../etc/passwd", outside, "content"),
    ];
    for (path, member, owner) in cases {
        for (role, expected) in [(Role::Member, member), (Role::Owner, owner)] {
            let turn = run(&environment, role, &[read(path)]).await;
            let results = turn.tool_results();
            assert!(
                results.concat().contains(expected),
                "{path} {role:?}: {results:?}"
            );
        }
    }
}
