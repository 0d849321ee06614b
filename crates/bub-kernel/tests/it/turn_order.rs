//! The order of the stages, and what a turn returns.

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

use crate::support::{Fake, Trace, framework, hi, none, some, turn};

/// Adds a hook that notes its call.
fn noted<P: HookPoint>(fake: Fake, note: impl Fn() + Send + Sync + 'static) -> Fake {
    fake.on::<P>(move |_| {
        note();
        none()
    })
}

/// Notes each stage it is called for and has no opinion.
fn silent(name: &'static str, trace: &Trace) -> Fake {
    let noting = |stage: &'static str| {
        let trace = trace.clone();
        move || trace.note(format!("{stage} {name}"))
    };
    let fake = noted::<ResolveSession>(Fake::new(), noting("resolve_session"));
    let fake = noted::<LoadState>(fake, noting("load_state"));
    let fake = noted::<BuildPrompt>(fake, noting("build_prompt"));
    let fake = noted::<RunModel>(fake, noting("run_model"));
    let fake = noted::<SaveState>(fake, noting("save_state"));
    let fake = noted::<RenderOutbound>(fake, noting("render_outbound"));
    noted::<DispatchOutbound>(fake, noting("dispatch_outbound"))
}

// S-2, S-42
#[tokio::test]
async fn stages_run_in_the_order_of_the_seed_and_plugins_latest_first() {
    let trace = Trace::default();
    turn(&framework([
        silent("early", &trace),
        silent("late", &trace),
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

// S-1: one message in, any number out. The tape is written by plugins, none of which is here.
#[tokio::test]
async fn a_turn_without_plugins_answers_with_the_message_itself() {
    let result = turn(&framework([])).await.unwrap();
    assert_eq!(result.model_output, "hi");
    assert_eq!(result.outbounds.len(), 1);
}

// S-26
#[tokio::test]
async fn the_result_of_a_turn_holds_session_prompt_output_outbounds_and_state() {
    let plugin = Fake::new()
        .on::<ResolveSession>(|_| some("s1"))
        .on::<BuildPrompt>(|call| {
            call.args.state.set("asked", true);
            some("question")
        })
        .on_async::<RunModel>(|_| some("answer"))
        .on::<RenderOutbound>(|_| Ok(Some(vec![Envelope::text("one"), Envelope::text("two")])));
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
    let plugin = Fake::new()
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
