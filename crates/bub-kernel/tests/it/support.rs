//! Scripted plugins, a trace of what was called, and the log as text.

mod channel;
mod log;
mod store;

use std::sync::{Arc, Mutex};

use bub_kernel::{
    BoxError, BoxFuture, Envelope, Error, Framework, FrameworkBuilder, Inbound, Plugin, Result,
    State, Turn, TurnResult,
    hooks::{AsyncHook, HookCall, HookPoint, HookReturn, HookSet, SyncHook, point::OnError},
};

pub(crate) use channel::{FakeChannel, FakeRouter, Manner};
pub(crate) use log::Log;
pub(crate) use store::{FullStore, entries, storing};

/// What was called, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trace(Arc<Mutex<Vec<String>>>);

impl Trace {
    pub(crate) fn note(&self, what: impl Into<String>) {
        self.0.lock().unwrap().push(what.into());
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

/// A plugin made of closures, so that a test reads as a list of answers.
#[derive(Default)]
pub(crate) struct Fake(Vec<Registration>);

type Registration = Box<dyn Fn(&mut HookSet) + Send + Sync>;

impl Fake {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// A synchronous implementation.
    pub(crate) fn on<P: HookPoint>(
        self,
        answer: impl Fn(HookCall<'_, P>) -> HookReturn<P::Output> + Send + Sync + 'static,
    ) -> Self {
        let answer = Arc::new(answer);
        self.adding(move |hooks| hooks.add_sync::<P>(Scripted(Arc::clone(&answer))))
    }

    /// The same, asynchronous: it answers at its second poll.
    pub(crate) fn on_async<P: HookPoint>(
        self,
        answer: impl Fn(HookCall<'_, P>) -> HookReturn<P::Output> + Send + Sync + 'static,
    ) -> Self {
        let answer = Arc::new(answer);
        self.adding(move |hooks| hooks.add_async::<P>(Scripted(Arc::clone(&answer))))
    }

    /// Whatever registration code wants to do.
    pub(crate) fn adding(mut self, add: impl Fn(&mut HookSet) + Send + Sync + 'static) -> Self {
        self.0.push(Box::new(add));
        self
    }
}

impl Plugin for Fake {
    fn register(self: Arc<Self>, hooks: &mut HookSet) {
        for add in &self.0 {
            add(hooks);
        }
    }
}

struct Scripted<F>(Arc<F>);

impl<P, F> SyncHook<P> for Scripted<F>
where
    P: HookPoint,
    F: Fn(HookCall<'_, P>) -> HookReturn<P::Output> + Send + Sync + 'static,
{
    fn call(&self, call: HookCall<'_, P>) -> HookReturn<P::Output> {
        (self.0)(call)
    }
}

impl<P, F> AsyncHook<P> for Scripted<F>
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

/// A hook's answer.
#[expect(clippy::unnecessary_wraps, reason = "an answer like the others")]
pub(crate) fn some<T>(value: impl Into<T>) -> HookReturn<T> {
    Ok(Some(value.into()))
}

/// A hook without an opinion.
#[expect(clippy::unnecessary_wraps, reason = "an answer like the others")]
pub(crate) fn none<T>() -> HookReturn<T> {
    Ok(None)
}

/// A hook that fails.
pub(crate) fn fail<T>(message: &str) -> HookReturn<T> {
    Err(BoxError::from(message))
}

/// Plugins named `p0`, `p1`, … in registration order.
pub(crate) fn framework(plugins: impl IntoIterator<Item = Fake>) -> Framework {
    builder(plugins).build()
}

pub(crate) fn builder(plugins: impl IntoIterator<Item = Fake>) -> FrameworkBuilder {
    let numbered = plugins.into_iter().enumerate();
    numbered.fold(
        Framework::builder().workspace("/project"),
        |builder, (index, plugin)| builder.plugin(format!("p{index}"), plugin),
    )
}

/// A plugin that notes what `on_error` is told.
pub(crate) fn observer(trace: &Trace) -> Fake {
    let trace = trace.clone();
    Fake::new().on::<OnError>(move |call| {
        trace.note(format!("on_error {}: {}", call.args.stage, call.args.error));
        none()
    })
}

/// A turn outside of the pipeline, for code that is called with one.
pub(crate) fn detached(framework: &Framework) -> Turn {
    Turn::detached(framework, hi(), State::new())
}

/// A turn for hooks that are called without a framework of their own.
pub(crate) fn any_turn() -> Turn {
    detached(&framework([]))
}

/// The session that the framework names for a message.
pub(crate) async fn resolved(framework: &Framework, message: Envelope) -> Result<String> {
    let mut inbound = Inbound::from(message);
    framework.resolve_session(&mut inbound).await?;
    Ok(inbound.session_id().unwrap().into())
}

/// Runs a turn of a message that says `hi`.
pub(crate) async fn turn(framework: &Framework) -> Result<TurnResult> {
    framework.process_inbound(hi()).await
}

pub(crate) async fn failing_turn(framework: &Framework) -> Error {
    turn(framework).await.expect_err("the turn succeeded")
}

pub(crate) fn hi() -> Envelope {
    Envelope::text("hi")
        .with("channel", "cli")
        .with("chat_id", "room")
}
