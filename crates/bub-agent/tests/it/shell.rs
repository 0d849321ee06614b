//! Shell commands as real processes, with and without the supervisor.

use std::{
    ffi::OsString,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use bub_agent::shell::{Exit, Launcher, ShellOutcome, ShellRequest, Shells};
use bub_kernel::{CancellationToken, ErrorKind, Result};
use tempfile::TempDir;

use crate::harness::load_settings;

const LONG: Duration = Duration::from_secs(30);

/// A working directory and the shells of a new process.
struct ShellFixture {
    dir: TempDir,
    shells: Arc<Shells>,
}

impl ShellFixture {
    fn supervised() -> Self {
        Self::new(Some(Launcher(supervised_program())), &[])
    }

    fn direct() -> Self {
        Self::new(None, &[])
    }

    /// Runs a test with and without a supervisor.
    fn both() -> [Self; 2] {
        [Self::supervised(), Self::direct()]
    }

    fn new(launcher: Option<Launcher>, variables: &[(&str, &str)]) -> Self {
        let dir = TempDir::new().unwrap();
        let fixed = [("BUB_HOME", dir.path().join("home").into_os_string())];
        let more = variables
            .iter()
            .map(|(name, value)| (*name, OsString::from(value)));
        let settings = load_settings(fixed.into_iter().chain(more));
        Self {
            shells: Arc::new(Shells::new(Arc::new(settings), launcher)),
            dir,
        }
    }

    fn request(&self, command: &str) -> ShellRequest {
        ShellRequest {
            command: command.to_owned(),
            session: "s".into(),
            directory: Some(self.dir.path().to_owned()),
            ..ShellRequest::default()
        }
    }

    async fn run(&self, command: &str) -> ShellOutcome {
        self.run_for(command, LONG).await.unwrap()
    }

    /// Runs a command for `limit`, then terminates it. Checks that this does not take the grace period.
    async fn end_after(&self, command: &str, limit: Duration) {
        self.run_for(command, limit).await.unwrap();
        let started = Instant::now();
        self.shells.stop_session("s").await;
        assert_no_grace_period(started, Duration::ZERO);
    }

    async fn run_for(&self, command: &str, limit: Duration) -> Result<ShellOutcome> {
        self.shells
            .run(self.request(command), limit, &CancellationToken::new())
            .await
    }

    /// Returns the process whose id a command wrote to a file.
    async fn pid(&self, file: &str) -> u32 {
        let path = self.dir.path().join(file);
        let read = || std::fs::read_to_string(&path).ok()?.trim().parse().ok();
        eventually(|| read().is_some()).await;
        read().unwrap()
    }
}

pub(crate) fn supervised_program() -> PathBuf {
    let target = std::env::current_exe().unwrap();
    let path = target
        .parent()
        .unwrap()
        .parent()
        .unwrap()
        .join("examples/supervised");
    assert!(
        path.exists(),
        "{} is not built; run the tests with `cargo test`",
        path.display()
    );
    path
}

/// Returns whether a process runs. A zombie does not.
fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, fields)| !fields.starts_with('Z'))
}

/// How long a command has to end after the signal TERM.
const GRACE_PERIOD: Duration = Duration::from_secs(3);

/// Asserts that the end of a command did not take the grace period. A smaller bound would measure the load of the machine.
fn assert_no_grace_period(started: Instant, limit: Duration) {
    let took = started.elapsed();
    assert!(took < limit + GRACE_PERIOD, "{took:?}");
}

