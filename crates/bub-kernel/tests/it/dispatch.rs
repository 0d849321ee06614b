//! Delivering what was rendered.

use std::sync::Arc;

use bub_kernel::{
    ChannelRouter, Envelope,
    hooks::point::{DispatchOutbound, RenderOutbound},
};

use crate::support::{Fake, FakeRouter, Manner, Trace, fail, failing_turn, framework, none, turn};

fn dispatching(name: &'static str, trace: &Trace, delivered: Option<bool>) -> Fake {
    let trace = trace.clone();
    Fake::new().on::<DispatchOutbound>(move |call| {
        trace.note(format!("{name} {}", call.args.message.content()));
        Ok(delivered)
    })
}

fn two_replies() -> Fake {
    Fake::new()
        .on::<RenderOutbound>(|_| Ok(Some(vec![Envelope::text("one"), Envelope::text("two")])))
}

// S-22: once for each message, in order, to all; what they return is not used.
#[tokio::test]
async fn every_message_goes_to_every_implementation_in_order() {
    for delivered in [None, Some(true), Some(false)] {
        let trace = Trace::default();
        let plugins = [
            dispatching("low", &trace, Some(true)),
            two_replies(),
            dispatching("high", &trace, delivered),
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
        dispatching("low", &trace, None),
        two_replies(),
        Fake::new().on::<DispatchOutbound>(|call| {
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
    let router: Arc<dyn ChannelRouter> = FakeRouter::to(&trace, Manner::Calm);
    let to = |channel: &'static str| Envelope::text("x").with("channel", channel);
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
    assert!(!router.dispatch(Envelope::text("x").into()).await.unwrap());
    assert_eq!(trace.lines().len(), 3);
}
