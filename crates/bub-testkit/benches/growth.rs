//! Growth of costs: with tapes in the home, with sessions of a gateway, with plugins.
//!
//! `cargo bench -p bub-testkit --bench growth -- --bub=PATH-TO-BUB [tapes | sessions | plugins]`.
//! Processes are measured from outside, so the shipped program can be measured.
#![allow(
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    missing_docs,
    reason = "a bench"
)]

use std::time::Duration;

use bub_testkit::{
    bench_output::{is_quick, print_figure, print_time},
    program::Program,
};

const RUNS: u32 = 10;

fn program() -> Program {
    let named = std::env::args().find_map(|arg| arg.strip_prefix("--bub=").map(str::to_owned));
    Program::new(named.unwrap()).unwrap()
}

/// Returns the sizes of a full or of a quick run.
fn sizes(all: &[usize], max_when_quick: usize) -> impl Iterator<Item = usize> {
    all.iter()
        .copied()
        .filter(move |size| !is_quick() || *size <= max_when_quick)
}

/// Measures the start with a number of tapes in the home, for a command with one turn and for a
/// gateway.
fn tapes() {
    for count in sizes(&[1, 10, 100, 1_000, 10_000, 100_000], 10_000) {
        let program = program();
        program.add_tapes(count, 20).unwrap();
        let run = program.best_of(&["run", "How is it?"], RUNS).unwrap();
        print_time(&format!("run_wall_by_tapes/{count}"), run.wall);
        print_time(&format!("run_cpu_by_tapes/{count}"), run.cpu);
        let ready = (0..RUNS)
            .map(|_| program.start_gateway().unwrap().ready)
            .min()
            .unwrap();
        print_time(&format!("gateway_ready_by_tapes/{count}"), ready);
    }
}

/// Measures one gateway with a growing number of sessions: CPU time per message between two sizes,
/// and the memory after them.
fn sessions() {
    let program = program();
    let gateway = program.start_gateway().unwrap();
    let mut before = 0;
    for count in sizes(&[1, 10, 100, 1_000, 10_000, 100_000], 10_000) {
        let busy = gateway.cpu_time().unwrap();
        gateway
            .send_messages(before..count, |number| format!("chat{number}"))
            .unwrap();
        let busy = gateway.cpu_time().unwrap().saturating_sub(busy);
        // Below a hundred messages the CPU clock is too coarse.
        if count >= 100 {
            print_time(
                &format!("gateway_cpu_of_a_message_by_sessions/{count}"),
                busy.div_f64((count - before) as f64),
            );
        }
        std::thread::sleep(Duration::from_millis(500));
        let memory = gateway.memory().unwrap() as f64 / 1e6;
        print_figure(&format!("gateway_memory_by_sessions/{count}"), memory, "MB");
        before = count;
    }
}

/// Measures commands with a number of external plugins: shell scripts with one hook that runs in
/// every turn.
fn plugins() {
    for count in [0_usize, 1, 5, 10, 20] {
        let program = program();
        for number in 0..count {
            let name = format!("p{number}");
            program
                .run(&["plugin", "new", &name, "--lang", "shell"])
                .unwrap();
            program.run(&["plugin", "add", &name, "--yes"]).unwrap();
        }
        for (name, args) in [("help", &["--help"][..]), ("run", &["run", "How is it?"])] {
            let best = program.best_of(args, RUNS).unwrap();
            print_time(&format!("{name}_wall_by_plugins/{count}"), best.wall);
            print_time(&format!("{name}_cpu_by_plugins/{count}"), best.cpu);
        }
    }
}

fn main() {
    if !std::env::args().any(|arg| arg.starts_with("--bub=")) {
        // A plain `cargo bench` has no program to measure.
        return;
    }
    let is_named = |case: &str| {
        let mut named = std::env::args()
            .skip(1)
            .filter(|arg| !arg.starts_with("--"))
            .peekable();
        named.peek().is_none() || named.any(|name| name == case)
    };
    for (name, case) in [
        ("tapes", tapes as fn()),
        ("sessions", sessions),
        ("plugins", plugins),
    ] {
        if is_named(name) {
            case();
        }
    }
}
