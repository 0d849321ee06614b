//! `bub plugin`, and plugins in the program.

use crate::sandbox::{Run, Sandbox, bub};

/// A plugin that answers every prompt itself.
const LOUD: &str = r#"#!/bin/sh
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

fn loud(sandbox: &Sandbox, extra: &str) {
    let directory = sandbox.workspace().join("loud");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(
        directory.join("bub-plugin.yml"),
        format!("name: loud\ncommand: [sh, plugin.sh]\n{extra}"),
    )
    .unwrap();
    std::fs::write(directory.join("plugin.sh"), LOUD).unwrap();
}

fn starts(sandbox: &Sandbox) -> usize {
    std::fs::read_to_string(sandbox.workspace().join("loud/starts")).unwrap_or_default().lines().count()
}

// H-8, H-31, S-41, design §8: registered after builtin, asked before it.
#[test]
fn an_added_plugin_answers_and_can_be_switched_off() {
    let sandbox = Sandbox::new();
    loud(&sandbox, "");
    // What it writes is its own affair.
    let added = sandbox.bub(["plugin", "add", "loud", "--yes", "--unpinned"]).ok();
    assert!(added.contains("added loud"), "{added}");
    assert!(sandbox.bub(["run", "hi"]).ok().contains("LOUD none none"));
    assert!(sandbox.bub(["hooks", "--order"]).ok().contains("run_model: loud\n"));
    sandbox.bub(["plugin", "disable", "loud"]).ok();
    assert!(!sandbox.bub(["hooks"]).ok().contains("loud"));
    sandbox.bub(["plugin", "enable", "loud"]).ok();
    assert!(sandbox.bub(["plugin", "list"]).ok().contains("in use"));
    sandbox.bub(["uninstall", "loud"]).ok();
    assert!(sandbox.bub(["plugin", "list"]).ok().starts_with("(no plugins"));
    assert!(sandbox.workspace().join("loud/plugin.sh").exists());
}

// L7: a plugin gets what it was granted, and no key.
#[test]
fn a_plugin_gets_only_the_variables_it_was_granted() {
    let sandbox = Sandbox::new();
    let run = || {
        let mut command = sandbox.command(&bub());
        command.env("WEATHER_KEY", "w-123456789").env("BUB_API_KEY", "sk-secret-value-1");
        Run::of(command.args(["run", "hi"]).output().unwrap()).ok()
    };
    loud(&sandbox, "");
    sandbox.bub(["plugin", "add", "loud", "--yes", "--unpinned"]).ok();
    assert!(run().contains("LOUD none none"));
    loud(&sandbox, "env: [WEATHER_KEY]\n");
    sandbox.bub(["plugin", "add", "loud", "--yes", "--unpinned"]).ok();
    // It has the value; what it says with it is masked on the way out.
    let said = run();
    assert!(!said.contains("LOUD none") && !said.contains("w-123456789"), "{said}");
    assert!(sandbox.bub(["plugin", "show", "loud"]).ok().contains("beyond the usual: WEATHER_KEY"));
}

#[test]
fn help_and_config_start_no_plugin_and_a_command_of_one_runs_in_it() {
    let sandbox = Sandbox::new();
    loud(&sandbox, "");
    sandbox.bub(["plugin", "add", "loud", "--yes", "--unpinned"]).ok();
    let before = starts(&sandbox);
    assert!(sandbox.bub(["--help"]).ok().contains("greet"));
    sandbox.bub(["config", "list"]).ok();
    sandbox.bub(["plugin", "list"]).ok();
    sandbox.bub(["hooks"]).ok();
    assert_eq!(starts(&sandbox), before);
    let greeted = sandbox.bub(["greet", "Ada"]);
    assert_eq!(
        (greeted.code, greeted.stdout.as_str()),
        (Some(3), "hello from the plugin\n"),
        "{}",
        greeted.stderr
    );
}

