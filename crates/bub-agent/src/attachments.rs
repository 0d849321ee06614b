//! Files that users attach to messages: stored in the inbox, and converted to what models can read.
//!
//! | Kind | What the model gets |
//! |---|---|
//! | text | its text |
//! | docx, xlsx, pptx, odt, ods, odp | its text, read by bub |
//! | PDF | its text, read by the program `pdftotext` in the sandbox |
//! | image | the image, if providers accept its format and size |
//! | audio | the recording, or its transcript with the setting `transcribe` |
//! | video | the video |
//!
//! A file that cannot be read is named in the context of the message, with the reason. The model can still use its
//! tools on the stored file.

mod inbox;
mod office;

use std::{path::Path, sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bub_kernel::{
    CancellationToken, Error, MediaItem, MediaKind, Result, Sender, Turn, audio_format,
};
use bub_sandbox::SandboxProfile;
use serde_json::{Value, json};

pub use self::office::{office_part_text, office_text};
use crate::{
    agent::Agent,
    shell::{Exit, ShellRequest},
};

/// The error for an attached file without content.
const NO_CONTENT_TEXT: &str = "the channel provided no content";
/// Maximum number of characters of a document in a prompt.
const MAX_DOCUMENT_CHARS: usize = 100_000;
/// Maximum size of an image. Providers accept 5 MB of base64, which is a third larger.
const MAX_IMAGE_BYTES: usize = 3_750_000;
/// Maximum time for reading a document.
const DOCUMENT_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum number of pages of a PDF document that are read.
const MAX_PDF_PAGES: u32 = 300;

/// Converts the files that are attached to the message of a turn.
pub(crate) struct AttachmentReader<'a> {
    pub(crate) agent: &'a Agent,
    pub(crate) turn: &'a Turn,
}

/// An attached file as the model gets it.
#[derive(Debug, Default)]
pub(crate) struct Attachment {
    /// The content part for the prompt, if models can read the file.
    pub(crate) part: Option<Value>,
    /// The path in the workspace, if the file was stored.
    pub(crate) saved: Option<String>,
    /// Why the model cannot read the file.
    pub(crate) problem: Option<Error>,
}

