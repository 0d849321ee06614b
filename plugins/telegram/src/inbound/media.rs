//! The kind of a message, its text and its file.

use bub::kernel::MediaKind;
use serde_json::{Map, Value, json};

use super::insert_non_null;

/// MIME type of animated stickers: vector drawings that models cannot read.
const ANIMATED_STICKER: &str = "application/x-tgsticker";
/// Maximum length of a file name in bytes.
const MAX_FILE_NAME_BYTES: usize = 120;

/// A file stored by the platform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// The kind of media for the model.
    pub kind: MediaKind,
    /// The MIME type.
    pub mime: String,
    /// The id to download the file with.
    pub file_id: String,
    /// The size in bytes, if known.
    pub size: Option<u64>,
    /// A sanitized file name.
    pub filename: Option<String>,
}

/// Fields that only service messages have. The platform creates service messages, for example when a user joins a
/// group.
const SERVICE_FIELDS: [&str; 14] = [
    "new_chat_members",
    "left_chat_member",
    "new_chat_title",
    "new_chat_photo",
    "delete_chat_photo",
    "group_chat_created",
    "supergroup_chat_created",
    "migrate_to_chat_id",
    "migrate_from_chat_id",
    "pinned_message",
    "message_auto_delete_timer_changed",
    "forum_topic_created",
    "forum_topic_closed",
    "forum_topic_edited",
];

/// Whether a message is a service message of the platform.
pub(super) fn is_service_message(message: &Value) -> bool {
    SERVICE_FIELDS.iter().any(|field| !message[field].is_null())
}

/// Describes a message of a kind that the Python version does not support: a venue, location, contact, poll or dice.
/// Returns `None` for other messages.
pub(super) fn describe_unknown_kind(message: &Value) -> Option<String> {
    let coordinates = |location: &Value| {
        Some(format!(
            "{}, {}",
            location["latitude"].as_f64()?,
            location["longitude"].as_f64()?
        ))
    };
    let join_texts = |values: &[&Value]| {
        let texts: Vec<&str> = values.iter().filter_map(|value| value.as_str()).collect();
        (!texts.is_empty()).then(|| texts.join(", "))
    };
    let (venue, contact, poll) = (&message["venue"], &message["contact"], &message["poll"]);
    let description = if let Some(name) = join_texts(&[&venue["title"], &venue["address"]]) {
        format!("Venue: {name} ({})", coordinates(&venue["location"])?)
    } else if let Some(location) = coordinates(&message["location"]) {
        format!("Location: {location}")
    } else if let Some(name) = join_texts(&[
        &contact["first_name"],
        &contact["last_name"],
        &contact["phone_number"],
    ]) {
        format!("Contact: {name}")
    } else if let Some(question) = poll["question"].as_str() {
        let options: Vec<&str> = poll["options"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|option| option["text"].as_str())
            .collect();
        format!("Poll: {question} ({})", options.join(" / "))
    } else {
        let dice = &message["dice"];
        format!(
            "Dice: {} {}",
            dice["emoji"].as_str()?,
            dice["value"].as_i64()?
        )
    };
    Some(format!("[{description}]"))
}

/// The kind of a Telegram message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TelegramMessageKind {
    Text,
    Photo,
    Audio,
    Sticker,
    Video,
    Voice,
    Document,
    VideoNote,
    Unknown,
}

impl TelegramMessageKind {
    /// Returns the kind of a Telegram message by the field that it has, such as `photo`.
    pub(super) fn from_message(message: &Value) -> Self {
        let kinds = [
            Self::Text,
            Self::Photo,
            Self::Audio,
            Self::Sticker,
            Self::Video,
            Self::Voice,
            Self::Document,
            Self::VideoNote,
        ];
        kinds
            .into_iter()
            .find(|kind| kind.is_present(message))
            .unwrap_or(Self::Unknown)
    }

    fn is_present(self, message: &Value) -> bool {
        match &message[self.name()] {
            Value::String(text) => self == Self::Text && !text.is_empty(),
            Value::Array(sizes) => self == Self::Photo && !sizes.is_empty(),
            Value::Object(_) => !matches!(self, Self::Text | Self::Photo),
            _ => false,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Photo => "photo",
            Self::Audio => "audio",
            Self::Sticker => "sticker",
            Self::Video => "video",
            Self::Voice => "voice",
            Self::Document => "document",
            Self::VideoNote => "video_note",
            Self::Unknown => "unknown",
        }
    }

    /// Returns the text of the message, or a description of its file.
    pub(super) fn text_or_description(self, message: &Value) -> String {
        let file = self.file_object(message);
        let text_field = |key: &str| file[key].as_str().unwrap_or_default();
        let seconds = file["duration"].as_u64().unwrap_or_default();
        let description = match self {
            Self::Text => return message["text"].as_str().unwrap_or_default().to_owned(),
            Self::Photo => "[Photo message]".to_owned(),
            Self::Audio => {
                let title = if text_field("title").is_empty() {
                    "Unknown"
                } else {
                    text_field("title")
                };
                let performer = text_field("performer");
                let dash = if performer.is_empty() { "" } else { " - " };
                format!("[Audio: {performer}{dash}{title} ({seconds}s)]")
            }
            Self::Sticker => {
                let emoji = Some(text_field("emoji")).filter(|emoji| !emoji.is_empty());
                let set = Some(text_field("set_name")).filter(|set| !set.is_empty());
                let emoji = emoji.map(|emoji| format!(": {emoji}")).unwrap_or_default();
                format!(
                    "[Sticker{emoji}{}]",
                    set.map(|set| format!(" from {set}")).unwrap_or_default()
                )
            }
            Self::Video => format!("[Video: {seconds}s]"),
            Self::Voice => format!("[Voice message: {seconds}s]"),
            Self::Document => {
                let name = sanitize_file_name(text_field("file_name"));
                format!(
                    "[Document: {} ({})]",
                    name.as_deref().unwrap_or("unknown"),
                    self.mime_type(message)
                )
            }
            Self::VideoNote => format!("[Video note: {seconds}s]"),
            Self::Unknown => {
                return describe_unknown_kind(message)
                    .unwrap_or_else(|| "[Unsupported message type: unknown]".to_owned());
            }
        };
        match message["caption"].as_str() {
            Some(caption) if !caption.is_empty() => format!("{description} Caption: {caption}"),
            _ => description,
        }
    }

