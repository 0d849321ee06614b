//! Model streams, in both directions, with credits: one that nobody reads holds up nothing else.
//!
//! The answer to a request that is a stream comes as `stream/event` notifications, as many as the asker has room for, and
//! ends with the response.

use std::sync::{Arc, Mutex};

use bub_kernel::{
    BoxFuture, CancellationToken, Error, ModelStream, Prompt, Result, SessionId, State,
    StreamEvent, Turn,
    hooks::{
        AsyncHook, Chained, HookCall, HookPoint as _, HookReturn, args,
        point::{RunModel, RunModelStream},
    },
};
use futures_util::{StreamExt, stream};
use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;
use tracing::{Instrument as _, Span};

use crate::{
    callbacks::{self, CallContext},
    codec::{ArgumentCodec, ResultCodec, wrong},
    hook::{ExternalHook, apply, wrapped},
    peer::{IncomingMessage, IncomingReceiver, OutgoingRequest, Peer, ServedRequest, lock},
};

/// How many events may be on their way.
pub(crate) const STREAM_CREDITS: usize = 64;
/// After so many were read, as many more are allowed.
const CREDIT_REFILL: usize = STREAM_CREDITS / 2;

/// Longer pieces of text are sent in several, in bytes.
const MAX_DELTA_BYTES: usize = 64 * 1024;

pub(crate) type StreamRequest = OutgoingRequest<IncomingReceiver>;

/// `run_model_stream` of a plugin.
pub(crate) struct StreamHook(pub(crate) ExternalHook);

/// What is needed to ask the chain below, also after the hook has returned its stream.
#[derive(Clone)]
struct StreamCall {
    hook: ExternalHook,
    place: usize,
    prompt: Prompt,
    session_id: SessionId,
    state: State,
    turn: Turn,
    /// The room it has for each answer of the chain below.
    below: Arc<Mutex<Vec<Arc<Semaphore>>>>,
    /// Whoever owns the stream; what answers meanwhile does not.
    _owner: Option<Arc<CancelOnDrop>>,
    over: CancellationToken,
    /// The span in which the hook was called, for the chain below.
    caller: Span,
}

/// With the stream ends what was asked for it.
struct CancelOnDrop(CancellationToken);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl AsyncHook<RunModelStream> for StreamHook {
    fn call<'a>(
        &'a self,
        call: HookCall<'a, RunModelStream>,
    ) -> BoxFuture<'a, HookReturn<ModelStream>> {
        let caller = Span::current();
        let span = self.0.plugin.call_span(Some(RunModelStream::SPEC.name));
        let starting = async move { self.start(call, caller).await.map_err(Into::into) };
        Box::pin(starting.instrument(span))
    }
}

impl StreamHook {
    async fn start(
        &self,
        call: HookCall<'_, RunModelStream>,
        caller: Span,
    ) -> Result<Option<ModelStream>> {
        let hook = &self.0;
        let limit = hook.plugin.limit(&hook.entry.name, false, true);
        let begun = tokio::time::Instant::now();
        let Some(peer) = hook.peer_or_skip(hook.plugin.connect(limit).await)? else {
            return Ok(None);
        };
        let left = limit.map(|limit| limit.saturating_sub(begun.elapsed()));
        let args::RunModelStream {
            prompt,
            session_id,
            state,
            turn,
        } = call.args;
        let over = CancellationToken::new();
        let stream_call = StreamCall {
            hook: hook.clone(),
            place: call.registration_index(),
            prompt: prompt.clone(),
            session_id: session_id.clone(),
            state: state.clone(),
            turn: turn.clone(),
            below: Arc::default(),
            _owner: Some(Arc::new(CancelOnDrop(over.clone()))),
            over,
            caller,
        };
        let mut params = hook.params::<RunModelStream>(call.args);
        if let Some(params) = params.as_object_mut() {
            params.insert("credits".to_owned(), STREAM_CREDITS.into());
        }
        let mut asked = peer.ask(&hook.method, &params, STREAM_CREDITS);
        loop {
            let is_waiting = || stream_call.is_waiting();
            let Some(incoming) = hook.next(&mut asked, left, is_waiting).await else {
                drop(asked);
                return Err(hook.late(&peer, limit).await);
            };
            match incoming {
                IncomingMessage::Response(answer) => {
                    asked.is_over = true;
                    let is_empty = answer
                        .as_ref()
                        .is_ok_and(|answer| answer.get("stream").is_some());
                    let text = hook.finish::<RunModelStream>(Some(state), answer)?;
                    return Ok(text.or_else(|| is_empty.then(|| ModelStream::from_events([]))));
                }
                IncomingMessage::Question { id, method, params } => {
                    stream_call.answer(&peer, id, method, params);
                }
                IncomingMessage::Event(event) => {
                    let first = stream_call.read(&event)?;
                    hook.plugin.note_success();
                    return Ok(Some(events(Some(first), asked, Some(stream_call))));
                }
            }
        }
    }
}

