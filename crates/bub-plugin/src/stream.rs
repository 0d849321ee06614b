//! Model streams between host and plugin, in both directions.
//!
//! A stream consists of `stream/event` notifications and ends with the response. The receiver grants one credit per
//! event that it can buffer, so that an unread stream does not block other calls.

use std::{sync::Arc, time::Duration};

use bub_kernel::{
    BoxFuture, CancellationToken, Error, ModelStream, Prompt, Result, SessionId, State,
    StreamEvent, Turn,
    hooks::{
        AsyncHook, HookCall, HookPoint as _, HookReturn, args,
        point::{RunModel, RunModelStream},
    },
};
use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;
use tokio_util::sync::DropGuard;
use tracing::{Instrument as _, Span};

use crate::{
    callbacks::{self, CallContext},
    codec::type_error,
    hook::{ExternalHook, apply_state_changes, encode_next_result},
    peer::{IncomingMessage, OutgoingRequest, Peer, Question, ServedRequest},
    wire_hook::WireHook,
};

/// Maximum number of events of a stream that are sent but not read.
pub(crate) const STREAM_CREDITS: usize = 64;
/// Number of events that the reader reads before it grants the same number of new credits.
const CREDIT_REFILL: usize = STREAM_CREDITS / 2;

/// Maximum size of a text event in bytes. A longer text is sent as several events.
const MAX_DELTA_BYTES: usize = 64 * 1024;

/// The hook `run_model_stream` of an external plugin.
pub(crate) struct StreamHook(pub(crate) ExternalHook);

/// Arguments and context of one call of the hook `run_model_stream`. They are kept while the stream runs, because the
/// plugin may call the next plugins at any time.
#[derive(Clone)]
pub(crate) struct StreamCall {
    hook: ExternalHook,
    position: usize,
    prompt: Prompt,
    session_id: SessionId,
    state: State,
    turn: Turn,
    /// Credits of the running `next/call` requests of the plugin.
    next_call_credits: Arc<Mutex<Vec<Arc<Semaphore>>>>,
    /// Cancels `over` when the stream is dropped. `None` in clones that answer requests of the plugin.
    _owner: Option<Arc<DropGuard>>,
    /// Cancelled when the stream is dropped.
    over: CancellationToken,
    /// The span in which the hook was called. The next plugins run in it.
    caller: Span,
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
        let Some((peer, remaining)) = hook.connect().await? else {
            return Ok(None);
        };
        let args::RunModelStream {
            prompt,
            session_id,
            state,
            turn,
        } = call.args;
        let over = CancellationToken::new();
        let stream_call = StreamCall {
            hook: hook.clone(),
            position: call.position(),
            prompt: prompt.clone(),
            session_id: session_id.clone(),
            state: state.clone(),
            turn: turn.clone(),
            next_call_credits: Arc::default(),
            _owner: Some(Arc::new(over.clone().drop_guard())),
            over,
            caller,
        };
        let mut params = hook.build_params::<RunModelStream>(call.args);
        if let Some(params) = params.as_object_mut() {
            params.insert("credits".to_owned(), STREAM_CREDITS.into());
        }
        let request = peer.send_request(&hook.method, &params, STREAM_CREDITS);
        let mut reader = StreamReader::new(request, Some(stream_call));
        match reader.next_step(remaining).await? {
            StreamStep::Event(first) => {
                hook.plugin.record_success();
                Ok(Some(reader.into_stream(first)))
            }
            StreamStep::End(answer) => {
                let empty = empty_stream(&answer);
                let text = hook.decode_response::<RunModelStream>(Some(state), answer)?;
                Ok(text.or(empty))
            }
        }
    }
}

