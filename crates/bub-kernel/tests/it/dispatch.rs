//! Dispatching rendered messages.

use std::sync::Arc;

use bub_kernel::{
    ChannelRouter, Envelope,
    hooks::point::{DispatchOutbound, RenderOutbound},
};

use crate::support::{
    EventResult, FakePlugin, FakeRouter, Trace, fail, failing_turn, framework, none, turn,
};

fn dispatch_plugin(name: &'static str, trace: &Trace, delivered: Option<bool>) -> FakePlugin {
    let trace = trace.clone();
    FakePlugin::new().on::<DispatchOutbound>(move |call| {
        trace.note(format!("{name} {}", call.args.message.content()));
        Ok(delivered)
    })
}

fn two_replies() -> FakePlugin {
    FakePlugin::new().on::<RenderOutbound>(|_| {
        Ok(Some(vec![
            Envelope::from_text("one"),
            Envelope::from_text("two"),
        ]))
    })
}

// S-22: each message is passed to all plugins, in order. Their results are not used.
#[tokio::test]
async fn every_message_goes_to_every_implementation_in_order() {
    for delivered in [None, Some(true), Some(false)] {
        let trace = Trace::default();
        let plugins = [
            dispatch_plugin("low", &trace, Some(true)),
            two_replies(),
            dispatch_plugin("high", &trace, delivered),
        ];
        turn(&framework(plugins)).await.unwrap();
        assert_eq!(
            trace.lines(),
            ["high one", "low one", "high two", "low two"]
        );
    }
}

// S-22, S-45
#[tokio::test]
async fn a_delivery_that_fails_fails_the_turn_there() {
    let trace = Trace::default();
    let plugins = [
        dispatch_plugin("low", &trace, None),
        two_replies(),
        FakePlugin::new().on::<DispatchOutbound>(|call| {
            if call.args.message.content() == "two" {
                fail("line is dead")
            } else {
                none()
            }
        }),
    ];
    let error = failing_turn(&framework(plugins)).await;
    assert_eq!(error.origin().unwrap().hook, "dispatch_outbound");
    assert_eq!(trace.lines(), ["low one"]);
}

// S-54: the final message reaches a channel through `send`.
#[tokio::test]
async fn a_router_sends_to_the_output_channel_and_says_whether_there_was_one() {
    let trace = Trace::default();
    let router: Arc<dyn ChannelRouter> = FakeRouter::to(&trace, EventResult::Succeeds);
    let to = |channel: &'static str| Envelope::from_text("x").with("channel", channel);
    assert!(router.dispatch(to("cli").into()).await.unwrap());
    assert!(!router.dispatch(to("mail").into()).await.unwrap());
    assert!(
        !router
            .dispatch(to("cli").with("output_channel", "mail").into())
            .await
            .unwrap()
    );
    assert!(
        router
            .dispatch(to("cli").with("output_channel", "").into())
            .await
            .unwrap()
    );
    assert!(
        router
            .dispatch(to("mail").with("output_channel", "cli").into())
            .await
            .unwrap()
    );
    assert!(
        !router
            .dispatch(Envelope::from_text("x").into())
            .await
            .unwrap()
    );
    assert_eq!(trace.lines().len(), 3);
}
