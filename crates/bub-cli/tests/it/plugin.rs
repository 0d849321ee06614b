//! Tests `bub plugin` and external plugins in turns.

use std::{
    os::unix::fs::PermissionsExt as _,
    time::{Duration, Instant},
};

use bub_testkit::model::{ModelServer, Reply};

use crate::{
    gateway_client::start_gateway,
    sandbox::{Run, Sandbox, bub},
};

/// A plugin that answers every prompt.
const LOUD_PLUGIN: &str = r#"#!/bin/sh
while IFS= read -r line; do
    id=$(printf '%s\n' "$line" | sed -n 's/^{"jsonrpc":"2.0","id":\([0-9]*\),.*/\1/p')
    case $line in
        *'"method":"initialize"'*)
            echo "started" >> "$PWD/starts"
            result='{"protocol":1,"hooks":["run_model"],"commands":[{"name":"greet","about":"Greets","args":[{"name":"who","positional":true,"required":true}]}]}' ;;
        *'"method":"hook/run_model"'*) result='{"value":"LOUD '"${WEATHER_KEY:-none}"' '"${BUB_API_KEY:-none}"'"}' ;;
        *'"method":"cli/run"'*)
            printf '{"jsonrpc":"2.0","method":"stream/event","params":{"id":%s,"event":{"stdout":"hello from the plugin\\n"}}}\n' "$id"
            result='{"code":3}' ;;
        *'"method":"shutdown"'*) exit 0 ;;
        *) result='{}' ;;
    esac
    printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$result"
done
"#;

pub(crate) fn write_loud_plugin(sandbox: &Sandbox, extra: &str) {
    let directory = sandbox.workspace().join("loud");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(
        directory.join("bub-plugin.yml"),
        format!("name: loud\ncommand: [sh, plugin.sh]\n{extra}"),
    )
    .unwrap();
    std::fs::write(directory.join("plugin.sh"), LOUD_PLUGIN).unwrap();
}

fn start_count(sandbox: &Sandbox) -> usize {
    std::fs::read_to_string(sandbox.workspace().join("loud/starts"))
        .unwrap_or_default()
        .lines()
        .count()
}

// H-8, H-31, S-41, design §8: registered after builtin, called before it.
#[test]
fn an_added_plugin_answers_and_can_be_switched_off() {
    let sandbox = Sandbox::new();
    write_loud_plugin(&sandbox, "");
    // Its output on stderr is not an error.
    let added = sandbox
        .bub(["plugin", "add", "loud", "--yes", "--unpinned"])
        .ok();
    assert!(added.contains("added loud"), "{added}");
    assert!(sandbox.bub(["run", "hi"]).ok().contains("LOUD none none"));
    assert!(
        sandbox
            .bub(["hooks", "--order"])
            .ok()
            .contains("run_model: loud\n")
    );
    sandbox.bub(["plugin", "disable", "loud"]).ok();
    assert!(!sandbox.bub(["hooks"]).ok().contains("loud"));
    sandbox.bub(["plugin", "enable", "loud"]).ok();
    assert!(sandbox.bub(["plugin", "list"]).ok().contains("enabled"));
    sandbox.bub(["uninstall", "loud"]).ok();
    assert!(
        sandbox
            .bub(["plugin", "list"])
            .ok()
            .starts_with("no plugins")
    );
    assert!(sandbox.workspace().join("loud/plugin.sh").exists());
}

// L7: a plugin gets only granted variables, and no API key.
#[test]
fn a_plugin_gets_only_the_variables_it_was_granted() {
    let sandbox = Sandbox::new();
    let run = || {
        let mut command = sandbox.command(&bub());
        command
            .env("WEATHER_KEY", "w-123456789")
            .env("BUB_API_KEY", "sk-secret-value-1");
        Run::from_output(command.args(["run", "hi"]).output().unwrap()).ok()
    };
    write_loud_plugin(&sandbox, "");
    sandbox
        .bub(["plugin", "add", "loud", "--yes", "--unpinned"])
        .ok();
    assert!(run().contains("LOUD none none"));
    write_loud_plugin(&sandbox, "env: [WEATHER_KEY]\n");
    sandbox
        .bub(["plugin", "add", "loud", "--yes", "--unpinned"])
        .ok();
    // The plugin has the value; bub redacts it in the output.
    let output = run();
    assert!(
        !output.contains("LOUD none") && !output.contains("w-123456789"),
        "{output}"
    );
    assert!(
        sandbox
            .bub(["plugin", "show", "loud"])
            .ok()
            .contains("environment variables from the manifest: WEATHER_KEY")
    );
}