async fn eventually(is_so: impl Fn() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(
            started.elapsed() < Duration::from_secs(30),
            "it did not happen"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

// H-112
#[tokio::test]
async fn a_command_comes_to_its_exit_and_its_output() {
    let cases = [
        (
            "echo out; echo err >&2; echo out",
            Exit::Code(0),
            "out\nerr\nout\n",
        ),
        ("printf x; exit 7", Exit::Code(7), "x"),
        ("true", Exit::Code(0), ""),
        ("kill -9 $$", Exit::Signal(9), ""),
        ("no-such-command-at-all 2>/dev/null", Exit::Code(127), ""),
        ("yes | head -n 1", Exit::Code(0), "y\n"),
    ];
    for fixture in ShellFixture::both() {
        for (command, exit, output) in cases {
            let expected = ShellOutcome {
                exit: Some(exit),
                output: output.to_owned(),
                left_running: None,
            };
            assert_eq!(fixture.run(command).await, expected, "{command}");
        }
    }
}

// H-112
#[tokio::test]
async fn a_command_runs_in_its_directory_with_bash() {
    for fixture in ShellFixture::both() {
        let output = fixture
            .run("pwd; [[ -n $BASH_VERSION ]] && echo bash")
            .await
            .output;
        let directory = fixture.dir.path().canonicalize().unwrap();
        assert_eq!(output, format!("{}\nbash\n", directory.display()));
    }
}

// W-24
#[tokio::test]
async fn a_command_that_takes_too_long_runs_until_it_is_ended_with_all_it_started() {
    for fixture in ShellFixture::both() {
        let command = "echo before; sleep 99 & echo $! > child; echo $$ > shell; sleep 99; true";
        let outcome = fixture
            .run_for(command, Duration::from_secs(1))
            .await
            .unwrap();
        assert_eq!((outcome.exit, outcome.output.as_str()), (None, "before\n"));
        for file in ["child", "shell"] {
            assert!(is_alive(fixture.pid(file).await), "{file}");
        }
        let started = Instant::now();
        let shell = fixture.shells.find("s", &outcome.left_running.unwrap());
        shell.unwrap().terminate().await;
        assert_no_grace_period(started, Duration::ZERO);
        for file in ["child", "shell"] {
            assert!(!is_alive(fixture.pid(file).await), "{file}");
        }
    }
}

// W-24
#[tokio::test]
async fn a_command_that_will_not_hear_is_killed_after_the_grace_period() {
    for fixture in ShellFixture::both() {
        let command = "trap '' TERM; echo $$ > shell; while true; do sleep 0.05; done";
        let outcome = fixture.run_for(command, Duration::from_millis(300)).await;
        let id = outcome.unwrap().left_running.unwrap();
        fixture.pid("shell").await;
        let started = Instant::now();
        fixture.shells.find("s", &id).unwrap().terminate().await;
        let took = started.elapsed();
        assert!(took > GRACE_PERIOD, "{took:?}");
        assert!(!is_alive(fixture.pid("shell").await));
    }
}

// W-24
#[tokio::test]
async fn a_stopped_command_is_ended_too() {
    for fixture in ShellFixture::both() {
        let command = "echo $$ > shell; kill -STOP $$";
        fixture.end_after(command, Duration::from_millis(500)).await;
        assert!(!is_alive(fixture.pid("shell").await));
    }
}

// W-24
#[cfg(target_os = "linux")]
#[tokio::test]
async fn processes_that_left_the_group_are_ended_as_well() {
    let commands = [
        "timeout 99 sh -c 'echo $$ > pid; sleep 99'; true",
        "setsid sh -c 'echo $$ > pid; sleep 99' & wait",
        "set -m; sh -c 'echo $$ > pid; sleep 99' & wait",
        // A daemon: the shell and the parent process have already exited.
        "(setsid sh -c 'echo $$ > pid; exec sleep 99' >/dev/null 2>&1 &); sleep 99",
    ];
    for command in commands {
        let fixture = ShellFixture::supervised();
        fixture.end_after(command, Duration::from_millis(500)).await;
        assert!(!is_alive(fixture.pid("pid").await), "{command}");
    }
}

// W-24
#[tokio::test]
async fn what_a_command_leaves_in_the_background_goes_on_and_ends_with_the_session() {
    for fixture in ShellFixture::both() {
        let started = Instant::now();
        let outcome = fixture.run("sleep 99 & echo $! > pid; echo started").await;
        assert_no_grace_period(started, Duration::ZERO);
        assert_eq!(
            (outcome.exit, outcome.output.as_str()),
            (Some(Exit::Code(0)), "started\n")
        );
        let pid = fixture.pid("pid").await;
        assert!(is_alive(pid));
        let shell = fixture
            .shells
            .find("s", &outcome.left_running.unwrap())
            .unwrap();
        assert!(!shell.is_finished());
        fixture.shells.stop_session("s").await;
        assert!(!is_alive(pid) && shell.is_finished());
    }
}

// W-24
#[tokio::test]
async fn later_output_of_what_was_left_in_the_background_can_be_read() {
    let fixture = ShellFixture::supervised();
    let outcome = fixture
        .run("(while [ ! -e go ]; do sleep 0.02; done; echo later) & echo now")
        .await;
    let shell = fixture
        .shells
        .find("s", &outcome.left_running.unwrap())
        .unwrap();
    std::fs::write(fixture.dir.path().join("go"), "").unwrap();
    shell.wait_finished().await;
    assert_eq!(shell.read_output(0, None).0, "now\nlater\n");
}

// W-24
#[tokio::test]
async fn a_cancelled_command_is_ended() {
    for fixture in ShellFixture::both() {
        let cancel = CancellationToken::new();
        let request = fixture.request("echo $$ > shell; sleep 99; true");
        let call = fixture.shells.run(request, LONG, &cancel);
        let cancelling = async {
            let pid = fixture.pid("shell").await;
            cancel.cancel();
            pid
        };
        let (result, pid) = tokio::join!(call, cancelling);
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Cancelled);
        assert!(!is_alive(pid));
    }
}

// W-24
#[tokio::test]
async fn a_command_without_a_waiter_is_ended() {
    for fixture in ShellFixture::both() {
        let shells = Arc::clone(&fixture.shells);
        let request = fixture.request("echo $$ > shell; sleep 99; true");
        let call =
            tokio::spawn(async move { shells.run(request, LONG, &CancellationToken::new()).await });
        let pid = fixture.pid("shell").await;
        call.abort();
        eventually(|| !is_alive(pid)).await;
    }
}

#[test]
fn a_runtime_that_ends_takes_its_commands_along() {
    for fixture in ShellFixture::both() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let pid = runtime.block_on(async {
            fixture
                .shells
                .start(fixture.request("echo $$ > shell; sleep 99; true"))
                .await
                .unwrap();
            fixture.pid("shell").await
        });
        runtime.shutdown_background();
        let fresh = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        fresh.block_on(eventually(|| !is_alive(pid)));
    }
}

