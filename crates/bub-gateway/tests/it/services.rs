//! Background services: start, restart and stop.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bub_gateway::status;
use bub_kernel::{ChannelMessage, Error, Result, Service, ServiceContext, async_trait};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::harness::{Echo, FakeChannel, GatewayFixture, options};

/// Fails or panics in the first runs, then submits a message and runs until it is stopped, or forever.
#[derive(Default)]
struct FakeService {
    failures: usize,
    panics: bool,
    ignores_stop: bool,
    runs: watch::Sender<usize>,
    stops: AtomicUsize,
}

#[async_trait]
impl Service for FakeService {
    fn name(&self) -> &'static str {
        "clock"
    }

    async fn run(&self, context: ServiceContext) -> Result<()> {
        self.runs.send_modify(|runs| *runs += 1);
        if *self.runs.borrow() <= self.failures {
            assert!(!self.panics, "on purpose");
            return Err(Error::unknown("no connection"));
        }
        let message = ChannelMessage::new("lab:a", "lab", "tick").chat_id("a");
        (context.message_handler)(message.active().into()).await?;
        if self.ignores_stop {
            std::future::pending::<()>().await;
        }
        context.stop.cancelled().await;
        self.stops.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

async fn open(path: &Path, service: &Arc<FakeService>) -> GatewayFixture {
    let mut echo = Echo::new(vec![FakeChannel::new("lab")]);
    echo.services = vec![Arc::clone(service) as Arc<dyn Service>];
    GatewayFixture::with(options(path), echo).await
}

async fn state(path: &Path) -> Value {
    let status = status::send_request(path, &json!({"do": "status"})).await;
    status.unwrap().unwrap()["services"][0].clone()
}

#[tokio::test(start_paused = true)]
async fn a_service_runs_until_the_gateway_stops_and_its_messages_get_turns() {
    let dir = tempfile::tempdir().unwrap();
    let service = Arc::new(FakeService::default());
    let fixture = open(dir.path(), &service).await;
    let channel = Arc::clone(fixture.channel(0));
    assert_eq!(channel.wait_sent(1).await[0].content, "echo: tick");
    let expected = json!({"name": "clock", "state": "running", "last_error": null});
    assert_eq!(state(dir.path()).await, expected);
    let started = tokio::time::Instant::now();
    fixture.stop().await;
    assert_eq!(service.stops.load(Ordering::SeqCst), 1);
    assert!(started.elapsed() < Duration::from_secs(30), "it ends early");
}

// An exporter or a scheduler needs no channel.
#[tokio::test(start_paused = true)]
async fn a_gateway_runs_a_service_without_a_channel() {
    let dir = tempfile::tempdir().unwrap();
    let service = Arc::new(FakeService::default());
    let mut echo = Echo::new(Vec::new());
    echo.services = vec![Arc::clone(&service) as Arc<dyn Service>];
    let fixture = GatewayFixture::with(options(dir.path()), echo).await;
    let mut runs = service.runs.subscribe();
    runs.wait_for(|runs| *runs > 0).await.unwrap();
    assert_eq!(state(dir.path()).await["name"], "clock");
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_service_that_fails_or_panics_is_restarted_with_backoff() {
    for panics in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let service = Arc::new(FakeService {
            failures: 3,
            panics,
            ..FakeService::default()
        });
        let started = tokio::time::Instant::now();
        let fixture = open(dir.path(), &service).await;
        let channel = Arc::clone(fixture.channel(0));
        let mut runs = service.runs.subscribe();
        runs.wait_for(|runs| *runs == 1).await.unwrap();
        channel.wait_sent(1).await;
        assert_eq!(*service.runs.borrow(), 4);
        assert!(
            started.elapsed() >= Duration::from_secs(1 + 2 + 4),
            "{:?}",
            started.elapsed()
        );
        let state = state(dir.path()).await;
        let error = state["last_error"].as_str().unwrap();
        assert_eq!(state["state"], "running");
        assert_eq!(error.contains("panicked"), panics, "{error}");
        fixture.stop().await;
    }
}

// L8: a service that hangs cannot keep the gateway from stopping.
#[tokio::test(start_paused = true)]
async fn a_service_that_ignores_the_stop_is_aborted_after_the_drain_time() {
    let dir = tempfile::tempdir().unwrap();
    let service = Arc::new(FakeService {
        ignores_stop: true,
        ..FakeService::default()
    });
    let fixture = open(dir.path(), &service).await;
    fixture.channel(0).wait_sent(1).await;
    let started = tokio::time::Instant::now();
    fixture.stop().await;
    let elapsed = started.elapsed();
    assert!(elapsed >= Duration::from_secs(30), "{elapsed:?}");
    assert!(elapsed < Duration::from_secs(40), "{elapsed:?}");
}
