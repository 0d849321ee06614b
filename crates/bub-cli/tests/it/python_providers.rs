//! Objects that a plugin of the Python version provides to the host: tape stores, inboxes, tape contexts, environments and
//! channels. The plugin is in `tests/data/python-keeper`.

use std::{
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
};

use bub_kernel::{Framework, RunningScope, async_trait};
use bub_plugin::{ExternalPlugin, HostContext, Limits, PluginConfig, PluginProcess};
use bub_settings::testing::load;
use bub_tape::{
    AnchorMark, AnchorQuery, AppendReceipt, BlobStore, Entry, EntryId, EntryRange, EntryStream,
    Lease, LeaseWait, ResetOutcome, ResetRequest, Result, TapeListFilter, TapeName, TapeStore,
    TapeSummary,
};
use bub_testkit::{
    gateway::GatewayProcess,
    model::{ModelServer, Pace, Reply},
};
use serde_json::{Value, json};

use crate::{
    chat::terminal::TerminalOptions,
    python_plugins::install,
    sandbox::{Run, Sandbox, bub, wait_until},
};

/// Returns a sandbox with the plugin. `BUB_KEEPER_PROVIDES` says what it provides.
fn installed() -> Sandbox {
    let sandbox = Sandbox::new();
    install(&sandbox, "keeper").ok();
    sandbox
}

fn command(sandbox: &Sandbox, provides: &str, args: &[&str]) -> Command {
    let mut command = sandbox.command(&bub());
    command.args(args).env("BUB_KEEPER_PROVIDES", provides);
    command
}

fn run(sandbox: &Sandbox, provides: &str, args: &[&str]) -> Run {
    Run::from_output(command(sandbox, provides, args).output().unwrap())
}

fn with_model(mut command: Command, model: &ModelServer) -> Command {
    command
        .env("BUB_MODEL", "openai:small")
        .env("BUB_API_BASE", format!("{}/v1", model.url()))
        .env("BUB_API_KEY", "a-key-of-the-test");
    command
}

/// Returns the contents of the messages of a request.
fn contents(request: &Value) -> Vec<String> {
    let messages = request["messages"].as_array().unwrap().iter();
    let text = |message: &Value| message["content"].as_str().unwrap_or_default().to_owned();
    messages.map(text).collect()
}

fn tape_result(anchor: &str) -> Value {
    json!({
        "anchor": anchor,
        "anchors": [["session/start", null], [anchor, "the first phase"]],
        "events": ["keeper.first", "keeper.kept"],
        "found": ["keeper.kept"],
        "is_listed": true,
        "last_anchor": anchor,
    })
}

/// Tape requests of protocol 2, the store of a plugin, its sidecar and its selector.
#[bub_testkit::needs_fixtures(BUB_PYTHON_PACKAGES)]
#[test]
fn tapes_of_the_host_and_of_a_python_plugin_have_the_same_operations() {
    let sandbox = installed();
    for (provides, session) in [("", "cli:files"), ("kept-store sidecar", "cli:kept")] {
        let args = ["run", "--session", session, ",keeper.tape"];
        let answer = run(&sandbox, provides, &args).ok();
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(answer, tape_result("keeper/phase"), "{provides}");
    }
    let kept = sandbox.home().join("plugins/data/keeper/kept");
    let kept = || std::fs::read_dir(&kept).unwrap().count();
    assert_eq!(
        kept(),
        1,
        "one session tape, and no file in bub's own store"
    );
    let other = ["run", "--session", "cli:other", ",keeper.tape"];
    run(&sandbox, "", &other).ok();
    let forgot = run(&sandbox, "", &["run", ",keeper.forget"]).ok();
    assert!(forgot.starts_with("Archived: "), "{forgot}");

    // The next process reads what this one wrote, and the view is what the selector of the plugin returns.
    let model = ModelServer::start();
    model.otherwise(Reply::text("fine"));
    for content in ["one", "two"] {
        let args = ["run", "--session", "cli:kept", content];
        let command = command(&sandbox, "kept-store selector", &args);
        let output = with_model(command, &model).output().unwrap();
        assert_eq!(Run::from_output(output).ok(), "fine\n");
    }
    let requests = model.requests();
    let last = contents(&requests.last().unwrap().json());
    let selected: Vec<_> = last
        .iter()
        .filter(|text| text.starts_with("selected"))
        .collect();
    assert_eq!(selected.len(), 2, "{last:#?}");
    assert!(selected[0].starts_with("selected 1: ") && selected[0].ends_with("one"));
    assert!(selected[1].starts_with("selected 2: ") && selected[1].ends_with("two"));
    assert!(!last.iter().any(|text| text == "fine"), "{last:#?}");
}

