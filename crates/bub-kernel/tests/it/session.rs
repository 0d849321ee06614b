//! Resolving the session of a message.

use bub_kernel::{
    Envelope,
    hooks::point::{LoadState, ResolveSession},
};
use serde_json::json;

use crate::support::{self, FakePlugin, Trace, framework, hi, none, some};

async fn resolved(plugins: Vec<FakePlugin>, message: Envelope) -> String {
    support::resolved(&framework(plugins), message)
        .await
        .unwrap()
}

// S-3, S-42
#[tokio::test]
async fn the_latest_registered_opinion_wins() {
    let plugins = vec![
        FakePlugin::new().on::<ResolveSession>(|_| some("early")),
        FakePlugin::new().on_async::<ResolveSession>(|_| some("late")),
        FakePlugin::new().on::<ResolveSession>(|_| none()),
    ];
    assert_eq!(resolved(plugins, hi()).await, "late");
}

// S-3: by default, the session is the envelope's own id, or `channel:chat_id`. A missing part becomes `default`.
#[tokio::test]
async fn without_an_opinion_the_envelope_decides() {
    let cases = [
        (json!({"session_id": "mine", "channel": "cli"}), "mine"),
        (json!({"session_id": 42}), "42"),
        (
            json!({"session_id": null, "channel": "cli", "chat_id": "room"}),
            "cli:room",
        ),
        (json!({"session_id": "", "channel": "cli"}), "cli:default"),
        (json!({"chat_id": 7}), "default:7"),
        (json!({"channel": null}), "default:default"),
        (json!({}), "default:default"),
    ];
    for (message, expected) in cases {
        let silent = vec![FakePlugin::new().on::<ResolveSession>(|_| none())];
        assert_eq!(
            resolved(silent, Envelope::from_value(message.clone())).await,
            expected,
            "{message}"
        );
    }
}

// S-3
#[tokio::test]
async fn an_empty_result_counts_as_none_and_stops_the_search() {
    let plugins = vec![
        FakePlugin::new().on::<ResolveSession>(|_| some("early")),
        FakePlugin::new().on::<ResolveSession>(|_| some("")),
    ];
    assert_eq!(resolved(plugins, hi()).await, "cli:room");
}

// S-4: the session id is always written to the envelope. The Python version wrote it only if the key was missing.
#[tokio::test]
async fn the_resolved_id_is_written_back_to_the_envelope() {
    for session_id in [json!(null), json!(" "), json!("other")] {
        let trace = Trace::default();
        let seen = trace.clone();
        let plugin = FakePlugin::new()
            .on::<ResolveSession>(|_| some("resolved"))
            .on::<LoadState>(move |call| {
                seen.note(call.args.message.session_id().unwrap().into_owned());
                none()
            });
        let message = hi().with("session_id", session_id);
        framework([plugin]).process_inbound(message).await.unwrap();
        assert_eq!(trace.lines(), ["resolved"]);
    }
}
