//! Scripted answers and their failures.

use serde_json::{Value, json};

use super::pace::Pace;

/// An answer of the model server.
///
/// `Reply::new()`, `text` and `deltas` create an answer in the format of the request, streamed if
/// requested. `Reply::status` and `Reply::raw` send exactly the given response. The other methods
/// delay, interrupt or malform it.
#[derive(Clone, Debug)]
pub struct Reply {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: ReplyBody,
    pub(super) delivery: ReplyTransport,
}

#[derive(Clone, Debug)]
pub(super) enum ReplyBody {
    /// Parts that are written in the format of the request.
    Parts(Vec<ReplyPart>),
    /// An error body in the format of the request, with this message.
    Refusal(String),
    /// Exactly these bytes.
    Raw {
        content_type: String,
        bytes: Vec<u8>,
    },
}

/// One part of an answer.
#[derive(Clone, Debug)]
pub(super) enum ReplyPart {
    /// Each element is one delta.
    Text(Vec<String>),
    Reasoning(Vec<String>),
    Call {
        id: String,
        name: String,
        arguments: Vec<String>,
    },
    Usage(ReplyUsage),
    Finish(Finish),
    /// An error event in the middle of the stream.
    Error(Value),
    /// A frame that is invalid in the format.
    Garbage(String),
}

/// How the answer is sent.
#[derive(Clone, Debug, Default)]
pub(super) struct ReplyTransport {
    pub(super) crlf: bool,
    pub(super) comments: bool,
    pub(super) pace: Option<Pace>,
    /// Number of events before the connection breaks, and how it breaks.
    pub(super) cut: Option<(usize, ReplyCut)>,
    /// Bytes per write.
    pub(super) split: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyCut {
    /// The TCP connection is closed although the HTTP body is not finished.
    Fin,
    /// The TCP connection is reset.
    Reset,
    /// The HTTP body ends properly, but the events are incomplete.
    End,
    /// Nothing more is sent, but the connection stays open.
    Hold,
}

/// Token counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyUsage {
    /// Tokens of the prompt, including cached tokens.
    pub input: u64,
    /// Tokens of the answer, including reasoning.
    pub output: u64,
    /// Tokens of the prompt that were read from the cache.
    pub cached: u64,
    /// Reasoning tokens of the answer.
    pub reasoning: u64,
}

impl Default for ReplyUsage {
    fn default() -> Self {
        Self {
            input: 10,
            output: 5,
            cached: 0,
            reasoning: 0,
        }
    }
}

/// Why the model stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The answer is complete.
    Stop,
    /// The model requests tool calls.
    ToolCalls,
    /// The limit of output tokens was reached.
    Length,
    /// The provider's content filter stopped the answer.
    Filter,
}

impl Reply {
    /// Creates an empty answer.
    pub fn new() -> Self {
        Self {
            status: 200,
            headers: Vec::new(),
            body: ReplyBody::Parts(Vec::new()),
            delivery: ReplyTransport::default(),
        }
    }

    /// Creates a complete answer in one delta.
    pub fn text(text: impl Into<String>) -> Self {
        Self::new().say(text)
    }

    /// Creates a complete answer in several deltas.
    pub fn deltas<I: Into<String>>(deltas: impl IntoIterator<Item = I>) -> Self {
        Self::new().with_part(ReplyPart::Text(
            deltas.into_iter().map(Into::into).collect(),
        ))
    }

    /// Creates a provider error with a message in the format of the request.
    pub fn status(status: u16) -> Self {
        let body = ReplyBody::Refusal(format!("scripted error {status}"));
        Self {
            status,
            body,
            ..Self::new()
        }
    }

    /// Creates a 200 response with exactly these bytes and the content type of an event stream.
    pub fn raw(bytes: impl Into<Vec<u8>>) -> Self {
        let body = ReplyBody::Raw {
            content_type: "text/event-stream".to_owned(),
            bytes: bytes.into(),
        };
        Self {
            body,
            ..Self::new()
        }
    }

    /// Creates a 200 response with an empty body.
    pub fn empty() -> Self {
        Self::raw(Vec::new())
    }

    /// Creates an HTML page, as sent by proxies and login pages.
    pub fn html(status: u16, title: &str) -> Self {
        let page = format!(
            "<!DOCTYPE html>\n<html><head><title>{title}</title></head><body><h1>{title}</h1></body></html>"
        );
        Self {
            status,
            ..Self::raw(page).content_type("text/html; charset=utf-8")
        }
    }

    /// Creates a response with a JSON body, regardless of the request.
    pub fn json(body: &Value) -> Self {
        Self::raw(body.to_string()).content_type("application/json")
    }

    pub(super) fn model_list(names: &[String]) -> Self {
        let data: Vec<Value> = names
            .iter()
            .map(|name| json!({"id": name, "object": "model"}))
            .collect();
        Self::json(&json!({"object": "list", "data": data}))
    }

