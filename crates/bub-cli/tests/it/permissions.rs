//! Tests that other users cannot read the home or the running program.

use std::{
    io::{BufRead, BufReader},
    os::unix::{
        fs::{MetadataExt as _, PermissionsExt as _, chown},
        process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use bub_testkit::{
    model::{ModelServer, Reply},
    pty::{Pty, SESSION_LEADER},
};

use crate::{
    gateway_client::TOKEN,
    plugin::write_loud_plugin,
    sandbox::{Run, Sandbox, bub, signal},
};

/// Returns all paths in and below a directory that other users can read.
fn open_to_others(path: &Path) -> Vec<(PathBuf, u32)> {
    let metadata = path.symlink_metadata().unwrap();
    let (mode, expected_mode) = (
        metadata.permissions().mode() & 0o7777,
        if metadata.is_dir() { 0o700 } else { 0o600 },
    );
    let mut readable_paths = if mode == expected_mode {
        Vec::new()
    } else {
        vec![(path.to_owned(), mode)]
    };
    if metadata.is_dir() {
        let below = std::fs::read_dir(path)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        readable_paths.extend(below.flat_map(|path| open_to_others(&path)));
    }
    readable_paths
}

// L7: independently of the umask and of the command that creates the file.
#[test]
fn everything_in_the_home_belongs_to_the_owner_alone() {
    let (sandbox, model) = (Sandbox::new(), ModelServer::start());
    // Some output is spilled, too.
    model.script(Reply::new().call("a", "bash", r#"{"command": "seq 100000"}"#));
    model.otherwise(Reply::text("All is well."));
    write_loud_plugin(&sandbox, "");
    let loosely = |leader: &[&str], args: &[&str]| {
        let words = [leader, &["sh", "-c", "umask 000; exec \"$@\"", "sh"]].concat();
        let mut command = sandbox.command(Path::new(words[0]));
        command.args(&words[1..]).arg(bub()).args(args);
        command
            .env("BUB_MODEL", "openai:small")
            .env("BUB_API_KEY", "sk-none-at-all")
            .env("TERM", "xterm");
        command
            .env("BUB_API_BASE", format!("{}/v1", model.url()))
            .env("BUB_USAGE_DAILY_TOKENS", "1000000");
        command
            .env("BUB_WEBHOOK_TOKEN", TOKEN)
            .env("BUB_WEBHOOK_LISTEN", "127.0.0.1:0");
        command
    };
    let check = |after: &str| {
        assert_eq!(open_to_others(&sandbox.home()), [], "after {after}");
    };
    for args in [
        &["plugin", "add", "loud", "--yes", "--unpinned"][..],
        &["plugin", "disable", "loud"],
        &["run", "hello"],
        &["config", "set", "max_steps", "3"],
        &["pair", "remove", "telegram:666"],
        &["doctor", "--offline"],
    ] {
        let run = Run::from_output(loosely(&[], args).output().unwrap());
        assert!(
            run.code == Some(0) || args[0] == "pair",
            "{args:?}: {run:?}"
        );
        check(&args.join(" "));
    }
    for made in [
        "plugins.json",
        ".plugins.lock",
        "config.yml",
        "tapes",
        "usage",
    ] {
        assert!(sandbox.home().join(made).exists(), "{made} was not made");
    }

    let mut chat = Pty::spawn(loosely(
        &SESSION_LEADER,
        &["chat", "--session", "cli:local"],
    ));
    chat.expect(" > ");
    chat.send("hello\r");
    chat.expect("All is well.");
    check("chat");
    chat.send("\x04");
    assert_eq!(chat.end(), Some(0));

    let mut gateway = loosely(&[], &["gateway"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(gateway.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "gateway main: webhook");
    assert!(sandbox.bub(["status"]).ok().contains("running, pid"));
    check("gateway");
    signal(&gateway, "TERM");
    assert_eq!(gateway.wait().unwrap().code(), Some(0));
    check("the end of the gateway");
}

// A user who can write to the home can choose the model and add plugins.
#[test]
fn a_home_or_config_file_that_others_can_change_is_refused() {
    let sandbox = Sandbox::new();
    sandbox.write("home/config.yml", "model: evil:model\n");
    let set_mode = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let (home, file) = (sandbox.home(), sandbox.home().join("config.yml"));
    for (path, mode, safe_mode) in [(&home, 0o1777, 0o770), (&file, 0o666, 0o660)] {
        set_mode(path, mode);
        for args in [&["run", "hi"][..], &["config", "set", "max_steps", "3"]] {
            let run = sandbox.bub(args);
            let problem = format!(
                "{}: not safe to use: every user of this machine can write to it (mode {:o}); ",
                path.display(),
                mode & 0o777
            );
            assert_eq!(run.code, Some(2), "{run:?}");
            assert!(run.stderr.contains(&problem), "{run:?}");
            assert!(run.stderr.contains("set BUB_HOME"), "{run:?}");
        }
        assert!(!sandbox.bub(["config", "list"]).stdout.contains("evil"));
        let doctor = sandbox.bub(["doctor", "--offline"]);
        let finding = doctor.stdout.split("not safe to use").nth(1);
        let fix = finding.and_then(|text| text.split("fix: ").nth(1)).unwrap();
        assert!(
            fix.starts_with(&format!("chmod o-w {}\n", path.display())),
            "{doctor:?}"
        );
        sandbox.bub(["--help"]).ok();
        // A group may share a home; `doctor` warns about it.
        set_mode(path, safe_mode);
        assert_eq!(sandbox.bub(["config", "get", "model"]).ok(), "evil:model\n");
    }
    let doctor = sandbox.bub(["doctor", "--offline"]).stdout;
    assert!(
        doctor.contains("is writable by other users (mode 770)"),
        "{doctor}"
    );
}

// Only root can create files of another user, so root tests with another user id.
#[test]
fn a_home_or_config_file_of_another_user_is_refused_except_by_root() {
    let sandbox = Sandbox::new();
    let Some((user, program)) = other_user(&sandbox) else {
        return println!("skipped: the tests do not run as root");
    };
    sandbox.write("home/config.yml", "model: a:b\n");
    let (home, file) = (sandbox.home(), sandbox.home().join("config.yml"));
    let get_model = |user: Option<u32>| {
        let mut command = sandbox.command(&program);
        user.map(|user| command.uid(user));
        Run::from_output(command.args(["config", "get", "model"]).output().unwrap())
    };
    // Files of root are safe, and root may use those of others.
    for owner in [0, user] {
        chown(&file, Some(owner), None).unwrap();
        assert_eq!(get_model(None).ok(), "a:b\n");
        assert_eq!(get_model(Some(user)).ok(), "a:b\n");
    }
    for path in [&home, &file] {
        chown(path, Some(12345), None).unwrap();
        let mut command = sandbox.command(&program);
        let run = command.uid(user).args(["run", "hi"]).output().unwrap();
        let run = Run::from_output(run);
        let problem = "not safe to use: it belongs to another user (id 12345); ";
        assert!(
            run.stderr
                .contains(&format!("{}: {problem}", path.display())),
            "{run:?}"
        );
        let fix = format!("run `sudo chown {user} {}`", path.display());
        assert!(run.stderr.contains(&fix), "{run:?}");
        assert_eq!(run.code, Some(2), "{run:?}");
        assert_eq!(get_model(None).ok(), "a:b\n");
        chown(path, Some(user), None).unwrap();
    }
}

/// As root, copies the program to where another user can start it, and returns the id of that user.
fn other_user(sandbox: &Sandbox) -> Option<(u32, PathBuf)> {
    const USER: u32 = 65534;
    if std::fs::metadata("/proc/self").ok()?.uid() != 0 {
        return None;
    }
    // The build directory may be accessible only to root.
    let directory = sandbox.home().parent()?.to_owned();
    let program = directory.join("bub");
    std::fs::copy(bub(), &program).unwrap();
    for path in [directory, sandbox.workspace()] {
        chown(path, Some(USER), None).unwrap();
    }
    Some((USER, program))
}

/// Returns whether another process of the same user can read the environment of this process.
fn can_read(child: &Child, user: Option<u32>) -> bool {
    let mut command = Command::new("cat");
    user.map(|user| command.uid(user));
    command
        .arg(format!("/proc/{}/environ", child.id()))
        .output()
        .unwrap()
        .status
        .success()
}

// L7: commands of the agent are such processes. Root can read everything, so root tests with another user id.
#[test]
#[cfg(target_os = "linux")]
fn other_processes_of_the_user_cannot_read_the_running_program() {
    let sandbox = Sandbox::new();
    let (user, program) = other_user(&sandbox).unzip();
    let started = |command: &mut Command| {
        user.map(|user| command.uid(user));
        command.spawn()
    };
    let Ok(mut open) = started(Command::new("sleep").arg("600").stdout(Stdio::null())) else {
        return println!("skipped: no other user id is available");
    };
    let mut gateway = sandbox.command(&program.unwrap_or_else(bub));
    gateway
        .arg("gateway")
        .env("BUB_WEBHOOK_TOKEN", TOKEN)
        .env("BUB_WEBHOOK_LISTEN", "127.0.0.1:0");
    let mut gateway = started(gateway.stdout(Stdio::piped())).unwrap();
    let mut lines = BufReader::new(gateway.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "gateway main: webhook");
    let (of_another, of_bub) = (can_read(&open, user), can_read(&gateway, user));
    for child in [&mut open, &mut gateway] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert!(of_another, "it can be read what is not private");
    assert!(!of_bub, "the environment of bub was read");
}