#[test]
fn help_and_config_start_no_plugin_and_a_command_of_one_runs_in_it() {
    let sandbox = Sandbox::new();
    write_loud_plugin(&sandbox, "");
    sandbox
        .bub(["plugin", "add", "loud", "--yes", "--unpinned"])
        .ok();
    let before = start_count(&sandbox);
    assert!(sandbox.bub(["--help"]).ok().contains("greet"));
    sandbox.bub(["config", "list"]).ok();
    sandbox.bub(["plugin", "list"]).ok();
    sandbox.bub(["hooks"]).ok();
    assert_eq!(start_count(&sandbox), before);
    let greeted = sandbox.bub(["greet", "Ada"]);
    assert_eq!(
        (greeted.code, greeted.stdout.as_str()),
        (Some(3), "hello from the plugin\n"),
        "{}",
        greeted.stderr
    );
}

#[test]
fn a_plugin_whose_files_changed_is_skipped_until_it_is_added_again() {
    let sandbox = Sandbox::new();
    let directory = sandbox.workspace().join("fixed");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(
        directory.join("bub-plugin.yml"),
        "name: fixed\ncommand: [sh, plugin.sh]\n",
    )
    .unwrap();
    let script = LOUD_PLUGIN.replace("echo \"started\" >> \"$PWD/starts\"", ":");
    std::fs::write(directory.join("plugin.sh"), &script).unwrap();
    sandbox.bub(["plugin", "add", "fixed", "--yes"]).ok();
    assert!(sandbox.bub(["run", "hi"]).ok().contains("LOUD"));
    std::fs::write(directory.join("plugin.sh"), script.replace("LOUD", "EVIL")).unwrap();
    let refused = sandbox.bub(["run", "hi"]);
    assert!(!refused.stdout.contains("EVIL"), "{}", refused.stdout);
    assert!(
        refused.stderr.contains("files changed"),
        "{}",
        refused.stderr
    );
    assert!(
        sandbox
            .bub(["plugin", "list"])
            .ok()
            .contains("files changed")
    );
    sandbox.bub(["plugin", "add", "fixed", "--yes"]).ok();
    assert!(sandbox.bub(["run", "hi"]).ok().contains("EVIL"));
}

