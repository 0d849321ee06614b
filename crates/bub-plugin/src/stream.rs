//! Model streams, in both directions, with credits: one that nobody reads holds up nothing else.
//!
//! The answer to a request that is a stream comes as `stream/event` notifications, as many as the asker has room for, and
//! ends with the response.

use std::sync::Arc;

use bub_kernel::{
    BoxFuture, Error, ModelStream, Prompt, Result, State, StreamEvent,
    hooks::{AsyncHook, Call, Chained, HookReturn, args, point::RunModelStream},
};
use futures_util::{StreamExt, stream};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

use crate::{
    callbacks::{self, Context},
    codec::{Argument, Outcome},
    hook::{Hook, apply},
    peer::{Arrival, Peer, Request, Work},
};

/// How many events may be on their way.
pub(crate) const CREDITS: usize = 64;
/// After so many were read, as many more are allowed.
const REFILL: usize = CREDITS / 2;

pub(crate) type Asked = Request<mpsc::UnboundedReceiver<Arrival>>;

/// `run_model_stream` of a plugin.
pub(crate) struct StreamHook(pub(crate) Hook);

/// What is needed to ask the chain below, also after the hook has returned its stream.
#[derive(Clone)]
struct Turn {
    hook: Hook,
    place: usize,
    prompt: Prompt,
    session_id: String,
    state: State,
}

impl AsyncHook<RunModelStream> for StreamHook {
    fn call<'a>(&'a self, call: Call<'a, RunModelStream>) -> BoxFuture<'a, HookReturn<ModelStream>> {
        Box::pin(async move { self.start(call).await.map_err(Into::into) })
    }
}

impl StreamHook {
    async fn start(&self, call: Call<'_, RunModelStream>) -> Result<Option<ModelStream>> {
        let hook = &self.0;
        let Some(peer) = hook.or_absent(hook.plugin.reach().await)? else { return Ok(None) };
        let args::RunModelStream { prompt, session_id, state } = call.args;
        let turn = Turn {
            hook: hook.clone(),
            place: call.place(),
            prompt: prompt.clone(),
            session_id: session_id.to_owned(),
            state: state.clone(),
        };
        let mut params = hook.params::<RunModelStream>(call.args);
        if let Some(params) = params.as_object_mut() {
            params.insert("credits".to_owned(), CREDITS.into());
        }
        let mut asked = peer.ask(&hook.method, &params, CREDITS);
        let limit = hook.plugin.limit(&hook.entry.name, false, true);
        loop {
            let Some(arrival) = hook.next(&mut asked, limit).await else {
                drop(asked);
                return Err(hook.late(&peer, limit.unwrap_or_default()).await);
            };
            match arrival {
                Arrival::Response(answer) => {
                    asked.is_over = true;
                    let is_empty = answer.as_ref().is_ok_and(|answer| answer.get("stream").is_some());
                    let text = hook.finish::<RunModelStream>(Some(state), answer)?;
                    return Ok(text.or_else(|| is_empty.then(|| ModelStream::of([]))));
                }
                Arrival::Question { id, method, params } => turn.answer(&peer, id, method, params),
                Arrival::Event(event) => {
                    hook.plugin.note_success();
                    let first = StreamEvent::from_value(&event);
                    return Ok(Some(events(Some(first), asked, Some(turn))));
                }
            }
        }
    }
}

impl Turn {
    /// Answers what the plugin asks while its stream runs.
    fn answer(&self, peer: &Arc<Peer>, id: Value, method: String, params: Value) {
        if method != "next/call" {
            let context = Context::of(&self.hook.plugin, Some(&self.state));
            return callbacks::spawn(peer, id, method, params, context);
        }
        let Some(work) = peer.work(&id) else { return };
        let (turn, peer) = (self.clone(), Arc::clone(peer));
        tokio::spawn(async move {
            let cancel = work.cancel.clone();
            let answering = async {
                let below = turn.below(params.get("args").and_then(Value::as_object)).await;
                answer(&peer, &id, below, &work, Map::new).await;
            };
            tokio::select! { () = answering => {}, () = cancel.cancelled() => {} }
        });
    }

    async fn below(&self, replaced: Option<&Map<String, Value>>) -> Result<Option<ModelStream>> {
        let given = |name: &str| replaced.and_then(|replaced| replaced.get(name)).cloned();
        let prompt = given("prompt").map(<Prompt as Outcome>::read).transpose()?;
        let session_id = given("session_id").map(<String as Outcome>::read).transpose()?;
        let framework = self.hook.plugin.host.framework.get();
        let framework = framework.ok_or_else(|| Error::unknown("the framework is gone"))?;
        let args = args::RunModelStream {
            prompt: prompt.as_ref().unwrap_or(&self.prompt),
            session_id: session_id.as_deref().unwrap_or(&self.session_id),
            state: &self.state,
        };
        RunModelStream::below(framework.hooks().below(self.place, args)).await
    }
}

