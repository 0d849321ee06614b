//! Tests changed, damaged and invalid plugins: what bub reports and refuses to do.

use std::{os::unix::fs::PermissionsExt as _, process::Command, time::Instant};

use bub_testkit::model::{ModelServer, Reply};
use serde_json::json;

use crate::{
    plugin::{add_described_plugin, edit_plugin_list, run_with_model, write_python_plugin},
    sandbox::Sandbox,
};

const NOTHING: &str = r#"{"protocol":1}"#;
const GUARD: &str = r#"{"protocol":1,"hooks":["before_tool_call"]}"#;

// A pin records its format: an older format is not mistaken for a change of the files.
#[test]
fn a_pin_of_an_older_version_says_so() {
    let sandbox = Sandbox::new();
    add_described_plugin(&sandbox, "p", "", NOTHING).ok();
    assert!(sandbox.bub(["plugin", "list"]).ok().contains("enabled"));
    edit_plugin_list(&sandbox, |list| {
        let pin = list["plugins"][0]["digest"]
            .as_str()
            .unwrap()
            .split_once(':')
            .unwrap()
            .1
            .to_owned();
        list["plugins"][0]["digest"] = pin.into();
    });
    let listed = sandbox.bub(["plugin", "list"]).ok();
    assert!(
        listed.contains("pinned by an older version of bub") && !listed.contains("changed"),
        "{listed}"
    );
    add_described_plugin(&sandbox, "p", "", NOTHING).ok();
    assert!(sandbox.bub(["plugin", "list"]).ok().contains("enabled"));
}

// The pin covers the executed files, also outside the directory.
#[test]
fn what_the_command_of_a_plugin_names_is_pinned_wherever_it_is() {
    let sandbox = Sandbox::new();
    add_described_plugin(&sandbox, "p", "", NOTHING).ok();
    let directory = sandbox.workspace().join("p");
    let script = std::fs::read_to_string(directory.join("plugin.sh")).unwrap();
    let outside = sandbox.workspace().join("outside.sh");
    let absolute = outside.to_str().unwrap().to_owned();
    for (command, file) in [
        ("target/run.sh", "p/target/run.sh"),
        (".venv/bin/run.sh", "p/.venv/bin/run.sh"),
        ("__pycache__/run.sh", "p/__pycache__/run.sh"),
        ("./node_modules/run.sh", "p/node_modules/run.sh"),
        ("../outside.sh", "outside.sh"),
        (&absolute, "outside.sh"),
        ("link.sh", "outside.sh"),
    ] {
        let manifest = format!("name: p\ncommand: [sh, {command}]\n");
        sandbox.write("workspace/p/bub-plugin.yml", &manifest);
        let file = format!("workspace/{file}");
        sandbox.write(&file, &script);
        if command == "link.sh" {
            std::os::unix::fs::symlink("../outside.sh", directory.join(command)).unwrap();
        }
        let added = sandbox.bub(["plugin", "add", "p", "--yes"]);
        added.ok();
        assert!(
            sandbox.bub(["plugin", "list"]).ok().contains("enabled"),
            "{command}"
        );
        sandbox.write(&file, &format!("{script}# other\n"));
        let listed = sandbox.bub(["plugin", "list"]).ok();
        assert!(listed.contains("files changed"), "{command}: {listed}");
    }
    let added = sandbox.bub(["plugin", "add", "p", "--yes"]);
    assert!(
        added.stderr.contains(
            "not pinned, because tools regenerate them: .venv, __pycache__, node_modules, target\n"
        ),
        "{}",
        added.stderr
    );
    // Interpreters belong to the system and are not pinned.
    let interpreter = sandbox.workspace().join("sh");
    std::fs::copy("/bin/sh", &interpreter).unwrap();
    let manifest = format!("name: p\ncommand: [{}, plugin.sh]\n", interpreter.display());
    sandbox.write("workspace/p/bub-plugin.yml", &manifest);
    sandbox.bub(["plugin", "add", "p", "--yes"]).ok();
    let updated = [std::fs::read(&interpreter).unwrap(), b"x".to_vec()].concat();
    std::fs::write(&interpreter, updated).unwrap();
    assert!(sandbox.bub(["plugin", "list"]).ok().contains("enabled"));
    // Links to directories, with pinned files and without.
    let link = |target: &str| {
        let link = directory.join("lib");
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(target, link).unwrap();
        sandbox.bub(["plugin", "add", "p", "--yes"])
    };
    sandbox.write("workspace/p/src/a", "");
    sandbox.write("workspace/elsewhere/a", "");
    link("src").ok();
    for target in ["../elsewhere", ".venv/bin"] {
        let refused = link(target);
        assert_ne!(refused.code, Some(0), "{target}");
        assert!(
            refused.stderr.contains("plugin `p` was not added: `"),
            "{target}: {}",
            refused.stderr
        );
        assert!(
            refused.stderr.contains("/p/lib` is a link to "),
            "{target}: {}",
            refused.stderr
        );
    }
    sandbox
        .bub(["plugin", "add", "p", "--yes", "--unpinned"])
        .ok();
}

