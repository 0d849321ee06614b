//! The vocabulary of a script: what the model says and how the answer goes wrong.

use serde_json::{Value, json};

use super::pace::Pace;

/// One answer of the model server.
///
/// `Reply::new()` and its relatives speak: text, reasoning, tool calls, written in the format of the request,
/// streamed when the request asks for it. `Reply::status` and `Reply::raw` answer with exactly what is given.
/// The modifiers make either slow, cut or ugly.
#[derive(Clone, Debug)]
pub struct Reply {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: ReplyBody,
    pub(super) delivery: ReplyTransport,
}

#[derive(Clone, Debug)]
pub(super) enum ReplyBody {
    /// Said in the format of the request.
    Said(Vec<ReplyPart>),
    /// An error in the shape of the format, with this message.
    Refusal(String),
    /// Exactly these bytes.
    Raw {
        content_type: String,
        bytes: Vec<u8>,
    },
}

/// One thing that the model says.
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
    /// A frame that is not what the format says.
    Garbage(String),
}

/// How the answer travels.
#[derive(Clone, Debug, Default)]
pub(super) struct ReplyTransport {
    pub(super) crlf: bool,
    pub(super) comments: bool,
    pub(super) pace: Option<Pace>,
    /// After how many events, and how, the connection breaks.
    pub(super) cut: Option<(usize, ReplyCut)>,
    /// Bytes written at a time.
    pub(super) split: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyCut {
    /// The TCP connection is closed although the HTTP body is not finished.
    Fin,
    /// The TCP connection is reset.
    Reset,
    /// The HTTP body ends properly, but the events stop half way.
    End,
    /// Nothing more comes, but the connection stays.
    Hold,
}

/// Tokens used, as the formats count them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyUsage {
    /// Tokens of the prompt, cached ones included.
    pub input: u64,
    /// Tokens of the answer, reasoning included.
    pub output: u64,
    /// Of the prompt: read from the cache.
    pub cached: u64,
    /// Of the answer: reasoning.
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
    /// The model wants its tool calls executed.
    ToolCalls,
    /// The limit of output tokens was hit.
    Length,
    /// A filter of the provider stopped the answer.
    Filter,
}

impl Reply {
    /// A model that says nothing yet; add to it.
    pub fn new() -> Self {
        Self {
            status: 200,
            headers: Vec::new(),
            body: ReplyBody::Said(Vec::new()),
            delivery: ReplyTransport::default(),
        }
    }

    /// A complete answer in one delta.
    pub fn text(text: impl Into<String>) -> Self {
        Self::new().say(text)
    }

    /// A complete answer in several deltas.
    pub fn deltas<I: Into<String>>(deltas: impl IntoIterator<Item = I>) -> Self {
        Self::new().part(ReplyPart::Text(
            deltas.into_iter().map(Into::into).collect(),
        ))
    }

    /// An error of the provider, with a message in the shape of the format.
    pub fn status(status: u16) -> Self {
        let body = ReplyBody::Refusal(format!("scripted error {status}"));
        Self {
            status,
            body,
            ..Self::new()
        }
    }

    /// A 200 with a body of exactly these bytes, called an event stream.
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

    /// A 200 without any body.
    pub fn empty() -> Self {
        Self::raw(Vec::new())
    }

    /// A page as proxies and login walls send it.
    pub fn html(status: u16, title: &str) -> Self {
        let page = format!(
            "<!DOCTYPE html>\n<html><head><title>{title}</title></head><body><h1>{title}</h1></body></html>"
        );
        Self {
            status,
            ..Self::raw(page).content_type("text/html; charset=utf-8")
        }
    }

    /// A JSON body, whatever the client asked for.
    pub fn json(body: &Value) -> Self {
        Self::raw(body.to_string()).content_type("application/json")
    }

    pub(super) fn models(names: &[String]) -> Self {
        let data: Vec<Value> = names
            .iter()
            .map(|name| json!({"id": name, "object": "model"}))
            .collect();
        Self::json(&json!({"object": "list", "data": data}))
    }

