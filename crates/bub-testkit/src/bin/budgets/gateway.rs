//! Budgets of the gateway: start, memory, cost of a session and a turn, and no growth.

use std::{thread, time::Duration};

use bub_testkit::program::Program;

use crate::{BudgetResult, Budgets, MB, minimum_time};

/// Number of starts; the best one counts.
const START_COUNT: u32 = 20;
/// Number of turns before measuring, more than needed to fill bounded caches: open tapes and the
/// 2,000 messages that the webhook keeps.
const WARMUP_TURNS: usize = 3_000;
const TURN_COUNT: usize = 10_000;
/// Number of turns per session before it is replaced.
const TURNS_PER_SESSION: usize = 4;
/// Number of turns per sample of CPU time; the minimum counts.
const TURNS_PER_SAMPLE: usize = 500;
/// Number of sessions that are used once and stay idle.
const SESSION_COUNT: usize = 2_000;

pub(crate) fn check_start(
    budgets: &mut Budgets,
    program: &Program,
    suffix: &str,
) -> BudgetResult<()> {
    // The limit applies to an empty home; with very many tapes, the limit of every start applies.
    let limit = Duration::from_millis(if suffix.is_empty() { 30 } else { 100 });
    let mut memory = u64::MAX;
    let label = format!("bub gateway: ready{suffix}");
    let hint = "what runs before READY=1: bub/src/cli/gateway.rs, Gateway::open; `strace -f -r`";
    budgets.try_measure(&label, hint, |budgets| {
        let ready = minimum_time(limit, START_COUNT, || {
            let gateway = program.start_gateway()?;
            // Wait until background work of the start is done.
            thread::sleep(Duration::from_millis(100));
            memory = memory.min(gateway.memory()?);
            Ok(gateway.ready)
        })?;
        budgets.check_time(&label, ready, limit, hint)?;
        let hint =
            "what is built before the first message needs it (HTTP clients, trust stores, threads)";
        budgets.check_size(
            &format!("bub gateway: idle memory{suffix}"),
            memory,
            15 * MB + MB / 5,
            hint,
        )
    })
}

pub(crate) fn check_sessions_and_turns(
    budgets: &mut Budgets,
    program: &Program,
) -> BudgetResult<()> {
    let hint =
        "`perf record -g` of a gateway under load; benches `turn` (bub-agent) and `load` (bub)";
    budgets.try_measure("bub gateway: sessions and turns", hint, |budgets| {
        let gateway = program.start_gateway()?;
        let memory = || -> BudgetResult<u64> {
            thread::sleep(Duration::from_millis(500));
            Ok(gateway.memory()?)
        };
        let chat = |number: usize| format!("chat{}", number / TURNS_PER_SESSION);
        gateway.send_messages(0..WARMUP_TURNS, chat)?;
        let (before, mut turn) = (memory()?, Duration::MAX);
        for begin in (WARMUP_TURNS..TURN_COUNT).step_by(TURNS_PER_SAMPLE) {
            let busy = gateway.cpu_time()?;
            gateway.send_messages(begin..begin + TURNS_PER_SAMPLE, chat)?;
            turn = turn.min(gateway.cpu_time()?.saturating_sub(busy) / u32::try_from(TURNS_PER_SAMPLE)?);
        }
        let after = memory()?;
        budgets.check_time("bub gateway: processor time of a turn", turn, Duration::from_millis(3), hint)?;
        let hint =
            "something is kept for each turn: maps and lists without a limit; heaptrack of a gateway under load";
        let growth = after.saturating_sub(before);
        budgets.check_size(&format!("bub gateway: growth from turn {WARMUP_TURNS} to {TURN_COUNT}"), growth, 2 * MB, hint)?;

        gateway.send_messages(0..SESSION_COUNT, |number| format!("idle{number}"))?;
        let each = memory()?.saturating_sub(after) / SESSION_COUNT as u64;
        let hint =
            "what a lane, a tape or a lease keeps after its turn: bub-gateway/src/lane.rs, caches of bub-tape";
        budgets.check_size("bub gateway: memory of an idle session", each, 1_000, hint)
    })
}
