//! The order of the stages, and the result of a turn.

use bub_kernel::{
    Envelope, Prompt,
    hooks::{
        HookPoint,
        point::{
            BuildPrompt, DispatchOutbound, LoadState, RenderOutbound, ResolveSession, RunModel,
            SaveState,
        },
    },
};

use crate::support::{FakePlugin, Trace, framework, hi, none, some, turn};

/// Adds a hook that records its call and returns `None`.
fn with_note<P: HookPoint>(
    fake: FakePlugin,
    note: impl Fn() + Send + Sync + 'static,
) -> FakePlugin {
    fake.on::<P>(move |_| {
        note();
        none()
    })
}

/// Returns a plugin that records each stage and always returns `None`.
fn silent_plugin(name: &'static str, trace: &Trace) -> FakePlugin {
    let noting = |stage: &'static str| {
        let trace = trace.clone();
        move || trace.note(format!("{stage} {name}"))
    };
    let fake = with_note::<ResolveSession>(FakePlugin::new(), noting("resolve_session"));
    let fake = with_note::<LoadState>(fake, noting("load_state"));
    let fake = with_note::<BuildPrompt>(fake, noting("build_prompt"));
    let fake = with_note::<RunModel>(fake, noting("run_model"));
    let fake = with_note::<SaveState>(fake, noting("save_state"));
    let fake = with_note::<RenderOutbound>(fake, noting("render_outbound"));
    with_note::<DispatchOutbound>(fake, noting("dispatch_outbound"))
}

// S-2, S-42
#[tokio::test]
async fn stages_run_in_the_order_of_the_seed_and_plugins_latest_first() {
    let trace = Trace::default();
    turn(&framework([
        silent_plugin("early", &trace),
        silent_plugin("late", &trace),
    ]))
    .await
    .unwrap();
    assert_eq!(
        trace.lines(),
        [
            "resolve_session late",
            "resolve_session early",
            "load_state late",
            "load_state early",
            "build_prompt late",
            "build_prompt early",
            "run_model late",
            "run_model early",
            "save_state late",
            "save_state early",
            "render_outbound late",
            "render_outbound early",
            "dispatch_outbound late",
            "dispatch_outbound early",
        ]
    );
}

// S-1: one inbound message, any number of outbound messages.
#[tokio::test]
async fn a_turn_without_plugins_answers_with_the_message_itself() {
    let result = turn(&framework([])).await.unwrap();
    assert_eq!(result.model_output, "hi");
    assert_eq!(result.outbounds.len(), 1);
}

// S-26
#[tokio::test]
async fn the_result_of_a_turn_holds_session_prompt_output_outbounds_and_state() {
    let plugin = FakePlugin::new()
        .on::<ResolveSession>(|_| some("s1"))
        .on::<BuildPrompt>(|call| {
            call.args.state.set("asked", true);
            some("question")
        })
        .on_async::<RunModel>(|_| some("answer"))
        .on::<RenderOutbound>(|_| {
            Ok(Some(vec![
                Envelope::from_text("one"),
                Envelope::from_text("two"),
            ]))
        });
    let result = framework([plugin]).process_inbound(hi()).await.unwrap();
    assert_eq!(result.session_id, "s1");
    assert_eq!(result.prompt, Prompt::from("question"));
    assert_eq!(result.model_output, "answer");
    let contents: Vec<_> = result
        .outbounds
        .iter()
        .map(|outbound| outbound.content().into_owned())
        .collect();
    assert_eq!(contents, ["one", "two"]);
    assert_eq!(result.state.get("asked"), Some(true.into()));
}

// S-48
#[tokio::test]
async fn every_stage_is_given_what_the_table_says() {
    let trace = Trace::default();
    let (a, b, c, d) = (trace.clone(), trace.clone(), trace.clone(), trace.clone());
    let plugin = FakePlugin::new()
        .on::<LoadState>(move |call| {
            a.note(format!(
                "{} {}",
                call.args.session_id,
                call.args.message.content()
            ));
            none()
        })
        .on::<RunModel>(move |call| {
            b.note(format!(
                "{} {}",
                call.args.session_id,
                call.args.prompt.text()
            ));
            some("out")
        })
        .on::<SaveState>(move |call| {
            let args = call.args;
            c.note(format!(
                "{} {} {}",
                args.session_id,
                args.message.content(),
                args.model_output
            ));
            none()
        })
        .on::<RenderOutbound>(move |call| {
            d.note(format!(
                "{} {}",
                call.args.message.content(),
                call.args.model_output
            ));
            none()
        });
    turn(&framework([plugin])).await.unwrap();
    assert_eq!(
        trace.lines(),
        ["cli:room hi", "cli:room hi", "cli:room hi out", "hi out"]
    );
}