impl StreamCall {
    /// Whether it waits for the chain below; where that waits for room, the plugin reads nothing.
    fn is_waiting(&self) -> bool {
        lock(&self.below)
            .iter()
            .any(|room| room.available_permits() > 0)
    }

    /// Answers what the plugin asks while its stream runs.
    fn answer(&self, peer: &Arc<Peer>, id: Value, method: String, params: Value) {
        if method != "next/call" {
            let context = CallContext::new(&self.hook.plugin, Some(&self.turn));
            return callbacks::spawn(peer, id, method, params, context);
        }
        let Some(work) = peer.work(&id) else { return };
        let (stream_call, peer) = (
            Self {
                _owner: None,
                ..self.clone()
            },
            Arc::clone(peer),
        );
        let caller = self.caller.clone();
        let answering_below = async move {
            let streams = params
                .get("credits")
                .is_some_and(|credits| !credits.is_null());
            let room = if streams {
                Arc::clone(&work.credits)
            } else {
                Arc::new(Semaphore::new(1))
            };
            lock(&stream_call.below).push(Arc::clone(&room));
            let replaced = callbacks::replaced(RunModelStream::SPEC, &params);
            let answering = async {
                match replaced.and_then(|replaced| stream_call.args(&replaced)) {
                    Ok(args) if streams => {
                        let stream = stream_call.stream_below(&args).await;
                        answer(&peer, &id, stream, &work, Map::new).await;
                    }
                    // Who has no room for a stream gets its text.
                    Ok(args) => {
                        let text = stream_call.text_below(&args).await;
                        peer.respond(&id, text.map(wrapped));
                    }
                    Err(error) => peer.respond(&id, Err(error)),
                }
            };
            tokio::select! {
                biased;
                () = answering => {}
                () = work.cancel.cancelled() => {}
                () = stream_call.over.cancelled() => peer.respond(&id, Err(Error::invalid_input("the call it names is over"))),
            }
            lock(&stream_call.below).retain(|other| !Arc::ptr_eq(other, &room));
        };
        tokio::spawn(answering_below.instrument(caller));
    }

    fn args(&self, replaced: &Map<String, Value>) -> Result<(Prompt, SessionId)> {
        let given = |name: &str| replaced.get(name).cloned();
        let wrong = |error| callbacks::wrong_argument(&error);
        let prompt = given("prompt")
            .map(<Prompt as ResultCodec>::read)
            .transpose()
            .map_err(wrong)?;
        let session_id = given("session_id")
            .map(<String as ResultCodec>::read)
            .transpose()
            .map_err(wrong)?;
        let session_id = session_id.map_or_else(|| self.session_id.clone(), SessionId::from);
        Ok((prompt.unwrap_or_else(|| self.prompt.clone()), session_id))
    }

    async fn stream_below(
        &self,
        (prompt, session_id): &(Prompt, SessionId),
    ) -> Result<Option<ModelStream>> {
        let framework = self.hook.plugin.framework()?;
        let args = args::RunModelStream {
            prompt,
            session_id,
            state: &self.state,
            turn: &self.turn,
        };
        RunModelStream::below(framework.hooks().chain_below(self.place, args)).await
    }

    async fn text_below(
        &self,
        (prompt, session_id): &(Prompt, SessionId),
    ) -> Result<Option<String>> {
        let framework = self.hook.plugin.framework()?;
        let args = args::RunModel {
            prompt,
            session_id,
            state: &self.state,
            turn: &self.turn,
        };
        RunModel::below(framework.hooks().chain_below(self.place, args)).await
    }
}

/// Answers a request with a stream: its events first, its end as the response, with what `end` adds to that.
pub(crate) async fn answer(
    peer: &Peer,
    id: &Value,
    stream: Result<Option<ModelStream>>,
    work: &ServedRequest,
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
                for event in pieces(event) {
                    // The room is used up; it is the reader who makes more.
                    let Ok(room) = work.credits.acquire().await else {
                        return;
                    };
                    room.forget();
                    peer.notify("stream/event", &json!({"id": id, "event": event}));
                }
            }
            Err(error) => return peer.respond(id, Err(error)),
        }
    }
    let mut last = end();
    last.insert("stream".to_owned(), true.into());
    peer.respond(id, Ok(last.into()));
}

/// A long text in pieces.
fn pieces(event: StreamEvent) -> Vec<StreamEvent> {
    let (text, make): (_, fn(String) -> StreamEvent) = match event {
        StreamEvent::Text(text) if text.len() > MAX_DELTA_BYTES => (text, StreamEvent::Text),
        StreamEvent::Reasoning(text) if text.len() > MAX_DELTA_BYTES => {
            (text, StreamEvent::Reasoning)
        }
        other => return vec![other],
    };
    let (mut rest, mut pieces) = (text.as_str(), Vec::new());
    while !rest.is_empty() {
        let (piece, left) = rest.split_at(rest.floor_char_boundary(MAX_DELTA_BYTES));
        pieces.push(make(piece.to_owned()));
        rest = left;
    }
    pieces
}