    /// Returns the file object; for a photo, the largest size.
    fn file_object(self, message: &Value) -> &Value {
        let value = &message[self.name()];
        value
            .as_array()
            .and_then(|sizes| sizes.last())
            .unwrap_or(value)
    }

    fn mime_type(self, message: &Value) -> String {
        let file = self.file_object(message);
        let default = match self {
            Self::Photo => return "image/jpeg".to_owned(),
            Self::Sticker if file["is_animated"] == true => return ANIMATED_STICKER.to_owned(),
            Self::Sticker if file["is_video"] == true => return "video/webm".to_owned(),
            Self::Sticker => return "image/webp".to_owned(),
            Self::Audio => "audio/mpeg",
            Self::Voice => "audio/ogg",
            Self::Video | Self::VideoNote => "video/mp4",
            Self::Text | Self::Document | Self::Unknown => "application/octet-stream",
        };
        let declared = file["mime_type"].as_str().filter(|mime| is_mime_type(mime));
        declared.unwrap_or(default).to_owned()
    }

    /// Returns the metadata of the file, with the keys of the Python version.
    pub(super) fn file_metadata(self, message: &Value) -> Value {
        let keys: &[&str] = match self {
            Self::Text | Self::Unknown => return Value::Null,
            Self::Photo => &["file_id", "file_size", "width", "height", "mime_type"],
            Self::Audio => &[
                "file_id",
                "mime_type",
                "file_size",
                "duration",
                "title",
                "performer",
            ],
            Self::Sticker => &[
                "file_id",
                "width",
                "height",
                "mime_type",
                "emoji",
                "set_name",
                "is_animated",
            ],
            Self::Video => &[
                "file_id",
                "file_size",
                "width",
                "height",
                "duration",
                "mime_type",
            ],
            Self::Voice | Self::VideoNote => &["file_id", "duration", "mime_type"],
            Self::Document => &["file_id", "file_name", "file_size", "mime_type"],
        };
        let file = self.file_object(message);
        let mut fields = Map::new();
        for key in keys {
            let value = if *key == "mime_type" {
                json!(self.mime_type(message))
            } else {
                file[key].clone()
            };
            insert_non_null(&mut fields, [(key, value)]);
        }
        Value::Object(fields)
    }

    /// Returns the file for the model, or `None` if the message has no file or a model cannot read it.
    pub(super) fn attachment(self, message: &Value) -> Option<Attachment> {
        let file = self.file_object(message);
        let mime = self.mime_type(message);
        let kind = match self {
            Self::Text | Self::Unknown => return None,
            _ if mime == ANIMATED_STICKER => return None,
            // An image sent as a file is an image, and a sticker may be a video.
            Self::Document | Self::Sticker => match mime.split('/').next() {
                Some("image") if mime != "image/svg+xml" => MediaKind::Image,
                Some("audio") => MediaKind::Audio,
                Some("video") => MediaKind::Video,
                _ => MediaKind::Document,
            },
            Self::Photo => MediaKind::Image,
            Self::Audio | Self::Voice => MediaKind::Audio,
            Self::Video | Self::VideoNote => MediaKind::Video,
        };
        let file_id = file["file_id"]
            .as_str()
            .filter(|id| !id.is_empty())?
            .to_owned();
        let filename = file["file_name"].as_str().and_then(sanitize_file_name);
        Some(Attachment {
            kind,
            mime,
            file_id,
            size: file["file_size"].as_u64(),
            filename,
        })
    }
}

/// Whether a text has the form of a MIME type.
fn is_mime_type(mime: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"/+-._".contains(&byte);
    mime.len() <= 100
        && mime.split('/').filter(|half| !half.is_empty()).count() == 2
        && mime.bytes().all(is_allowed)
}

/// Converts a file name from a message to a safe one: without directories, leading dots or invisible characters.
pub fn sanitize_file_name(name: &str) -> Option<String> {
    let last = name.rsplit(['/', '\\']).next().unwrap_or_default();
    let is_visible = |character: &char| {
        !character.is_control()
            && !matches!(character, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let clean: String = last.chars().filter(is_visible).collect();
    let clean = clean.trim().trim_start_matches('.').trim();
    // Keep the end as well, because it contains the extension.
    let short = if clean.len() <= MAX_FILE_NAME_BYTES {
        clean.to_owned()
    } else {
        let (head, tail) = (
            clean.floor_char_boundary(MAX_FILE_NAME_BYTES - 20),
            clean.ceil_char_boundary(clean.len() - 20),
        );
        format!(
            "{}…{}",
            clean.get(..head).unwrap_or_default(),
            clean.get(tail..).unwrap_or_default()
        )
    };
    (!short.is_empty()).then_some(short)
}