    /// Adds text in one delta.
    #[must_use]
    pub fn say(self, text: impl Into<String>) -> Self {
        self.with_part(ReplyPart::Text(vec![text.into()]))
    }

    /// Adds reasoning in one delta.
    #[must_use]
    pub fn reasoning(self, text: impl Into<String>) -> Self {
        self.with_part(ReplyPart::Reasoning(vec![text.into()]))
    }

    /// Adds a tool call with its arguments in one delta. Several calls in one answer are parallel.
    #[must_use]
    pub fn call(self, id: &str, name: &str, arguments: &str) -> Self {
        self.split_call(id, name, [arguments])
    }

    /// Adds a tool call with its arguments in the given pieces.
    #[must_use]
    pub fn split_call<'a>(
        self,
        id: &str,
        name: &str,
        arguments: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let arguments = arguments.into_iter().map(str::to_owned).collect();
        self.with_part(ReplyPart::Call {
            id: id.to_owned(),
            name: name.to_owned(),
            arguments,
        })
    }

    /// Sets the reported token counts.
    #[must_use]
    pub fn usage(self, usage: ReplyUsage) -> Self {
        self.with_part(ReplyPart::Usage(usage))
    }

    /// Sets the finish reason; the default follows from the parts.
    #[must_use]
    pub fn finish(self, finish: Finish) -> Self {
        self.with_part(ReplyPart::Finish(finish))
    }

    /// Ends the stream with an error event; `error` is the provider's error object.
    #[must_use]
    pub fn error_event(self, error: Value) -> Self {
        self.with_part(ReplyPart::Error(error))
    }

    /// Adds an event with this data, which may be invalid JSON.
    #[must_use]
    pub fn garbage(self, data: &str) -> Self {
        self.with_part(ReplyPart::Garbage(data.to_owned()))
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets the message of an error response.
    #[must_use]
    pub fn message(mut self, message: &str) -> Self {
        self.body = ReplyBody::Refusal(message.to_owned());
        self
    }

    /// Sets the JSON body of an error response.
    #[must_use]
    pub fn with_json(mut self, body: &Value) -> Self {
        self.body = ReplyBody::Raw {
            content_type: "application/json".to_owned(),
            bytes: body.to_string().into_bytes(),
        };
        self
    }

    /// Sets the status and keeps the body.
    #[must_use]
    pub fn with_status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    /// Sets the content type of a raw body.
    #[must_use]
    pub fn content_type(mut self, value: &str) -> Self {
        if let ReplyBody::Raw { content_type, .. } = &mut self.body {
            value.clone_into(content_type);
        }
        self
    }

    /// Ends lines with CR LF.
    #[must_use]
    pub fn crlf(mut self) -> Self {
        self.delivery.crlf = true;
        self
    }

    /// Sends a keep-alive comment before each event.
    #[must_use]
    pub fn comments(mut self) -> Self {
        self.delivery.comments = true;
        self
    }

    /// Lets the test decide when each event is sent.
    #[must_use]
    pub fn paced(mut self, pace: &Pace) -> Self {
        self.delivery.pace = Some(pace.clone());
        self
    }

    /// Sends the body in writes of this many bytes.
    #[must_use]
    pub fn split(mut self, bytes: usize) -> Self {
        self.delivery.split = Some(bytes.max(1));
        self
    }

    /// Closes the TCP connection after this many events, in the middle of the body.
    #[must_use]
    pub fn cut_after(self, events: usize) -> Self {
        self.with_cut(events, ReplyCut::Fin)
    }

    /// Resets the TCP connection after this many events.
    #[must_use]
    pub fn reset_after(self, events: usize) -> Self {
        self.with_cut(events, ReplyCut::Reset)
    }

    /// Ends the body properly after this many events, before the model has finished.
    #[must_use]
    pub fn end_after(self, events: usize) -> Self {
        self.with_cut(events, ReplyCut::End)
    }

    /// Sends everything, but neither ends the body nor closes the connection.
    #[must_use]
    pub fn then_hold(self) -> Self {
        self.with_cut(usize::MAX, ReplyCut::Hold)
    }

    /// Stops sending after this many events and keeps the connection open.
    #[must_use]
    pub fn hang_after(self, events: usize) -> Self {
        self.with_cut(events, ReplyCut::Hold)
    }

    fn with_cut(mut self, events: usize, cut: ReplyCut) -> Self {
        self.delivery.cut = Some((events, cut));
        self
    }

    fn with_part(mut self, part: ReplyPart) -> Self {
        match &mut self.body {
            ReplyBody::Parts(parts) => parts.push(part),
            body => *body = ReplyBody::Parts(vec![part]),
        }
        self
    }
}

impl Default for Reply {
    fn default() -> Self {
        Self::new()
    }
}
