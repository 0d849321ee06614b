//! The `anthropic` format.

use bytes::Bytes;

use super::HttpRequest;
use super::stream::{Flow, FrameDecoder};
use crate::sse::SseEvent;
use crate::{ChatRequest, ModelError, ModelEvent, Quirks};

pub(super) const NAME: &str = "anthropic-messages";

pub(super) fn encode(_request: &ChatRequest, _quirks: &Quirks) -> HttpRequest {
    HttpRequest { path: String::new(), headers: Vec::new(), body: Bytes::new() }
}

pub(super) struct Decoder;

impl Decoder {
    pub(super) fn new() -> Self {
        Self
    }
}

impl FrameDecoder for Decoder {
    fn frame(&mut self, _: &SseEvent<'_>, _: &mut Vec<ModelEvent>) -> Result<Flow, ModelError> {
        Err(ModelError::malformed("not decoded yet"))
    }
    fn body(&mut self, _: &str, _: &mut Vec<ModelEvent>) -> Result<(), ModelError> {
        Err(ModelError::malformed("not decoded yet"))
    }
    fn has_finish(&self) -> bool {
        false
    }
    fn end(&mut self, _: &mut Vec<ModelEvent>) -> Result<(), ModelError> {
        Ok(())
    }
}
