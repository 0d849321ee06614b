//! The whole path of a message (accepted, a turn, a tool, a reply, delivered) under every fault of the disk, at every
//! step, with both durability policies.
//!
//! `BUB_FAULT_STEPS=all cargo test -p bub --test fault_matrix -- --nocapture` is the long form: every step, not some.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_methods,
    missing_docs,
    reason = "tests stop at the first surprise"
)]

mod world;

use std::{
    collections::{HashMap, HashSet},
    fmt, io,
    path::Path,
    time::Duration,
};

use bub_tape::{Durability, FileStore, Listing, TapeStore as _};
use bub_testkit::Faults;

use crate::world::{Seen, World, life};

/// The messages: number and chat.
const MESSAGES: [(u64, &str); 4] = [(1, "a"), (2, "b"), (3, "a"), (4, "b")];
/// In the short form, every so many steps; coprime to what repeats in a turn.
const STRIDE: u64 = 7;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Fault {
    /// Nothing.
    None,
    /// Every write takes at most seven bytes.
    ShortWrites,
    /// Every operation takes a millisecond.
    SlowDisk,
    /// One operation fails.
    FailsOnce,
    /// No room from that step on, for a while.
    Full,
    /// No fsync works from that step on, for a while.
    Unsynced,
    /// The process is gone in the middle of a write.
    Killed,
    /// It is gone, and all that was not synced.
    PowerCut,
}

impl Fault {
    const ALL: [Self; 8] = [
        Self::None,
        Self::ShortWrites,
        Self::SlowDisk,
        Self::FailsOnce,
        Self::Full,
        Self::Unsynced,
        Self::Killed,
        Self::PowerCut,
    ];

    fn is_everywhere(self) -> bool {
        matches!(self, Self::None | Self::ShortWrites | Self::SlowDisk)
    }

    fn ends_the_process(self) -> bool {
        matches!(self, Self::Killed | Self::PowerCut)
    }

    /// Whether the policy promises to survive it.
    fn is_survived(self, durability: Durability) -> bool {
        match self {
            // Without fsyncs none can fail, and none protects.
            Self::PowerCut | Self::Unsynced => durability == Durability::Always,
            _ => true,
        }
    }

    fn prepare(self, faults: &Faults, step: u64) {
        match self {
            Self::None => {}
            Self::ShortWrites => faults.short_writes(7),
            Self::SlowDisk => faults.slow(Duration::from_millis(1)),
            Self::FailsOnce => faults.fail_at(step, io::ErrorKind::Other),
            Self::Full => faults.full_from(step),
            Self::Unsynced => faults.fail_syncs_from(step),
            Self::Killed => faults.crash_at(step),
            Self::PowerCut => {
                faults.remember_durable();
                faults.crash_at(step);
            }
        }
    }
}

/// What came of it.
#[derive(Default)]
struct Report {
    runs: u64,
    accepted: u64,
    answered: u64,
    /// Answered with an error that says what is wrong.
    told: u64,
    refused: u64,
    /// The same reply arrived twice: the process ended between sending it and writing that down.
    sent_again: u64,
    lost: u64,
    damaged: u64,
}

impl Report {
    fn add(&mut self, other: &Self) {
        self.runs += other.runs;
        self.accepted += other.accepted;
        self.answered += other.answered;
        self.told += other.told;
        self.refused += other.refused;
        self.sent_again += other.sent_again;
        self.lost += other.lost;
        self.damaged += other.damaged;
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { runs, accepted, answered, told, refused, sent_again, lost, damaged } = self;
        write!(
            f,
            "{runs:>4} runs, {accepted:>5} accepted, {answered:>5} answered, {told:>3} told of an error, {refused:>4} \
             refused, {sent_again:>3} sent again, {lost} lost, {damaged} tapes damaged"
        )
    }
}

/// What the clients know: the id of each message that was accepted, by its number.
#[derive(Default)]
struct Clients {
    accepted: HashMap<u64, String>,
    refused: u64,
}

impl Clients {
    /// Posts what is not accepted, each as often as that.
    async fn post(&mut self, world: &World, faults: &Faults, times: u32) {
        for (number, chat) in MESSAGES {
            for _ in 0..times {
                if self.accepted.contains_key(&number) {
                    break;
                }
                match world.say(number, chat).await {
                    Ok(id) => drop(self.accepted.insert(number, id)),
                    // Nobody hears the refusal of a dead process.
                    Err(_) if faults.crashed() => break,
                    Err(error) => {
                        self.refused += 1;
                        // L1: the sender is told what is wrong, and that trying again makes sense.
                        let text = error.to_string();
                        assert!(text.contains("the journal cannot be written"), "unclear: {text}");
                        assert!(error.retry_after().is_some(), "{text}");
                        tokio::time::sleep(Duration::from_secs(1)).await;
                    }
                }
            }
        }
    }

    /// Waits for a reply to everything that was accepted; not for ever.
    async fn wait(&self, seen: &Seen) {
        let mut replies = seen.replies.subscribe();
        let all = replies.wait_for(|replies| self.accepted.values().all(|id| replies.contains_key(id)));
        let _ = tokio::time::timeout(Duration::from_mins(10), all).await;
    }
}

