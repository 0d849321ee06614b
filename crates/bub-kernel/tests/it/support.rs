//! Fake plugins, channels and stores, a trace of calls, and captured logs.
//!
//! `bub::testing` runs turns with the agent; the kernel is tested without one.

mod channel;
mod store;

use std::sync::{Arc, Mutex};

use bub_kernel::{
    BoxError, BoxFuture, Envelope, Error, Framework, FrameworkBuilder, Inbound, Plugin, Result,
    State, Turn, TurnResult,
    hooks::{AsyncHook, HookCall, HookPoint, HookReturn, HookSet, SyncHook, point::OnError},
};

pub(crate) use bub_kernel::testing::{FakeChannel, LogCapture};
pub(crate) use channel::{EventResult, FakeRouter};
pub(crate) use store::{FullStore, LateWrite, entries, store_plugin};

/// A record of calls, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trace(Arc<Mutex<Vec<String>>>);

impl Trace {
    pub(crate) fn note(&self, line: impl Into<String>) {
        self.0.lock().unwrap().push(line.into());
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

/// A plugin whose hooks are closures.
#[derive(Default)]
pub(crate) struct FakePlugin(Vec<Registration>);

type Registration = Box<dyn Fn(&mut HookSet) + Send + Sync>;

impl FakePlugin {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Adds a synchronous implementation.
    pub(crate) fn on<P: HookPoint>(
        self,
        answer: impl Fn(HookCall<'_, P>) -> HookReturn<P::Output> + Send + Sync + 'static,
    ) -> Self {
        let answer = Arc::new(answer);
        self.register_with(move |hooks| hooks.add_sync::<P>(FakeHook(Arc::clone(&answer))))
    }

    /// Adds an asynchronous implementation, which is ready at its second poll.
    pub(crate) fn on_async<P: HookPoint>(
        self,
        answer: impl Fn(HookCall<'_, P>) -> HookReturn<P::Output> + Send + Sync + 'static,
    ) -> Self {
        let answer = Arc::new(answer);
        self.register_with(move |hooks| hooks.add_async::<P>(FakeHook(Arc::clone(&answer))))
    }

    /// Adds arbitrary registration code.
    pub(crate) fn register_with(
        mut self,
        add: impl Fn(&mut HookSet) + Send + Sync + 'static,
    ) -> Self {
        self.0.push(Box::new(add));
        self
    }
}

impl Plugin for FakePlugin {
    fn register(self: Arc<Self>, hooks: &mut HookSet) {
        for add in &self.0 {
            add(hooks);
        }
    }
}

struct FakeHook<F>(Arc<F>);

impl<P, F> SyncHook<P> for FakeHook<F>
where
    P: HookPoint,
    F: Fn(HookCall<'_, P>) -> HookReturn<P::Output> + Send + Sync + 'static,
{
    fn call(&self, call: HookCall<'_, P>) -> HookReturn<P::Output> {
        (self.0)(call)
    }
}

impl<P, F> AsyncHook<P> for FakeHook<F>
where
    P: HookPoint,
    F: Fn(HookCall<'_, P>) -> HookReturn<P::Output> + Send + Sync + 'static,
{
    fn call<'a>(&'a self, call: HookCall<'a, P>) -> BoxFuture<'a, HookReturn<P::Output>> {
        Box::pin(async move {
            tokio::task::yield_now().await;
            (self.0)(call)
        })
    }
}

/// Returns a hook result with a value.
#[expect(clippy::unnecessary_wraps, reason = "hooks return this type")]
pub(crate) fn some<T>(value: impl Into<T>) -> HookReturn<T> {
    Ok(Some(value.into()))
}

/// Returns a hook result without a value.
#[expect(clippy::unnecessary_wraps, reason = "hooks return this type")]
pub(crate) fn none<T>() -> HookReturn<T> {
    Ok(None)
}

/// Returns a hook result with an error.
pub(crate) fn fail<T>(message: &str) -> HookReturn<T> {
    Err(BoxError::from(message))
}

/// Returns a framework with plugins named `p0`, `p1`, … in registration order.
pub(crate) fn framework(plugins: impl IntoIterator<Item = FakePlugin>) -> Framework {
    builder(plugins).build()
}

pub(crate) fn builder(plugins: impl IntoIterator<Item = FakePlugin>) -> FrameworkBuilder {
    let numbered = plugins.into_iter().enumerate();
    numbered.fold(
        Framework::builder().workspace("/project"),
        |builder, (index, plugin)| builder.plugin(format!("p{index}"), plugin),
    )
}

/// Returns a plugin that records the arguments of `on_error`.
pub(crate) fn observer(trace: &Trace) -> FakePlugin {
    let trace = trace.clone();
    FakePlugin::new().on::<OnError>(move |call| {
        trace.note(format!("on_error {}: {}", call.args.stage, call.args.error));
        none()
    })
}

/// Returns a turn outside of the pipeline.
pub(crate) fn detached(framework: &Framework) -> Turn {
    Turn::detached(framework, hi(), State::new())
}

/// Returns a turn of an empty framework.
pub(crate) fn any_turn() -> Turn {
    detached(&framework([]))
}

/// Returns the session that the framework resolves for a message.
pub(crate) async fn resolved(framework: &Framework, message: Envelope) -> Result<String> {
    let mut inbound = Inbound::from(message);
    framework.resolve_session(&mut inbound).await?;
    Ok(inbound.session_id().unwrap().into())
}

/// Runs a turn for the message `hi`.
pub(crate) async fn turn(framework: &Framework) -> Result<TurnResult> {
    framework.process_inbound(hi()).await
}

pub(crate) async fn failing_turn(framework: &Framework) -> Error {
    turn(framework).await.expect_err("the turn succeeded")
}

pub(crate) fn hi() -> Envelope {
    Envelope::from_text("hi")
        .with("channel", "cli")
        .with("chat_id", "room")
}