/// The events that arrive for a request.
pub(crate) fn events(
    first: Option<StreamEvent>,
    asked: StreamRequest,
    turn: Option<impl StreamCallbacks>,
) -> ModelStream {
    struct StreamReader<T> {
        first: Option<StreamEvent>,
        asked: StreamRequest,
        turn: Option<T>,
        read: usize,
        is_wrong: bool,
    }
    let reading = StreamReader {
        first,
        asked,
        turn,
        read: 0,
        is_wrong: false,
    };
    ModelStream::new(stream::unfold(reading, |mut reading| async move {
        if reading.asked.is_over || reading.is_wrong {
            return None;
        }
        reading.read += 1;
        if reading.read == CREDIT_REFILL {
            reading.asked.grant(CREDIT_REFILL);
            reading.read = 0;
        }
        if let Some(first) = reading.first.take() {
            return Some((Ok(first), reading));
        }
        loop {
            let incoming = match &reading.turn {
                Some(turn) => turn.next(&mut reading.asked).await,
                None => reading.asked.next().await,
            };
            match incoming {
                IncomingMessage::Event(event) => {
                    let turn = reading.turn.as_ref();
                    let event = turn.map_or_else(
                        || Ok(StreamEvent::from_value(&event)),
                        |turn| turn.read(&event),
                    );
                    reading.is_wrong = event.is_err();
                    return Some((event, reading));
                }
                IncomingMessage::Question { id, method, params } => match &reading.turn {
                    Some(turn) => turn.answer(&reading.asked.peer, id, method, params),
                    None => {
                        reading
                            .asked
                            .peer
                            .respond(&id, Err(Error::invalid_input("nobody answers that here")));
                    }
                },
                IncomingMessage::Response(end) => {
                    reading.asked.is_over = true;
                    return match end {
                        Ok(end) => {
                            let ended =
                                reading.turn.as_ref().map_or(Ok(()), |turn| turn.ended(end));
                            ended.err().map(|error| (Err(error), reading))
                        }
                        Err(error) => Some((Err(error), reading)),
                    };
                }
            }
        }
    }))
}

/// Whoever answers questions about a stream.
pub(crate) trait StreamCallbacks: Send + Sync + 'static {
    /// What comes next; an error when it took too long.
    fn next<'a>(&'a self, asked: &'a mut StreamRequest) -> BoxFuture<'a, IncomingMessage>;
    fn answer(&self, peer: &Arc<Peer>, id: Value, method: String, params: Value);
    fn read(&self, event: &Value) -> Result<StreamEvent>;
    fn ended(&self, end: Value) -> Result<()>;
}

impl StreamCallbacks for StreamCall {
    fn next<'a>(&'a self, asked: &'a mut StreamRequest) -> BoxFuture<'a, IncomingMessage> {
        Box::pin(async move {
            let limit = self.hook.plugin.limit(&self.hook.entry.name, false, true);
            match self.hook.next(asked, limit, || self.is_waiting()).await {
                Some(incoming) => incoming,
                None => IncomingMessage::Response(Err(self.hook.late(&asked.peer, limit).await)),
            }
        })
    }

    fn answer(&self, peer: &Arc<Peer>, id: Value, method: String, params: Value) {
        Self::answer(self, peer, id, method, params);
    }

    /// What is passed on, everybody has to understand.
    fn read(&self, event: &Value) -> Result<StreamEvent> {
        match StreamEvent::from_value(event) {
            StreamEvent::Other { .. } => Err(self
                .hook
                .invalid_response(&wrong("an event of a known `kind`, with its `data`", event))),
            known => Ok(known),
        }
    }

    fn ended(&self, end: Value) -> Result<()> {
        let end = self.hook.answer(end)?;
        let patch = end
            .get("state")
            .map(|patch| apply(Some(&self.state), patch));
        patch
            .unwrap_or(Ok(()))
            .map_err(|error| self.hook.invalid_response(&error))
    }
}

/// Nobody is asked about the streams that a plugin reads.
pub(crate) enum NoCallbacks {}

impl StreamCallbacks for NoCallbacks {
    fn next<'a>(&'a self, _: &'a mut StreamRequest) -> BoxFuture<'a, IncomingMessage> {
        match *self {}
    }

    fn answer(&self, _: &Arc<Peer>, _: Value, _: String, _: Value) {
        match *self {}
    }

    fn read(&self, _: &Value) -> Result<StreamEvent> {
        match *self {}
    }

    fn ended(&self, _: Value) -> Result<()> {
        match *self {}
    }
}

/// The arguments of a model call, as a plugin writes them for the chain below.
pub(crate) fn model_args(args: args::RunModelStream<'_>) -> Value {
    json!({"prompt": ArgumentCodec::write(args.prompt), "session_id": args.session_id})
}
