//! Tests `bub config edit`: with any editor and signal, the file stays valid and no copy of it remains.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
};

use bub_testkit::pty::{Pty, SESSION_LEADER};

use crate::sandbox::{Run, Sandbox, bub, ending_signals, signal};

const KEY: &str = "sk-correct-horse-battery";

fn config(sandbox: &Sandbox) -> String {
    std::fs::read_to_string(sandbox.home().join("config.yml")).unwrap()
}

/// Returns the files of the home.
fn home_files(sandbox: &Sandbox) -> Vec<String> {
    let files = std::fs::read_dir(sandbox.home()).unwrap();
    let mut names: Vec<_> = files
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn edit_command(sandbox: &Sandbox, script: &str) -> Command {
    sandbox.write("editor.sh", script);
    let editor = format!("sh {}", sandbox.workspace().join("../editor.sh").display());
    let mut command = sandbox.command(&bub());
    command
        .env("EDITOR", editor)
        .env("BUB_API_KEY", KEY)
        .args(["config", "edit"]);
    command
}

fn edit(sandbox: &Sandbox, script: &str) -> Run {
    Run::from_output(edit_command(sandbox, script).output().unwrap())
}

#[test]
fn an_editor_works_on_a_copy_that_is_checked() {
    let sandbox = Sandbox::new();
    sandbox.write("home/config.yml", "model: a:b\n");
    assert_eq!(
        edit(
            &sandbox,
            "test -z \"$BUB_API_KEY\" && echo 'max_steps: 4' >> \"$1\""
        )
        .code,
        Some(0)
    );
    assert_eq!(config(&sandbox), "model: a:b\nmax_steps: 4\n");
    let run = edit(&sandbox, "echo 'max_steps: many' > \"$1\"");
    assert_eq!(run.code, Some(2), "{run:?}");
    assert!(
        run.stderr.contains("not saved: ") && run.stderr.contains("`max_steps` is `many`"),
        "{run:?}"
    );
    assert_eq!(edit(&sandbox, "exit 3").code, Some(1));
    assert_eq!(edit(&sandbox, "true").ok(), "no changes\n");
    assert_eq!(config(&sandbox), "model: a:b\nmax_steps: 4\n");
    assert_eq!(home_files(&sandbox), ["config.yml"]);
}

#[test]
fn what_an_editor_leaves_that_is_no_file_is_said_and_removed() {
    let sandbox = Sandbox::new();
    sandbox.write("home/config.yml", "model: a:b\n");
    for (script, error) in [
        (
            "rm \"$1\" && mkfifo \"$1\"",
            "error: cannot read the edited file: it is not a regular file; nothing was saved",
        ),
        (
            "rm \"$1\" && mkdir -p \"$1/x\"",
            "error: cannot read the edited file: it is not a regular file; nothing was saved",
        ),
        (
            "rm \"$1\"",
            "error: cannot read the edited file: the editor removed it; nothing was saved",
        ),
        (
            "printf '\\377' > \"$1\"",
            "error: cannot read the edited file: ",
        ),
    ] {
        let run = edit(&sandbox, script);
        assert!(
            run.code == Some(1) && run.stderr.starts_with(error),
            "{run:?}"
        );
        assert_eq!(
            (config(&sandbox).as_str(), home_files(&sandbox)),
            ("model: a:b\n", vec!["config.yml".to_owned()])
        );
    }
}

// W-35: the copy contains keys
#[test]
fn a_signal_while_the_editor_runs_leaves_no_copy() {
    for (name, code) in ending_signals() {
        let sandbox = Sandbox::new();
        sandbox.write("home/config.yml", "api_key: {lab: the-key-of-lab}\n");
        let mut command = edit_command(&sandbox, "echo editing; exec cat");
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(
            (line.as_str(), home_files(&sandbox).len()),
            ("editing\n", 2)
        );
        signal(&child, name);
        let editor = child.stdin.take();
        assert_eq!(child.wait().unwrap().code(), Some(code));
        assert_eq!(home_files(&sandbox), ["config.yml"]);
        drop(editor);
    }
}

#[test]
fn copies_of_processes_that_were_killed_go_with_the_next_change() {
    for args in [
        &["config", "set", "max_steps", "5"][..],
        &["config", "edit"],
    ] {
        let sandbox = Sandbox::new();
        sandbox.write("home/config.yml", "model: a:b\n");
        let alive = format!(".config-{}.yml", std::process::id());
        for name in [
            ".config-999999999.yml",
            ".config.yml.999999999",
            &alive,
            ".config-mine.yml",
            ".config.yml.bak",
        ] {
            sandbox.write(&format!("home/{name}"), "api_key: the-key\n");
        }
        let mut command = sandbox.command(&bub());
        command.env("EDITOR", "echo max_steps: 5 >>").args(args);
        Run::from_output(command.output().unwrap()).ok();
        assert_eq!(config(&sandbox), "model: a:b\nmax_steps: 5\n");
        let mut kept = vec![
            alive,
            ".config-mine.yml".into(),
            ".config.yml.bak".into(),
            "config.yml".into(),
        ];
        kept.sort();
        assert_eq!(home_files(&sandbox), kept);
    }
}

#[test]
fn an_editor_is_named_as_for_git() {
    let sandbox = Sandbox::new();
    sandbox.write("home/config.yml", "model: a:b\n");
    sandbox.write(
        "my bin/vi",
        "#!/bin/sh\necho \"# $# ${2:+$1}\" >> \"${2:-$1}\"\n",
    );
    let bin = sandbox.workspace().join("../my bin");
    Run::from_output(
        Command::new("chmod")
            .arg("+x")
            .arg(bin.join("vi"))
            .output()
            .unwrap(),
    )
    .ok();
    let quoted = format!("'{}' \"two words\"", bin.join("vi").display());
    let path = format!("{}:/usr/bin:/bin", bin.display());
    for (editor, line) in [(quoted.as_str(), "# 2 two words\n"), ("  ", "# 1 \n")] {
        sandbox.write("home/config.yml", "model: a:b\n");
        let mut command = sandbox.command(Path::new(SESSION_LEADER[0]));
        command
            .args(&SESSION_LEADER[1..])
            .arg(bub())
            .env("PATH", &path)
            .env("VISUAL", " ")
            .env("EDITOR", editor)
            .args(["config", "edit"]);
        // The default editor needs a terminal.
        assert_eq!(Pty::spawn(command).finish().0, Some(0));
        assert_eq!(config(&sandbox), format!("model: a:b\n{line}"));
    }
}

// W-35: the owner of an unscoped key does not change with the model, also in an editor
#[test]
fn a_plain_key_stays_with_its_provider_when_the_model_is_edited() {
    let sandbox = Sandbox::new();
    sandbox.write(
        "home/config.yml",
        "model: openai:x\napi_key: the-key-of-openai\n",
    );
    let run = |script| {
        Run::from_output(
            edit_command(&sandbox, script)
                .env_remove("BUB_API_KEY")
                .output()
                .unwrap(),
        )
    };
    let changed = run("sed -i s/openai:x/groq:y/ \"$1\"");
    let note = "note: moved `api_key` to `api_key.openai`, because it belongs to `openai`; ";
    assert!(changed.stderr.contains(note), "{changed:?}");
    changed.ok();
    assert_eq!(
        config(&sandbox),
        "model: groq:y\napi_key: {openai: the-key-of-openai}\n"
    );
    // A key that was added with the new model belongs to it.
    sandbox.write(
        "home/config.yml",
        "model: openai:x\napi_key: the-key-of-openai\n",
    );
    let changed = run("printf 'model: groq:y\\napi_key: the-key-of-groq\\n' > \"$1\"");
    assert_eq!((changed.code, changed.stderr.as_str()), (Some(0), ""));
    assert_eq!(
        config(&sandbox),
        "model: groq:y\napi_key: the-key-of-groq\n"
    );
}

// Without a terminal, the default editor would print control sequences and wait for keys.
#[test]
fn without_a_terminal_and_an_editor_nothing_is_started() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.command(&bub());
    command.env_remove("EDITOR").env_remove("VISUAL");
    let output = command.args(["config", "edit"]).output().unwrap();
    let run = Run::from_output(output);
    assert_eq!(
        run.stderr,
        "error: cannot edit without a terminal; use `bub config set`, or set EDITOR to a command that needs none\n"
    );
    assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""));
    assert_eq!(home_files(&sandbox), [""; 0]);
}