// L7
#[cfg(target_os = "linux")]
#[tokio::test]
async fn nothing_survives_a_program_that_is_killed() {
    let dir = TempDir::new().unwrap();
    let files = ["shell", "child", "away", "deaf"];
    let command = "echo $$ > shell; sleep 99 & echo $! > child; \
                   setsid sh -c 'echo $$ > away; sleep 99; true' & \
                   (trap '' TERM; echo $BASHPID > deaf; while true; do sleep 0.05; done) & sleep 99; true";
    let mut program = std::process::Command::new(supervised_program())
        .arg(command)
        .current_dir(dir.path())
        .env("BUB_HOME", dir.path().join("home"))
        .spawn()
        .unwrap();
    let read = |file: &str| {
        std::fs::read_to_string(dir.path().join(file))
            .ok()?
            .trim()
            .parse::<u32>()
            .ok()
    };
    eventually(|| files.iter().all(|file| read(file).is_some())).await;
    program.kill().unwrap();
    program.wait().unwrap();
    for file in files {
        eventually(|| !is_alive(read(file).unwrap())).await;
    }
}

// L7
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_supervisor_that_is_killed_takes_the_command_along() {
    let fixture = ShellFixture::supervised();
    let shell = fixture
        .shells
        .start(fixture.request("echo $PPID > guard; sleep 99; true"))
        .await
        .unwrap();
    let guard = fixture.pid("guard").await;
    let name = std::fs::read_to_string(format!("/proc/{guard}/comm")).unwrap();
    assert_eq!(name.trim(), "shell-guard");
    let cmdline = std::fs::read(format!("/proc/{guard}/cmdline")).unwrap();
    assert!(cmdline.starts_with(b"shell-guard\0"));
    std::process::Command::new("kill")
        .args(["-9", &guard.to_string()])
        .status()
        .unwrap();
    shell.wait_finished().await;
    assert_eq!(shell.exit(), Some(Exit::Unwatched));
}

