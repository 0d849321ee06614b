//! Admission of inbound messages, and the steering inbox.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use bub_kernel::{
    Admission, AdmissionDecision, BoxFuture, Inbound, Provided, Result, SessionId, SteeringInbox,
    TurnSnapshot,
    hooks::point::{AdmitMessage, ProvideSteeringInbox},
};

use crate::support::{FakePlugin, LogCapture, fail, framework, hi, none};

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

impl SteeringInbox for FakeInbox {
    fn enqueue<'a>(
        &'a self,
        session_id: &'a SessionId,
        message: Inbound,
    ) -> BoxFuture<'a, Result<bool>> {
        let mut queues = self.queues.lock().unwrap();
        let queue = queues.entry(session_id.clone()).or_default();
        let has_space = queue.len() < self.limit;
        if has_space {
            queue.push(message);
        }
        Box::pin(std::future::ready(Ok(has_space)))
    }

    fn drain<'a>(&'a self, session_id: &'a SessionId) -> BoxFuture<'a, Result<Vec<Inbound>>> {
        let drained = self
            .queues
            .lock()
            .unwrap()
            .remove(session_id)
            .unwrap_or_default();
        Box::pin(std::future::ready(Ok(drained)))
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