    /// Says more text, in one delta.
    #[must_use]
    pub fn say(self, text: impl Into<String>) -> Self {
        self.part(ReplyPart::Text(vec![text.into()]))
    }

    /// Thinks, in one delta.
    #[must_use]
    pub fn reasoning(self, text: impl Into<String>) -> Self {
        self.part(ReplyPart::Reasoning(vec![text.into()]))
    }

    /// Calls a tool, its arguments in one delta. Several calls in one answer are parallel.
    #[must_use]
    pub fn call(self, id: &str, name: &str, arguments: &str) -> Self {
        self.split_call(id, name, [arguments])
    }

    /// Calls a tool, its arguments in the given pieces.
    #[must_use]
    pub fn split_call<'a>(
        self,
        id: &str,
        name: &str,
        arguments: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let arguments = arguments.into_iter().map(str::to_owned).collect();
        self.part(ReplyPart::Call {
            id: id.to_owned(),
            name: name.to_owned(),
            arguments,
        })
    }

    /// Reports these tokens instead of the default.
    #[must_use]
    pub fn usage(self, usage: ReplyUsage) -> Self {
        self.part(ReplyPart::Usage(usage))
    }

    /// Stops for this reason instead of the one that follows from what was said.
    #[must_use]
    pub fn finish(self, finish: Finish) -> Self {
        self.part(ReplyPart::Finish(finish))
    }

    /// Breaks off with an error event inside the stream; `error` is the provider's error object.
    #[must_use]
    pub fn error_event(self, error: Value) -> Self {
        self.part(ReplyPart::Error(error))
    }

    /// Sends one event with this data, which need not be JSON.
    #[must_use]
    pub fn garbage(self, data: &str) -> Self {
        self.part(ReplyPart::Garbage(data.to_owned()))
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The message of an error answer.
    #[must_use]
    pub fn message(mut self, message: &str) -> Self {
        self.body = ReplyBody::Refusal(message.to_owned());
        self
    }

    /// The body of an error answer: exactly this JSON.
    #[must_use]
    pub fn with_json(mut self, body: &Value) -> Self {
        self.body = ReplyBody::Raw {
            content_type: "application/json".to_owned(),
            bytes: body.to_string().into_bytes(),
        };
        self
    }

    /// Another status, with the body as it is.
    #[must_use]
    pub fn with_status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    /// Another content type for a raw body.
    #[must_use]
    pub fn content_type(mut self, value: &str) -> Self {
        if let ReplyBody::Raw { content_type, .. } = &mut self.body {
            value.clone_into(content_type);
        }
        self
    }

    /// Lines end with CR LF.
    #[must_use]
    pub fn crlf(mut self) -> Self {
        self.delivery.crlf = true;
        self
    }

    /// A keep-alive comment before each event.
    #[must_use]
    pub fn comments(mut self) -> Self {
        self.delivery.comments = true;
        self
    }

    /// The test decides when each event is sent.
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
        self.cut(events, ReplyCut::Fin)
    }

    /// Resets the TCP connection after this many events.
    #[must_use]
    pub fn reset_after(self, events: usize) -> Self {
        self.cut(events, ReplyCut::Reset)
    }

    /// Ends the body properly after this many events, before the model has finished.
    #[must_use]
    pub fn end_after(self, events: usize) -> Self {
        self.cut(events, ReplyCut::End)
    }

    /// Sends everything, but neither ends the body nor closes the connection.
    #[must_use]
    pub fn then_hold(self) -> Self {
        self.cut(usize::MAX, ReplyCut::Hold)
    }

    /// Falls silent after this many events, without closing anything.
    #[must_use]
    pub fn hang_after(self, events: usize) -> Self {
        self.cut(events, ReplyCut::Hold)
    }

    fn cut(mut self, events: usize, cut: ReplyCut) -> Self {
        self.delivery.cut = Some((events, cut));
        self
    }

    fn part(mut self, part: ReplyPart) -> Self {
        match &mut self.body {
            ReplyBody::Said(parts) => parts.push(part),
            body => *body = ReplyBody::Said(vec![part]),
        }
        self
    }
}

impl Default for Reply {
    fn default() -> Self {
        Self::new()
    }
}