/// The first life: under the fault, which goes away after a while.
async fn under_fault(
    root: &Path,
    durability: Durability,
    faults: &Faults,
    seen: &Seen,
    clients: &mut Clients,
) {
    let world = match World::open(root, durability, faults.fs(), seen).await {
        Ok(world) => world,
        // It says why it does not start, and nothing was accepted.
        Err(error) => return assert!(error.to_string().contains("cannot be"), "unclear: {error}"),
    };
    clients.post(&world, faults, 2).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    if faults.crashed() {
        return;
    }
    faults.heal();
    clients.post(&world, faults, 2).await;
    clients.wait(seen).await;
    world.stop().await;
}

/// Another life, without faults.
async fn after(root: &Path, durability: Durability, seen: &Seen, clients: &mut Clients) {
    let faults = Faults::new();
    let world = World::open(root, durability, faults.fs(), seen).await.unwrap();
    clients.post(&world, &faults, 1).await;
    clients.wait(seen).await;
    world.stop().await;
}

async fn damaged_tapes(root: &Path) -> u64 {
    let store = FileStore::new(root.join("home/tapes"), Durability::Os);
    let mut damaged = 0;
    for name in store.list(Listing::Sessions).await.unwrap() {
        let verdict = store.verify(&name).await.unwrap();
        damaged += u64::from(!verdict.damage.is_empty());
    }
    damaged
}

/// One run; also how many steps it had.
fn run(fault: Fault, durability: Durability, step: u64) -> (Report, u64) {
    let place = format!("{fault:?} at step {step}, durability {durability:?}");
    let dir = tempfile::tempdir().unwrap();
    let (faults, seen, mut clients) = (Faults::new(), Seen::default(), Clients::default());
    fault.prepare(&faults, step);
    life(under_fault(dir.path(), durability, &faults, &seen, &mut clients));
    if fault == Fault::PowerCut && faults.crashed() {
        faults.cut_power(dir.path(), step.is_multiple_of(2)).unwrap();
    }
    life(after(dir.path(), durability, &seen, &mut clients));
    // The last life finds nothing to do.
    let recovered = life(async {
        let world = World::open(dir.path(), durability, Faults::new().fs(), &seen).await.unwrap();
        let recovered = world.recovered;
        world.stop().await;
        (recovered.messages, recovered.replies)
    });
    assert_eq!(recovered, (0, 0), "{place}: something is never finished");
    assert_eq!(clients.accepted.len(), MESSAGES.len(), "{place}: not everything was accepted in the end");
    let report = judge(&place, fault, &seen, &clients, life(damaged_tapes(dir.path())));
    (report, faults.steps())
}

fn judge(place: &str, fault: Fault, seen: &Seen, clients: &Clients, damaged: u64) -> Report {
    let replies = seen.replies.borrow().clone();
    let mut report = Report { runs: 1, damaged, refused: clients.refused, ..Report::default() };
    for (number, id) in &clients.accepted {
        report.accepted += 1;
        let Some(replies) = replies.get(id) else {
            report.lost += 1;
            continue;
        };
        let texts: HashSet<_> = replies.iter().map(|reply| reply.text.as_str()).collect();
        let ids: HashSet<_> = replies.iter().map(|reply| reply.id.as_str()).collect();
        assert_eq!(ids.len(), 1, "{place}: several replies to {number}: {replies:?}");
        let is_answer = texts.contains(format!("noted {number}").as_str());
        let is_error = texts.iter().any(|text| text.contains("An error occurred") && text.contains("tapes"));
        assert!(is_answer || is_error, "{place}: {replies:?}");
        report.answered += u64::from(is_answer);
        report.told += u64::from(!is_answer);
        report.sent_again += u64::from(replies.len() > 1);
        // The named case, and no other.
        assert!(replies.len() == 1 || fault.ends_the_process(), "{place}: sent twice: {replies:?}");
        assert!(replies.len() <= 2, "{place}: {replies:?}");
    }
    let unasked: Vec<_> =
        replies.keys().filter(|id| !clients.accepted.values().any(|known| known == *id)).collect();
    assert!(unasked.is_empty(), "{place}: replies to nobody: {unasked:?}");
    let ran = seen.ran.lock().unwrap();
    assert!(ran.values().all(|times| *times == 1), "{place}: a tool ran twice: {ran:?}");
    assert_eq!(report.lost, 0, "{place}: acknowledged and never answered");
    assert_eq!(report.damaged, 0, "{place}: damaged tapes");
    report
}

// L1, L3: accepted = answered, whatever the disk does; a tool never runs twice; no tape is damaged.
#[test]
fn the_whole_path_under_every_fault_of_the_disk_loses_nothing() {
    let every = std::env::var_os("BUB_FAULT_STEPS").is_some();
    let mut total = Report::default();
    for durability in [Durability::Os, Durability::Always] {
        let (_, steps) = run(Fault::None, durability, 0);
        assert!(steps > 50, "{steps}");
        println!("durability {durability:?}: {steps} steps");
        for fault in Fault::ALL.into_iter().filter(|fault| fault.is_survived(durability)) {
            let mut report = Report::default();
            let stride = if every { 1 } else { STRIDE };
            // Each fault begins elsewhere, so that together they are at all places.
            let first = 1 + fault as u64 % stride;
            let last = if fault.is_everywhere() { first } else { steps };
            for step in (first..=last).step_by(usize::try_from(stride).unwrap()) {
                report.add(&run(fault, durability, step).0);
            }
            println!("{:<12} {report}", format!("{fault:?}"));
            total.add(&report);
        }
    }
    println!("{:<12} {total}", "all");
}