#[test]
fn what_cannot_be_added_is_refused_with_the_reason() {
    let sandbox = Sandbox::new();
    let plugin = |name: &str, manifest: &str, script: &str| {
        let directory = sandbox.workspace().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("bub-plugin.yml"), manifest).unwrap();
        std::fs::write(directory.join("plugin.sh"), script).unwrap();
    };
    let saying = |result: &str| {
        format!(
            "read -r line\nprintf '{{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":%s}}\\n' '{result}'\nsleep 5\n"
        )
    };
    plugin(
        "nothing",
        "name: nothing\ncommand: [sh, plugin.sh]\n",
        "exit 1\n",
    );
    plugin(
        "missing",
        "name: missing\ncommand: [./no-such-program]\n",
        "",
    );
    plugin("typo", "nane: typo\ncommand: [sh]\n", "");
    plugin(
        "future",
        "name: future\ncommand: [sh, plugin.sh]\n",
        &saying(r#"{"protocol":9}"#),
    );
    plugin(
        "hook",
        "name: hook\ncommand: [sh, plugin.sh]\n",
        &saying(r#"{"protocol":1,"hooks":["build_promt"]}"#),
    );
    plugin(
        "store",
        "name: store\ncommand: [sh, plugin.sh]\n",
        &saying(r#"{"protocol":1,"hooks":["provide_routes"]}"#),
    );
    for (name, reason) in [
        ("absent", "cannot read"),
        ("nothing", "the process did not start"),
        ("missing", "cannot start program"),
        ("typo", "nane"),
        ("future", "unsupported protocol version 9"),
        ("hook", "did you mean `build_prompt`"),
        ("store", "unsupported hook `provide_routes`"),
    ] {
        let refused = sandbox.bub(["plugin", "add", name, "--yes"]);
        assert_ne!(refused.code, Some(0), "{name}");
        assert!(
            refused.stderr.contains(reason),
            "{name}: {}",
            refused.stderr
        );
    }
    assert!(
        sandbox
            .bub(["plugin", "add", "hook"])
            .stderr
            .contains("pass `--yes`")
    );
    assert!(
        sandbox
            .bub(["plugin", "list"])
            .ok()
            .starts_with("no plugins")
    );
}

/// A plugin that only returns this descriptor.
pub(crate) fn add_described_plugin(
    sandbox: &Sandbox,
    name: &str,
    manifest: &str,
    descriptor: &str,
) -> Run {
    let script = format!(
        "while read -r line; do\nid=$(printf '%s\\n' \"$line\" | sed -n 's/^{{\"jsonrpc\":\"2.0\",\"id\":\\([0-9]*\\),.*/\\1/p')\n\
         case $line in *'\"initialize\"'*) result='{descriptor}';; *) result='{{}}';; esac\n\
         printf '{{\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":%s}}\\n' \"$id\" \"$result\"\ndone\n"
    );
    let manifest = format!("name: {name}\ncommand: [sh, plugin.sh]\n{manifest}");
    sandbox.write(&format!("workspace/{name}/bub-plugin.yml"), &manifest);
    sandbox.write(&format!("workspace/{name}/plugin.sh"), &script);
    sandbox.bub(["plugin", "add", name, "--yes"])
}

/// Changes the plugin list directly, like a user or an older version with fewer checks.
pub(crate) fn edit_plugin_list(sandbox: &Sandbox, change: impl FnOnce(&mut serde_json::Value)) {
    let file = sandbox.home().join("plugins.json");
    let mut list = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    change(&mut list);
    std::fs::write(file, list.to_string()).unwrap();
}

