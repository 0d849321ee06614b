//! Tests how the program reads settings.

use crate::sandbox::{Run, Sandbox, example};

#[test]
fn a_wrong_type_names_file_line_key_and_expectation() {
    let sandbox = Sandbox::new();
    sandbox.write("home/config.yml", "model: x:y\nmax_tokens: many\n");
    let run = sandbox.bub(["run", "hi"]);
    assert_eq!(run.code, Some(2));
    assert_eq!(run.stdout, "");
    for part in ["config.yml", "2", "max_tokens", "many"] {
        assert!(
            run.stderr.contains(part),
            "{part} is missing in {}",
            run.stderr
        );
    }
    assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
}

#[test]
fn malformed_yaml_stops_commands_but_not_help() {
    let sandbox = Sandbox::new();
    sandbox.write("home/config.yml", "model: [unclosed\n");
    assert_eq!(sandbox.bub(["run", "hi"]).code, Some(2));
    sandbox.bub(["--help"]).ok();
    sandbox.bub(["--version"]).ok();
}

// H-21, H-22, W-57: all settings have the same sources, including those of plugins.
#[test]
fn a_plugin_setting_follows_the_precedence_of_sources() {
    let greet = |sandbox: &Sandbox, word: Option<&str>| {
        let mut command = sandbox.command(&example("custom_binary"));
        if let Some(word) = word {
            command.env("BUB_GREETER_WORD", word);
        }
        Run::from_output(command.args(["greet"]).output().unwrap()).ok()
    };
    let sandbox = Sandbox::new();
    assert_eq!(greet(&sandbox, None), "Hello, world!\n");
    sandbox.write("home/config.yml", "greeter:\n  word: Salve\n");
    assert_eq!(greet(&sandbox, None), "Salve, world!\n");
    sandbox.write("workspace/.env", "BUB_GREETER_WORD=Ahoy\n");
    assert_eq!(greet(&sandbox, None), "Salve, world!\n");
    sandbox.trust();
    assert_eq!(greet(&sandbox, None), "Ahoy, world!\n");
    assert_eq!(greet(&sandbox, Some("Moin")), "Moin, world!\n");
}

// P-15, W-57: bub reads the nearest .env of the current directory; -w does not matter.
#[test]
fn the_env_file_is_the_nearest_one_upward() {
    let sandbox = Sandbox::new();
    sandbox.write("elsewhere/.env", "BUB_GREETER_WORD=Ahoy\n");
    sandbox.write("workspace/.env", "BUB_GREETER_WORD=Moin\n");
    sandbox.write("workspace/inner/file", "");
    sandbox.trust();
    let greet = |directory: &str, args: &[&str]| {
        let mut command = sandbox.command(&example("custom_binary"));
        command.current_dir(sandbox.workspace().join(directory));
        Run::from_output(command.args(args).output().unwrap())
    };
    let run = greet(".", &["-w", "../elsewhere", "greet"]);
    assert_eq!(run.ok(), "Moin, world!\n");
    let run = greet("inner", &["greet"]);
    assert_eq!(run.ok(), "Moin, world!\n");
    let run = greet("../elsewhere", &["greet"]);
    assert!(run.stderr.contains("workspace.untrusted"), "{run:?}");
    assert_eq!(run.ok(), "Hello, world!\n");
}

// Files of another user in a directory do not prevent bub from starting.
#[test]
fn a_foreign_env_file_is_a_warning_and_doctor_says_what_helps() {
    let sandbox = Sandbox::new();
    let file = sandbox.workspace().join(".env");
    // A directory is often a Python environment. The search continues in the directory above.
    std::fs::create_dir(&file).unwrap();
    let run = sandbox.example("echo_model", ["run", "hi"]);
    assert_eq!(run.stderr, "", "{run:?}");
    run.ok();
    std::fs::remove_dir(&file).unwrap();
    std::fs::write(&file, [0xff]).unwrap();
    let run = sandbox.example("echo_model", ["run", "hi"]);
    let warning = "not valid UTF-8 text; convert it to UTF-8; the file is ignored";
    assert_eq!(run.stderr.matches(warning).count(), 1, "{run:?}");
    run.ok();
    let doctor = sandbox.bub(["doctor", "--offline"]);
    assert!(
        doctor.stdout.contains("/workspace/.env: not valid UTF-8"),
        "{doctor:?}"
    );
    assert!(
        doctor.stdout.contains("start bub in another directory"),
        "{doctor:?}"
    );
    sandbox.write("workspace/.env", "BUB_OTHERAPP_API_KEY=two words\n");
    sandbox.trust();
    let run = sandbox.example("echo_model", ["run", "hi"]);
    assert_eq!(
        run.stderr.matches("(BUB_OTHERAPP_API_KEY)").count(),
        1,
        "{run:?}"
    );
    run.ok();
}

// L5, L7: an untrusted .env cannot exhaust the memory.
#[test]
fn values_made_of_values_do_not_grow_without_end() {
    let sandbox = Sandbox::new();
    let lines: Vec<_> = (1..60)
        .map(|n| format!("V{n}=${{V{}}}${{V{}}}", n - 1, n - 1))
        .collect();
    sandbox.write(
        "workspace/.env",
        &format!("V0=aaaaaaaaaaaaaaaa\n{}\n", lines.join("\n")),
    );
    sandbox.bub(["--help"]).ok();
    sandbox.trust();
    sandbox.bub(["--help"]).ok();
    sandbox.example("echo_model", ["run", "hi"]).ok();
}

// An invalid provider is a one-line error for commands and does not prevent the help.
#[test]
fn a_wrong_provider_names_its_place() {
    let sandbox = Sandbox::new();
    sandbox.write("home/config.yml", "providers:\n  lab: {}\n");
    for command in [&["run", "hi"][..], &["models"]] {
        let run = sandbox.bub(command);
        assert_eq!(run.code, Some(2), "{run:?}");
        assert!(
            run.stderr.starts_with("error: ") && run.stderr.lines().count() == 1,
            "{run:?}"
        );
        assert!(
            run.stderr.contains("config.yml:2") && run.stderr.contains("providers.lab"),
            "{run:?}"
        );
    }
    sandbox.bub(["--help"]).ok();
}

#[test]
fn onboarding_says_what_is_still_wrong_in_the_file() {
    let sandbox = Sandbox::new();
    sandbox.write("home/config.yml", "max_steps: many\n");
    for expected in ["Saved config to", "No changes to"] {
        let model = if expected.starts_with("Saved") {
            &["--model", "llamacpp:x"][..]
        } else {
            &[]
        };
        let run = sandbox.bub(["onboard", "--yes", "--no-test"].iter().chain(model));
        assert!(
            run.stderr.contains("note: remaining problem: ")
                && run.stderr.contains("`max_steps` is `many`"),
            "{run:?}"
        );
        assert!(run.ok().contains(expected));
    }
}
