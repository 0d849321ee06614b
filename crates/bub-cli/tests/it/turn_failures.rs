//! Tests every stage of a turn with every kind of failure, in linked-in and external plugins, with the real program.
//!
//! A hook of the plugin fails once, as the file `fault` in the workspace specifies; see `tests/programs/failing_stage.*`.
//! The result of a turn depends on the stage and the failure, not on the kind of plugin: see `expected_end` and
//! `expected_record`.

use std::{
    fs,
    io::Write as _,
    os::unix::process::ExitStatusExt as _,
    panic::AssertUnwindSafe,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::Mutex,
    time::{Duration, Instant},
};

use bub_testkit::model::{ModelServer, Reply};
use serde_json::Value;

use crate::{
    gateway_client::{CallbackServer, GatewayClient, post},
    plugin::write_python_plugin,
    sandbox::{Run, Sandbox, bub, example, signal, wait_until},
};

/// Timeout of a wait. It is longer than any step takes on a busy machine, so that only a hang fails the test.
const TEST_TIMEOUT: Duration = Duration::from_mins(1);
/// Number of concurrent cases. They mostly wait for processes to start.
const WORKERS: usize = 4;

/// The message whose turn fails, when it is sent with `bub run`.
const MESSAGE: &str = "the first message";
const ANSWER: &str = "as you say";

/// The plugin in Python, and its name.
const PYTHON: &str = include_str!("../programs/failing_stage.py");
const PLUGIN: &str = "failing";

/// The stages, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum FailingStageCase {
    ResolveSession,
    LoadState,
    BuildPrompt,
    RunModel,
    SaveState,
    RenderOutbound,
    DispatchOutbound,
}

impl FailingStageCase {
    const ALL: [Self; 7] = [
        Self::ResolveSession,
        Self::LoadState,
        Self::BuildPrompt,
        Self::RunModel,
        Self::SaveState,
        Self::RenderOutbound,
        Self::DispatchOutbound,
    ];

    fn hook(self) -> &'static str {
        match self {
            Self::ResolveSession => "resolve_session",
            Self::LoadState => "load_state",
            Self::BuildPrompt => "build_prompt",
            Self::RunModel => "run_model",
            Self::SaveState => "save_state",
            Self::RenderOutbound => "render_outbound",
            Self::DispatchOutbound => "dispatch_outbound",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    /// The hook returns an error. In Python: an exception.
    Error,
    /// The hook returns an error of the kind `config`.
    ConfigError,
    /// The hook panics. In Python: the process of the plugin ends.
    Panic,
    /// The hook exceeds its timeout.
    Timeout,
    /// SIGTERM while the hook waits.
    Terminate,
    /// SIGKILL while the hook waits.
    Kill,
}

impl Failure {
    /// What the plugin does.
    fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::ConfigError => "config",
            Self::Panic => "panic",
            Self::Timeout | Self::Terminate | Self::Kill => "hang",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PluginKind {
    Linked,
    Python,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    kind: PluginKind,
    stage: FailingStageCase,
    failure: Failure,
}

/// How a process ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Code(i32),
    Signal(i32),
}

/// Records of a message and its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Record {
    /// Events `turn.start` with the message, which no view shows.
    starts: usize,
    /// User messages with the message, which the model sees.
    user_messages: usize,
    answers: usize,
    errors: usize,
    /// Calls of `save_state`.
    saves: usize,
}

/// How `bub run` ends.
fn expected_end(failure: Failure) -> End {
    match failure {
        Failure::Error | Failure::Panic | Failure::Timeout => End::Code(1),
        Failure::ConfigError => End::Code(2),
        Failure::Terminate => End::Code(143),
        Failure::Kill => End::Signal(9),
    }
}

