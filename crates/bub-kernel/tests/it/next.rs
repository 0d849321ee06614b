//! Calling the next plugin.

use bub_kernel::{
    Envelope, Error, ModelStream, Prompt, Result, StreamEvent, hooks,
    hooks::{
        Next, args,
        point::{BuildPrompt, BuildTapeContext, RunModel, RunModelStream},
    },
};
use bub_tape::{AnchorSelector, TapeContext};

use crate::support::{FakePlugin, LogCapture, fail, failing_turn, framework, hi, none, some, turn};

struct PolitePlugin;

#[hooks(crate = bub_kernel)]
impl PolitePlugin {
    async fn build_prompt(&self, next: Next<'_, BuildPrompt>) -> Result<Option<Prompt>> {
        Ok(next
            .call()
            .await?
            .map(|prompt| Prompt::from(format!("please: {}", prompt.text()))))
    }
}

struct UppercasePlugin;

#[hooks(crate = bub_kernel)]
impl UppercasePlugin {
    async fn run_model_stream(
        &self,
        next: Next<'_, RunModelStream>,
    ) -> Result<Option<ModelStream>> {
        let next = next.call().await?;
        Ok(next.map(|stream| {
            stream.map_events(|event| match event {
                StreamEvent::Text(delta) => StreamEvent::Text(delta.to_uppercase()),
                other => other,
            })
        }))
    }
}

fn with_polite(next: FakePlugin, first: FakePlugin) -> bub_kernel::Framework {
    bub_kernel::Framework::builder()
        .plugin("below", next)
        .plugin("polite", PolitePlugin)
        .plugin("above", first)
        .build()
}

#[tokio::test]
async fn a_plugin_wraps_what_the_plugins_below_it_answer() {
    let next = FakePlugin::new()
        .on_async::<BuildPrompt>(|call| some(call.args.message.content().into_owned()));
    let first = FakePlugin::new().on::<BuildPrompt>(|_| none());
    assert_eq!(
        turn(&with_polite(next, first)).await.unwrap().prompt,
        Prompt::from("please: hi")
    );
}

#[tokio::test]
async fn the_chain_below_may_have_no_opinion() {
    assert_eq!(
        turn(&with_polite(FakePlugin::new(), FakePlugin::new()))
            .await
            .unwrap()
            .prompt,
        Prompt::from("hi")
    );
}

#[tokio::test]
async fn an_error_from_below_names_the_plugin_that_failed() {
    let next = FakePlugin::new().on::<BuildPrompt>(|_| fail("boom"));
    let error = failing_turn(&with_polite(next, FakePlugin::new())).await;
    assert_eq!(&*error.origin().unwrap().plugin, "below");
}

#[tokio::test]
async fn a_wrapper_can_recover_from_what_failed_below() {
    struct FallbackPlugin;
    #[hooks(crate = bub_kernel)]
    impl FallbackPlugin {
        async fn run_model(&self, next: Next<'_, RunModel>) -> Result<Option<String>> {
            next.call()
                .await
                .or_else(|error: Error| Ok(Some(format!("sorry: {error}"))))
        }
    }
    let framework = bub_kernel::Framework::builder()
        .plugin(
            "below",
            FakePlugin::new().on::<RunModel>(|_| panic!("bad day")),
        )
        .plugin("fallback", FallbackPlugin)
        .build();
    let output = turn(&framework).await.unwrap().model_output;
    assert_eq!(
        output,
        "sorry: [unknown] plugin code panicked: bad day; see the log"
    );
}

#[tokio::test]
async fn the_chain_below_can_be_asked_twice_and_with_other_arguments() {
    struct TwicePlugin;
    #[hooks(crate = bub_kernel)]
    impl TwicePlugin {
        async fn run_model(
            &self,
            prompt: &Prompt,
            next: Next<'_, RunModel>,
        ) -> Result<Option<String>> {
            let first = next.call().await?.unwrap_or_default();
            let other = Prompt::from(format!("{} again", prompt.text()));
            let second = next
                .with_args(args::RunModel {
                    prompt: &other,
                    ..next.args()
                })
                .call()
                .await?;
            Ok(second.map(|second| format!("{first}, {second}")))
        }
    }
    let framework = bub_kernel::Framework::builder()
        .plugin(
            "below",
            FakePlugin::new()
                .on_async::<RunModel>(|call| some(format!("<{}>", call.args.prompt.text()))),
        )
        .plugin("twice", TwicePlugin)
        .build();
    assert_eq!(
        turn(&framework).await.unwrap().model_output,
        "<hi>, <hi again>"
    );
}

