//! Model streams between host and plugin, in both directions.
//!
//! A stream consists of `stream/event` notifications and ends with the response. The receiver grants one credit per
//! event that it can buffer, so that an unread stream does not block other calls.

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
    codec::{ArgumentCodec, ResultCodec, type_error},
    hook::{ExternalHook, apply_state_changes, encode_next_result},
    peer::{IncomingMessage, IncomingReceiver, OutgoingRequest, Peer, ServedRequest, lock},
};

/// Maximum number of events of a stream that are sent but not read.
pub(crate) const STREAM_CREDITS: usize = 64;
/// Number of events after which the reader grants as many new credits.
const CREDIT_REFILL: usize = STREAM_CREDITS / 2;

/// Maximum size of a text event in bytes. A longer text is sent as several events.
const MAX_DELTA_BYTES: usize = 64 * 1024;

/// A request that is answered with a stream.
pub(crate) type StreamRequest = OutgoingRequest<IncomingReceiver>;

/// The hook `run_model_stream` of an external plugin.
pub(crate) struct StreamHook(pub(crate) ExternalHook);

/// Context of a `run_model_stream` call of a plugin. It is needed while the stream runs, because the plugin may call the
/// next plugins at any time.
#[derive(Clone)]
struct StreamCall {
    hook: ExternalHook,
    registration_index: usize,
    prompt: Prompt,
    session_id: SessionId,
    state: State,
    turn: Turn,
    /// Credits of the running `next/call` requests of the plugin.
    next_call_credits: Arc<Mutex<Vec<Arc<Semaphore>>>>,
    /// Cancels `over` when the stream is dropped. `None` in clones that answer requests of the plugin.
    _owner: Option<Arc<CancelOnDrop>>,
    /// Cancelled when the stream is dropped.
    over: CancellationToken,
    /// The span in which the hook was called. The next plugins run in it.
    caller: Span,
}

/// Cancels the running `next/call` requests of a stream when the stream is dropped.
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
        let start = async move { self.start_stream(call, caller).await.map_err(Into::into) };
        Box::pin(start.instrument(span))
    }
}

impl StreamHook {
    /// Sends the request and waits for the first event or the response.
    async fn start_stream(
        &self,
        call: HookCall<'_, RunModelStream>,
        caller: Span,
    ) -> Result<Option<ModelStream>> {
        let hook = &self.0;
        let limit = hook.plugin.hook_timeout(&hook.entry.name, false, true);
        let started = tokio::time::Instant::now();
        let Some(peer) = hook.peer_or_skip(hook.plugin.connect(limit).await)? else {
            return Ok(None);
        };
        let remaining = limit.map(|limit| limit.saturating_sub(started.elapsed()));
        let args::RunModelStream {
            prompt,
            session_id,
            state,
            turn,
        } = call.args;
        let over = CancellationToken::new();
        let stream_call = StreamCall {
            hook: hook.clone(),
            registration_index: call.registration_index(),
            prompt: prompt.clone(),
            session_id: session_id.clone(),
            state: state.clone(),
            turn: turn.clone(),
            next_call_credits: Arc::default(),
            _owner: Some(Arc::new(CancelOnDrop(over.clone()))),
            over,
            caller,
        };
        let mut params = hook.build_params::<RunModelStream>(call.args);
        if let Some(params) = params.as_object_mut() {
            params.insert("credits".to_owned(), STREAM_CREDITS.into());
        }
        let mut request = peer.send_request(&hook.method, &params, STREAM_CREDITS);
        loop {
            let is_waiting = || stream_call.is_waiting_for_next();
            let Some(incoming) = hook.next_message(&mut request, remaining, is_waiting).await
            else {
                drop(request);
                return Err(hook.handle_timeout(&peer, limit).await);
            };
            match incoming {
                IncomingMessage::Response(answer) => {
                    request.is_over = true;
                    let is_stream = answer
                        .as_ref()
                        .is_ok_and(|answer| answer.get("stream").is_some());
                    let text = hook.decode_response::<RunModelStream>(Some(state), answer)?;
                    return Ok(text.or_else(|| is_stream.then(|| ModelStream::from_events([]))));
                }
                IncomingMessage::Question { id, method, params } => {
                    stream_call.answer_request(&peer, id, method, params);
                }
                IncomingMessage::Event(event) => {
                    let first = stream_call.decode_event(&event)?;
                    hook.plugin.record_success();
                    return Ok(Some(event_stream(Some(first), request, Some(stream_call))));
                }
            }
        }
    }
}

impl StreamCall {
    /// Returns whether the plugin waits for an event of a `next/call` request. If no request has credits left, the next
    /// plugins wait for the plugin instead.
    fn is_waiting_for_next(&self) -> bool {
        lock(&self.next_call_credits)
            .iter()
            .any(|credits| credits.available_permits() > 0)
    }