/// Answers a request with a stream: its events first, its end as the response, with what `end` adds to that.
pub(crate) async fn answer(
    peer: &Peer,
    id: &Value,
    stream: Result<Option<ModelStream>>,
    work: &Work,
    end: impl FnOnce() -> Map<String, Value>,
) {
    let mut stream = match stream {
        Ok(Some(stream)) => stream,
        Ok(None) => return peer.respond(id, Ok(end().into())),
        Err(error) => return peer.respond(id, Err(error)),
    };
    while let Some(event) = stream.next().await {
        match event {
            Ok(event) => {
                // The room is used up; it is the reader who makes more.
                let Ok(room) = work.credits.acquire().await else { return };
                room.forget();
                peer.notify("stream/event", &json!({"id": id, "event": event}));
            }
            Err(error) => return peer.respond(id, Err(error)),
        }
    }
    let mut last = end();
    last.insert("stream".to_owned(), true.into());
    peer.respond(id, Ok(last.into()));
}

/// The events that arrive for a request.
pub(crate) fn events(first: Option<StreamEvent>, asked: Asked, turn: Option<impl Answering>) -> ModelStream {
    struct Reading<T> {
        first: Option<StreamEvent>,
        asked: Asked,
        turn: Option<T>,
        read: usize,
    }
    let reading = Reading { first, asked, turn, read: 0 };
    ModelStream::new(stream::unfold(reading, |mut reading| async move {
        if reading.asked.is_over {
            return None;
        }
        reading.read += 1;
        if reading.read == REFILL {
            reading.asked.grant(REFILL);
            reading.read = 0;
        }
        if let Some(first) = reading.first.take() {
            return Some((Ok(first), reading));
        }
        loop {
            let arrival = match &reading.turn {
                Some(turn) => turn.next(&mut reading.asked).await,
                None => reading.asked.next().await,
            };
            match arrival {
                Arrival::Event(event) => return Some((Ok(StreamEvent::from_value(&event)), reading)),
                Arrival::Question { id, method, params } => match &reading.turn {
                    Some(turn) => turn.answer(&reading.asked.peer, id, method, params),
                    None => {
                        reading
                            .asked
                            .peer
                            .respond(&id, Err(Error::invalid_input("nobody answers that here")));
                    }
                },
                Arrival::Response(end) => {
                    reading.asked.is_over = true;
                    return match end {
                        Ok(end) => {
                            if let Some(turn) = &reading.turn {
                                turn.ended(&end);
                            }
                            None
                        }
                        Err(error) => Some((Err(error), reading)),
                    };
                }
            }
        }
    }))
}

/// Whoever answers questions about a stream.
pub(crate) trait Answering: Send + Sync + 'static {
    /// What comes next; an error when it took too long.
    fn next<'a>(&'a self, asked: &'a mut Asked) -> BoxFuture<'a, Arrival>;
    fn answer(&self, peer: &Arc<Peer>, id: Value, method: String, params: Value);
    fn ended(&self, end: &Value);
}

impl Answering for Turn {
    fn next<'a>(&'a self, asked: &'a mut Asked) -> BoxFuture<'a, Arrival> {
        Box::pin(async move {
            let limit = self.hook.plugin.limit(&self.hook.entry.name, false, true);
            match self.hook.next(asked, limit).await {
                Some(arrival) => arrival,
                None => Arrival::Response(Err(self.hook.late(&asked.peer, limit.unwrap_or_default()).await)),
            }
        })
    }

    fn answer(&self, peer: &Arc<Peer>, id: Value, method: String, params: Value) {
        Self::answer(self, peer, id, method, params);
    }

    fn ended(&self, end: &Value) {
        if let Some(patch) = end.get("state") {
            apply(&self.state, patch);
        }
    }
}

/// Nobody is asked about the streams that a plugin reads.
pub(crate) enum Nobody {}

impl Answering for Nobody {
    fn next<'a>(&'a self, _: &'a mut Asked) -> BoxFuture<'a, Arrival> {
        match *self {}
    }

    fn answer(&self, _: &Arc<Peer>, _: Value, _: String, _: Value) {
        match *self {}
    }

    fn ended(&self, _: &Value) {
        match *self {}
    }
}

/// The arguments of a model call, as a plugin writes them for the chain below.
pub(crate) fn model_args(args: args::RunModelStream<'_>) -> Value {
    json!({"prompt": Argument::write(args.prompt), "session_id": args.session_id})
}