impl AttachmentReader<'_> {
    /// Stores and converts a file.
    pub(crate) async fn read(&self, item: &MediaItem) -> Attachment {
        let mut attachment = Attachment::default();
        match self.convert(item, &mut attachment).await {
            Ok(part) => attachment.part = part,
            Err(error) => attachment.problem = Some(error),
        }
        attachment
    }

    async fn convert(
        &self,
        item: &MediaItem,
        attachment: &mut Attachment,
    ) -> Result<Option<Value>> {
        let url = item.url.as_deref();
        if let Some(url) = url.filter(|url| !url.starts_with("data:")) {
            return match item.kind {
                MediaKind::Image => Ok(Some(image_part(url))),
                MediaKind::Video => Ok(Some(video_part(url))),
                // Providers accept audio only inline.
                MediaKind::Audio => Ok(None),
                _ => Err(Error::unknown(NO_CONTENT_TEXT)),
            };
        }
        let bytes = item.bytes().await?;
        let bytes = bytes.ok_or_else(|| Error::unknown(NO_CONTENT_TEXT))?;
        let bytes: Arc<[u8]> = bytes.into();
        let name = item.filename.as_deref().unwrap_or(item.kind.name());
        attachment.saved = self.save(name, &bytes).await;
        match item.kind {
            MediaKind::Image => {
                let mime = image_type(&item.mime, &bytes)?;
                Ok(Some(image_part(&data_url(mime, &bytes))))
            }
            MediaKind::Video => Ok(Some(video_part(&data_url(&item.mime, &bytes)))),
            MediaKind::Audio => self.convert_audio(item, &bytes).await,
            _ => {
                let text = self.document_text(item, &bytes, attachment.saved.as_deref());
                Ok(Some(text_part("Content", name, &text.await?)))
            }
        }
    }

    /// Stores a file in the inbox. Failures are only logged, because the model can often read the file without it.
    async fn save(&self, name: &str, bytes: &Arc<[u8]>) -> Option<String> {
        let workspace = crate::workspace(self.turn.state())?;
        let (file_name, content) = (name.to_owned(), Arc::clone(bytes));
        let saving = move || inbox::save_file(&workspace, &file_name, &content);
        let saved = tokio::task::spawn_blocking(saving).await;
        match saved.unwrap_or_else(|error| Err(std::io::Error::other(error))) {
            Ok(path) => Some(path.display().to_string()),
            Err(error) => {
                tracing::warn!(file = name, %error, "inbox.write_failed");
                None
            }
        }
    }

    async fn convert_audio(&self, item: &MediaItem, bytes: &[u8]) -> Result<Option<Value>> {
        if !item.mime.to_ascii_lowercase().starts_with("audio/") {
            return Ok(None);
        }
        let name = item.filename.as_deref().unwrap_or("audio");
        if let Some(text) = self.agent.transcribe(name, &item.mime, bytes).await? {
            return Ok(Some(text_part("Transcript", name, &text)));
        }
        let audio = json!({"data": STANDARD.encode(bytes), "format": audio_format(&item.mime)});
        Ok(Some(json!({"type": "input_audio", "input_audio": audio})))
    }

    /// Returns the text of a document. `saved` is its path in the workspace.
    async fn document_text(
        &self,
        item: &MediaItem,
        bytes: &Arc<[u8]>,
        saved: Option<&str>,
    ) -> Result<String> {
        if bytes.starts_with(b"PK\x03\x04") {
            let bytes = Arc::clone(bytes);
            let reading = move || office_text(&bytes, MAX_DOCUMENT_CHARS);
            let text = tokio::task::spawn_blocking(reading).await?;
            return text.map_err(Error::invalid_input);
        }
        let head = bytes.get(..bytes.len().min(1024)).unwrap_or_default();
        if memchr::memmem::find(head, b"%PDF-").is_some() {
            return self.pdf_text(saved).await;
        }
        let name = item.filename.as_deref().unwrap_or_default();
        if !is_text_document(&item.mime, name) {
            return Err(Error::invalid_input(
                "unsupported file type: only text, PDF, Office documents, images, audio and video can be read",
            ));
        }
        decode_text(bytes)
            .ok_or_else(|| Error::unknown("not a text file: the content is not valid UTF-8"))
    }

    /// Returns the text of a stored PDF document. The file comes from a user, so the program that reads it is confined
    /// like a command of the agent, with read-only access, and with limits of time and output.
    async fn pdf_text(&self, saved: Option<&str>) -> Result<String> {
        const HINT: &str = "install `pdftotext` (package poppler-utils) to read PDF documents";
        let saved = saved.ok_or_else(|| Error::unknown("the file could not be stored"))?;
        let workspace = crate::workspace(self.turn.state()).unwrap_or_default();
        let session = self.turn.session_id().clone();
        let (sandbox, profile) = (&self.agent.sandbox, SandboxProfile::ReadOnly);
        let mut confinement =
            sandbox.confinement(profile, &Sender::terminal(), &session, &workspace)?;
        confinement.network = false;
        if let Some(reason) = sandbox.unavailable_reason(&confinement) {
            let text = format!("the sandbox, which PDF documents need, is unavailable: {reason}");
            return Err(Error::unknown(text));
        }
        // The name of a stored file has no characters with a meaning in a shell.
        let command = format!(
            "command -v pdftotext >/dev/null || exit 127; pdftotext -q -enc UTF-8 -l {MAX_PDF_PAGES} -- '{saved}' - 2>/dev/null"
        );
        let request = ShellRequest {
            command,
            session,
            directory: Some(workspace),
            confinement: Some(confinement),
            ..ShellRequest::default()
        };
        let cancel = CancellationToken::new();
        let outcome = self
            .agent
            .shells
            .run(request, DOCUMENT_TIMEOUT, &cancel)
            .await?;
        match outcome.exit {
            Some(Exit::Code(0)) if outcome.output.trim().is_empty() => {
                Err(Error::unknown("the document has no text; it may be a scan"))
            }
            Some(Exit::Code(0)) => Ok(outcome.output),
            Some(Exit::Code(127)) => Err(Error::unknown(HINT)),
            Some(_) => Err(Error::unknown("the document is damaged or encrypted")),
            None => {
                let seconds = DOCUMENT_TIMEOUT.as_secs();
                let text = format!("reading it took longer than {seconds} seconds");
                Err(Error::unknown(text))
            }
        }
    }
}

