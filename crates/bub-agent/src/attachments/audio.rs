//! Recordings that users send: transcribed, or converted to a format that the model accepts.

use std::{borrow::Cow, path::Path};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bub_kernel::{Error, MediaItem, Result, audio_format, audio_mime};
use bub_model::MediaLimits;
use serde_json::{Value, json};

use super::{AttachmentReader, text_part};

/// Maximum size of a recording in a prompt. Providers accept requests of 20 MB, with base64.
const MAX_AUDIO_BYTES: usize = 14 * 1024 * 1024;
/// The formats that `ffmpeg` may read. Others, such as playlists, can refer to other files.
const READ_FORMATS: &str = "aac,aiff,amr,caf,flac,matroska,mov,mp3,ogg,wav";
/// The first bytes of recordings, after the number of bytes to skip.
const SIGNATURES: [(usize, &[u8], &str); 7] = [
    (0, b"OggS", "ogg"),
    (0, b"ID3", "mp3"),
    (0, b"\xff\xfb", "mp3"),
    (0, b"fLaC", "flac"),
    (8, b"WAVE", "wav"),
    (8, b"AIFF", "aiff"),
    (4, b"ftyp", "m4a"),
];

impl AttachmentReader<'_> {
    /// Returns the content part for a recording. `saved` is its path in the workspace.
    pub(super) async fn audio_part(
        &self,
        item: &MediaItem,
        bytes: &[u8],
        saved: Option<&str>,
    ) -> Result<Value> {
        let name = item.filename.as_deref().unwrap_or("audio");
        let format = recording_format(&item.mime, bytes);
        if let Some(accepted) = self.agent.transcription_formats()? {
            let extension = Path::new(name).extension().unwrap_or_default();
            let extension = extension.to_string_lossy().to_ascii_lowercase();
            // Providers recognize the format by the extension.
            let (sent_name, format, content) = if accepted.contains(&extension) {
                (name.to_owned(), format, Cow::Borrowed(bytes))
            } else if accepted.contains(&format) {
                (format!("{name}.{format}"), format, Cow::Borrowed(bytes))
            } else {
                let converted = self.convert_audio(saved, &format, "mp3").await?;
                (format!("{name}.mp3"), "mp3".to_owned(), converted.into())
            };
            let mime = audio_mime(&format);
            let text = self.agent.transcribe(&sent_name, &mime, &content).await?;
            return Ok(text_part("Transcript", name, &text));
        }
        let MediaLimits { audio_formats, .. } = self.limits().await;
        let is_accepted = |name: &&str| audio_formats.iter().any(|format| format == name);
        if is_accepted(&format.as_str()) && bytes.len() <= MAX_AUDIO_BYTES {
            return Ok(input_audio(bytes, &format));
        }
        let Some(target) = ["mp3", "wav"].into_iter().find(is_accepted) else {
            return Err(Error::invalid_input(
                "the API of this model accepts no audio; set `transcribe` to send its text",
            ));
        };
        let converted = self.convert_audio(saved, &format, target).await?;
        if converted.len() > MAX_AUDIO_BYTES {
            let text = "the recording is too long; send a shorter one";
            return Err(Error::invalid_input(text));
        }
        Ok(input_audio(&converted, target))
    }

    /// Converts a stored recording with the program `ffmpeg`, in the sandbox. Speech needs one channel and 16 kHz.
    async fn convert_audio(&self, saved: Option<&str>, from: &str, to: &str) -> Result<Vec<u8>> {
        let arguments = |file: &str, result: &str| {
            format!(
                "-nostdin -v error -protocol_whitelist file -format_whitelist {READ_FORMATS} -i '{file}' \
                 -vn -map_metadata -1 -ac 1 -ar 16000 -f {to} {result}"
            )
        };
        let converted = self.run_converter("ffmpeg", saved, arguments).await?;
        converted.ok_or_else(|| {
            Error::unknown(format!(
                "the API of this model does not accept {from}; install `ffmpeg` to convert it, or set `transcribe` to send its text"
            ))
        })
    }
}

fn input_audio(bytes: &[u8], format: &str) -> Value {
    let audio = json!({"data": STANDARD.encode(bytes), "format": format});
    json!({"type": "input_audio", "input_audio": audio})
}

/// Returns the format of a recording by its first bytes, or else by its declared type.
fn recording_format(mime: &str, bytes: &[u8]) -> String {
    let is_match = |(skipped, signature, _): &&(usize, &[u8], &str)| {
        bytes
            .get(*skipped..)
            .is_some_and(|rest| rest.starts_with(signature))
    };
    match SIGNATURES.iter().find(is_match) {
        Some((_, _, format)) => (*format).to_owned(),
        None => audio_format(mime),
    }
}