/// Records that `bub run` leaves behind (P-10).
///
/// Two of these cases had nothing on the tape before the message was recorded at the start of the turn: an error in
/// `build_prompt` (exit code 1) and SIGTERM in `build_prompt` (exit code 143).
fn expected_record(stage: FailingStageCase, failure: Failure) -> Record {
    let is_answered = stage > FailingStageCase::RunModel;
    let recorded = Record {
        // Without a session there is no turn: the message is recorded with the error on the tape of `channel:chat_id`,
        // as an event that no view shows, because its sender may send it again.
        starts: 1,
        user_messages: usize::from(stage > FailingStageCase::ResolveSession),
        // After a failure behind the model stage, the answer stays.
        answers: usize::from(is_answered),
        errors: 1,
        // S-18
        saves: usize::from(stage >= FailingStageCase::RunModel),
    };
    match failure {
        // Nothing is recorded any more. The message is on the tape as soon as the session is leased, and is a user
        // message as soon as the prompt is built.
        Failure::Kill => Record {
            starts: usize::from(stage > FailingStageCase::ResolveSession),
            user_messages: usize::from(stage >= FailingStageCase::RunModel),
            errors: 0,
            saves: usize::from(stage >= FailingStageCase::SaveState),
            ..recorded
        },
        _ => recorded,
    }
}

/// Records that a gateway leaves behind after a restart and a second message. Its journal holds the message, so there is no
/// event `turn.start`, unless the message was refused because its session could not be resolved.
fn expected_gateway_record(stage: FailingStageCase, failure: Failure) -> Record {
    let first = expected_record(stage, failure);
    let resumed = usize::from(failure == Failure::Kill);
    let is_refused = stage == FailingStageCase::ResolveSession && failure != Failure::Kill;
    Record {
        starts: is_refused.into(),
        user_messages: usize::from(!is_refused),
        answers: 1 + first.answers.max(resumed),
        saves: 1 + first.saves + resumed,
        ..first
    }
}

/// A sandbox with a model and a plugin that fails as the case specifies.
struct TurnFailureFixture {
    case: Case,
    sandbox: Sandbox,
    model: ModelServer,
}

impl TurnFailureFixture {
    /// `added` is a sandbox to which the plugin was added, if it is an external one.
    fn new(case: Case, added: Option<&Sandbox>) -> Self {
        let (sandbox, model) = (Sandbox::new(), ModelServer::start());
        model.otherwise(Reply::text(ANSWER));
        let fixture = Self {
            case,
            sandbox,
            model,
        };
        if let Some(added) = added {
            let list = fs::read_to_string(added.home().join("plugins.json")).unwrap();
            fixture.sandbox.write("home/plugins.json", &list);
        }
        if case.failure == Failure::Timeout {
            fixture.limit_stage();
        }
        let fault = format!("{} {}", case.stage.hook(), case.failure.name());
        fixture.sandbox.write("workspace/fault", &fault);
        fixture
    }

    /// Sets a short timeout for the hook of the case. Other hooks keep theirs, because the first hook includes the
    /// start of the plugin. `resolve_session` is the first hook.
    fn limit_stage(&self) {
        let limit = match self.case.stage {
            FailingStageCase::ResolveSession => "hooks: {resolve_session: 5}".to_owned(),
            FailingStageCase::RunModel => "model: 0.3".to_owned(),
            stage => format!("hooks: {{{}: 0.3}}", stage.hook()),
        };
        let config = format!("plugins:\n  {PLUGIN}:\n    limits: {{{limit}}}\n");
        self.sandbox.write("home/config.yml", &config);
    }

    fn file(&self, name: &str) -> PathBuf {
        self.sandbox.workspace().join(name)
    }