// A plugin imports what lies beside it, also a directory that did not exist when it was added.
#[test]
fn a_file_that_appears_later_is_a_change_of_the_plugin() {
    let sandbox = Sandbox::new();
    add_described_plugin(&sandbox, "p", "", NOTHING).ok();
    sandbox.write("workspace/p/lib/node_modules/known/index.js", "");
    sandbox.bub(["plugin", "add", "p", "--yes"]).ok();
    let list = || sandbox.bub(["plugin", "list"]).ok();
    // What tools write at any time is no change, nor is another file in a directory that was reported as not pinned.
    for file in [
        "__pycache__/plugin.cpython-313.pyc",
        "lib/__pycache__/x.cpython-313.pyc",
        ".git/HEAD",
        "lib/node_modules/other/index.js",
    ] {
        sandbox.write(&format!("workspace/p/{file}"), "x");
        assert!(list().contains("enabled"), "{file}");
    }
    for file in [
        "json.py",
        "lib/new/__init__.py",
        "node_modules/json/index.js",
        "lib/venv/__init__.py",
        "target/__init__.py",
        ".venv/lib/site.py",
    ] {
        sandbox.write(&format!("workspace/p/{file}"), "x");
        assert!(list().contains("files changed"), "{file}: {}", list());
        let top = file
            .split('/')
            .take(if file.starts_with("lib") { 2 } else { 1 });
        let path = sandbox
            .workspace()
            .join("p")
            .join(top.collect::<Vec<_>>().join("/"));
        std::fs::remove_file(&path)
            .or_else(|_| std::fs::remove_dir_all(&path))
            .unwrap();
        assert!(list().contains("enabled"), "{file}");
    }
}

#[test]
fn invalid_limits_are_reported() {
    let sandbox = Sandbox::new();
    add_described_plugin(&sandbox, "p", "", NOTHING).ok();
    for (given, expected) in [
        ("5", "plugins.p must be a map"),
        (
            "{limit: {hook: 5}}",
            "plugins.p.limit is unknown; available keys: `limits`, `role` and `sandbox`",
        ),
        (
            "{limits: 5}",
            "plugins.p.limits must be a map with start, hook",
        ),
        (
            "{limits: {hook: -1}}",
            "plugins.p.limits.hook must be a number of seconds greater than 0",
        ),
        (
            "{limits: {tool: 0}}",
            "plugins.p.limits.tool must be a number of seconds greater than 0",
        ),
        (
            "{limits: {start: soon}}",
            "plugins.p.limits.start must be a number of seconds greater than 0",
        ),
        (
            "{limits: {hooks: 3}}",
            "plugins.p.limits.hooks must be a map",
        ),
        (
            "{limits: {hooks: {build_promt: 3}}}",
            "plugins.p.limits.hooks.build_promt is not a hook",
        ),
        (
            "{limits: {hoook: 3}}",
            "plugins.p.limits.hoook is unknown; available keys: start",
        ),
        ("{role: 7}", "plugins.p.role must be guest, member or owner"),
    ] {
        sandbox.write("home/config.yml", &format!("plugins:\n  p: {given}\n"));
        let run = sandbox.bub(["run", ",help"]);
        assert!(run.stderr.contains(expected), "{given}: {}", run.stderr);
        assert!(
            sandbox.bub(["plugin", "list"]).ok().contains(expected),
            "{given}"
        );
    }
    sandbox.write(
        "home/config.yml",
        "plugins:\n  p: {limits: {hook: 0.5, hooks: {build_prompt: 3}}}\n",
    );
    assert!(sandbox.bub(["plugin", "list"]).ok().contains("enabled"));
}

