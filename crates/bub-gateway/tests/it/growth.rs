//! Ten thousand turns do not increase memory use. They run in a separate process, because the test measures the process.

use crate::harness::{FakeChannel, GatewayFixture};

const CHATS: usize = 20;
const TURNS: usize = 10_000;
/// Maximum growth per turn in bytes: far more than allocator noise, far less than a real leak.
const MAX_GROWTH_BYTES: usize = 400;

fn memory() -> usize {
    let bytes = bub_testkit::program::process_memory("self").unwrap();
    usize::try_from(bytes).unwrap()
}

async fn turns(fixture: &GatewayFixture, count: usize) {
    let channel = fixture.channel(0);
    for round in 0..count / CHATS {
        let mut receipts = Vec::with_capacity(CHATS);
        for chat in 0..CHATS {
            receipts.push(
                channel
                    .say(&format!("chat{chat}"), &format!("number {round}"))
                    .await
                    .unwrap(),
            );
        }
        for receipt in receipts {
            receipt.outcome().await;
        }
        channel.wait_sent(CHATS).await;
        // Clear what the test itself keeps.
        channel.sent.send_modify(Vec::clear);
        fixture.echo.asked.send_modify(Vec::clear);
        fixture.echo.attempts.lock().unwrap().clear();
        fixture.echo.senders.lock().unwrap().clear();
        fixture.echo.sessions.lock().unwrap().clear();
        fixture.echo.resolved.lock().unwrap().clear();
        channel.snapshots.lock().unwrap().clear();
    }
}

// L5: memory does not grow with the number of finished turns.
#[test]
fn ten_thousand_turns_keep_nothing() {
    bub_testkit::run_alone("growth::ten_thousand_turns_keep_nothing", || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(measure_growth());
    });
}

async fn measure_growth() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = GatewayFixture::open(dir.path(), vec![FakeChannel::new("lab")]).await;
    turns(&fixture, TURNS / 5).await;
    let before = memory();
    turns(&fixture, TURNS).await;
    let grown = memory().saturating_sub(before);
    assert!(
        grown < TURNS * MAX_GROWTH_BYTES,
        "{TURNS} turns kept {grown} bytes"
    );
    fixture.stop().await;
}
