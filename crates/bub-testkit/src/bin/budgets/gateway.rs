//! Budgets of the gateway: its start, its memory, what a session and a turn cost, and that nothing grows.

use std::{thread, time::Duration};

use bub_testkit::program::Program;

use crate::{BudgetResult, Budgets, MB, least};

/// Starts, of which the best counts.
const START_COUNT: u32 = 20;
/// Beyond what fills up and is then full: open tapes, the 2,000 messages that the webhook remembers.
const WARMUP_TURNS: usize = 3_000;
const TURN_COUNT: usize = 10_000;
/// Sessions come and go.
const TURNS_PER_SESSION: usize = 4;
/// Turns whose processor time is looked at together; the least counts.
const TURNS_PER_SAMPLE: usize = 500;
/// Sessions that are used once and idle from then on.
const SESSION_COUNT: usize = 2_000;

pub(crate) fn start(budgets: &mut Budgets, program: &Program, place: &str) -> BudgetResult<()> {
    // The limit is for an empty home; with very many tapes it is that of every start.
    let limit = Duration::from_millis(if place.is_empty() { 30 } else { 100 });
    let mut memory = u64::MAX;
    let what = format!("bub gateway: ready{place}");
    let hint = "what stands before READY=1: bub/src/cli/gateway.rs, Gateway::open; `strace -f -r`";
    budgets.attempt(&what, hint, |budgets| {
        let ready = least(limit, START_COUNT, || {
            let gateway = program.gateway()?;
            // What the start leaves to do at once is done.
            thread::sleep(Duration::from_millis(100));
            memory = memory.min(gateway.memory()?);
            Ok(gateway.ready)
        })?;
        budgets.time(&what, ready, limit, hint)?;
        let hint =
            "what is built before the first message needs it (HTTP clients, trust stores, threads)";
        budgets.size(
            &format!("bub gateway: idle memory{place}"),
            memory,
            12 * MB,
            hint,
        )
    })
}

pub(crate) fn sessions_and_turns(budgets: &mut Budgets, program: &Program) -> BudgetResult<()> {
    let hint =
        "`perf record -g` of a gateway under load; benches `turn` (bub-agent) and `load` (bub)";
    budgets.attempt("bub gateway: sessions and turns", hint, |budgets| {
        let gateway = program.gateway()?;
        let memory = || -> BudgetResult<u64> {
            thread::sleep(Duration::from_millis(500));
            Ok(gateway.memory()?)
        };
        let chat = |number: usize| format!("chat{}", number / TURNS_PER_SESSION);
        gateway.flood(0..WARMUP_TURNS, chat)?;
        let (before, mut turn) = (memory()?, Duration::MAX);
        for begin in (WARMUP_TURNS..TURN_COUNT).step_by(TURNS_PER_SAMPLE) {
            let busy = gateway.cpu()?;
            gateway.flood(begin..begin + TURNS_PER_SAMPLE, chat)?;
            turn = turn.min(gateway.cpu()?.saturating_sub(busy) / u32::try_from(TURNS_PER_SAMPLE)?);
        }
        let after = memory()?;
        budgets.time("bub gateway: processor time of a turn", turn, Duration::from_millis(3), hint)?;
        let hint =
            "something is kept for each turn: maps and lists without a limit; heaptrack of a gateway under load";
        let growth = after.saturating_sub(before);
        budgets.size(&format!("bub gateway: growth from turn {WARMUP_TURNS} to {TURN_COUNT}"), growth, 2 * MB, hint)?;

        gateway.flood(0..SESSION_COUNT, |number| format!("idle{number}"))?;
        let each = memory()?.saturating_sub(after) / SESSION_COUNT as u64;
        let hint =
            "what a lane, a tape or a lease keeps after its turn: bub-gateway/src/lane.rs, caches of bub-tape";
        budgets.size("bub gateway: memory of an idle session", each, 1_000, hint)
    })
}
