//! Model streams between host and plugin, in both directions.
//!
//! A stream consists of `stream/event` notifications and ends with the response. The receiver grants one credit per
//! event that it can buffer, so that an unread stream does not block other calls.

use std::sync::Arc;

use bub_kernel::{
    BoxFuture, CancellationToken, Error, ModelStream, Prompt, Result, SessionId, State,
    StreamEvent, Turn,
    hooks::{
        AsyncHook, Chained, HookCall, HookPoint as _, HookReturn, args,
        point::{RunModel, RunModelStream},
    },
};
use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;
use tracing::{Instrument as _, Span};

use crate::{
    callbacks::{self, CallContext},
    codec::{Wire, type_error},
    hook::{ExternalHook, apply_state_changes, encode_next_result},
    peer::{IncomingMessage, IncomingReceiver, OutgoingRequest, Peer, Question, ServedRequest},
};

/// Maximum number of events of a stream that are sent but not read.
pub(crate) const STREAM_CREDITS: usize = 64;
/// Number of events that the reader reads before it grants the same number of new credits.
const CREDIT_REFILL: usize = STREAM_CREDITS / 2;

/// Maximum size of a text event in bytes. A longer text is sent as several events.
const MAX_DELTA_BYTES: usize = 64 * 1024;

/// A request that may be answered with a stream.
pub(crate) type StreamRequest = OutgoingRequest<IncomingReceiver>;

/// The hook `run_model_stream` of an external plugin.
pub(crate) struct StreamHook(pub(crate) ExternalHook);

/// Arguments and context of one call of the hook `run_model_stream`. They are kept while the stream runs, because the
/// plugin may call the next plugins at any time.
#[derive(Clone)]
pub(crate) struct StreamCall {
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
                    let is_stream = answer
                        .as_ref()
                        .is_ok_and(|answer| answer.get("stream").is_some());
                    let text = hook.decode_response::<RunModelStream>(Some(state), answer)?;
                    return Ok(text.or_else(|| is_stream.then(|| ModelStream::from_events([]))));
                }
                IncomingMessage::Question(question) => {
                    stream_call.answer_request(&peer, question);
                }
                IncomingMessage::Event(event) => {
                    let first = stream_call.decode_event(&event)?;
                    hook.plugin.record_success();
                    return Ok(Some(event_stream(first, request, Some(stream_call))));
                }
            }
        }
    }
}

impl StreamCall {
    /// Waits for the next message of the stream. Returns an error response after the timeout.
    async fn next_message(&self, request: &mut StreamRequest) -> IncomingMessage {
        let hook = &self.hook;
        let limit = hook.plugin.hook_timeout(&hook.entry.name, false, true);
        let is_waiting = || self.is_waiting_for_next();
        match hook.next_message(request, limit, is_waiting).await {
            Some(incoming) => incoming,
            None => IncomingMessage::Response(Err(hook.handle_timeout(&request.peer, limit).await)),
        }
    }

    /// Decodes an event of the stream. Fails for an event of an unknown kind, because bub cannot process it.
    fn decode_event(&self, event: &Value) -> Result<StreamEvent> {
        match StreamEvent::from_value(event) {
            StreamEvent::Other { .. } => {
                let error = type_error("an event of a known `kind`, with its `data`", event);
                Err(self.hook.invalid_response_error(&error))
            }
            event => Ok(event),
        }
    }

    /// Handles the response that ends the stream.
    fn handle_end(&self, end: Value) -> Result<()> {
        let end = self.hook.response_fields(end)?;
        let patch = end.get("state").unwrap_or(&Value::Null);
        apply_state_changes(Some(&self.state), patch)
            .map_err(|error| self.hook.invalid_response_error(&error))
    }

    /// Returns whether the plugin waits for an event of a `next/call` request. That is the case while such a request
    /// has credits left. Without credits, the next plugins wait for the plugin.
    fn is_waiting_for_next(&self) -> bool {
        self.next_call_credits
            .lock()
            .iter()
            .any(|credits| credits.available_permits() > 0)
    }

