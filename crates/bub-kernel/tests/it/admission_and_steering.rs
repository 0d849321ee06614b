//! Admission of inbound messages, and the steering inbox.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use bub_kernel::{
    Admission, AdmissionDecision, Envelope, Inbound, ModelStream, Provided, Result, SessionId,
    SteeringInbox, TurnSnapshot, async_trait,
    hooks::point::{AdmitMessage, ProvideSteeringInbox, RunModelStream},
};

use crate::support::{FakePlugin, LogCapture, fail, failing_turn, framework, hi, none, turn};

/// An inbox with a limit per session.
pub(crate) struct FakeInbox {
    limit: usize,
    queues: Mutex<HashMap<SessionId, Vec<Inbound>>>,
}

impl FakeInbox {
    pub(crate) fn shared(limit: usize) -> Arc<dyn SteeringInbox> {
        Arc::new(Self {
            limit,
            queues: Mutex::default(),
        })
    }
}

#[async_trait]
impl SteeringInbox for FakeInbox {
    async fn enqueue(&self, session_id: &SessionId, message: Inbound) -> Result<bool> {
        let mut queues = self.queues.lock().unwrap();
        let queue = queues.entry(session_id.clone()).or_default();
        let has_space = queue.len() < self.limit;
        if has_space {
            queue.push(message);
        }
        Ok(has_space)
    }

    async fn drain(&self, session_id: &SessionId) -> Result<Vec<Inbound>> {
        let drained = self
            .queues
            .lock()
            .unwrap()
            .remove(session_id)
            .unwrap_or_default();
        Ok(drained)
    }

    fn count(&self, session_id: &SessionId) -> usize {
        self.queues
            .lock()
            .unwrap()
            .get(session_id)
            .map_or(0, Vec::len)
    }
}

fn snapshot() -> TurnSnapshot {
    TurnSnapshot {
        session_id: "s".into(),
        is_running: true,
        running_count: 1,
        pending_count: 2,
        steering_count: 3,
    }
}

// H-30
#[tokio::test]
async fn the_first_opinion_admits_and_it_sees_how_busy_the_session_is() {
    let plugins = [
        FakePlugin::new().on::<AdmitMessage>(|_| panic!("not asked")),
        FakePlugin::new().on_async::<AdmitMessage>(|call| {
            let turn = call.args.turn;
            let reason = format!(
                "{} {} {}",
                turn.running_count, turn.pending_count, turn.steering_count
            );
            Ok(Some(
                Admission::new(AdmissionDecision::Steer).with_reason(reason),
            ))
        }),
        FakePlugin::new().on::<AdmitMessage>(|_| none()),
    ];
    let admitted = framework(plugins)
        .admit_message(&"s".into(), &hi().into(), &snapshot())
        .await;
    assert_eq!(
        admitted,
        Some(Admission {
            decision: AdmissionDecision::Steer,
            reason: Some("1 2 3".into())
        })
    );
}

#[tokio::test]
async fn without_an_opinion_the_runtime_decides() {
    assert_eq!(
        framework([])
            .admit_message(&"s".into(), &hi().into(), &snapshot())
            .await,
        None
    );
}

// H-30: a failing `admit_message` makes no decision, so the message is processed. The Python version raised the error.
#[tokio::test]
async fn an_admission_that_fails_does_not_keep_the_message_out() {
    let log = LogCapture::start();
    let plugins = [
        FakePlugin::new().on::<AdmitMessage>(|_| Ok(Some(Admission::new(AdmissionDecision::Drop)))),
        FakePlugin::new().on::<AdmitMessage>(|_| fail("boom")),
    ];
    let admitted = framework(plugins)
        .admit_message(&"s".into(), &hi().into(), &snapshot())
        .await;
    assert_eq!(admitted, None);
    assert_eq!(
        log.lines(),
        ["WARN hook.admit_message_failed adapter=p1 error=boom"]
    );
}