// L7: the supervisor is killed before it can report anything, by a process in another group.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_command_that_kills_its_supervisor_does_not_get_away() {
    let fixture = ShellFixture::supervised();
    let family = "echo $$ > shell; set -m; sleep 99 & echo $! > child; kill -9 $PPID; echo survived; sleep 99";
    for command in [
        family,
        "echo $$ > shell; echo $$ > child; kill -9 $PPID; exec sleep 99",
    ] {
        let outcome = fixture.run(command).await;
        assert_eq!(
            (outcome.exit, outcome.left_running),
            (Some(Exit::Unwatched), None),
            "{command}"
        );
        for member in ["shell", "child"] {
            let pid = fixture.pid(member).await;
            eventually(|| !is_alive(pid)).await;
        }
    }
}

// W-25
#[tokio::test]
async fn text_is_decoded_across_blocks() {
    let fixture = ShellFixture::supervised();
    let line = "汉字与表情😀";
    let command = format!("for i in $(seq 5000); do printf '%s' '{line}'; done");
    let output = fixture.run(&command).await.output;
    assert_eq!(output, line.repeat(5000));
    let output = fixture.run(r"printf 'a\xffb\xe6\xb1'").await.output;
    assert_eq!(output, "a\u{FFFD}b\u{FFFD}");
}

// W-25
#[tokio::test(flavor = "multi_thread")]
async fn endless_output_is_bounded_and_keeps_its_ends() {
    let fixture = ShellFixture::supervised();
    let before = peak_memory();
    let outcome = fixture
        .run_for("echo first; yes; ", Duration::from_secs(2))
        .await
        .unwrap();
    assert!(
        peak_memory() - before < 30_000,
        "{} kB more",
        peak_memory() - before
    );
    assert!(outcome.output.len() < 1_200_000, "{}", outcome.output.len());
    assert!(outcome.output.starts_with("first\ny\n"));
    assert!(outcome.output.contains(" bytes omitted …\n"));

    let outcome = fixture.run("seq 1 300000; exit 1").await;
    assert!(outcome.output.starts_with("1\n2\n") && outcome.output.ends_with("\n299999\n300000\n"));
    let bytes: usize = (1..=300_000).map(|n: u32| n.to_string().len() + 1).sum();
    let (head, tail) = outcome.output.split_once("\n… ").unwrap();
    let (left_out, tail) = tail.split_once(" bytes omitted …\n").unwrap();
    assert_eq!(
        head.len() + tail.len() + left_out.parse::<usize>().unwrap(),
        bytes
    );
}

fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

// H-113
#[tokio::test]
async fn output_is_read_by_characters_also_where_some_is_left_out() {
    let fixture = ShellFixture::supervised();
    let shell = fixture
        .shells
        .start(fixture.request("printf 'aé汉😀z'"))
        .await
        .unwrap();
    shell.wait_finished().await;
    for (offset, limit, text, next) in [
        (0, None, "aé汉😀z", 5),
        (1, Some(2), "é汉", 3),
        (3, Some(9), "😀z", 5),
        (99, None, "", 5),
    ] {
        assert_eq!(
            shell.read_output(offset, limit),
            (text.to_owned(), next),
            "{offset} {limit:?}"
        );
    }
    let shell = fixture
        .shells
        .start(fixture.request("seq -w 1 400000"))
        .await
        .unwrap();
    shell.wait_finished().await;
    assert_eq!(shell.read_output(0, Some(7)), ("000001\n".to_owned(), 7));
    assert_eq!(
        shell.read_output(399_999 * 7, None),
        ("400000\n".to_owned(), 400_000 * 7)
    );
    assert!(
        shell
            .read_output(1_000_000, Some(7))
            .0
            .contains("bytes omitted")
    );
}