    /// Answers a request of the plugin while its stream runs.
    fn answer_request(&self, peer: &Arc<Peer>, question: Question) {
        if question.method != "next/call" {
            let context = CallContext::new(&self.hook.plugin, Some(&self.turn));
            return callbacks::spawn_answer(peer, question, context);
        }
        let Question { id, params, .. } = question;
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
            stream_call
                .next_call_credits
                .lock()
                .push(Arc::clone(&credits));
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
            stream_call
                .next_call_credits
                .lock()
                .retain(|other| !Arc::ptr_eq(other, &credits));
        };
        tokio::spawn(answering_next.instrument(caller));
    }

    /// Returns the prompt and the session id of the call, with the replacements of a `next/call` request.
    fn replace_args(&self, replaced: &Map<String, Value>) -> Result<(Prompt, SessionId)> {
        Ok((
            replacement(replaced, "prompt", &self.prompt)?,
            replacement(replaced, "session_id", &self.session_id)?,
        ))
    }

    /// Calls the plugins that run after the external plugin, and returns their answer as a stream.
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

    /// Calls the plugins that run after the external plugin, and returns the complete text of their answer.
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

/// Returns the replacement of an argument in a `next/call` request, or the argument itself.
fn replacement<T: Wire + Clone>(
    replaced: &Map<String, Value>,
    name: &str,
    argument: &T,
) -> Result<T> {
    match replaced.get(name) {
        Some(value) => {
            T::decode(value.clone()).map_err(|error| callbacks::invalid_argument_error(&error))
        }
        None => Ok(argument.clone()),
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
    let (mut text, make): (_, fn(String) -> StreamEvent) = match event {
        StreamEvent::Text(text) => (text, StreamEvent::Text),
        StreamEvent::Reasoning(text) => (text, StreamEvent::Reasoning),
        other => return vec![other],
    };
    let mut events = Vec::new();
    while text.len() > MAX_DELTA_BYTES {
        let tail = text.split_off(text.floor_char_boundary(MAX_DELTA_BYTES));
        events.push(make(std::mem::replace(&mut text, tail)));
    }
    events.push(make(text));
    events
}

/// Returns the events of a request as a model stream. `first` is an event that was received already. `call` is the call
/// of the hook if the host reads the stream, and `None` if a served plugin reads a stream of its host.
pub(crate) fn event_stream(
    first: StreamEvent,
    request: StreamRequest,
    call: Option<StreamCall>,
) -> ModelStream {
    let reader = StreamReader {
        request,
        call,
        read: 1,
        is_failed: false,
    };
    let rest = stream::unfold(reader, |mut reader| async move {
        let event = reader.next_event().await?;
        reader.is_failed = event.is_err();
        Some((event, reader))
    });
    ModelStream::new(stream::iter([Ok(first)]).chain(rest))
}

/// Reads the events of a stream.
struct StreamReader {
    request: StreamRequest,
    call: Option<StreamCall>,
    /// Number of events that were read since the last grant of credits.
    read: usize,
    is_failed: bool,
}

impl StreamReader {
    async fn next_event(&mut self) -> Option<Result<StreamEvent>> {
        if self.request.is_over() || self.is_failed {
            return None;
        }
        self.read += 1;
        if self.read == CREDIT_REFILL {
            self.request.grant_credits(CREDIT_REFILL);
            self.read = 0;
        }
        loop {
            let incoming = match &self.call {
                Some(call) => call.next_message(&mut self.request).await,
                None => self.request.next_message().await,
            };
            match (incoming, &self.call) {
                (IncomingMessage::Event(event), Some(call)) => {
                    return Some(call.decode_event(&event));
                }
                (IncomingMessage::Event(event), None) => {
                    return Some(Ok(StreamEvent::from_value(&event)));
                }
                (IncomingMessage::Question(question), Some(call)) => {
                    call.answer_request(&self.request.peer, question);
                }
                (IncomingMessage::Question(question), None) => {
                    reject_question(&self.request.peer, &question);
                }
                (IncomingMessage::Response(Ok(end)), Some(call)) => {
                    return call.handle_end(end).err().map(Err);
                }
                (IncomingMessage::Response(end), _) => return end.err().map(Err),
            }
        }
    }
}

/// Rejects a request about a `next/call` request. The host sends none.
pub(crate) fn reject_question(peer: &Peer, question: &Question) {
    let error =
        Error::invalid_input("unsupported request: the caller of `next/call` accepts no requests");
    peer.respond(&question.id, Err(error));
}