#[test]
fn decisions_have_names() {
    let names = ["process", "drop", "follow_up", "steer", "other"];
    let decisions = names.map(AdmissionDecision::from_name);
    assert_eq!(
        decisions,
        [
            Some(AdmissionDecision::Process),
            Some(AdmissionDecision::Drop),
            Some(AdmissionDecision::FollowUp),
            Some(AdmissionDecision::Steer),
            None
        ]
    );
}

// H-47
#[tokio::test]
async fn steering_needs_a_running_scope_and_room() {
    let plugin = FakePlugin::new()
        .on::<ProvideSteeringInbox>(|_| Ok(Some(Provided::new(FakeInbox::shared(1)))));
    let framework = framework([plugin]);
    assert!(
        !framework
            .steer_message(&"s".into(), hi().into())
            .await
            .unwrap(),
        "no scope"
    );
    let running = framework.open_scope().await.unwrap();
    assert!(
        framework
            .steer_message(&"s".into(), hi().into())
            .await
            .unwrap()
    );
    assert!(
        !framework
            .steer_message(&"s".into(), hi().into())
            .await
            .unwrap(),
        "full"
    );
    let inbox = framework.steering_inbox().unwrap();
    assert_eq!(
        (inbox.count(&"s".into()), inbox.count(&"other".into())),
        (1, 0)
    );
    assert_eq!(inbox.drain(&"s".into()).await.unwrap().len(), 1);
    running.close().await.unwrap();
    assert!(
        !framework
            .steer_message(&"s".into(), hi().into())
            .await
            .unwrap()
    );
}

/// An inbox that always has one comma command, and never has space.
struct FullInbox;

#[async_trait]
impl SteeringInbox for FullInbox {
    async fn enqueue(&self, _session_id: &SessionId, _message: Inbound) -> Result<bool> {
        Ok(false)
    }

    async fn drain(&self, _session_id: &SessionId) -> Result<Vec<Inbound>> {
        Ok(vec![Envelope::from_text(",help").into()])
    }

    fn count(&self, _session_id: &SessionId) -> usize {
        1
    }
}

/// An inbox that panics when messages are taken from it.
struct PanickingInbox;

#[async_trait]
impl SteeringInbox for PanickingInbox {
    async fn enqueue(&self, _session_id: &SessionId, _message: Inbound) -> Result<bool> {
        panic!("cannot add")
    }

    async fn drain(&self, _session_id: &SessionId) -> Result<Vec<Inbound>> {
        panic!("cannot take")
    }

    fn count(&self, _session_id: &SessionId) -> usize {
        1
    }
}

/// A plugin with an inbox and a model, so that the turn takes the queued messages.
fn model_with_inbox(inbox: fn() -> Arc<dyn SteeringInbox>) -> FakePlugin {
    FakePlugin::new()
        .on::<ProvideSteeringInbox>(move |_| Ok(Some(Provided::new(inbox()))))
        .on::<RunModelStream>(|_| Ok(Some(ModelStream::from_text("answer"))))
}

#[tokio::test]
async fn a_command_that_does_not_fit_back_into_the_inbox_is_reported() {
    let framework = framework([model_with_inbox(|| Arc::new(FullInbox))]);
    let running = framework.open_scope().await.unwrap();
    let log = LogCapture::start();
    turn(&framework).await.unwrap();
    let lines = log.lines();
    assert!(
        lines
            .iter()
            .any(|line| line.contains("steering.message_lost")),
        "{lines:?}"
    );
    running.close().await.unwrap();
}

#[tokio::test]
async fn a_panic_in_the_inbox_is_an_error_of_the_turn() {
    let framework = framework([model_with_inbox(|| Arc::new(PanickingInbox))]);
    let running = framework.open_scope().await.unwrap();
    let error = failing_turn(&framework).await;
    assert!(error.message().contains("panicked: cannot take"), "{error}");
    let taken = framework.take_steered(&"s".into()).await;
    assert!(taken.is_err(), "{taken:?}");
    running.close().await.unwrap();
}
