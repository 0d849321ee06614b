//! Tests the complete path of a message (accepted, turn, tool, reply, delivered) with every disk fault, at every step,
//! with both durability policies.
//!
//! `BUB_FAULT_STEPS=all cargo test -p bub-cli --test it fault_matrix -- --nocapture` tests every step instead of a selection.

mod harness;
mod tapes;

use std::{
    collections::{HashMap, HashSet},
    fmt, io,
    path::Path,
    time::Duration,
};

use bub_tape::Durability;
use bub_testkit::{Faults, PowerLossEffect, run_process};

use self::{
    harness::{FaultFixture, Observations},
    tapes::Tapes,
};

/// Messages: number and chat.
const MESSAGES: [(u64, &str); 4] = [(1, "a"), (2, "b"), (3, "a"), (4, "b")];
/// Distance of tested steps in the short form. Coprime to the period of steps in a turn.
const STRIDE: u64 = 7;

/// The fault of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Fault {
    /// No fault.
    None,
    /// Every write takes at most seven bytes.
    ShortWrites,
    /// Every operation takes a millisecond.
    SlowDisk,
    /// One operation fails.
    FailsOnce,
    /// The disk is full from that step on, for a while.
    Full,
    /// Every fsync fails from that step on, for a while.
    Unsynced,
    /// One fsync fails.
    FailsToSync,
    /// The process ends in the middle of a write.
    Killed,
    /// The process ends, and all data that was not synced is lost.
    PowerCut,
}

impl Fault {
    const ALL: [Self; 9] = [
        Self::None,
        Self::ShortWrites,
        Self::SlowDisk,
        Self::FailsOnce,
        Self::Full,
        Self::Unsynced,
        Self::FailsToSync,
        Self::Killed,
        Self::PowerCut,
    ];

    fn is_everywhere(self) -> bool {
        matches!(self, Self::None | Self::ShortWrites | Self::SlowDisk)
    }

    fn ends_the_process(self) -> bool {
        matches!(self, Self::Killed | Self::PowerCut)
    }

    /// Faults during the recovery, one after the other.
    fn recovery_faults(self, durability: Durability) -> Vec<Self> {
        let seconds = [Self::Killed, Self::FailsToSync, Self::PowerCut];
        // With few fsyncs, a failing fsync has almost no effect, but it does not end the process.
        let is_tried =
            |second: &Self| second.is_survived(durability) || *second == Self::FailsToSync;
        if self.ends_the_process() {
            seconds.into_iter().filter(is_tried).collect()
        } else {
            vec![Self::None]
        }
    }

    /// Whether the policy guarantees that messages survive the fault.
    fn is_survived(self, durability: Durability) -> bool {
        match self {
            // Without fsync, none can fail and none protects.
            Self::PowerCut | Self::Unsynced | Self::FailsToSync => durability == Durability::Always,
            _ => true,
        }
    }

    /// Maximum number of senders that may receive an error instead of an answer.
    fn max_error_replies(self) -> u64 {
        match self {
            Self::None | Self::ShortWrites | Self::SlowDisk | Self::Killed | Self::PowerCut => 0,
            Self::FailsOnce | Self::FailsToSync => 1,
            Self::Full | Self::Unsynced => MESSAGES.len() as u64,
        }
    }

    fn prepare(self, faults: &Faults, root: &Path, step: u64) {
        match self {
            Self::None => {}
            Self::ShortWrites => faults.limit_writes(7),
            Self::SlowDisk => faults.delay_operations(Duration::from_millis(1)),
            Self::FailsOnce => faults.fail_at(step, io::ErrorKind::Other),
            Self::Full => faults.fill_disk_from(step),
            Self::Unsynced => faults.fail_syncs_from(step),
            Self::FailsToSync => faults.fail_sync_after(step),
            Self::Killed => faults.crash_at(step),
            Self::PowerCut => {
                faults.track_durability(root).unwrap();
                faults.crash_at(step);
            }
        }
    }
}

/// Results of the runs.
#[derive(Default)]
struct Report {
    runs: u64,
    accepted: u64,
    answered: u64,
    /// Messages answered with an error that states the problem.
    errors: u64,
    refused: u64,
    /// Runs with a second fault during the recovery.
    twice: u64,
    /// Replies that arrived twice, because the process ended between sending and recording them.
    sent_again: u64,
    lost: u64,
    damaged: u64,
}

impl Report {
    fn add(&mut self, other: &Self) {
        self.runs += other.runs;
        self.accepted += other.accepted;
        self.answered += other.answered;
        self.errors += other.errors;
        self.refused += other.refused;
        self.twice += other.twice;
        self.sent_again += other.sent_again;
        self.lost += other.lost;
        self.damaged += other.damaged;
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            runs,
            accepted,
            answered,
            errors,
            refused,
            twice,
            sent_again,
            lost,
            damaged,
        } = self;
        write!(
            f,
            "{runs:>4} runs, {twice:>3} with a fault in the recovery, {accepted:>5} accepted, {answered:>5} answered, {errors:>3} answered with an error, {refused:>4} \
             refused, {sent_again:>3} sent again, {lost} lost, {damaged} tapes damaged"
        )
    }
}