// L8: a plugin adds commands but replaces none.
#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn what_a_plugin_wants_to_be_must_not_be_there_already() {
    let sandbox = Sandbox::new();
    let command = |entry: &str| format!(r#"{{"protocol":1,"commands":[{entry}]}}"#);
    let commands = [
        (r#"{"name":"plugin"}"#, "command `plugin` already exists"),
        (r#"{"name":"install"}"#, "command `install` already exists"),
        (r#"{"name":"help"}"#, "the name is reserved"),
        (r#"{"name":"-x"}"#, "invalid command name"),
        (r#"{"name":"a"},{"name":"a"}"#, "duplicate command `a`"),
        (
            r#"{"name":"a","args":[{"name":"help"}]}"#,
            "argument `help` is reserved or declared twice",
        ),
        (
            r#"{"name":"a","args":[{"name":"b"},{"name":"b"}]}"#,
            "argument `b` is reserved or declared twice",
        ),
        (
            r#"{"name":"a","args":[{"name":"b c"}]}"#,
            "invalid argument name",
        ),
        (
            r#"{"name":"a","args":[{"name":"b","positional":true,"many":true},{"name":"c","positional":true}]}"#,
            "argument `c` cannot follow `b`",
        ),
        (
            r#"{"name":"a","args":[{"name":"b","flag":true,"default":"x"}]}"#,
            "flag `b` cannot",
        ),
        (
            r#"{"name":"a","args":[{"name":"b","required":true,"default":"x"}]}"#,
            "is required, so it cannot have a default",
        ),
    ];
    let tools = |schema: &str| {
        format!(r#"{{"protocol":1,"tools":[{{"name":"a.b","inputSchema":{schema}}}]}}"#)
    };
    let checks = commands.map(|(entry, reason)| ("p", "", command(entry), reason));
    let nothing = || r#"{"protocol":1}"#.to_owned();
    for (name, manifest, descriptor, reason) in checks.into_iter().chain([
        (
            "p",
            "",
            tools("{}"),
            "tool `a.b`: `type` of `inputSchema` must be \"object\"",
        ),
        (
            "p",
            "",
            tools(r#"{"type":"array"}"#),
            "tool `a.b`: `type` of `inputSchema` must be",
        ),
        (
            "p",
            "",
            tools(r#"{"type":"object","properties":[]}"#),
            "`properties` of `inputSchema` must be a map of schemas",
        ),
        (
            "p",
            "",
            tools(r#"{"type":"object","properties":{"x":5}}"#),
            "`properties` of `inputSchema` must be a map of schemas",
        ),
        (
            "p",
            "",
            tools(r#"{"type":"object"}},{"name":"a_b","inputSchema":{"type":"object"}"#),
            "tools `a.b` and `a_b` have the same name for the model",
        ),
        (
            "webhook",
            "settings: [{name: token}]\n",
            nothing(),
            "a section with this name already exists",
        ),
        (
            "model",
            "",
            nothing(),
            "a setting with this name already exists",
        ),
        (
            "api",
            "settings: [{name: key}]\n",
            nothing(),
            "variables with the ending of BUB_API_KEY are reserved for providers",
        ),
        (
            "openai",
            "settings: [{name: api_key}]\n",
            nothing(),
            "variables with the ending of BUB_OPENAI_API_KEY are reserved for providers",
        ),
        (
            "openai_api",
            "settings: [{name: key}]\n",
            nothing(),
            "variables with the ending of BUB_OPENAI_API_KEY are reserved for providers",
        ),
        (
            "lab",
            "settings: [{name: Api_Base}]\n",
            nothing(),
            "variables with the ending of BUB_LAB_API_BASE are reserved for providers",
        ),
        (
            "a_api_key",
            "settings: [{name: command}]\n",
            nothing(),
            "variables with the ending of BUB_A_API_KEY_COMMAND are reserved for providers",
        ),
    ]) {
        let refused = add_described_plugin(&sandbox, name, manifest, &descriptor);
        assert_eq!(refused.code, Some(2), "{descriptor}: {}", refused.stderr);
        assert!(
            refused.stderr.contains(reason),
            "{descriptor}: {}",
            refused.stderr
        );
    }
    assert_eq!(sandbox.bub(["plugin", "list", "--json"]).ok(), "[]\n");
}

// L8: the list may contain entries that `add` would reject.
#[test]
fn nothing_that_is_listed_stops_the_program_or_replaces_a_part_of_it() {
    let sandbox = Sandbox::new();
    add_described_plugin(
        &sandbox,
        "p",
        "",
        r#"{"protocol":1,"commands":[{"name":"mine"}]}"#,
    )
    .ok();
    let entry = |sandbox: &Sandbox, path: &str, value: serde_json::Value| {
        edit_plugin_list(sandbox, |list| *list.pointer_mut(path).unwrap() = value);
    };
    for (path, value) in [
        (
            "/plugins/0/descriptor/commands/0/name",
            serde_json::json!("plugin"),
        ),
        (
            "/plugins/0/descriptor/commands/0/name",
            serde_json::json!("help"),
        ),
        (
            "/plugins/0/descriptor/commands/0/args",
            serde_json::json!([{"name": "help"}, {"name": "help"}]),
        ),
        (
            "/plugins/0/manifest/settings",
            serde_json::json!([{"name": "x"}, {"name": "x"}]),
        ),
        (
            "/plugins/0/manifest/settings",
            serde_json::json!([{"name": "api_key"}]),
        ),
        ("/plugins/0/manifest/name", serde_json::json!("webhook")),
        ("/plugins/0/descriptor/protocol", serde_json::json!("one")),
    ] {
        entry(&sandbox, path, value);
        for arguments in [
            &["--help"][..],
            &["config", "list"],
            &["plugin", "list"],
            &["run", ",help"],
        ] {
            let run = sandbox.bub(arguments);
            assert_eq!(run.code, Some(0), "{path} {arguments:?}: {}", run.stderr);
            assert!(!run.stderr.contains("panicked"), "{}", run.stderr);
        }
        let left = sandbox.bub(["hooks"]);
        assert!(
            left.stderr.contains("_skipped") || left.stdout.contains("is not loaded"),
            "{path}: {left:?}"
        );
    }
    sandbox.bub(["plugin", "remove", "webhook"]).ok();
    assert!(
        sandbox
            .bub(["plugin", "list"])
            .ok()
            .starts_with("no plugins")
    );
}

// L7: the settings that a plugin reads are known before it starts.
#[test]
fn settings_and_replaced_tools_of_a_plugin_are_shown() {
    let sandbox = Sandbox::new();
    let settings = "settings: [{name: units}, {name: key, secret: true}]\n";
    let tool = r#"{"protocol":1,"tools":[{"name":"bash","inputSchema":{"type":"object"}},{"name":"other","inputSchema":{"type":"object"}}]}"#;
    add_described_plugin(&sandbox, "weather", settings, tool).ok();
    let shown = sandbox.bub(["plugin", "show", "weather"]).ok();
    assert!(
        shown.contains("settings: weather.units, weather.key (secret)\n"),
        "{shown}"
    );
    assert!(
        shown.contains("tools: bash (replaces the built-in tool), other\n"),
        "{shown}"
    );
    // Its own section does not prevent adding it again.
    let again = add_described_plugin(&sandbox, "weather", settings, tool).ok();
    assert!(
        again.starts_with("added weather, replacing the built-in bash"),
        "{again}"
    );
}

// Design §3: a guard that fails denies.
#[test]
fn without_a_readable_list_of_plugins_no_tool_is_called() {
    let sandbox = Sandbox::new();
    let denied = |sandbox: &Sandbox| {
        let run = sandbox.bub(["run", ",bash command='echo ran'"]);
        (run.stdout != "ran\n").then(|| format!("{}{}", run.stdout, run.stderr))
    };
    add_described_plugin(
        &sandbox,
        "p",
        "",
        r#"{"protocol":1,"hooks":["before_tool_call"]}"#,
    )
    .ok();
    add_described_plugin(
        &sandbox,
        "q",
        "",
        r#"{"protocol":1,"hooks":["system_prompt"]}"#,
    )
    .ok();
    assert_eq!(denied(&sandbox), None);
    // An invalid row does not affect other rows.
    edit_plugin_list(&sandbox, |list| list["plugins"][1]["directory"] = 5.into());
    assert_eq!(denied(&sandbox), None);
    assert!(sandbox.bub(["plugin", "list"]).ok().contains("q  "));
    edit_plugin_list(&sandbox, |list| list["plugins"][0]["directory"] = 5.into());
    let reason = denied(&sandbox).unwrap();
    assert!(
        reason.contains("guard plugin `p` is not loaded") && reason.contains("bub plugin remove p"),
        "{reason}"
    );
    edit_plugin_list(&sandbox, |list| {
        list["plugins"][0]["enabled"] = false.into();
    });
    assert_eq!(denied(&sandbox), None);
    std::fs::write(sandbox.home().join("plugins.json"), "{ half").unwrap();
    let reason = denied(&sandbox).unwrap();
    assert!(
        reason.contains("plugins.json") && reason.contains("move it away"),
        "{reason}"
    );
    let list = sandbox.home().join("plugins.json");
    for wrong in ["{}", "[]", ""] {
        std::fs::write(&list, wrong).unwrap();
        assert!(
            denied(&sandbox).unwrap().contains("plugins.json"),
            "{wrong}"
        );
    }
    std::fs::remove_file(&list).unwrap();
    assert_eq!(denied(&sandbox), None);
    std::os::unix::fs::symlink("nowhere", &list).unwrap();
    assert!(denied(&sandbox).unwrap().contains("plugins.json"));
}

#[test]
fn a_damaged_list_of_plugins_stops_nothing_but_is_reported() {
    let sandbox = Sandbox::new();
    std::fs::create_dir_all(sandbox.home()).unwrap();
    std::fs::write(sandbox.home().join("plugins.json"), "{ half").unwrap();
    let helped = sandbox.bub(["hooks"]);
    assert_eq!(helped.code, Some(0));
    assert!(helped.stderr.contains("plugins.json"), "{}", helped.stderr);
    assert!(
        sandbox
            .bub(["plugin", "list"])
            .stderr
            .contains("plugins.json")
    );
}

#[test]
fn a_new_plugin_runs_as_it_is_and_the_sdk_it_brings_is_whole() {
    let sandbox = Sandbox::new();
    sandbox.bub(["plugin", "new", "hello-py"]).ok();
    let shipped = std::fs::read_dir(crate::sandbox::root().join("sdk/python/bub_sdk")).unwrap();
    for file in shipped
        .map(|file| file.unwrap())
        .filter(|file| file.file_type().unwrap().is_file())
    {
        let copy = sandbox
            .workspace()
            .join("hello-py/bub_sdk")
            .join(file.file_name());
        assert_eq!(
            std::fs::read(copy).unwrap(),
            std::fs::read(file.path()).unwrap(),
            "{:?}",
            file.file_name()
        );
    }
    sandbox
        .bub(["plugin", "new", "hello-sh", "--lang", "shell"])
        .ok();
    sandbox
        .bub(["plugin", "new", "hello-rs", "--lang", "rust"])
        .ok();
    assert!(sandbox.workspace().join("hello-rs/src/main.rs").exists());
    assert!(
        sandbox
            .bub(["plugin", "new", "hello-sh"])
            .stderr
            .contains("is not empty")
    );
    sandbox.bub(["plugin", "add", "hello-sh", "--yes"]).ok();
    if std::process::Command::new("python3")
        .arg("--version")
        .output()
        .is_err()
    {
        println!("python3 is not here: the Python plugin is not tried");
        return;
    }
    sandbox.bub(["plugin", "add", "hello-py", "--yes"]).ok();
    assert!(
        sandbox
            .bub(["run", "hello"])
            .ok()
            .contains("hello-py says hello")
    );
    assert!(
        sandbox
            .bub(["run", ",hello-py.count text='one two three'"])
            .ok()
            .contains('3')
    );
}

/// Creates a Python plugin with the SDK. Returns `false` if Python is not installed.
pub(crate) fn write_python_plugin(sandbox: &Sandbox, name: &str, code: &str) -> bool {
    if std::process::Command::new("python3")
        .arg("--version")
        .output()
        .is_err()
    {
        println!("python3 is not here: the Python plugin is not tried");
        return false;
    }
    sandbox.bub(["plugin", "new", name]).ok();
    sandbox.write(&format!("workspace/{name}/plugin.py"), code);
    sandbox
        .bub(["plugin", "add", name, "--yes", "--unpinned"])
        .ok();
    true
}

/// A channel whose only guest sends a message, gets an answer, and queries the outcome.
const ROOM_PLUGIN: &str = r#"
import asyncio
from bub_sdk import Channel, ask, hookimpl, send, serve, tape

answered = asyncio.Event()


async def note(what, work):
    try:
        outcome = await work
    except Exception as error:
        outcome = f"failed: {error}"
    with open("log", "a") as file:
        print(what, outcome, file=file)


class Room(Channel):
    name = "room"

    async def start(self):
        asyncio.ensure_future(self.listen())

    async def listen(self):
        guest = {"id": "u", "role": "owner"}
        await note("forged", self.receive({"content": "x", "chat_id": "1", "session_id": "webhook:a"}, guest))
        await note("received", self.receive({"content": "hello", "chat_id": "1"}, guest))
        await answered.wait()
        await note("asked", ask("what?", default="nothing"))
        await note("unanswered", ask("what?"))
        await note("found", self.texts())
        await note("noted", tape.append("noted", {"a": 1}, session_id="room:1"))
        await note("unknown", tape.append("noted", {"a": 1}, session_id="room:2"))
        await note("sent", send({"content": "by the way", "channel": "room", "chat_id": "1"}))

    async def texts(self):
        return [entry["payload"].get("content") for entry in await tape.query(kinds=["message"], session_id="room:1")]

    async def send(self, message):
        await note("reply", asyncio.sleep(0, message["content"]))
        answered.set()


@hookimpl
def provide_channels(message_handler):
    return [Room()]


@hookimpl
def run_model(prompt):
    return "welcome"


serve()
"#;

// L8, L7, design §8: a channel of a plugin with all host methods, in the real gateway.
#[test]
fn a_channel_of_a_plugin_receives_answers_and_asks_its_host() {
    let (sandbox, model) = (Sandbox::new(), ModelServer::start());
    if !write_python_plugin(&sandbox, "room", ROOM_PLUGIN) {
        return;
    }
    let gateway = start_gateway(&sandbox, &model);
    let log = || std::fs::read_to_string(sandbox.workspace().join("room/log")).unwrap_or_default();
    let started = Instant::now();
    while !log().contains("\nsent ") {
        assert!(started.elapsed() < Duration::from_mins(1), "{}", log());
        std::thread::sleep(Duration::from_millis(20));
    }
    gateway.stop();
    let log = log();
    for expected in [
        "forged failed: invalid `session_id`: expected a value that starts with `room:`\n",
        "received True\n",
        "reply welcome\n",
        "asked nothing\n",
        "unanswered failed: cannot prompt: stdin is not a terminal; run the command in a terminal\n",
        "'welcome'",
        "unknown failed: session `room:2` not found: its tape has no entries\n",
        "reply by the way\n",
        "sent True\n",
    ] {
        assert!(log.contains(expected), "{expected}: {log}");
    }
    assert!(sandbox.only_tape().contains(r#""noted""#));
}

// Design §3: the prompt that a plugin passes to the next plugin reaches the model.
#[test]
fn a_prompt_that_a_plugin_replaces_reaches_the_model() {
    for asks in [
        "async def run_model_stream(prompt, next):\n    async for event in next(prompt='two and two?'):\n        yield event",
        "async def run_model(prompt, next):\n    return await next(prompt='two and two?')",
    ] {
        let (sandbox, model) = (Sandbox::new(), ModelServer::start());
        let code = format!("from bub_sdk import hookimpl, serve\n\n@hookimpl\n{asks}\n\nserve()\n");
        if !write_python_plugin(&sandbox, "asking", &code) {
            return;
        }
        model.script(Reply::text("four"));
        let run = run_with_model(&sandbox, &model, &["run", "my secret: 2+2?"]).ok();
        assert!(run.contains("four"), "{run}");
        let messages = model.requests()[0].json()["messages"].to_string();
        assert!(
            messages.contains("two and two?") && !messages.contains("my secret"),
            "{messages}"
        );
        let tape = sandbox.only_tape();
        assert!(
            tape.contains("my secret: 2+2?") && tape.contains("\"replaces\""),
            "{tape}"
        );
    }
}

/// Runs the program with this model.
pub(crate) fn run_with_model(sandbox: &Sandbox, model: &ModelServer, arguments: &[&str]) -> Run {
    let mut command = sandbox.command(&bub());
    command
        .env("BUB_MODEL", "llamacpp:test")
        .env("BUB_LLAMACPP_API_BASE", format!("{}/v1", model.url()));
    Run::from_output(command.args(arguments).output().unwrap())
}

#[test]
fn what_a_plugin_said_before_it_crashed_is_printed() {
    let sandbox = Sandbox::new();
    let code = "import os\nfrom bub_sdk import hookimpl, serve\n\n@hookimpl\nasync def run_model_stream(prompt):\n    \
                yield 'as far as '\n    yield 'this'\n    os._exit(3)\n\nserve()\n";
    if !write_python_plugin(&sandbox, "brittle", code) {
        return;
    }
    let run = sandbox.bub(["run", "hi"]);
    assert_eq!(run.code, Some(1), "{run:?}");
    assert!(run.stdout.contains("as far as this"), "{run:?}");
    assert!(
        run.stderr.contains("plugin brittle: the process ended"),
        "{run:?}"
    );
}

#[test]
fn plugins_that_cannot_be_meant_are_distinguished() {
    let sandbox = Sandbox::new();
    let refused = |name: &str, reason: &str| {
        let run = sandbox.bub(["plugin", "add", name, "--yes"]);
        assert_eq!(run.code, Some(2), "{name}: {run:?}");
        assert!(run.stderr.contains(reason), "{name}: {}", run.stderr);
    };
    sandbox.write(
        "workspace/echo/bub-plugin.yml",
        "name: echo\ncommand: [cat]\n",
    );
    refused("echo", "the process does not speak the plugin protocol");
    std::fs::create_dir(sandbox.workspace().join("pipe")).unwrap();
    let pipe = sandbox.workspace().join("pipe/bub-plugin.yml");
    assert!(
        std::process::Command::new("mkfifo")
            .arg(pipe)
            .status()
            .unwrap()
            .success()
    );
    refused("pipe", "not a regular file");
    for name in ["'*'", "A=B", "''"] {
        sandbox.write(
            "workspace/env/bub-plugin.yml",
            &format!("name: env\ncommand: [cat]\nenv: [{name}]\n"),
        );
        refused("env", "invalid environment variable name");
    }
    // What `add` would refuse is not begun.
    for (name, reason) in [
        ("builtin", "is reserved"),
        ("gateway", "a section with this name already exists"),
        ("webhook", "a section with this name already exists"),
        ("model", "a setting with this name already exists"),
    ] {
        let run = sandbox.bub(["plugin", "new", name]);
        assert_eq!(run.code, Some(2), "{name}: {run:?}");
        assert!(run.stderr.contains(reason), "{name}: {}", run.stderr);
        assert!(!sandbox.workspace().join(name).exists(), "{name}");
    }

    let guard = r#"{"protocol":1,"hooks":["system_prompt"]}"#;
    add_described_plugin(&sandbox, "p", "", guard).ok();
    // The executable bit is part of the pin.
    let script = sandbox.workspace().join("p/plugin.sh");
    std::fs::set_permissions(script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let order = sandbox.bub(["hooks", "--order"]).ok();
    assert!(
        order.contains("system_prompt: p (error), builtin\n"),
        "{order}"
    );
    // Another plugin with the same name replaces it, and the output says so.
    std::fs::rename(sandbox.workspace().join("p"), sandbox.workspace().join("q")).unwrap();
    let added = sandbox.bub(["plugin", "add", "q", "--yes"]).ok();
    assert!(
        added.contains("added p, replacing the plugin at "),
        "{added}"
    );
    sandbox.bub(["plugin", "disable", "p"]).ok();
    std::fs::remove_dir_all(sandbox.workspace().join("q")).unwrap();
    assert!(
        sandbox
            .bub(["plugin", "enable", "p"])
            .stderr
            .contains("files of plugin `p` not found")
    );
}

// The process of a plugin is confined, and what it needs beyond that is declared and shown.
#[test]
fn a_plugin_runs_in_a_sandbox_and_declares_what_it_needs() {
    let probe = |permissions: &str, config: &str| {
        let sandbox = Sandbox::new();
        sandbox.write("secret", "canary-4711");
        sandbox.write("home/config.yml", config);
        write_loud_plugin(&sandbox, permissions);
        let attempts =
            "{ cat ~/secret; echo x > ~/made; ls -d /proc/[0-9]* | wc -l; } > found 2>&1\n";
        let script = LOUD_PLUGIN.replacen('\n', &format!("\n{attempts}"), 1);
        sandbox.write("workspace/loud/plugin.sh", &script);
        sandbox.bub(["plugin", "add", "loud", "--yes"]).ok();
        let shown = sandbox.bub(["plugin", "show", "loud"]).ok();
        let found = std::fs::read_to_string(sandbox.workspace().join("loud/found")).unwrap();
        let is_made = sandbox.workspace().with_file_name("made").exists();
        (shown, found.contains("canary-4711"), is_made)
    };
    let (shown, has_read, has_written) = probe("", "{}");
    assert!(shown.contains("\nsandbox: workspace, network\n"), "{shown}");
    assert_eq!((has_read, has_written), (false, false));
    let permissions = "permissions: {network: false, read: [~/secret]}\n";
    let (shown, has_read, has_written) = probe(permissions, "{}");
    assert!(
        shown.contains("\nsandbox: workspace, no network, reads ~/secret\n"),
        "{shown}"
    );
    assert_eq!((has_read, has_written), (true, false));
    let (_, has_read, has_written) = probe("", "plugins: {loud: {sandbox: false}}\n");
    assert_eq!((has_read, has_written), (true, true));
}
