//! Transcribes recordings with the endpoint `audio/transcriptions`, which many providers offer beside chat completions.

use std::time::Duration;

use reqwest::Url;
use reqwest::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use serde_json::Value;
use tokio::time::timeout;

use super::ModelClient;
use super::attempt::read_body_limited;
use super::transport::request_error;
use crate::classify::classify;
use crate::error::{ModelError, Result};
use crate::{Endpoint, WireFormat};

/// Timeout for a transcription.
const TRANSCRIPTION_TIMEOUT: Duration = Duration::from_mins(2);
/// Maximum bytes read of a response.
const MAX_RESPONSE_BYTES: usize = 1024 * 1024;
/// Maximum size of a recording. Providers accept at most 25 MB.
const MAX_RECORDING_BYTES: usize = 24 * 1024 * 1024;

/// A recording to transcribe.
#[derive(Clone, Copy, Debug)]
pub struct Recording<'a> {
    /// The name of the file. Providers recognize the format by its extension.
    pub name: &'a str,
    /// The MIME type.
    pub mime: &'a str,
    /// The content of the file.
    pub bytes: &'a [u8],
}

impl ModelClient {
    /// Returns the transcript of a recording. The model of the endpoint must be one for transcription.
    pub async fn transcribe(
        &self,
        endpoint: &Endpoint,
        recording: Recording<'_>,
    ) -> Result<String> {
        if !matches!(
            endpoint.wire,
            WireFormat::ChatCompletions | WireFormat::Responses
        ) {
            let text = format!(
                "{} has no transcription endpoint; set `transcribe` to a model of another provider",
                endpoint.id.provider()
            );
            return Err(ModelError::setup(text));
        }
        if recording.bytes.len() > MAX_RECORDING_BYTES {
            return Err(ModelError::too_large(
                "the recording is larger than 24 MiB; send a shorter one",
            ));
        }
        let transcribing = self.send_recording(endpoint, recording);
        let text = timeout(TRANSCRIPTION_TIMEOUT, transcribing).await;
        let text = text.unwrap_or_else(|_| Err(ModelError::timeout("the transcription timed out")));
        text.map_err(|error| error.redacted(&self.inner.redactor))
    }

    async fn send_recording(
        &self,
        endpoint: &Endpoint,
        recording: Recording<'_>,
    ) -> Result<String> {
        let address = format!("{}/audio/transcriptions", endpoint.base_url);
        let url = Url::parse(&address)
            .map_err(|_| ModelError::setup(format!("invalid base URL {}", endpoint.base_url)))?;
        let boundary = form_boundary(recording.bytes);
        let client = self.inner.http.client(&url).await?;
        let content_type = format!("multipart/form-data; boundary={boundary}");
        let mut request = client.post(url).header(CONTENT_TYPE, content_type);
        for (name, value) in &endpoint.headers {
            let name = HeaderName::from_bytes(name.as_bytes());
            let value = HeaderValue::from_str(value.expose());
            if let (Ok(name), Ok(mut value)) = (name, value) {
                value.set_sensitive(true);
                request = request.header(name, value);
            }
        }
        let body = form_body(endpoint.id.model(), recording, &boundary);
        let response = request.body(body).send().await;
        let response =
            response.map_err(|error| request_error(&error, endpoint.base_url.as_str(), None))?;
        let status = response.status();
        let body = read_body_limited(response, MAX_RESPONSE_BYTES, TRANSCRIPTION_TIMEOUT).await;
        if !status.is_success() {
            return Err(classify(Some(status.as_u16()), None, &body));
        }
        let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
        let text = answer.get("text").and_then(Value::as_str);
        let text = text.map(|text| text.trim().to_owned());
        text.ok_or_else(|| ModelError::malformed("unexpected response: it has no `text`"))
    }
}

/// Returns a boundary for a form that does not occur in the file.
fn form_boundary(bytes: &[u8]) -> String {
    let mut number = bytes.len();
    loop {
        let boundary = format!("bub-form-{number:x}");
        let is_inside = bytes
            .windows(boundary.len())
            .any(|window| window == boundary.as_bytes());
        if !is_inside {
            return boundary;
        }
        number += 1;
    }
}

/// Returns the body of a form with the model and the file.
fn form_body(model: &str, recording: Recording<'_>, boundary: &str) -> Vec<u8> {
    // Quotes and line breaks would end the header.
    let clean = |text: &str| text.replace(['"', '\r', '\n', '\\'], "_");
    let head = format!(
        "--{boundary}\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n{}\r\n\
         --{boundary}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{}\"\r\n\
         Content-Type: {}\r\n\r\n",
        clean(model),
        clean(recording.name),
        clean(recording.mime)
    );
    let mut body = head.into_bytes();
    body.extend_from_slice(recording.bytes);
    body.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
    body
}