// L8: any file in place of the plugin list leads to an error with a fix.
#[test]
fn a_list_of_plugins_that_is_none_hangs_nothing_and_says_what_to_do() {
    type Make = fn(&std::path::Path);
    let forms: [(&str, Make, &str, &str); 6] = [
        (
            "pipe",
            |file| assert!(Command::new("mkfifo").arg(file).status().unwrap().success()),
            "not a regular file",
            "move it away",
        ),
        (
            "directory",
            |file| std::fs::create_dir(file).unwrap(),
            "not a regular file",
            "move it away",
        ),
        (
            "device",
            |file| std::os::unix::fs::symlink("/dev/zero", file).unwrap(),
            "not a regular file",
            "move it away",
        ),
        (
            "nowhere",
            |file| std::os::unix::fs::symlink("nowhere", file).unwrap(),
            "broken symbolic link",
            "remove the link",
        ),
        (
            "half",
            |file| std::fs::write(file, "{\n half").unwrap(),
            "invalid JSON at line 2, column 2",
            "move it away",
        ),
        (
            "other",
            |file| std::fs::write(file, r#"{"plugins": 5}"#).unwrap(),
            "`plugins`: must be a list",
            "move it away",
        ),
    ];
    for (name, make, reason, remedy) in forms {
        let sandbox = Sandbox::new();
        std::fs::create_dir_all(sandbox.home()).unwrap();
        make(&sandbox.home().join("plugins.json"));
        let begun = Instant::now();
        for arguments in [
            &["plugin", "list"][..],
            &["plugin", "remove", "p"],
            &["plugin", "show", "p"],
            &["doctor"],
            &["run", ",bash command=true"],
        ] {
            let run = sandbox.bub(arguments);
            let output = format!("{}{}", run.stdout, run.stderr);
            assert!(
                output.contains(reason) && output.contains(remedy),
                "{name} {arguments:?}: {output}"
            );
            assert!(!output.contains("expected"), "{name}: {output}");
        }
        assert!(begun.elapsed().as_secs() < 60, "{name}");
    }
}

#[test]
fn what_a_terminal_would_obey_never_gets_there() {
    let sandbox = Sandbox::new();
    for (name, manifest) in [
        (r#""a\eb""#, ""),
        ("p", r#"description: "\e[2Jgone""#),
        ("p", r#"settings: [{name: a, help: "\e]0;title\a"}]"#),
    ] {
        sandbox.write(
            "workspace/p/bub-plugin.yml",
            &format!("name: {name}\ncommand: [cat]\n{manifest}\n"),
        );
        let refused = sandbox.bub(["plugin", "add", "p", "--yes"]);
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(!refused.stderr.contains('\u{1b}'), "{refused:?}");
    }
    for output in [
        r#""description":"a\u001b[2Jb""#,
        r#""commands":[{"name":"c","about":"a\u001b[2Jb"}]"#,
    ] {
        let refused =
            add_described_plugin(&sandbox, "p", "", &format!("{{\"protocol\":1,{output}}}"));
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(
            refused.stderr.contains("control characters") && !refused.stderr.contains('\u{1b}'),
            "{refused:?}"
        );
    }
    // The list may contain entries that `add` would reject.
    for (path, value) in [
        ("/plugins/0/manifest/name", "a\u{1b}[2Jb"),
        ("/plugins/0/manifest/description", "a\u{1b}[2Jb"),
        ("/plugins/0/pinned", "/a\u{1b}[2Jb"),
        ("/plugins/0/descriptor/version", "\u{1b}[2J"),
    ] {
        add_described_plugin(&sandbox, "p", "", r#"{"protocol":1,"version":"1"}"#).ok();
        edit_plugin_list(&sandbox, |list| {
            *list.pointer_mut(path).unwrap() = value.into();
        });
        let name = if path.ends_with("name") { value } else { "p" };
        for arguments in [
            &["plugin", "list"][..],
            &["plugin", "show", name],
            &["hooks"],
            &["doctor"],
            &["--help"],
        ] {
            let run = sandbox.bub(arguments);
            assert!(
                !run.stdout.contains('\u{1b}') && !run.stderr.contains('\u{1b}'),
                "{path} {arguments:?}: {run:?}"
            );
        }
        std::fs::remove_file(sandbox.home().join("plugins.json")).unwrap();
    }
}

// Errors are readable and name the location; suggested commands can be pasted.
#[test]
fn mistakes_are_reported_with_their_location_and_hints_can_be_copied() {
    let sandbox = Sandbox::new();
    for (manifest, expected) in [
        (
            "name: p\ncommand: sh\n",
            "`command`: must be a list, not the text \"sh\"",
        ),
        (
            "name: p\ncommand: [sh]\nenv: 5\n",
            "`env`: must be a list, not the number `5`",
        ),
        ("name: p\n", "`command` is missing"),
        (
            "name: p\ncommand: [sh]\nenvs: []\n",
            "unknown key `envs`; available keys: `name`, ",
        ),
        (
            "name: p\ncommand: [sh]\nsettings: [{name: a, type: int}]\n",
            "`settings`: unknown value `int`; available values: `string`, ",
        ),
        ("[a]\n", "must be a map"),
    ] {
        sandbox.write("workspace/p/bub-plugin.yml", manifest);
        let refused = sandbox.bub(["plugin", "add", "p", "--yes"]);
        assert!(
            refused.stderr.contains(expected),
            "{manifest}: {}",
            refused.stderr
        );
        assert!(!refused.stderr.contains("expected"), "{}", refused.stderr);
    }
    let refused = add_described_plugin(&sandbox, "p", "", r#"{"protocol":1,"tools":5}"#);
    assert!(
        refused
            .stderr
            .contains("invalid response to `initialize`: `tools`: must be a list"),
        "{refused:?}"
    );

    add_described_plugin(&sandbox, "q", "", NOTHING).ok();
    let spaced = sandbox.workspace().join("it's here");
    std::fs::rename(sandbox.workspace().join("q"), &spaced).unwrap();
    sandbox.bub(["plugin", "add", "it's here", "--yes"]).ok();
    std::fs::set_permissions(
        spaced.join("plugin.sh"),
        std::fs::Permissions::from_mode(0o755),
    )
    .unwrap();
    let listed = sandbox.bub(["plugin", "list"]).ok();
    let hint = listed.split_once("bub plugin add ").unwrap().1.trim();
    let unquoted = Command::new("sh")
        .arg("-c")
        .arg(format!("printf %s {hint}"))
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8(unquoted.stdout).unwrap(),
        spaced.canonicalize().unwrap().display().to_string()
    );
}

#[test]
fn adding_without_a_question_says_which_tools_are_replaced() {
    let sandbox = Sandbox::new();
    let tools = r#"{"protocol":1,"tools":[{"name":"bash","inputSchema":{"type":"object"}},{"name":"fs_read","inputSchema":{"type":"object"}},{"name":"own","inputSchema":{"type":"object"}}]}"#;
    let added = add_described_plugin(&sandbox, "p", "", tools).ok();
    assert!(
        added.contains("replacing the built-in bash, fs_read;"),
        "{added}"
    );
}

// Design §3: a guard that is missing denies, also if its name is taken.
#[test]
fn a_guard_whose_name_a_linked_in_plugin_has_denies() {
    let sandbox = Sandbox::new();
    let call = ["run", ",bash command='echo ran'"];
    add_described_plugin(&sandbox, "faulty", "", NOTHING).ok();
    assert_eq!(sandbox.example("faulty", call).stdout, "ran\n");
    add_described_plugin(&sandbox, "faulty", "", GUARD).ok();
    let run = sandbox.example("faulty", call);
    assert_ne!(run.stdout, "ran\n", "{run:?}");
    let output = format!("{}{}", run.stdout, run.stderr);
    assert!(
        output.contains(
            "is taken by a plugin that is built into bub; run `bub plugin remove faulty`"
        ),
        "{output}"
    );
    // A new plugin cannot replace the guard that denies, either.
    add_described_plugin(&sandbox, "absent-guards", "", NOTHING).ok();
    assert_ne!(sandbox.example("faulty", call).stdout, "ran\n");
}

// H-30: models of a plugin are listed, can be selected, and the next turn uses them.
#[test]
fn models_that_a_plugin_offers_are_shown_and_used() {
    let (sandbox, model) = (Sandbox::new(), ModelServer::start());
    let code = "from bub_sdk import hookimpl, serve\n\n@hookimpl\ndef provide_model_options(session_id, workspace):\n    \
                return {'choices': [{'id': 'llamacpp:big', 'label': 'Big'}, {'id': 'own:odd'}], 'current': None}\n\n\
                @hookimpl\ndef run_model(prompt, state):\n    \
                return 'odd one' if state.get('model') == 'own:odd' else None\n\nserve()\n";
    if !write_python_plugin(&sandbox, "offering", code) {
        return;
    }
    let shown = run_with_model(&sandbox, &model, &["run", ",model"]).ok();
    assert!(
        shown.contains("- 1: llamacpp:big  Big\n- 2: own:odd\n"),
        "{shown}"
    );
    run_with_model(&sandbox, &model, &["run", ",model llamacpp:big"]).ok();
    model.script(Reply::text("hello"));
    run_with_model(&sandbox, &model, &["run", "hi"]).ok();
    assert_eq!(model.requests()[0].json()["model"], json!("big"));
    assert_eq!(
        run_with_model(&sandbox, &model, &["run", ",model unknown:x"]).code,
        Some(2)
    );
    run_with_model(&sandbox, &model, &["run", ",model 2"]).ok();
    assert!(
        run_with_model(&sandbox, &model, &["run", "hi"])
            .ok()
            .contains("odd one")
    );
}

#[test]
fn a_plugin_that_does_not_start_shows_the_last_lines_of_its_stderr() {
    let sandbox = Sandbox::new();
    let manifest = "name: broken\ncommand: [sh, plugin.sh]\n";
    sandbox.write("workspace/broken/bub-plugin.yml", manifest);
    let script = "for n in 1 2 3; do echo \"note $n\" >&2; done\necho '  File \"plugin.py\", line 3' >&2\necho 'SyntaxError: invalid syntax' >&2\nexit 1\n";
    sandbox.write("workspace/broken/plugin.sh", script);
    let failed = sandbox.bub(["plugin", "add", "broken", "--yes"]);
    let lines = "note 2 | note 3 | File \"plugin.py\", line 3 | SyntaxError: invalid syntax";
    assert!(
        failed.stderr.contains("the process did not start: ")
            && failed
                .stderr
                .contains(&format!("; last lines of its stderr: {lines}; ")),
        "{failed:?}"
    );
}