    fn command(&self) -> Command {
        let program = match self.case.kind {
            PluginKind::Linked => example("failing_stage"),
            PluginKind::Python => bub(),
        };
        let mut command = self.sandbox.command(&program);
        command
            .env("BUB_MODEL", "llamacpp:test")
            .env("BUB_LLAMACPP_API_BASE", format!("{}/v1", self.model.url()))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Starts a gateway with a webhook.
    fn gateway(&self) -> GatewayClient {
        let mut command = self.command();
        command.arg("gateway");
        GatewayClient::start(command)
    }

    /// Starts `bub chat` with these lines on stdin. Its session is the default of `bub run`.
    fn start_pipe(&self, lines: &str) -> Child {
        let mut child = self
            .command()
            .arg("chat")
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.as_mut().unwrap();
        stdin.write_all(lines.as_bytes()).unwrap();
        child
    }

    /// Waits until the hook of the case is about to fail.
    fn wait_until_reached(&self) {
        wait_until("the stage is reached", || self.file("reached").exists());
    }

    /// Returns the entries of all tapes. H-144: a message whose session is unknown is on the tape of its chat.
    fn entries(&self) -> Vec<Value> {
        let Ok(files) = fs::read_dir(self.sandbox.home().join("tapes")) else {
            return Vec::new();
        };
        let paths = files.map(|file| file.unwrap().path());
        let tapes = paths.filter(|path| path.extension().is_some_and(|ending| ending == "jsonl"));
        let lines = |path| fs::read_to_string(path).unwrap();
        let text: String = tapes.map(lines).collect();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    fn record(&self, message: &str) -> Record {
        let entries = self.entries();
        let count = |is_counted: &dyn Fn(&Value) -> bool| {
            entries.iter().filter(|entry| is_counted(entry)).count()
        };
        let is_start = |entry: &Value| entry["payload"]["name"] == "turn.start";
        let saves = fs::read_to_string(self.file("saves")).unwrap_or_default();
        Record {
            starts: count(&|entry| is_start(entry) && has_text(entry, message)),
            user_messages: count(&|entry| is_message(entry, "user") && has_text(entry, message)),
            answers: count(&|entry| is_message(entry, "assistant") && has_text(entry, ANSWER)),
            errors: count(&|entry| entry["kind"] == "error"),
            saves: saves.lines().count(),
        }
    }

    /// Returns how often the message is in the last model request.
    fn last_shown(&self, message: &str) -> usize {
        let requests = self.model.requests();
        let last = requests.last().expect("the model was not asked");
        String::from_utf8_lossy(&last.body).matches(message).count()
    }

    fn check_tapes(&self) {
        let check = self.sandbox.bub(["tape", "check"]);
        assert_eq!(check.code, Some(0), "{:?}: {check:?}", self.case);
    }
}

fn is_message(entry: &Value, role: &str) -> bool {
    entry["kind"] == "message" && entry["payload"]["role"] == role
}

fn has_text(entry: &Value, text: &str) -> bool {
    entry["payload"].to_string().contains(text)
}

/// Waits for the end of a process, and kills it after a timeout.
fn finish(mut child: Child) -> (End, Run) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    while child.try_wait().unwrap().is_none() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    let has_ended = child.try_wait().unwrap().is_some();
    let _ = child.kill();
    let output = child.wait_with_output().unwrap();
    let code = output.status.code().map(End::Code);
    let end = code.unwrap_or_else(|| End::Signal(output.status.signal().unwrap()));
    let run = Run::from_output(output);
    assert!(has_ended, "it does not end: {run:?}");
    (end, run)
}

/// Checks every stage with each of these failures, a few cases at a time, and reports all cases that fail.
fn check_all(kind: PluginKind, failures: &[Failure], check: fn(&TurnFailureFixture)) {
    let added = Sandbox::new();
    let added = match kind {
        PluginKind::Linked => None,
        PluginKind::Python if write_python_plugin(&added, PLUGIN, PYTHON) => Some(added),
        PluginKind::Python => return,
    };
    let of_stage = |stage| {
        failures.iter().map(move |&failure| Case {
            kind,
            stage,
            failure,
        })
    };
    let cases = FailingStageCase::ALL.into_iter().flat_map(of_stage);
    let (cases, failed) = (Mutex::new(cases), Mutex::new(Vec::new()));
    let next = || cases.lock().unwrap().next();
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Some(case) = next() {
                    let checked =
                        AssertUnwindSafe(|| check(&TurnFailureFixture::new(case, added.as_ref())));
                    if std::panic::catch_unwind(checked).is_err() {
                        failed.lock().unwrap().push(case);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "see above: {failed:#?}");
}

/// Runs the turn that fails.
fn run_failing_turn(fixture: &TurnFailureFixture) -> (End, Run) {
    let failure = fixture.case.failure;
    let mut command = fixture.command();
    command.args(["run", MESSAGE]);
    if failure == Failure::Terminate {
        let log = fs::File::create(fixture.file("log")).unwrap();
        command.env("BUB_VERBOSE", "1").stderr(log);
    }
    let mut child = command.spawn().unwrap();
    match failure {
        Failure::Terminate => {
            fixture.wait_until_reached();
            signal(&child, "TERM");
            let log = || fs::read_to_string(fixture.file("log")).unwrap();
            wait_until("the signal is handled", || {
                log().contains("signal.received")
            });
        }
        Failure::Kill => {
            fixture.wait_until_reached();
            child.kill().unwrap();
        }
        Failure::Error | Failure::ConfigError | Failure::Panic | Failure::Timeout => {}
    }
    finish(child)
}

fn check_run(fixture: &TurnFailureFixture) {
    let case = fixture.case;
    let (end, run) = run_failing_turn(fixture);
    let expected = expected_record(case.stage, case.failure);
    assert!(fixture.file("reached").exists(), "{case:?}: {run:?}");
    assert_eq!(end, expected_end(case.failure), "{case:?}: {run:?}");
    assert_eq!(fixture.record(MESSAGE), expected, "{case:?}: {run:?}");
    assert_eq!(fixture.model.requests().len(), expected.answers, "{case:?}");

    // The session is free, and the model sees the message once, or not at all if it was interrupted before the prompt.
    let (end, run) = finish(fixture.command().args(["run", "next"]).spawn().unwrap());
    assert_eq!(end, End::Code(0), "{case:?}: {run:?}");
    assert!(
        !run.stderr.contains("session.lease_wait"),
        "{case:?}: {run:?}"
    );
    assert_eq!(
        fixture.last_shown(MESSAGE),
        expected.user_messages,
        "{case:?}"
    );
    let with_next = Record {
        answers: expected.answers + 1,
        saves: expected.saves + 1,
        ..expected
    };
    assert_eq!(fixture.record(MESSAGE), with_next, "{case:?}");
    fixture.check_tapes();
}

fn check_gateway(fixture: &TurnFailureFixture) {
    let case = fixture.case;
    let callbacks = CallbackServer::default();
    let callback = callbacks.listen(|| 200);
    let mut gateway = fixture.gateway();
    // A message is accepted after its session is resolved, which may hang. A message that was accepted has an id, which
    // reaches the client independently of the stage that hangs.
    let id = std::thread::scope(|scope| {
        let address = gateway.address.clone();
        let callback = callback.as_str();
        let posting = scope.spawn(move || post(&address, 1, 1, callback));
        fixture.wait_until_reached();
        let hangs_before_acceptance = case.stage == FailingStageCase::ResolveSession;
        if case.failure == Failure::Kill && hangs_before_acceptance {
            gateway.kill();
        }
        let id = posting.join().unwrap();
        if case.failure == Failure::Kill && !hangs_before_acceptance {
            gateway.kill();
        }
        id
    });
    // A message whose session cannot be resolved is rejected.
    assert_eq!(
        id.is_some(),
        case.stage > FailingStageCase::ResolveSession,
        "{case:?}"
    );
    if case.failure == Failure::Error {
        wait_until("the error is reported", || callbacks.count() == 1);
        gateway.stop();
    }

    let gateway = fixture.gateway();
    if case.failure == Failure::Kill {
        // A client without an answer posts the message again, with the same key.
        let id = id.or_else(|| post(&gateway.address, 1, 1, &callback));
        let reply = callbacks.reply(&id.expect("the message is not accepted"), 0);
        assert_eq!(reply, ANSWER, "{case:?}");
    }
    // Turns of a session are in order: a second reply to the first message would come before this one.
    let next = post(&gateway.address, 2, 1, &callback).expect("the message is not accepted");
    assert_eq!(callbacks.reply(&next, 0), ANSWER, "{case:?}");
    gateway.stop();

    let delivered = callbacks.all();
    let replies = || delivered.values().flatten().map(|(_, text)| text);
    assert_eq!(
        (delivered.len(), replies().count()),
        (2, 2),
        "{delivered:?}"
    );
    let reported = replies().filter(|text| text.ends_with(report_end(case.failure)));
    let is_reported = case.failure == Failure::Error;
    assert_eq!(reported.count(), usize::from(is_reported), "{case:?}");
    let expected = expected_gateway_record(case.stage, case.failure);
    assert_eq!(fixture.record("message 1"), expected, "{case:?}");
    assert_eq!(fixture.model.requests().len(), expected.answers, "{case:?}");
    assert_eq!(
        fixture.last_shown("message 1"),
        expected.user_messages,
        "{case:?}"
    );
    let undelivered = fixture.sandbox.bub(["outbox", "list", "--json"]).ok();
    assert_eq!(undelivered.trim(), r#"{"replies":[]}"#, "{case:?}");
    fixture.check_tapes();
}

/// Returns the end of the error text that a user sees.
fn report_end(failure: Failure) -> &'static str {
    match failure {
        Failure::Panic => "failed on purpose; see the log",
        _ => "failed on purpose",
    }
}

/// Sends two lines through `bub chat`; the turn of the first one fails.
fn check_pipe(fixture: &TurnFailureFixture) {
    let case = fixture.case;
    let mut child = fixture.start_pipe(&format!("{MESSAGE}\nnext\n"));
    // The input ends here.
    drop(child.stdin.take());
    let (end, run) = finish(child);
    assert_eq!(end, expected_end(case.failure), "{case:?}: {run:?}");
    let expected = expected_gateway_record(case.stage, case.failure);
    let answers = run.stdout.matches(ANSWER).count();
    assert_eq!(answers, expected.answers, "{case:?}: {run:?}");
    // Besides lines of the log.
    let is_report =
        |line: &&str| line.starts_with("error: ") && line.ends_with(report_end(case.failure));
    let reports = run.stderr.lines().filter(is_report).count();
    assert_eq!(reports, 1, "{case:?}: {run:?}");
    assert_eq!(fixture.record(MESSAGE), expected, "{case:?}: {run:?}");
    assert_eq!(
        fixture.last_shown(MESSAGE),
        expected.user_messages,
        "{case:?}"
    );
    fixture.check_tapes();
}

/// Ends `bub chat` while `resolve_session` hangs.
fn check_terminated_pipe(kind: PluginKind) {
    let case = Case {
        kind,
        stage: FailingStageCase::ResolveSession,
        failure: Failure::Terminate,
    };
    let added = Sandbox::new();
    if kind == PluginKind::Python && !write_python_plugin(&added, PLUGIN, PYTHON) {
        return;
    }
    let fixture = TurnFailureFixture::new(case, (kind == PluginKind::Python).then_some(&added));
    let child = fixture.start_pipe(&format!("{MESSAGE}\n"));
    fixture.wait_until_reached();
    signal(&child, "TERM");
    let (end, run) = finish(child);
    assert_eq!(end, End::Code(143), "{run:?}");
    let expected = expected_record(case.stage, case.failure);
    assert_eq!(fixture.record(MESSAGE), expected, "{run:?}");
    assert!(fixture.model.requests().is_empty());

    // The line is not answered by the next chat: it was cancelled.
    let mut next = fixture.start_pipe("next\n");
    drop(next.stdin.take());
    let (end, run) = finish(next);
    assert_eq!(end, End::Code(0), "{run:?}");
    assert_eq!(fixture.model.requests().len(), 1);
    assert_eq!(fixture.last_shown(MESSAGE), 0);
    fixture.check_tapes();
}

// S-18, L1, L4: after any failure of a stage, the message and the error are on the tape once, the session is free, and
// the command ends with the right code.
//
// There is no `Timeout` here: the limit of a linked-in hook is five minutes. The tests of the kernel cover it with a
// paused clock.
#[test]
fn a_turn_that_fails_in_a_linked_plugin_is_recorded() {
    let failures = [
        Failure::Error,
        Failure::ConfigError,
        Failure::Panic,
        Failure::Terminate,
        Failure::Kill,
    ];
    check_all(PluginKind::Linked, &failures, check_run);
}

// S-18, L1, L4, L8: as above, with a plugin in another process. Kinds of errors are part of the plugin protocol, whose tests
// cover them.
#[test]
fn a_turn_that_fails_in_an_external_plugin_is_recorded() {
    let failures = [
        Failure::Error,
        Failure::Panic,
        Failure::Timeout,
        Failure::Terminate,
        Failure::Kill,
    ];
    check_all(PluginKind::Python, &failures, check_run);
}

// L1, L4: after a restart, the message of an interrupted turn is answered once. The message of a failed turn is not
// retried, because its sender was notified.
#[test]
fn a_gateway_answers_a_message_once_if_its_turn_fails_in_a_linked_plugin() {
    let failures = [Failure::Error, Failure::Kill];
    check_all(PluginKind::Linked, &failures, check_gateway);
}

// L1, L4, L8: as above, with a plugin in another process.
#[test]
fn a_gateway_answers_a_message_once_if_its_turn_fails_in_an_external_plugin() {
    let failures = [Failure::Error, Failure::Kill];
    check_all(PluginKind::Python, &failures, check_gateway);
}

// L1: a failing turn ends neither the pipe nor the answers to later lines, and the last failure sets the exit code.
#[test]
fn a_pipe_continues_after_a_turn_that_fails_in_a_linked_plugin() {
    let failures = [Failure::Error, Failure::ConfigError, Failure::Panic];
    check_all(PluginKind::Linked, &failures, check_pipe);
}

// L1, L8: as above, with a plugin in another process.
#[test]
fn a_pipe_continues_after_a_turn_that_fails_in_an_external_plugin() {
    check_all(PluginKind::Python, &[Failure::Error], check_pipe);
}

// L1: a line is recorded although its chat ends before the session of the line is known.
#[test]
fn a_line_in_resolve_session_is_recorded_when_its_chat_is_terminated() {
    check_terminated_pipe(PluginKind::Linked);
    check_terminated_pipe(PluginKind::Python);
}

fn linked(stage: FailingStageCase, failure: Failure) -> TurnFailureFixture {
    let kind = PluginKind::Linked;
    TurnFailureFixture::new(
        Case {
            kind,
            stage,
            failure,
        },
        None,
    )
}

/// Starts a chat with a line and kills it while the hook of the case hangs.
fn kill_pipe(fixture: &TurnFailureFixture, lines: &str) {
    let mut child = fixture.start_pipe(lines);
    fixture.wait_until_reached();
    child.kill().unwrap();
    child.wait().unwrap();
    fs::remove_file(fixture.file("reached")).unwrap();
}

/// Runs a chat whose input is empty: it answers what an earlier chat left.
fn run_empty_pipe(fixture: &TurnFailureFixture) -> (End, Run) {
    let mut child = fixture.start_pipe("");
    drop(child.stdin.take());
    finish(child)
}

// L1: a line of a chat that is killed in any stage is answered by the next chat, also if that one has no input.
#[test]
fn a_pipe_without_input_prints_the_answer_to_an_earlier_line() {
    check_all(PluginKind::Linked, &[Failure::Kill], |fixture| {
        let case = fixture.case;
        kill_pipe(fixture, &format!("{MESSAGE}\n"));
        let (end, run) = run_empty_pipe(fixture);
        assert_eq!(end, End::Code(0), "{case:?}: {run:?}");
        assert_eq!(run.stdout, format!("{ANSWER}\n"), "{case:?}: {run:?}");
        let notice = format!("continuing a line from an earlier chat: {MESSAGE}");
        assert!(run.stderr.contains(&notice), "{case:?}: {run:?}");
        let (_, again) = run_empty_pipe(fixture);
        let output = (again.stdout.as_str(), again.stderr.as_str());
        assert_eq!(output, ("", ""), "{case:?}");
        assert_eq!(fixture.record(MESSAGE).user_messages, 1, "{case:?}");
    });
}

// L1: a message that is abandoned because it ended the process too often is on the tape with the error. If it was
// answered, the answer is printed without the hooks that ended the process.
#[test]
fn a_message_that_is_abandoned_is_recorded() {
    check_all(PluginKind::Linked, &[Failure::Kill], |fixture| {
        let stage = fixture.case.stage;
        if stage == FailingStageCase::ResolveSession {
            // The gateway's tests cover it: the line is then processed in the session of its chat.
            return;
        }
        kill_pipe(fixture, &format!("{MESSAGE}\n"));
        for _ in 0..4 {
            let fault = format!("{} hang", stage.hook());
            fixture.sandbox.write("workspace/fault", &fault);
            kill_pipe(fixture, "");
        }
        let (end, run) = run_empty_pipe(fixture);
        assert_eq!(end, End::Code(1), "{stage:?}: {run:?}");
        let record = fixture.record(MESSAGE);
        assert_eq!((record.user_messages, record.errors), (1, 1), "{stage:?}");
        let is_answered = stage > FailingStageCase::RunModel;
        let printed = run.stdout.matches(ANSWER).count();
        assert_eq!(printed, usize::from(is_answered), "{stage:?}: {run:?}");
        assert_eq!(record.answers, usize::from(is_answered), "{stage:?}");
        let (_, again) = run_empty_pipe(fixture);
        assert_eq!(again.stdout, "", "{stage:?}");
        fixture.check_tapes();
    });
}

// L1: an answer is printed by the chat that is stopped or by the next one, and not by both. The stage continues while the
// chat stops, or hangs until its end.
#[test]
fn an_answer_to_a_stopped_chat_is_printed_once() {
    // When the stage continues, in milliseconds after the signal. A stopped chat waits 200 ms for its turn.
    for release in [Some(0), Some(150), Some(300), Some(600), None] {
        for stage in FailingStageCase::ALL {
            if stage == FailingStageCase::ResolveSession {
                // The line is then cancelled: see `check_terminated_pipe`.
                continue;
            }
            let case = (stage, release);
            let fixture = linked(stage, Failure::Terminate);
            let child = fixture.start_pipe(&format!("{MESSAGE}\n"));
            fixture.wait_until_reached();
            signal(&child, "TERM");
            if let Some(delay) = release {
                std::thread::sleep(Duration::from_millis(delay));
                fixture.sandbox.write("workspace/release", "");
            }
            let (end, first) = finish(child);
            assert_eq!(end, End::Code(143), "{case:?}: {first:?}");
            let (_, next) = run_empty_pipe(&fixture);
            let (_, last) = run_empty_pipe(&fixture);
            let printed = [&first, &next, &last].map(|run| run.stdout.matches(ANSWER).count());
            assert_eq!(
                printed.iter().sum::<usize>(),
                1,
                "{case:?}: {first:?} {next:?} {last:?}"
            );
            assert_eq!(fixture.record(MESSAGE).user_messages, 1, "{case:?}");
        }
    }
}

// L1: a comma command that a signal interrupts is reported by the next chat and not run again.
#[test]
fn an_interrupted_command_is_reported_by_the_next_chat() {
    let fixture = linked(FailingStageCase::RunModel, Failure::Error);
    fs::remove_file(fixture.file("fault")).unwrap();
    let child = fixture.start_pipe(",echo started >> runs && sleep 100\n");
    wait_until("the command runs", || fixture.file("runs").exists());
    signal(&child, "TERM");
    let (end, run) = finish(child);
    assert_eq!(end, End::Code(143), "{run:?}");
    let (end, run) = run_empty_pipe(&fixture);
    assert_eq!(end, End::Code(0), "{run:?}");
    assert!(
        run.stdout.contains("was running when bub stopped"),
        "{run:?}"
    );
    let runs = fs::read_to_string(fixture.file("runs")).unwrap();
    assert_eq!(runs, "started\n");
}

// L1, L4: after a crash the model answers the message of the interrupted turn, not that of a turn which ran since.
#[test]
fn a_resumed_turn_answers_its_own_message() {
    let fixture = linked(FailingStageCase::RunModel, Failure::Kill);
    kill_pipe(&fixture, &format!("{MESSAGE}\n"));
    let (end, run) = finish(
        fixture
            .command()
            .args(["run", "another message"])
            .spawn()
            .unwrap(),
    );
    assert_eq!(end, End::Code(0), "{run:?}");
    let (end, run) = run_empty_pipe(&fixture);
    assert_eq!((end, run.stdout), (End::Code(0), format!("{ANSWER}\n")));
    assert_eq!(fixture.last_shown(MESSAGE), 1);
    let requests = fixture.model.requests();
    let body: Value = serde_json::from_slice(&requests.last().unwrap().body).unwrap();
    let last = body["messages"].as_array().unwrap().last().unwrap();
    assert_eq!(last["role"], "user");
    assert!(last["content"].to_string().contains(MESSAGE), "{last}");
}