/// The knowledge of the clients: the id of each accepted message, by its number.
#[derive(Default)]
struct Clients {
    accepted: HashMap<u64, String>,
    /// Numbers of the messages that were accepted after the faults.
    late: HashSet<u64>,
    refused: u64,
}

impl Clients {
    /// Posts each message that is not accepted, up to the given number of times.
    async fn post(&mut self, fixture: &FaultFixture, faults: &Faults, times: u32, is_late: bool) {
        for (number, chat) in MESSAGES {
            for _ in 0..times {
                if self.accepted.contains_key(&number) {
                    break;
                }
                match fixture.submit(number, chat).await {
                    Ok(id) => {
                        self.accepted.insert(number, id);
                        self.late.extend(is_late.then_some(number));
                    }
                    // A dead process cannot report a rejection.
                    Err(_) if faults.has_crashed() => break,
                    Err(error) => {
                        self.refused += 1;
                        // L1: the error states the problem and that a retry makes sense.
                        let text = error.to_string();
                        assert!(text.contains("cannot write the journal"), "unclear: {text}");
                        assert!(error.retry_after().is_some(), "{text}");
                        tokio::time::sleep(Duration::from_secs(1)).await;
                    }
                }
            }
        }
    }

    /// Waits for replies to all accepted messages, up to a limit.
    async fn wait(&self, seen: &Observations) {
        let mut replies = seen.replies.subscribe();
        let all =
            replies.wait_for(|replies| self.accepted.values().all(|id| replies.contains_key(id)));
        let _ = tokio::time::timeout(Duration::from_mins(10), all).await;
    }
}

/// Runs the gateway with a fault that ends after a while.
async fn under_fault(
    root: &Path,
    durability: Durability,
    faults: &Faults,
    seen: &Observations,
    clients: &mut Clients,
) {
    let fixture = match FaultFixture::open(root, durability, faults.fs(), seen).await {
        Ok(fixture) => fixture,
        // The gateway reports why it does not start, and accepts nothing.
        Err(error) => return assert!(error.to_string().contains("cannot "), "unclear: {error}"),
    };
    clients.post(&fixture, faults, 2, false).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    if faults.has_crashed() {
        return;
    }
    faults.clear_faults();
    clients.post(&fixture, faults, 2, true).await;
    clients.wait(seen).await;
    fixture.stop().await;
}

/// Runs the gateway again, without faults.
async fn run_without_faults(
    root: &Path,
    durability: Durability,
    seen: &Observations,
    clients: &mut Clients,
) {
    let faults = Faults::new();
    let fixture = FaultFixture::open(root, durability, faults.fs(), seen)
        .await
        .unwrap();
    clients.post(&fixture, &faults, 1, true).await;
    clients.wait(seen).await;
    fixture.stop().await;
}

/// A fault and its step, and the fault during the recovery.
#[derive(Clone, Copy, Debug)]
struct Plan {
    durability: Durability,
    fault: Fault,
    step: u64,
    second: Fault,
    second_step: u64,
}

/// Runs the gateway once with a fault. Returns whether the fault happened.
fn run_with_fault(
    (fault, step): (Fault, u64),
    durability: Durability,
    root: &Path,
    seen: &Observations,
    clients: &mut Clients,
) -> (bool, u64) {
    let faults = Faults::new();
    fault.prepare(&faults, root, step);
    run_process(under_fault(root, durability, &faults, seen, clients));
    if fault == Fault::PowerCut && faults.has_crashed() {
        let left = usize::try_from(step).unwrap() % PowerLossEffect::ALL.len();
        faults.cut_power(root, PowerLossEffect::ALL[left]).unwrap();
    }
    (
        faults.has_crashed() || !fault.ends_the_process() && faults.steps() >= step,
        faults.steps(),
    )
}

/// Performs one run and returns the number of its steps.
fn run(plan: Plan) -> (Report, u64) {
    let dir = tempfile::tempdir().unwrap();
    let (root, seen, mut clients) = (dir.path(), Observations::default(), Clients::default());
    let (happened, steps) = run_with_fault(
        (plan.fault, plan.step),
        plan.durability,
        root,
        &seen,
        &mut clients,
    );
    let mut twice = false;
    if happened && plan.second != Fault::None {
        twice = run_with_fault(
            (plan.second, plan.second_step),
            plan.durability,
            root,
            &seen,
            &mut clients,
        )
        .0;
    }
    run_process(run_without_faults(
        root,
        plan.durability,
        &seen,
        &mut clients,
    ));
    // The last start finds no work.
    let recovered = run_process(async {
        let fixture = FaultFixture::open(root, plan.durability, Faults::new().fs(), &seen)
            .await
            .unwrap();
        let recovered = fixture.recovered;
        fixture.stop().await;
        (recovered.messages, recovered.replies)
    });
    assert_eq!(recovered, (0, 0), "{plan:?}: something is never finished");
    assert_eq!(
        clients.accepted.len(),
        MESSAGES.len(),
        "{plan:?}: not everything was accepted in the end"
    );
    let mut report = check_run(plan, &seen, &clients, &run_process(Tapes::read(root)));
    report.twice = u64::from(twice);
    (report, steps)
}

