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
    model.script(Reply::new().call("a", "bash", r#"{"cmd": "seq 100000"}"#));
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

    let mut chat = Pty::spawn(loosely(&SESSION_LEADER, &["chat"]));
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
    let directory = sandbox.home().parent().unwrap().to_owned();
    let program = directory.join("bub");
    let is_root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
    let user = is_root.then_some(65534);
    if let Some(user) = user {
        // The build directory may be accessible only to root.
        assert!(
            Command::new("cp")
                .arg(bub())
                .arg(&program)
                .status()
                .unwrap()
                .success()
        );
        for path in [directory.clone(), sandbox.workspace()] {
            chown(path, Some(user), None).unwrap();
        }
    }
    let started = |command: &mut Command| {
        user.map(|user| command.uid(user));
        command.spawn()
    };
    let Ok(mut open) = started(Command::new("sleep").arg("600").stdout(Stdio::null())) else {
        return println!("skipped: no other user id is available");
    };
    let mut gateway = sandbox.command(if is_root {
        &program
    } else {
        Path::new(env!("CARGO_BIN_EXE_bub"))
    });
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
