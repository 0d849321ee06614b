//! Tests `bub gateway --install` and `--uninstall` with a script as `systemctl`.

use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf};

use crate::sandbox::{Run, Sandbox, bub};

/// A sandbox with a `systemctl` that records its arguments, and fails for the verb in the variable `FAILING_VERB`.
fn sandbox() -> Sandbox {
    let sandbox = Sandbox::new();
    let script = "#!/bin/sh\necho \"$*\" >> \"$HOME/calls\"\n\
                  if [ \"$2\" = \"$FAILING_VERB\" ]; then echo 'no bus' >&2; exit 1; fi\n";
    sandbox.write("bin/systemctl", script);
    let file = root(&sandbox).join("bin/systemctl");
    fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
    sandbox
}

fn root(sandbox: &Sandbox) -> PathBuf {
    sandbox.workspace().parent().unwrap().to_owned()
}

fn run(sandbox: &Sandbox, variables: &[(&str, &str)], args: &[&str]) -> Run {
    let mut command = sandbox.command(&bub());
    command
        .env("PATH", root(sandbox).join("bin"))
        .env("BUB_WEBHOOK_TOKEN", "a-token-of-this-test");
    command.envs(variables.iter().copied());
    Run::from_output(command.args(args).output().unwrap())
}

fn calls(sandbox: &Sandbox) -> String {
    fs::read_to_string(root(sandbox).join("calls")).unwrap_or_default()
}

fn unit(sandbox: &Sandbox) -> PathBuf {
    root(sandbox).join(".config/systemd/user/bub-gateway.service")
}

// P-5, P-22, P-23: the unit starts this program for this workspace. Unlike the Python version, it keeps `BUB_HOME`, and
// names the variables that it does not keep.
#[test]
fn install_writes_a_unit_and_starts_it() {
    let sandbox = sandbox();
    let workspace = root(&sandbox).join("100% \"mine\" $HOME");
    fs::create_dir(&workspace).unwrap();
    let workspace = workspace.to_str().unwrap();
    let variables = [("OPENAI_API_KEY", "sk-of-this-test")];
    let args = [
        "-w",
        workspace,
        "gateway",
        "--install",
        "--enable-channel",
        "webhook",
    ];
    let installed = run(&sandbox, &variables, &args);
    assert_eq!(installed.code, Some(0), "{installed:?}");
    assert_eq!(
        calls(&sandbox),
        "--user daemon-reload\n--user enable bub-gateway.service\n--user restart bub-gateway.service\n"
    );
    let file = unit(&sandbox);
    let line = format!(
        "Installed and started the gateway with systemd: {}\n",
        file.display()
    );
    assert!(installed.stderr.contains(&line), "{}", installed.stderr);
    let missing = "The service does not get these variables of your shell: BUB_LOCAL_MODELS, BUB_WEBHOOK_TOKEN, OPENAI_API_KEY.";
    assert!(installed.stderr.contains(missing), "{}", installed.stderr);
    let text = fs::read_to_string(file).unwrap();
    let root = root(&sandbox);
    let start = format!(
        "ExecStart=\"{}\" \"--workspace\" \"{}/100%% \\\"mine\\\" $$HOME\" \"gateway\" \"--name\" \"main\" \"--enable-channel\" \"webhook\"\n",
        bub().canonicalize().unwrap().display(),
        root.display()
    );
    assert!(text.contains(&start), "{text}");
    let directory = format!("WorkingDirectory={}/100%% \"mine\" $HOME\n", root.display());
    assert!(text.contains(&directory), "{text}");
    assert!(text.contains(&format!(
        "Environment=\"BUB_HOME={}\"\n",
        sandbox.home().display()
    )));
    for line in [
        "Type=notify",
        "Restart=on-failure",
        "NoNewPrivileges=yes",
        "UMask=0077",
        "TimeoutStopSec=45",
    ] {
        assert!(text.lines().any(|known| known == line), "{line}: {text}");
    }
    assert!(!text.contains("sk-of-this-test") && !text.contains("a-token-of-this-test"));
}

// P-24: a failure is one line. Unlike the Python version, no new file stays, and an old one is restored.
#[test]
fn a_failed_installation_leaves_nothing_behind() {
    let sandbox = sandbox();
    let failing = [("FAILING_VERB", "enable")];
    let failed = run(&sandbox, &failing, &["gateway", "--install"]);
    assert_eq!(failed.code, Some(1), "{failed:?}");
    let reason =
        "Gateway installation failed: `systemctl --user enable bub-gateway.service` failed: no bus";
    assert!(failed.stderr.contains(reason), "{}", failed.stderr);
    assert!(!unit(&sandbox).exists());
    run(&sandbox, &[], &["gateway", "--install"]).ok();
    let before = fs::read(unit(&sandbox)).unwrap();
    let args = ["gateway", "--install", "--enable-channel", "webhook"];
    assert_eq!(run(&sandbox, &failing, &args).code, Some(1));
    assert_eq!(fs::read(unit(&sandbox)).unwrap(), before);
}

// P-21: an installation that could not start is refused; both options together are a usage error.
#[test]
fn install_needs_a_channel() {
    let sandbox = sandbox();
    let none = [("BUB_WEBHOOK_TOKEN", "")];
    let refused = run(&sandbox, &none, &["gateway", "--install"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(
        refused.stderr.contains("no channel is enabled"),
        "{}",
        refused.stderr
    );
    let both = run(&sandbox, &[], &["gateway", "--install", "--uninstall"]);
    assert_eq!(both.code, Some(2), "{both:?}");
    assert_eq!(calls(&sandbox), "");
}

// P-25
#[test]
fn uninstall_stops_the_service_and_removes_its_file() {
    let sandbox = sandbox();
    run(&sandbox, &[], &["gateway", "--install", "--name", "second"]).ok();
    let file = unit(&sandbox).with_file_name("bub-gateway-second.service");
    assert!(file.exists());
    fs::remove_file(root(&sandbox).join("calls")).unwrap();
    let removed = run(
        &sandbox,
        &[],
        &["gateway", "--uninstall", "--name", "second"],
    );
    let line = format!(
        "Stopped and uninstalled the gateway from systemd: {}\n",
        file.display()
    );
    assert!(removed.stderr.contains(&line), "{}", removed.stderr);
    assert!(!file.exists());
    assert_eq!(
        calls(&sandbox),
        "--user disable --now bub-gateway-second.service\n--user daemon-reload\n"
    );
    // Without a file, nothing is called.
    fs::remove_file(root(&sandbox).join("calls")).unwrap();
    assert_eq!(
        run(&sandbox, &[], &["gateway", "--uninstall"]).code,
        Some(0)
    );
    assert_eq!(calls(&sandbox), "");
}