/// P-94 to P-97: commands and file tools act in the environment of the plugin, and the policy and redaction apply.
#[bub_testkit::needs_fixtures(BUB_PYTHON_PACKAGES)]
#[test]
fn commands_and_files_are_in_the_environment_of_a_python_plugin() {
    let sandbox = installed();
    let workspace = sandbox.workspace().canonicalize().unwrap();
    let in_box = workspace.join("box");
    let cases = [
        (
            ",bash command='echo $BOX; pwd'",
            Ok(format!("in the box\n{}\n", in_box.display())),
        ),
        (
            ",bash command='pwd' cwd=..",
            Ok(format!("{}\n", workspace.display())),
        ),
        (
            ",bash command='echo gone; exit 3'",
            Err("command exited with code 3"),
        ),
        (
            ",bash command='kill -9 $$'",
            Err("code -9 (killed by a signal)"),
        ),
        (
            ",fs.write path=a/b.txt content=one",
            Ok(format!("wrote: {}/a/b.txt\n", in_box.display())),
        ),
        (
            ",fs.edit path=a/b.txt old=one new=two",
            Ok(format!("edited: {}/a/b.txt\n", in_box.display())),
        ),
        (",fs.read path=a/b.txt", Ok("two\n".to_owned())),
        (",fs.read path=missing", Err("FileNotFoundError")),
        (",fs.list", Err("use bash")),
    ];
    for (line, expected) in cases {
        let answer = run(&sandbox, "a-box", &["run", line]);
        match expected {
            Ok(expected) => assert_eq!(answer.ok(), expected, "{line}"),
            Err(expected) => assert!(answer.stderr.contains(expected), "{line}: {answer:?}"),
        }
    }
    assert!(in_box.join("closed").exists(), "bub closes the environment");
    assert!(!workspace.join("a").exists());

    // A call of the model is recorded and redacted like one on this machine, and the policy can deny it.
    let model = ModelServer::start();
    let call = json!({"command": "echo a-key-of-the-test; sleep 1000 & echo; echo $BOX"});
    model.script(Reply::new().call("c1", "bash", &call.to_string()));
    model.script(Reply::new().call("c2", "fs_write", r#"{"path": "x", "content": "x"}"#));
    model.otherwise(Reply::text("done"));
    sandbox.write(
        "home/config.yml",
        "policy:\n  rules:\n    - {tools: [fs.write], action: deny}\n",
    );
    let args = ["run", "--session", "cli:policy", "go"];
    let output = with_model(command(&sandbox, "a-box", &args), &model).output();
    Run::from_output(output.unwrap()).ok();
    let last = model.requests().pop().unwrap().json();
    let texts = contents(&last).join("\n");
    assert!(texts.contains("in the box"), "{texts}");
    assert!(!texts.contains("a-key-of-the-test"), "{texts}");
    assert!(texts.contains("denied"), "{texts}");
    assert!(!in_box.join("x").exists());
    // bub cannot enforce this profile there.
    model.script(Reply::new().call("c1", "bash", r#"{"command": "touch y"}"#));
    let args = ["run", "--session", "cli:read-only", "go"];
    let mut read_only = command(&sandbox, "a-box", &args);
    read_only.env("BUB_SANDBOX_PROFILE", "read-only");
    Run::from_output(with_model(read_only, &model).output().unwrap()).ok();
    let refused = contents(&model.requests().pop().unwrap().json()).join("\n");
    assert!(
        refused.contains("`read-only` cannot be enforced"),
        "{refused}"
    );
    assert!(!in_box.join("y").exists());
    assert!(
        texts.contains(&format!("Working directory: {}.", in_box.display())),
        "{texts}"
    );
}

/// A command of a plugin has the terminal of the user: choices, check boxes, prompts and hidden input. Without one, it
/// has the pipe.
#[bub_testkit::needs_fixtures(BUB_PYTHON_PACKAGES)]
#[test]
fn a_command_of_a_python_plugin_has_the_terminal_of_the_user() {
    let sandbox = installed();
    let mut user = TerminalOptions::new(&sandbox)
        .command(&["keeper", "ask"])
        .start();
    let dialog = [
        ("color [green]:", "3\r"),
        ("fruits [pear]:", "apple, 3\r"),
        ("sure [no]:", "yes\r"),
        ("name [Grace]:", "Ada\r"),
        ("secret:", "hush\r"),
    ];
    for (question, answer) in dialog {
        user.wait_for(question);
        if question == "secret:" {
            wait_until("the echo is off", || !user.has_echo());
        }
        user.send(answer);
    }
    let (code, screen) = user.wait_end();
    assert_eq!(code, Some(0), "{screen}");
    assert!(
        screen.contains(r#"["blue", ["apple", "plum"], true, "Ada", 4]"#),
        "{screen}"
    );
    assert!(screen.contains("2) green"), "{screen}");
    assert!(!screen.contains("hush"), "{screen}");

    let mut counting = command(&sandbox, "", &["keeper", "count"]);
    let mut counting = counting
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    counting
        .stdin
        .take()
        .unwrap()
        .write_all(b"a\nb\nlast")
        .unwrap();
    let counted = counting.wait_with_output().unwrap();
    assert_eq!(Run::from_output(counted).ok(), "3\n");
}

fn write_line(path: &Path, line: &Value) {
    let mut file = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .unwrap();
    writeln!(file, "{line}").unwrap();
}

/// A message of a plugin's channel has the context of built-in ones, a plugin's channel can replace a built-in one, and
/// the inbox of the plugin keeps the messages that steer a turn.
#[bub_testkit::needs_fixtures(BUB_PYTHON_PACKAGES)]
#[test]
fn a_python_plugin_has_channels_and_a_steering_inbox() {
    let sandbox = installed();
    let [input, output] = ["in.jsonl", "out.jsonl"].map(|name| sandbox.workspace().join(name));
    for channel in ["room", "telegram"] {
        let model = ModelServer::start();
        let pace = Pace::stopped();
        model.script(Reply::new().call("c1", "tape_info", "{}").paced(&pace));
        model.otherwise(Reply::text("the answer"));
        let mut gateway = command(
            &sandbox,
            "an-inbox",
            &["gateway", "--enable-channel", channel],
        );
        gateway.env("BUB_PLUGINS_KEEPER_ROLE", "member");
        let gateway = GatewayProcess::start(with_model(gateway, &model));
        write_line(&input, &json!({"chat_id": "lab", "content": "hello"}));
        wait_until("the model is called", || !model.requests().is_empty());
        for content in ["also one", "also two"] {
            write_line(&input, &json!({"chat_id": "lab", "content": content}));
        }
        let steered = sandbox.workspace().join("steered");
        let is_steered =
            || std::fs::read_to_string(&steered).is_ok_and(|text| text.contains("two"));
        wait_until("both messages steer", is_steered);
        std::fs::remove_file(&steered).unwrap();
        pace.release();
        wait_until("the reply is sent", || output.exists());
        let log = gateway.stop();
        let first = contents(&model.requests()[0].json());
        let context = format!("channel=${channel}|chat_id=lab");
        assert!(
            first.iter().any(|text| text.contains(&context)),
            "{first:#?}\n{log}"
        );
        let steered = contents(&model.requests()[1].json()).join("\n");
        let (one, two) = (steered.find("also one"), steered.find("also two"));
        assert!(two.is_some() && two < one, "the newest is first: {steered}");
        let reply = std::fs::read_to_string(&output).unwrap();
        let reply: Value = serde_json::from_str(reply.lines().next().unwrap()).unwrap();
        assert_eq!(reply, json!({"chat_id": "lab", "content": "the answer"}));
        std::fs::remove_file(&input).unwrap();
        std::fs::remove_file(&output).unwrap();
    }
}

/// The store of the plugin, as the host uses it.
#[derive(Debug)]
struct KeeperStore {
    store: Arc<dyn TapeStore>,
    _scope: RunningScope,
    _framework: Framework,
    _home: tempfile::TempDir,
}

impl KeeperStore {
    async fn open(python: &Path) -> Self {
        let home = tempfile::tempdir().unwrap();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let home_path = home.path().as_os_str().to_owned();
        let settings = Arc::new(load([("BUB_HOME", home_path), ("PATH", path)], []));
        let plugin_config = PluginConfig {
            name: "keeper".to_owned(),
            command: [
                python.as_os_str(),
                "-m".as_ref(),
                "bub".as_ref(),
                "serve".as_ref(),
                "keeper".as_ref(),
            ]
            .map(|part: &std::ffi::OsStr| part.to_owned())
            .to_vec(),
            directory: home.path().to_owned(),
            granted: Vec::new(),
            permissions: None,
            home_files: Vec::new(),
            config: json!({"provides": "kept-store"}),
            fingerprint: String::new(),
            is_stale: false,
            limits: Limits::default(),
            max_role: bub_kernel::Role::Member,
            pinned: std::path::PathBuf::new(),
            digest: None,
        };
        let framework = Framework::builder()
            .plugin_with("keeper", move |context| {
                let host = HostContext {
                    framework: context.framework.clone(),
                    workspace: context.workspace.to_owned(),
                    settings,
                    launcher: None,
                    question_handler: None,
                    group: bub_plugin::PluginGroup::default(),
                };
                let described =
                    PluginProcess::request_descriptor(plugin_config.clone(), host.clone())?;
                let plugin = PluginProcess::new(plugin_config, described, host);
                Ok::<_, bub_kernel::Error>(ExternalPlugin::new(plugin, context))
            })
            .build();
        let scope = framework.open_scope().await.unwrap();
        Self {
            store: framework.tape_store().unwrap(),
            _scope: scope,
            _framework: framework,
            _home: home,
        }
    }
}

#[async_trait]
impl TapeStore for KeeperStore {
    async fn list(&self, list_filter: TapeListFilter) -> Result<Vec<TapeName>> {
        self.store.list(list_filter).await
    }

    async fn append(&self, tape: &TapeName, batch: Vec<Entry>) -> Result<AppendReceipt> {
        self.store.append(tape, batch).await
    }

    fn read<'a>(&'a self, tape: &'a TapeName, range: EntryRange) -> EntryStream<'a> {
        self.store.read(tape, range)
    }

    async fn fetch(&self, tape: &TapeName, ids: &[EntryId]) -> Result<Vec<Entry>> {
        self.store.fetch(tape, ids).await
    }

    async fn anchors(&self, tape: &TapeName, query: AnchorQuery) -> Result<Vec<AnchorMark>> {
        self.store.anchors(tape, query).await
    }

    async fn summary(&self, tape: &TapeName) -> Result<TapeSummary> {
        self.store.summary(tape).await
    }

    async fn archive(&self, tape: &TapeName, stamp: &str) -> Result<String> {
        self.store.archive(tape, stamp).await
    }

    async fn reset(&self, tape: &TapeName, request: ResetRequest) -> Result<ResetOutcome> {
        self.store.reset(tape, request).await
    }

    async fn discard(&self, tape: &TapeName) -> Result<()> {
        self.store.discard(tape).await
    }

    async fn lease(&self, tape: &TapeName, wait: LeaseWait) -> Result<Lease> {
        self.store.lease(tape, wait).await
    }

    fn blobs(&self) -> Arc<dyn BlobStore> {
        self.store.blobs()
    }
}

#[bub_testkit::needs_fixtures(BUB_PYTHON_PACKAGES)]
#[tokio::test(flavor = "multi_thread")]
async fn the_tape_store_of_a_python_plugin_has_the_guarantees_of_all_stores() {
    let sandbox = tokio::task::spawn_blocking(installed).await.unwrap();
    let python = sandbox.home().join("plugins/python/bin/python");
    let open = || {
        let runtime = tokio::runtime::Handle::current();
        tokio::task::block_in_place(|| runtime.block_on(KeeperStore::open(&python)))
    };
    bub_tape::testing::check_store(open).await;
}