// W-26
#[tokio::test]
async fn a_command_has_no_input_and_no_terminal() {
    for fixture in ShellFixture::both() {
        assert_eq!(
            fixture.run("cat; read x; echo \"<$x>\"").await.output,
            "<>\n"
        );
    }
    let output = ShellFixture::supervised()
        .run("(: < /dev/tty) 2>/dev/null || echo none")
        .await
        .output;
    assert_eq!(output, "none\n");
}

// W-37
#[tokio::test]
async fn the_environment_has_no_secrets_but_what_was_granted() {
    let secrets = [
        ("BUB_API_KEY", "sk-secret-1"),
        ("BUB_TELEGRAM_TOKEN", "secret-2"),
        ("GH_PAT", "secret-3"),
        ("NPM_AUTH", "secret-4"),
        ("DATABASE_URL", "postgres://me:secret-5@db/x"),
        ("SLACK_WEBHOOK_URL", "https://hooks.example/secret-6"),
        ("SSH_AUTH_SOCK", "/tmp/secret-7"),
        ("HARMLESS", "yes"),
    ];
    for launcher in [None, Some(Launcher(supervised_program()))] {
        let fixture = ShellFixture::new(launcher, &secrets);
        let mut request = fixture.request("env");
        request.granted = vec![("GRANTED".to_owned(), "this".into())];
        let outcome = fixture
            .shells
            .run(request, LONG, &CancellationToken::new())
            .await
            .unwrap();
        // The value would be masked in the output.
        let variables = outcome
            .output
            .lines()
            .filter_map(|line| line.split_once('='));
        let variables: Vec<_> = variables.collect();
        for (name, _) in secrets.iter().take(secrets.len() - 1) {
            assert!(
                variables.iter().all(|(other, _)| other != name),
                "{name}: {variables:?}"
            );
        }
        assert!(
            variables.contains(&("HARMLESS", "yes")) && variables.contains(&("GRANTED", "this"))
        );
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_command_inherits_no_files() {
    let listing = "ls /proc/$$/fd";
    let usual = std::process::Command::new("bash")
        .args(["-c", listing])
        .output()
        .unwrap()
        .stdout;
    let usual = String::from_utf8(usual).unwrap();
    // An unsupervised child inherits the file descriptors that the test runner left open.
    assert_eq!(ShellFixture::direct().run(listing).await.output, usual);
    // The next free descriptor is the directory that `ls` reads. bash may keep 255 for itself.
    let supervised = ShellFixture::supervised().run(listing).await.output;
    assert!(
        supervised
            .lines()
            .all(|fd| matches!(fd, "0" | "1" | "2" | "3" | "255")),
        "{supervised}"
    );
}

// L7, W-38
#[tokio::test]
async fn a_shell_belongs_to_its_session() {
    let fixture = ShellFixture::supervised();
    let shell = fixture
        .shells
        .start(fixture.request("sleep 99"))
        .await
        .unwrap();
    assert!(fixture.shells.find("s", shell.id()).is_ok());
    let error = fixture.shells.find("other", shell.id()).unwrap_err();
    assert_eq!(error.message(), format!("unknown shell id: {}", shell.id()));
    fixture.shells.stop_session("other").await;
    assert!(!shell.is_finished());
    fixture.shells.stop_all(LONG).await;
    assert!(shell.is_finished());
}

// W-27
#[tokio::test]
async fn shells_that_ended_are_kept_but_not_forever() {
    let fixture = ShellFixture::direct();
    let mut ids = Vec::new();
    for number in 0..40 {
        let shell = fixture
            .shells
            .start(fixture.request(&format!("echo {number}")))
            .await
            .unwrap();
        shell.wait_finished().await;
        ids.push(shell.id().to_owned());
    }
    let kept_ids: Vec<_> = ids
        .iter()
        .filter(|id| fixture.shells.find("s", id).is_ok())
        .collect();
    assert_eq!(kept_ids, ids[8..].iter().collect::<Vec<_>>());
    assert_eq!(
        fixture
            .shells
            .find("s", &ids[39])
            .unwrap()
            .read_output(0, None)
            .0,
        "39\n"
    );
    // A foreground command that left no processes does not count.
    fixture.run("true").await;
    assert!(fixture.shells.find("s", &ids[9]).is_ok());
}

#[tokio::test]
async fn there_is_a_limit_to_what_runs_at_a_time() {
    let fixture = ShellFixture::direct();
    for _ in 0..64 {
        fixture
            .shells
            .start(fixture.request("sleep 99"))
            .await
            .unwrap();
    }
    let error = fixture.run_for("true", LONG).await.unwrap_err();
    assert_eq!(
        error.message(),
        "too many running commands: the limit is 64; terminate one with bash.kill"
    );
    fixture.shells.stop_all(LONG).await;
    assert_eq!(fixture.run("echo again").await.output, "again\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_commands_at_once_lose_nothing() {
    for fixture in ShellFixture::both() {
        let runs = (0..50).map(|number| {
            let request = fixture.request(&format!("seq {number} 2000; exit {number}"));
            let shells = Arc::clone(&fixture.shells);
            tokio::spawn(async move {
                shells
                    .run(request, LONG, &CancellationToken::new())
                    .await
                    .unwrap()
            })
        });
        for (number, run) in runs.collect::<Vec<_>>().into_iter().enumerate() {
            let outcome = run.await.unwrap();
            let expected: String = (number..=2000)
                .flat_map(|line| [line.to_string(), "\n".into()])
                .collect();
            assert_eq!(
                outcome.exit,
                Some(Exit::Code(i32::try_from(number).unwrap()))
            );
            assert_eq!(outcome.output, expected);
        }
    }
}

#[tokio::test]
async fn what_cannot_be_started_says_why() {
    type ChangeRequest<'a> = &'a dyn Fn(&mut ShellRequest);
    let missing = |request: &mut ShellRequest| request.directory = Some("/no/such/place".into());
    let file = |request: &mut ShellRequest| request.directory = Some("/dev/null".into());
    let null = |request: &mut ShellRequest| "echo \0".clone_into(&mut request.command);
    let long =
        |request: &mut ShellRequest| request.command = format!("echo {}", "x".repeat(300_000));
    let no_shell = |request: &mut ShellRequest| {
        request.granted = vec![("PATH".into(), "/no/such/place".into())];
    };
    let cases: [(ChangeRequest<'_>, &str); 5] = [
        (
            &missing,
            "working directory '/no/such/place' not found; pass an existing directory as `cwd`",
        ),
        (
            &file,
            "working directory '/dev/null' not found; pass an existing directory as `cwd`",
        ),
        (&null, "invalid command: it contains a NUL byte"),
        (
            &long,
            "the command is too long for the system (300005 bytes); write it to a file and run the file",
        ),
        (&no_shell, "neither bash nor sh found in PATH; install one"),
    ];
    for fixture in ShellFixture::both() {
        for (spoil, expected) in cases {
            let mut request = fixture.request("true");
            spoil(&mut request);
            let error = fixture
                .shells
                .run(request, LONG, &CancellationToken::new())
                .await
                .unwrap_err();
            assert_eq!((error.message(), error.kind()), (expected, ErrorKind::Tool));
        }
    }
}

#[tokio::test]
async fn a_launcher_that_is_none_is_an_error() {
    let fixture = ShellFixture::new(Some(Launcher("/bin/true".into())), &[]);
    let error = fixture.run_for("true", LONG).await.unwrap_err();
    assert_eq!(
        error.message(),
        "cannot start the command: its supervisor process exited early; try again"
    );
}

#[test]
fn the_supervisor_started_by_hand_does_nothing() {
    let mut command = std::process::Command::new(supervised_program());
    let command = command
        .args(["__exec", "/bin/sh", "echo no"])
        .stdin(std::process::Stdio::null());
    let output = command.output().unwrap();
    assert_eq!((output.status.code(), output.stdout), (Some(2), Vec::new()));
}