#[test]
fn a_plugin_whose_files_changed_is_left_out_until_it_is_added_again() {
    let sandbox = Sandbox::new();
    let directory = sandbox.workspace().join("fixed");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("bub-plugin.yml"), "name: fixed\ncommand: [sh, plugin.sh]\n").unwrap();
    let script = LOUD.replace("echo \"started\" >> \"$PWD/starts\"", ":");
    std::fs::write(directory.join("plugin.sh"), &script).unwrap();
    sandbox.bub(["plugin", "add", "fixed", "--yes"]).ok();
    assert!(sandbox.bub(["run", "hi"]).ok().contains("LOUD"));
    std::fs::write(directory.join("plugin.sh"), script.replace("LOUD", "EVIL")).unwrap();
    let refused = sandbox.bub(["run", "hi"]);
    assert!(!refused.stdout.contains("EVIL"), "{}", refused.stdout);
    assert!(refused.stderr.contains("files changed"), "{}", refused.stderr);
    assert!(sandbox.bub(["plugin", "list"]).ok().contains("files changed"));
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
    plugin("nothing", "name: nothing\ncommand: [sh, plugin.sh]\n", "exit 1\n");
    plugin("missing", "name: missing\ncommand: [./no-such-program]\n", "");
    plugin("typo", "nane: typo\ncommand: [sh]\n", "");
    plugin("future", "name: future\ncommand: [sh, plugin.sh]\n", &saying(r#"{"protocol":9}"#));
    plugin(
        "hook",
        "name: hook\ncommand: [sh, plugin.sh]\n",
        &saying(r#"{"protocol":1,"hooks":["build_promt"]}"#),
    );
    plugin(
        "store",
        "name: store\ncommand: [sh, plugin.sh]\n",
        &saying(r#"{"protocol":1,"hooks":["provide_tape_store"]}"#),
    );
    for (name, why) in [
        ("absent", "cannot be read"),
        ("nothing", "it did not start"),
        ("missing", "cannot be started"),
        ("typo", "nane"),
        ("future", "version 9 of the protocol"),
        ("hook", "did it mean `build_prompt`"),
        ("store", "cannot implement provide_tape_store"),
    ] {
        let refused = sandbox.bub(["plugin", "add", name, "--yes"]);
        assert_ne!(refused.code, Some(0), "{name}");
        assert!(refused.stderr.contains(why), "{name}: {}", refused.stderr);
    }
    assert!(sandbox.bub(["plugin", "add", "hook"]).stderr.contains("add --yes"));
    assert!(sandbox.bub(["plugin", "list"]).ok().starts_with("(no plugins"));
}

#[test]
fn a_damaged_list_of_plugins_stops_nothing_but_is_told() {
    let sandbox = Sandbox::new();
    std::fs::create_dir_all(sandbox.home()).unwrap();
    std::fs::write(sandbox.home().join("plugins.json"), "{ half").unwrap();
    let helped = sandbox.bub(["hooks"]);
    assert_eq!(helped.code, Some(0));
    assert!(helped.stderr.contains("plugins.json"), "{}", helped.stderr);
    assert!(sandbox.bub(["plugin", "list"]).stderr.contains("plugins.json"));
}

#[test]
fn a_new_plugin_runs_as_it_is_and_the_sdk_it_brings_is_whole() {
    let sandbox = Sandbox::new();
    sandbox.bub(["plugin", "new", "hello-py"]).ok();
    let shipped = std::fs::read_dir(crate::sandbox::root().join("sdk/python/bub_sdk")).unwrap();
    for file in shipped.map(|file| file.unwrap()).filter(|file| file.file_type().unwrap().is_file()) {
        let copy = sandbox.workspace().join("hello-py/bub_sdk").join(file.file_name());
        assert_eq!(
            std::fs::read(copy).unwrap(),
            std::fs::read(file.path()).unwrap(),
            "{:?}",
            file.file_name()
        );
    }
    sandbox.bub(["plugin", "new", "hello-sh", "--lang", "shell"]).ok();
    sandbox.bub(["plugin", "new", "hello-rs", "--lang", "rust"]).ok();
    assert!(sandbox.workspace().join("hello-rs/src/main.rs").exists());
    assert!(sandbox.bub(["plugin", "new", "hello-sh"]).stderr.contains("is not empty"));
    sandbox.bub(["plugin", "add", "hello-sh", "--yes"]).ok();
    if std::process::Command::new("python3").arg("--version").output().is_err() {
        println!("python3 is not here: the Python plugin is not tried");
        return;
    }
    sandbox.bub(["plugin", "add", "hello-py", "--yes"]).ok();
    assert!(sandbox.bub(["run", "hello"]).ok().contains("hello-py says hello"));
    assert!(sandbox.bub(["run", ",hello-py.count text='one two three'"]).ok().contains('3'));
}
