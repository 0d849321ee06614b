//! The four ways of calling a hook, and the report.

use bub_kernel::{
    Inbound, Prompt,
    hooks::{
        HookReturn, args,
        point::{BuildPrompt, DispatchOutbound, ResolveSession, SystemPrompt},
    },
};

use crate::support::{FakePlugin, LogCapture, Trace, detached, fail, framework, hi, none, some};

fn session_plugin(answer: fn() -> HookReturn<String>) -> FakePlugin {
    FakePlugin::new().on::<ResolveSession>(move |_| answer())
}

fn async_session_plugin(answer: fn() -> HookReturn<String>) -> FakePlugin {
    FakePlugin::new().on_async::<ResolveSession>(move |_| answer())
}

fn session_args(inbound: &Inbound) -> args::ResolveSession<'_> {
    args::ResolveSession {
        message: &inbound.message,
        inbound,
    }
}

// S-43
#[tokio::test]
async fn call_first_returns_the_first_value_and_calls_no_further() {
    let set = framework([
        session_plugin(|| panic!("not called")),
        async_session_plugin(|| some("second")),
        session_plugin(none),
    ]);
    let first = set
        .hooks()
        .call_first::<ResolveSession>(session_args(&hi().into()))
        .await
        .unwrap();
    assert_eq!(first.as_deref(), Some("second"));
}

// S-43
#[tokio::test]
async fn call_many_returns_every_value_also_none() {
    let set = framework([
        session_plugin(|| some("low")),
        async_session_plugin(none),
        session_plugin(|| some("high")),
    ]);
    let results = set
        .hooks()
        .call_all::<ResolveSession>(session_args(&hi().into()))
        .await
        .unwrap();
    assert_eq!(
        results,
        [Some("high".to_owned()), None, Some("low".to_owned())]
    );
}

// S-43, S-46
#[test]
fn the_sync_variants_skip_async_implementations_with_a_warning() {
    let log = LogCapture::start();
    let set = framework([
        session_plugin(|| some("low")),
        async_session_plugin(|| panic!("not called")),
        session_plugin(none),
    ]);
    let message = hi().into();
    let first = set
        .hooks()
        .call_first_sync::<ResolveSession>(session_args(&message))
        .unwrap();
    assert_eq!(first.as_deref(), Some("low"));
    let results = set
        .hooks()
        .call_all_sync::<ResolveSession>(session_args(&message))
        .unwrap();
    assert_eq!(results, [None, Some("low".to_owned())]);
    let line = "WARN hook.async_not_supported hook=resolve_session adapter=p1";
    assert_eq!(log.lines(), [line, line]);
}

// S-46
#[tokio::test]
async fn async_calls_wait_for_async_implementations_in_order() {
    let trace = Trace::default();
    let plugin = |name: &'static str| {
        let trace = trace.clone();
        FakePlugin::new().on_async::<DispatchOutbound>(move |_| {
            trace.note(name);
            some(true)
        })
    };
    let set = framework([plugin("a"), plugin("b"), plugin("c")]);
    let message = hi();
    let delivered = set
        .hooks()
        .call_all::<DispatchOutbound>(args::DispatchOutbound {
            message: &message,
            turn: None,
        })
        .await;
    assert_eq!(delivered.unwrap(), [Some(true), Some(true), Some(true)]);
    assert_eq!(trace.lines(), ["c", "b", "a"]);
}

// S-45
#[tokio::test]
async fn errors_are_not_swallowed_in_any_of_the_four() {
    let set = framework([
        session_plugin(|| panic!("not called")),
        session_plugin(|| fail("boom")),
    ]);
    let message = hi().into();
    let hooks = set.hooks();
    let errors = [
        hooks
            .call_first::<ResolveSession>(session_args(&message))
            .await
            .unwrap_err(),
        hooks
            .call_all::<ResolveSession>(session_args(&message))
            .await
            .unwrap_err(),
        hooks
            .call_first_sync::<ResolveSession>(session_args(&message))
            .unwrap_err(),
        hooks
            .call_all_sync::<ResolveSession>(session_args(&message))
            .unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.to_string(), "boom");
        assert_eq!(
            (
                error.origin().unwrap().hook,
                &*error.origin().unwrap().plugin
            ),
            ("resolve_session", "p1")
        );
    }
}

#[tokio::test]
async fn calling_a_hook_nobody_implements_yields_nothing() {
    let set = framework([]);
    let turn = detached(&set);
    let args = args::BuildPrompt {
        message: turn.message(),
        session_id: turn.session_id(),
        state: turn.state(),
        turn: &turn,
    };
    assert!(
        set.hooks()
            .call_first::<BuildPrompt>(args)
            .await
            .unwrap()
            .is_none()
    );
    assert!(
        set.hooks()
            .call_all::<BuildPrompt>(args)
            .await
            .unwrap()
            .is_empty()
    );
    assert!(!set.hooks().is_implemented::<BuildPrompt>());
}

// S-47
#[test]
fn a_sync_only_hook_skips_async_implementations_and_joins_the_rest() {
    let log = LogCapture::start();
    let plugins = [
        FakePlugin::new().on::<SystemPrompt>(|_| some("base")),
        FakePlugin::new().on_async::<SystemPrompt>(|_| panic!("not called")),
    ];
    let framework = framework(plugins);
    let joined = framework
        .system_prompt(&Prompt::from("x"), &detached(&framework))
        .unwrap();
    assert_eq!(joined, "base");
    assert_eq!(
        log.lines(),
        ["WARN hook.async_not_supported hook=system_prompt adapter=p1"]
    );
}

// S-49
#[test]
fn the_report_is_in_registration_order() {
    let plugins = [
        session_plugin(none).on::<SystemPrompt>(|_| none()),
        FakePlugin::new(),
        async_session_plugin(none).on::<ResolveSession>(|_| none()),
    ];
    let report = framework(plugins).hooks().implemented_hooks();
    let rows: Vec<_> = report
        .iter()
        .map(|(spec, plugins)| format!("{}: {}", spec.name, plugins.join(", ")))
        .collect();
    assert_eq!(rows, ["resolve_session: p0, p2", "system_prompt: p0"]);
}
