//! Removes secrets from the events of a model stream.

use std::borrow::Cow;

use bub_settings::{Redactor, StreamRedactor};

use super::StreamEvent;
use crate::error::Result;

/// Redacts events in order. Text that may be the beginning of a secret is held back until the next event of its kind
/// or the end of the text decides. The end is an event that readers show after the text, such as a tool call.
pub(super) struct EventRedactor {
    redactor: Redactor,
    text: StreamRedactor,
    reasoning: StreamRedactor,
}

impl EventRedactor {
    pub(super) fn new(redactor: &Redactor) -> Self {
        Self {
            redactor: redactor.clone(),
            text: redactor.stream(),
            reasoning: redactor.stream(),
        }
    }

    /// Returns the redacted events that are ready after the next event. `None` is the end of the stream.
    pub(super) fn redact(
        &mut self,
        event: Option<Result<StreamEvent>>,
    ) -> impl Iterator<Item = Result<StreamEvent>> + use<> {
        let mut ended = [None, None];
        // These events have no position in the text, so they pass what is held back.
        let is_between = matches!(
            event,
            Some(Ok(StreamEvent::Usage(_)
                | StreamEvent::Retry(_)
                | StreamEvent::Other { .. }))
        );
        if !is_between && !matches!(event, Some(Ok(StreamEvent::Text(_)))) {
            ended[0] = Some(StreamEvent::Text(self.text.flush_str()));
        }
        if !is_between && !matches!(event, Some(Ok(StreamEvent::Reasoning(_)))) {
            ended[1] = Some(StreamEvent::Reasoning(self.reasoning.flush_str()));
        }
        let event = event.map(|event| match event {
            Ok(event) => Ok(self.redact_event(event)),
            Err(error) => Err(error.redact(&self.redactor)),
        });
        let ended = ended.into_iter().flatten().map(Ok);
        ended.chain(event).filter(|event| match event {
            Ok(StreamEvent::Text(text) | StreamEvent::Reasoning(text)) => !text.is_empty(),
            _ => true,
        })
    }

    fn redact_event(&mut self, mut event: StreamEvent) -> StreamEvent {
        let redactor = &self.redactor;
        match &mut event {
            StreamEvent::Text(delta) => *delta = self.text.push_str(delta),
            StreamEvent::Reasoning(delta) => *delta = self.reasoning.push_str(delta),
            StreamEvent::ToolOutput { text, .. } => {
                if let Cow::Owned(redacted) = redactor.redact(text) {
                    *text = redacted;
                }
            }
            StreamEvent::Error(error) => *error = error.clone().redact(redactor),
            StreamEvent::ToolCall(values) | StreamEvent::ToolResult(values) => {
                for value in values {
                    redactor.redact_value(value);
                }
            }
            StreamEvent::Usage(data)
            | StreamEvent::Retry(data)
            | StreamEvent::Final(data)
            | StreamEvent::Other { data, .. } => redactor.redact_value(data),
        }
        event
    }
}