    /// Answers a request of the plugin while its stream runs.
    fn answer_request(&self, peer: &Arc<Peer>, id: Value, method: String, params: Value) {
        if method != "next/call" {
            let context = CallContext::new(&self.hook.plugin, Some(&self.turn));
            return callbacks::spawn_answer(peer, id, method, params, context);
        }
        let Some(served) = peer.served_request(&id) else {
            return;
        };
        let (stream_call, peer) = (
            Self {
                _owner: None,
                ..self.clone()
            },
            Arc::clone(peer),
        );
        let caller = self.caller.clone();
        let answering_next = async move {
            let wants_stream = params
                .get("credits")
                .is_some_and(|credits| !credits.is_null());
            let credits = if wants_stream {
                Arc::clone(&served.credits)
            } else {
                Arc::new(Semaphore::new(1))
            };
            lock(&stream_call.next_call_credits).push(Arc::clone(&credits));
            let replaced = callbacks::parse_replaced_args(RunModelStream::SPEC, &params);
            let answering = async {
                match replaced.and_then(|replaced| stream_call.replace_args(&replaced)) {
                    Ok(args) if wants_stream => {
                        let stream = stream_call.call_next_stream(&args).await;
                        send_stream(&peer, &id, stream, &served, Map::new).await;
                    }
                    // Without credits, the plugin gets the complete text.
                    Ok(args) => {
                        let text = stream_call.call_next_text(&args).await;
                        peer.respond(&id, text.map(encode_next_result));
                    }
                    Err(error) => peer.respond(&id, Err(error)),
                }
            };
            tokio::select! {
                biased;
                () = answering => {}
                () = served.cancel.cancelled() => {}
                () = stream_call.over.cancelled() => peer.respond(&id, Err(Error::invalid_input("`next/call` failed: the hook request named in `call` has ended; send `next/call` before you answer that request"))),
            }
            lock(&stream_call.next_call_credits).retain(|other| !Arc::ptr_eq(other, &credits));
        };
        tokio::spawn(answering_next.instrument(caller));
    }

    /// Returns the prompt and the session id of the call, with the replacements of a `next/call` request.
    fn replace_args(&self, replaced: &Map<String, Value>) -> Result<(Prompt, SessionId)> {
        let replacement = |name: &str| replaced.get(name).cloned();
        let decode_error = |error| callbacks::invalid_argument_error(&error);
        let prompt = replacement("prompt")
            .map(<Prompt as ResultCodec>::decode)
            .transpose()
            .map_err(decode_error)?;
        let session_id = replacement("session_id")
            .map(<String as ResultCodec>::decode)
            .transpose()
            .map_err(decode_error)?;
        let session_id = session_id.map_or_else(|| self.session_id.clone(), SessionId::from);
        Ok((prompt.unwrap_or_else(|| self.prompt.clone()), session_id))
    }

    /// Calls the next plugins for a stream.
    async fn call_next_stream(
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
        RunModelStream::call_next(framework.hooks().next_after(self.registration_index, args)).await
    }

    /// Calls the next plugins for the complete text.
    async fn call_next_text(
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
        RunModel::call_next(framework.hooks().next_after(self.registration_index, args)).await
    }
}

