//! Tests `bub gateway`, `bub status` and `bub outbox` as a user runs them.

use std::{
    io::{BufRead, BufReader},
    os::unix::net::UnixDatagram,
    process::Stdio,
    time::Duration,
};

use crate::sandbox::{Sandbox, bub, signal};

#[test]
fn without_a_channel_there_is_one_clear_line() {
    let run = Sandbox::new().bub(["gateway"]);
    assert_eq!(run.code, Some(1), "{run:?}");
    assert!(
        run.stderr.starts_with("error: no channel is enabled"),
        "{run:?}"
    );
    assert_eq!(run.stderr.lines().count(), 1, "{run:?}");
}

#[test]
fn wrong_names_are_refused() {
    let sandbox = Sandbox::new();
    for args in [
        ["gateway", "--enable-channel", "carrier-pigeon"],
        ["gateway", "--name", "../x"],
    ] {
        let run = sandbox.bub(args);
        assert_eq!(run.code, Some(2), "{run:?}");
        assert_eq!(run.stderr.lines().count(), 1, "{run:?}");
    }
}

#[test]
fn status_and_outbox_work_without_a_gateway() {
    let sandbox = Sandbox::new();
    let status = sandbox.bub(["status"]).ok();
    assert_eq!(
        status,
        "gateway main: not running; start it with `bub gateway`\n"
    );
    assert_eq!(
        sandbox.bub(["outbox", "list"]).ok(),
        "no undelivered replies\n"
    );
    let run = sandbox.bub(["outbox", "drop", "nothing"]);
    assert!(
        run.code == Some(2) && run.stderr.contains("unknown reply `nothing`"),
        "{run:?}"
    );
    assert!(
        !sandbox.home().join("gateway").exists(),
        "looking leaves nothing behind"
    );
}

// A gateway that receives no messages reports that after its start.
#[test]
fn a_gateway_without_a_channel_that_runs_says_so_at_once() {
    let (sandbox, listener) = (
        Sandbox::new(),
        std::net::TcpListener::bind("127.0.0.1:0").unwrap(),
    );
    let mut command = sandbox.command(&bub());
    command
        .arg("gateway")
        .env("BUB_WEBHOOK_TOKEN", "a-token-of-some-length")
        .env("BUB_LOG", "off");
    command.env(
        "BUB_WEBHOOK_LISTEN",
        listener.local_addr().unwrap().to_string(),
    );
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let line = lines.next().unwrap().unwrap();
    let notice = "no channel is running; retrying (see `bub status`): webhook: ";
    assert!(
        line.starts_with(notice) && line.contains("another program uses port"),
        "{line}"
    );
    signal(&child, "TERM");
    assert_eq!((child.wait().unwrap().code(), lines.count()), (Some(0), 0));
}

// Two gateways with one name are rejected; status shows the channels; the service manager is notified; the gateway stops
// cleanly.
#[test]
fn a_gateway_says_how_it_is_from_start_to_end() {
    let sandbox = Sandbox::new();
    let notes = UnixDatagram::bind(sandbox.workspace().join("notify")).unwrap();
    notes
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let command = || {
        let mut command = sandbox.command(&bub());
        command
            .arg("gateway")
            .env("BUB_WEBHOOK_TOKEN", "a-token-of-some-length");
        command
            .env("BUB_WEBHOOK_LISTEN", "127.0.0.1:0")
            .env("BUB_OWNERS", "webhook:ada");
        command
    };
    let mut child = command()
        .env("NOTIFY_SOCKET", sandbox.workspace().join("notify"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "gateway main: webhook");
    let heard = || {
        let mut note = [0; 64];
        let length = notes.recv(&mut note).unwrap();
        String::from_utf8(note[..length].to_vec()).unwrap()
    };
    assert_eq!(heard(), "READY=1");
    let second = command().output().unwrap();
    assert_eq!(second.status.code(), Some(2));
    let line = String::from_utf8(second.stderr).unwrap();
    assert!(
        line.contains("another gateway runs there") && line.contains("--name"),
        "{line}"
    );
    let status = sandbox.bub(["status"]).ok();
    assert!(
        status.starts_with("gateway main: running, pid "),
        "{status}"
    );
    assert!(status.contains("\nchannel webhook: running"), "{status}");
    assert!(status.contains("owners: webhook:ada"), "{status}");
    assert!(
        status.contains("\nprocess: ") && status.contains(" open files, "),
        "{status}"
    );
    assert!(
        status.contains("access: clients with the token of http://127.0.0.1:"),
        "{status}"
    );
    assert!(
        sandbox
            .bub(["status", "--json"])
            .ok()
            .contains(r#""running_turns":0"#)
    );
    assert_eq!(
        sandbox.bub(["outbox", "list"]).ok(),
        "no undelivered replies\n"
    );
    signal(&child, "TERM");
    assert_eq!(heard(), "STOPPING=1");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(sandbox.bub(["status"]).ok().contains("not running"));
}