fn image_part(url: &str) -> Value {
    json!({"type": "image_url", "image_url": {"url": url}})
}

fn video_part(url: &str) -> Value {
    json!({"type": "video_url", "video_url": {"url": url}})
}

fn data_url(mime: &str, bytes: &[u8]) -> String {
    format!("data:{mime};base64,{}", STANDARD.encode(bytes))
}

/// Returns the content part with the text of a file. Truncates a long text.
fn text_part(label: &str, name: &str, text: &str) -> Value {
    let (text, note) = match text.char_indices().nth(MAX_DOCUMENT_CHARS) {
        Some((end, _)) => (text.get(..end).unwrap_or_default(), "\n[truncated here]"),
        None => (text, ""),
    };
    json!({"type": "text", "text": format!("[{label} of {name}]\n{text}{note}")})
}

/// Returns the type of an image by its first bytes. Providers reject an image whose declared type is wrong. Fails for
/// formats and sizes that they do not accept.
fn image_type<'a>(declared: &'a str, bytes: &[u8]) -> Result<&'a str> {
    const FORMATS: [(&str, &[u8]); 4] = [
        ("image/jpeg", b"\xff\xd8\xff"),
        ("image/png", b"\x89PNG\r\n\x1a\n"),
        ("image/gif", b"GIF8"),
        ("image/webp", b"RIFF"),
    ];
    if bytes.len() > MAX_IMAGE_BYTES {
        let text = "the image is larger than 3.75 MB, which providers reject; send a smaller one";
        return Err(Error::invalid_input(text));
    }
    let found = FORMATS.iter().find(|(_, head)| bytes.starts_with(head));
    let declared_format = FORMATS.iter().find(|(mime, _)| *mime == declared);
    match found.or(declared_format) {
        Some((mime, _)) => Ok(mime),
        None => Err(Error::invalid_input(format!(
            "unsupported image format {declared}: send JPEG, PNG, GIF or WebP"
        ))),
    }
}

/// Decodes a text document: UTF-8, or UTF-16 with a byte order mark.
fn decode_text(bytes: &[u8]) -> Option<String> {
    let unit: fn([u8; 2]) -> u16 = match bytes.get(..2) {
        Some(b"\xff\xfe") => u16::from_le_bytes,
        Some(b"\xfe\xff") => u16::from_be_bytes,
        _ => {
            let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
            return String::from_utf8(text.to_vec()).ok();
        }
    };
    let (pairs, rest) = bytes.get(2..)?.as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    let units: Vec<u16> = pairs.iter().map(|pair| unit(*pair)).collect();
    String::from_utf16(&units).ok()
}

/// Returns whether a document is text, by its media type or the extension of its name.
fn is_text_document(mime: &str, name: &str) -> bool {
    const TEXT_EXTENSIONS: [&str; 20] = [
        "c", "cfg", "conf", "cpp", "css", "csv", "go", "h", "ini", "java", "json", "log", "md",
        "py", "rs", "sh", "toml", "txt", "yaml", "yml",
    ];
    let mime = mime.split(';').next().unwrap_or_default();
    let mime = mime.trim().to_ascii_lowercase();
    match mime.strip_prefix("application/") {
        None | Some("octet-stream") => {
            let extension = Path::new(name).extension().unwrap_or_default();
            let extension = extension.to_string_lossy().to_ascii_lowercase();
            mime.starts_with("text/") || TEXT_EXTENSIONS.contains(&extension.as_str())
        }
        Some("json" | "xml" | "yaml" | "x-yaml" | "toml" | "javascript" | "x-sh" | "sql") => true,
        Some(subtype) => subtype.ends_with("+json") || subtype.ends_with("+xml"),
    }
}