/// Answers a request with a stream: sends the events, then a response with the fields that `end` returns.
pub(crate) async fn send_stream(
    peer: &Peer,
    id: &Value,
    stream: Result<Option<ModelStream>>,
    served: &ServedRequest,
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
                for event in split_long_event(event) {
                    // Consume the credit; the reader grants new ones.
                    let Ok(credit) = served.credits.acquire().await else {
                        return;
                    };
                    credit.forget();
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

/// Splits an event with more than [`MAX_DELTA_BYTES`] of text into several events.
fn split_long_event(event: StreamEvent) -> Vec<StreamEvent> {
    let (text, make): (_, fn(String) -> StreamEvent) = match event {
        StreamEvent::Text(text) if text.len() > MAX_DELTA_BYTES => (text, StreamEvent::Text),
        StreamEvent::Reasoning(text) if text.len() > MAX_DELTA_BYTES => {
            (text, StreamEvent::Reasoning)
        }
        other => return vec![other],
    };
    let (mut remaining, mut events) = (text.as_str(), Vec::new());
    while !remaining.is_empty() {
        let (part, tail) = remaining.split_at(remaining.floor_char_boundary(MAX_DELTA_BYTES));
        events.push(make(part.to_owned()));
        remaining = tail;
    }
    events
}

/// Returns the events of a request as a model stream. `first` is an event that was received already.
pub(crate) fn event_stream(
    first: Option<StreamEvent>,
    request: StreamRequest,
    callbacks: Option<impl StreamCallbacks>,
) -> ModelStream {
    struct StreamReader<T> {
        first: Option<StreamEvent>,
        request: StreamRequest,
        callbacks: Option<T>,
        read: usize,
        is_failed: bool,
    }
    let reader = StreamReader {
        first,
        request,
        callbacks,
        read: 0,
        is_failed: false,
    };
    ModelStream::new(stream::unfold(reader, |mut reader| async move {
        if reader.request.is_over || reader.is_failed {
            return None;
        }
        reader.read += 1;
        if reader.read == CREDIT_REFILL {
            reader.request.grant_credits(CREDIT_REFILL);
            reader.read = 0;
        }
        if let Some(first) = reader.first.take() {
            return Some((Ok(first), reader));
        }
        loop {
            let incoming = match &reader.callbacks {
                Some(callbacks) => callbacks.next_message(&mut reader.request).await,
                None => reader.request.next_message().await,
            };
            match incoming {
                IncomingMessage::Event(event) => {
                    let callbacks = reader.callbacks.as_ref();
                    let event = callbacks.map_or_else(
                        || Ok(StreamEvent::from_value(&event)),
                        |callbacks| callbacks.decode_event(&event),
                    );
                    reader.is_failed = event.is_err();
                    return Some((event, reader));
                }
                IncomingMessage::Question { id, method, params } => match &reader.callbacks {
                    Some(callbacks) => {
                        callbacks.answer_request(&reader.request.peer, id, method, params);
                    }
                    None => {
                        reader.request.peer.respond(
                            &id,
                            Err(Error::invalid_input(
                                "unsupported request: the caller of `next/call` accepts no requests",
                            )),
                        );
                    }
                },
                IncomingMessage::Response(end) => {
                    reader.request.is_over = true;
                    return match end {
                        Ok(end) => {
                            let ended = reader
                                .callbacks
                                .as_ref()
                                .map_or(Ok(()), |callbacks| callbacks.handle_end(end));
                            ended.err().map(|error| (Err(error), reader))
                        }
                        Err(error) => Some((Err(error), reader)),
                    };
                }
            }
        }
    }))
}

/// Handles the messages of a stream that the host receives from a plugin.
pub(crate) trait StreamCallbacks: Send + Sync + 'static {
    /// Waits for the next message of the stream. Returns an error response after the timeout.
    fn next_message<'a>(&'a self, request: &'a mut StreamRequest)
    -> BoxFuture<'a, IncomingMessage>;

    /// Answers a request of the plugin about the stream.
    fn answer_request(&self, peer: &Arc<Peer>, id: Value, method: String, params: Value);

    /// Decodes an event of the stream.
    fn decode_event(&self, event: &Value) -> Result<StreamEvent>;

    /// Handles the response that ends the stream.
    fn handle_end(&self, end: Value) -> Result<()>;
}

impl StreamCallbacks for StreamCall {
    fn next_message<'a>(
        &'a self,
        request: &'a mut StreamRequest,
    ) -> BoxFuture<'a, IncomingMessage> {
        Box::pin(async move {
            let limit = self
                .hook
                .plugin
                .hook_timeout(&self.hook.entry.name, false, true);
            match self
                .hook
                .next_message(request, limit, || self.is_waiting_for_next())
                .await
            {
                Some(incoming) => incoming,
                None => IncomingMessage::Response(Err(self
                    .hook
                    .handle_timeout(&request.peer, limit)
                    .await)),
            }
        })
    }

    fn answer_request(&self, peer: &Arc<Peer>, id: Value, method: String, params: Value) {
        Self::answer_request(self, peer, id, method, params);
    }

    /// Decodes an event of the stream. Fails for unknown events, because the host's consumers would not understand them.
    fn decode_event(&self, event: &Value) -> Result<StreamEvent> {
        match StreamEvent::from_value(event) {
            StreamEvent::Other { .. } => Err(self.hook.invalid_response_error(&type_error(
                "an event of a known `kind`, with its `data`",
                event,
            ))),
            event => Ok(event),
        }
    }

    fn handle_end(&self, end: Value) -> Result<()> {
        let end = self.hook.response_fields(end)?;
        let patch = end
            .get("state")
            .map(|patch| apply_state_changes(Some(&self.state), patch));
        patch
            .unwrap_or(Ok(()))
            .map_err(|error| self.hook.invalid_response_error(&error))
    }
}

/// Callbacks of a stream that a served plugin reads from its host. It is never created, because the host sends no
/// requests about such a stream.
pub(crate) enum NoCallbacks {}

impl StreamCallbacks for NoCallbacks {
    fn next_message<'a>(&'a self, _: &'a mut StreamRequest) -> BoxFuture<'a, IncomingMessage> {
        match *self {}
    }

    fn answer_request(&self, _: &Arc<Peer>, _: Value, _: String, _: Value) {
        match *self {}
    }

    fn decode_event(&self, _: &Value) -> Result<StreamEvent> {
        match *self {}
    }

    fn handle_end(&self, _: Value) -> Result<()> {
        match *self {}
    }
}

/// Encodes the arguments of `run_model_stream` for a `next/call` request.
pub(crate) fn encode_model_args(args: args::RunModelStream<'_>) -> Value {
    json!({"prompt": ArgumentCodec::encode(args.prompt), "session_id": args.session_id})
}