impl StreamCall {
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
        let (peer, caller) = (Arc::clone(peer), self.caller.clone());
        let stream_call = Self {
            _owner: None,
            ..self.clone()
        };
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
            let request = wants_stream.then_some(&served);
            let answering = async {
                let answered = stream_call.answer_next_call(&peer, &id, &params, request);
                if let Err(error) = answered.await {
                    peer.respond(&id, Err(error));
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

    /// Calls the plugins that run after the external plugin, with some arguments replaced, and answers the request `id`
    /// with their stream. Without `request`, answers it with their complete text.
    async fn answer_next_call(
        &self,
        peer: &Peer,
        id: &Value,
        params: &Value,
        request: Option<&ServedRequest>,
    ) -> Result<()> {
        let replaced = callbacks::parse_replaced_args(RunModelStream::SPEC, params)?;
        let framework = self.hook.plugin.framework()?;
        let (hooks, index) = (framework.hooks(), self.position);
        let (prompt, session_id) = (&self.prompt, &self.session_id);
        if let Some(request) = request {
            let args = args::RunModelStream::new(prompt, session_id, &self.state, &self.turn);
            let stream = RunModelStream::call_next(hooks.next_after(index, args), replaced).await;
            send_stream(peer, id, stream, request, Map::new).await;
        } else {
            let args = args::RunModel::new(prompt, session_id, &self.state, &self.turn);
            let text = RunModel::call_next(hooks.next_after(index, args), replaced).await?;
            peer.respond(id, Ok(encode_next_result(text)));
        }
        Ok(())
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

/// Returns an empty stream if the response to a request is the end of a stream.
pub(crate) fn empty_stream(answer: &Value) -> Option<ModelStream> {
    let is_stream = answer.get("stream").is_some();
    is_stream.then(|| ModelStream::from_events([]))
}

/// Reads the events of a stream.
pub(crate) struct StreamReader {
    request: OutgoingRequest,
    /// The call of the hook if the host reads the stream, and `None` if a served plugin reads a stream of its host.
    call: Option<StreamCall>,
    /// Number of events that were read since the last grant of credits.
    read: usize,
    is_failed: bool,
}

/// What a stream sends next.
pub(crate) enum StreamStep {
    Event(StreamEvent),
    /// The response, which ends the stream.
    End(Value),
}

impl StreamReader {
    pub(crate) fn new(request: OutgoingRequest, call: Option<StreamCall>) -> Self {
        Self {
            request,
            call,
            read: 1,
            is_failed: false,
        }
    }

    /// Waits for the next event or the response. Answers the requests that the plugin sends meanwhile.
    pub(crate) async fn next_step(&mut self, remaining: Option<Duration>) -> Result<StreamStep> {
        loop {
            let incoming = match &self.call {
                Some(call) => {
                    let is_waiting = || call.is_waiting_for_next();
                    let next = call
                        .hook
                        .next_message(&mut self.request, remaining, is_waiting);
                    next.await?
                }
                None => self.request.next_message().await,
            };
            match (incoming, &self.call) {
                (IncomingMessage::Response(end), _) => return end.map(StreamStep::End),
                (IncomingMessage::Event(event), Some(call)) => {
                    return call.decode_event(&event).map(StreamStep::Event);
                }
                (IncomingMessage::Event(event), None) => {
                    return Ok(StreamStep::Event(StreamEvent::from_value(&event)));
                }
                (IncomingMessage::Question(question), Some(call)) => {
                    call.answer_request(&self.request.peer, question);
                }
                // The host sends no requests about a `next/call` request.
                (IncomingMessage::Question(question), None) => {
                    let error =
                        "unsupported request: the caller of `next/call` accepts no requests";
                    let error = Error::invalid_input(error);
                    self.request.peer.respond(&question.id, Err(error));
                }
            }
        }
    }

    /// Returns the events as a model stream. `first` is an event that was received already.
    pub(crate) fn into_stream(self, first: StreamEvent) -> ModelStream {
        let rest = stream::unfold(self, |mut reader| async move {
            let event = reader.next_event().await.transpose()?;
            reader.is_failed = event.is_err();
            Some((event, reader))
        });
        ModelStream::new(stream::iter([Ok(first)]).chain(rest))
    }

    /// Returns the next event, or `None` at the end of the stream.
    async fn next_event(&mut self) -> Result<Option<StreamEvent>> {
        if self.request.is_over() || self.is_failed {
            return Ok(None);
        }
        self.read += 1;
        if self.read == CREDIT_REFILL {
            self.request.grant_credits(CREDIT_REFILL);
            self.read = 0;
        }
        let limit = self.call.as_ref().and_then(|call| call.hook.limit);
        match (self.next_step(limit).await?, &self.call) {
            (StreamStep::Event(event), _) => Ok(Some(event)),
            (StreamStep::End(end), Some(call)) => call.handle_end(end).map(|()| None),
            (StreamStep::End(_), None) => Ok(None),
        }
    }
}
