//! Files that users attach to messages: stored in the inbox, and converted to what models can read.
//!
//! | Kind | What the model gets |
//! |---|---|
//! | text | its text |
//! | docx, xlsx, pptx, odt, ods, odp | its text, read by bub |
//! | PDF | its text, read by the program `pdftotext` in the sandbox |
//! | image | the image, scaled and converted to what the model accepts |
//! | audio | the recording, converted by the program `ffmpeg` if necessary, or its transcript with the setting `transcribe` |
//! | video | the video, if the model accepts videos |
//!
//! A file that cannot be read is named in the context of the message, with the reason. The model can still use its
//! tools on the stored file.

mod audio;
mod converter;
mod image;
mod inbox;
mod office;

use std::{path::Path, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bub_kernel::{Error, MediaItem, MediaKind, Result, Turn};
use bub_model::MediaLimits;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

pub(crate) use self::inbox::AddedFiles;
pub use self::{
    image::fit_image,
    office::{office_part_text, office_text},
};
use crate::agent::Agent;

/// The error for an attached file without content.
const NO_CONTENT_TEXT: &str = "the channel provided no content";
/// Maximum number of characters of a document in a prompt.
const MAX_DOCUMENT_CHARS: usize = 100_000;
/// Maximum number of pages of a PDF document that are read.
const MAX_PDF_PAGES: u32 = 300;

/// Decoded images are large, so one is decoded at a time.
static IMAGE_PERMIT: Semaphore = Semaphore::const_new(1);

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
            Ok(part) => {
                if let (Some(part), Some(name)) = (&part, &item.filename) {
                    self.turn.tape().set_media_name(part, name);
                }
                attachment.part = part;
            }
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
                MediaKind::Audio => Err(Error::invalid_input(
                    "providers accept audio only as a file, not as a URL",
                )),
                _ => Err(Error::unknown(NO_CONTENT_TEXT)),
            };
        }
        let bytes = item.bytes().await?;
        let bytes = bytes.ok_or_else(|| Error::unknown(NO_CONTENT_TEXT))?;
        let bytes: Arc<[u8]> = bytes.into();
        let name = item.filename.as_deref().unwrap_or(item.kind.name());
        attachment.saved = self.save(name, &bytes).await;
        match item.kind {
            MediaKind::Image => self.fitting_image_part(item, bytes).await.map(Some),
            MediaKind::Video if self.limits().await.video => {
                Ok(Some(video_part(&data_url(&item.mime, &bytes))))
            }
            MediaKind::Video => Err(Error::invalid_input(
                "the API of this model accepts no videos",
            )),
            MediaKind::Audio => {
                let saved = attachment.saved.as_deref();
                self.audio_part(item, &bytes, saved).await.map(Some)
            }
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
        let added = Arc::clone(&self.agent.added_files);
        let saving = move || inbox::save_file(&workspace, &file_name, &content, &added);
        let saved = tokio::task::spawn_blocking(saving).await;
        match saved.unwrap_or_else(|error| Err(std::io::Error::other(error))) {
            Ok(path) => Some(path.display().to_string()),
            Err(error) => {
                tracing::warn!(file = name, %error, "inbox.write_failed");
                None
            }
        }
    }

    /// Returns what the models of the turn accept.
    async fn limits(&self) -> MediaLimits {
        self.agent.media_limits(self.turn.state()).await
    }

    async fn fitting_image_part(&self, item: &MediaItem, bytes: Arc<[u8]>) -> Result<Value> {
        let (mime, limits) = (item.mime.to_ascii_lowercase(), self.limits().await);
        let _permit = IMAGE_PERMIT.acquire().await;
        let fitting = move || {
            let (mime, bytes) = fit_image(&mime, &bytes, &limits)?;
            Ok(image_part(&data_url(&mime, &bytes)))
        };
        let part: Result<Value, String> = tokio::task::spawn_blocking(fitting).await?;
        part.map_err(Error::invalid_input)
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
        let is_text = is_text_document(&item.mime, name);
        let is_untyped = ["", "application/octet-stream"].contains(&item.mime.as_str());
        match decode_text(bytes) {
            // Many text files, such as a `Makefile`, have a name that says nothing about their type.
            Some(text) if is_text || is_untyped && !text.contains(is_binary_char) => Ok(text),
            None if is_text => Err(Error::unknown(
                "not a text file: the content is not valid UTF-8",
            )),
            _ => Err(Error::invalid_input(
                "unsupported file type: only text, PDF, Office documents, images, audio and video can be read",
            )),
        }
    }

    /// Returns the text of a stored PDF document.
    async fn pdf_text(&self, saved: Option<&str>) -> Result<String> {
        const HINT: &str = "install `pdftotext` (package poppler-utils) to read PDF documents";
        let arguments = |file: &str, result: &str| {
            format!("-q -enc UTF-8 -l {MAX_PDF_PAGES} -- '{file}' {result}")
        };
        let text = self.run_converter("pdftotext", saved, arguments).await?;
        let text = text.ok_or_else(|| Error::unknown(HINT))?;
        let text = String::from_utf8_lossy(&text);
        if text.trim().is_empty() {
            return Err(Error::unknown("the document has no text; it may be a scan"));
        }
        Ok(text.into_owned())
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

/// Returns whether a character occurs only in files that are not text.
fn is_binary_char(char: char) -> bool {
    char.is_control() && !matches!(char, '\t' | '\n' | '\r' | '\x0c' | '\x1b')
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