fn check_run(plan: Plan, seen: &Observations, clients: &Clients, tapes: &Tapes) -> Report {
    let replies = seen.replies.borrow().clone();
    let ran = seen.ran.lock().unwrap();
    let ends = [plan.fault, plan.second]
        .into_iter()
        .filter(|fault| fault.ends_the_process())
        .count();
    let mut report = Report {
        runs: 1,
        damaged: tapes.damaged,
        refused: clients.refused,
        ..Report::default()
    };
    for (number, id) in &clients.accepted {
        report.accepted += 1;
        let Some(replies) = replies.get(id) else {
            report.lost += 1;
            continue;
        };
        let texts: HashSet<_> = replies.iter().map(|reply| reply.text.as_str()).collect();
        let ids: HashSet<_> = replies.iter().map(|reply| reply.id.as_str()).collect();
        // An error may follow the answer if the disk fails while the gateway checks an answered turn again.
        let afterwards = usize::from(plan.second == Fault::FailsToSync);
        assert!(
            ids.len() <= 1 + afterwards,
            "{plan:?}: several replies to {number}: {replies:?}"
        );
        let is_answer = texts.contains(format!("noted {number}").as_str());
        let is_error = texts
            .iter()
            .any(|text| text.contains("An error occurred") && text.contains("tapes"));
        assert!(
            is_answer || is_error && !clients.late.contains(number),
            "{plan:?}: {replies:?}"
        );
        report.answered += u64::from(is_answer);
        report.errors += u64::from(!is_answer);
        report.sent_again += u64::from(replies.len() > 1);
        // Only in this case.
        assert!(
            replies.len() <= 1 + ends + afterwards,
            "{plan:?}: sent too often: {replies:?}"
        );
        let ran = ran.get(number).copied().unwrap_or(0);
        assert!(ran <= 1, "{plan:?}: the tool of {number} ran {ran} times");
        if let Err(problem) = tapes.check(*number, is_answer, ran) {
            panic!("{plan:?}: message {number} on its tape: {problem}");
        }
    }
    let unasked: Vec<_> = replies
        .keys()
        .filter(|id| !clients.accepted.values().any(|known| known == *id))
        .collect();
    assert!(
        unasked.is_empty(),
        "{plan:?}: replies to unknown messages: {unasked:?}"
    );
    let max = plan.fault.max_error_replies() + plan.second.max_error_replies();
    assert!(
        report.errors <= max,
        "{plan:?}: {} answered with an error, not {max}",
        report.errors
    );
    assert_eq!(report.lost, 0, "{plan:?}: acknowledged and never answered");
    assert_eq!(report.damaged, 0, "{plan:?}: damaged tapes");
    report
}

// L1, L3: every accepted message is answered despite disk faults, a tool never runs twice, no tape is damaged.
#[test]
fn the_whole_path_under_every_fault_of_the_disk_loses_nothing() {
    let every = std::env::var_os("BUB_FAULT_STEPS").is_some();
    let mut total = Report::default();
    for durability in [Durability::Os, Durability::Always] {
        let mut plan = Plan {
            durability,
            fault: Fault::None,
            step: 0,
            second: Fault::None,
            second_step: 0,
        };
        let (_, steps) = run(plan);
        assert!(steps > 50, "{steps}");
        println!("durability {durability:?}: {steps} steps");
        for fault in Fault::ALL
            .into_iter()
            .filter(|fault| fault.is_survived(durability))
        {
            let mut report = Report::default();
            let stride = if every { 1 } else { STRIDE };
            // Each fault starts at another offset, so that together they cover all steps.
            let first = 1 + fault as u64 % stride;
            let last = if fault.is_everywhere() { first } else { steps };
            for step in (first..=last).step_by(usize::try_from(stride).unwrap()) {
                let seconds = fault.recovery_faults(durability);
                let one = usize::try_from(step / stride).unwrap() % seconds.len();
                let chosen = if every {
                    &seconds[..]
                } else {
                    &seconds[one..=one]
                };
                for second in chosen {
                    // The recovery has about as many steps as remained.
                    let second_step = 1 + step * 13 % (steps - step + 10);
                    plan = Plan {
                        fault,
                        step,
                        second: *second,
                        second_step,
                        ..plan
                    };
                    report.add(&run(plan).0);
                }
            }
            println!("{:<12} {report}", format!("{fault:?}"));
            total.add(&report);
        }
    }
    println!("{:<12} {total}", "all");
    assert!(total.twice > 25, "{} recoveries met a fault", total.twice);
}