// In the model stage, `next` calls both model hooks of the next plugins.
#[tokio::test]
async fn a_stream_wrapper_wraps_text_and_stream_models_alike() {
    let models = [
        FakePlugin::new().on::<RunModel>(|_| some("text")),
        FakePlugin::new().on::<RunModelStream>(|_| Ok(Some(ModelStream::from_text("text")))),
    ];
    for model in models {
        let framework = bub_kernel::Framework::builder()
            .plugin("model", model)
            .plugin("loud", UppercasePlugin)
            .build();
        assert_eq!(turn(&framework).await.unwrap().model_output, "TEXT");
    }
}

#[tokio::test]
async fn a_text_wrapper_drains_the_stream_below() {
    struct QuotePlugin;
    #[hooks(crate = bub_kernel)]
    impl QuotePlugin {
        async fn run_model(&self, next: Next<'_, RunModel>) -> Result<Option<String>> {
            Ok(next.call().await?.map(|text| format!("«{text}»")))
        }
    }
    let model = FakePlugin::new().on::<RunModelStream>(|_| {
        let events = ["a", "b"].map(|delta| StreamEvent::Text(delta.to_owned()));
        Ok(Some(ModelStream::from_events(events)))
    });
    let framework = bub_kernel::Framework::builder()
        .plugin("model", model)
        .plugin("quote", QuotePlugin)
        .build();
    assert_eq!(turn(&framework).await.unwrap().model_output, "«ab»");
}

#[tokio::test]
async fn wrappers_nest() {
    let framework = bub_kernel::Framework::builder()
        .plugin("model", FakePlugin::new().on::<BuildPrompt>(|_| some("x")))
        .plugin("inner", PolitePlugin)
        .plugin("outer", PolitePlugin)
        .build();
    let result = framework.process_inbound(hi()).await.unwrap();
    assert_eq!(result.prompt, Prompt::from("please: please: x"));
}

#[test]
fn a_sync_hook_asks_below_without_waiting() {
    struct Whole;
    #[hooks(crate = bub_kernel)]
    impl Whole {
        fn build_tape_context(
            &self,
            next: Next<'_, BuildTapeContext>,
        ) -> Result<Option<TapeContext>> {
            Ok(next
                .call_sync()?
                .map(|context| context.with_anchor(AnchorSelector::Whole)))
        }
    }
    let log = LogCapture::start();
    let framework = bub_kernel::Framework::builder()
        .plugin(
            "plain",
            FakePlugin::new().on::<BuildTapeContext>(|_| some(TapeContext::new())),
        )
        .plugin(
            "slow",
            FakePlugin::new().on_async::<BuildTapeContext>(|_| panic!("not called")),
        )
        .plugin("whole", Whole)
        .build();
    assert_eq!(
        framework.tape_context().unwrap().unwrap().anchor,
        AnchorSelector::Whole
    );
    assert_eq!(
        log.lines(),
        ["WARN hook.async_not_supported hook=build_tape_context adapter=slow"]
    );
}

#[tokio::test]
async fn a_message_rewritten_for_the_chain_below_stays_there() {
    let next =
        FakePlugin::new().on::<BuildPrompt>(|call| some(call.args.message.content().into_owned()));
    let wrapper = FakePlugin::new().on::<BuildPrompt>(|call| {
        let shadow = Envelope::from_text("shadow");
        let args = args::BuildPrompt {
            message: &shadow,
            ..call.args
        };
        call.next().with_args(args).call_sync().map_err(Into::into)
    });
    assert_eq!(
        turn(&framework([next, wrapper])).await.unwrap().prompt,
        Prompt::from("shadow")
    );
}
