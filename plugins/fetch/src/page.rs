//! Converts an HTTP response to text of limited size.

use std::fmt::Write as _;

use bub::model::{ModelError, ResponseBody};
use bub::{Error, Result};
use reqwest::{
    Response, Url,
    header::{CONTENT_LENGTH, CONTENT_TYPE},
};

use crate::{
    client::{host_name, tool_error},
    markdown,
};

/// Maximum decompressed size of a page.
const MAX_PAGE_BYTES: usize = 2 * 1024 * 1024;
/// Maximum number of bytes read from an error response.
const MAX_ERROR_BYTES: usize = 64 * 1024;
/// Maximum number of characters of an error response in the error message.
const MAX_ERROR_CHARS: usize = 300;
/// Number of bytes at the start of a page that are searched for its encoding.
const CHARSET_PROBE_BYTES: usize = 2048;

/// A page as text.
#[derive(Clone, Debug)]
pub struct FetchedPage {
    /// The URL of the page, after redirects.
    pub url: String,
    /// The status of the response.
    pub status: u16,
    /// The media type of the response, without parameters.
    pub content_type: String,
    /// The text, as Markdown if the page is HTML.
    pub content: String,
}

/// Returns the text of a response. Fails if the status is not a success or the body is not text.
pub(crate) async fn read_response(response: Response, url: &Url) -> Result<FetchedPage> {
    let status = response.status();
    let header = |name| response.headers().get(name)?.to_str().ok();
    let kind = ContentType::parse(header(CONTENT_TYPE).unwrap_or_default());
    let size = header(CONTENT_LENGTH).and_then(|length| length.parse::<u64>().ok());
    if status.is_success() && !kind.is_text() {
        return Err(not_text_error(url, &kind.essence, size));
    }
    let limit = if status.is_success() {
        MAX_PAGE_BYTES
    } else {
        MAX_ERROR_BYTES
    };
    let (bytes, is_truncated) = read_body(response, url, limit).await?;
    let Some((mut text, lossy_charset)) = kind.to_text(&bytes, url) else {
        let size = size.or(u64::try_from(bytes.len()).ok().filter(|_| !is_truncated));
        return Err(not_text_error(url, "binary data", size));
    };
    if !status.is_success() {
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut problem = format!("HTTP {status} from {}", host_name(url));
        if !words.is_empty() {
            problem.push_str(": ");
            problem.extend(words.chars().take(MAX_ERROR_CHARS));
        }
        return Err(tool_error(problem));
    }
    if text.trim().is_empty() {
        "(no text)".clone_into(&mut text);
    }
    if let Some(charset) = lossy_charset {
        let _ = write!(
            text,
            "\n\n[unsupported encoding {charset}: some characters are lost]"
        );
    }
    if is_truncated {
        text.push_str("\n\n[truncated: the page is larger than 2 MB]");
    }
    Ok(FetchedPage {
        url: url.to_string(),
        status: status.as_u16(),
        content_type: kind.essence,
        content: text,
    })
}

/// Returns the text of a page with this `content-type` and body, for fuzz tests.
#[doc(hidden)]
pub fn page_text(content_type: &str, bytes: &[u8], url: &Url) -> Option<String> {
    ContentType::parse(content_type)
        .to_text(bytes, url)
        .map(|(text, _)| text)
}

/// Returns the decompressed body up to a limit, and whether it is truncated.
async fn read_body(response: Response, url: &Url, limit: usize) -> Result<(Vec<u8>, bool)> {
    let body_error = |error: ModelError| {
        let (host, reason) = (host_name(url), error.message);
        tool_error(format!("cannot read the response from {host}: {reason}"))
    };
    let mut body = ResponseBody::new(response).map_err(body_error)?;
    let mut bytes = Vec::new();
    while let Some(chunk) = body.next_chunk().await.map_err(body_error)? {
        let available = limit - bytes.len();
        bytes.extend_from_slice(chunk.get(..available).unwrap_or(&chunk));
        if chunk.len() > available {
            return Ok((bytes, true));
        }
    }
    Ok((bytes, false))
}

fn not_text_error(url: &Url, kind: &str, size: Option<u64>) -> Error {
    let size = size.map_or("unknown size".to_owned(), |size| format!("{size} bytes"));
    tool_error(format!(
        "{} returned {kind} ({size}), which is not text; download it with a program such as curl",
        host_name(url)
    ))
}

/// A parsed `content-type` header.
#[derive(Debug, PartialEq)]
struct ContentType {
    /// The media type in lower case, such as `text/html`.
    essence: String,
    charset: Option<String>,
}

impl ContentType {
    fn parse(header: &str) -> Self {
        let header = header.to_ascii_lowercase();
        let mut parts = header.split(';').map(str::trim);
        let essence = parts.next().unwrap_or_default().to_owned();
        let mut parameters = parts.filter_map(|part| part.split_once('='));
        let charset = parameters.find(|(name, _)| name.trim() == "charset");
        let charset = charset.map(|(_, value)| value.trim().trim_matches(['"', '\'']).to_owned());
        Self { essence, charset }
    }

    /// Returns whether the media type is text. A missing type counts as text; `is_binary` checks the bytes later.
    fn is_text(&self) -> bool {
        let Some((kind, name)) = self.essence.split_once('/') else {
            return self.essence.is_empty();
        };
        // The last part of types such as `problem+json`.
        let format = name.rsplit_once('+').map_or(name, |(_, format)| format);
        let is_text_format = match format {
            "json" | "xml" | "yaml" => true,
            "javascript" | "ecmascript" | "x-yaml" | "toml" | "x-ndjson" | "ndjson" => {
                name == format
            }
            _ => false,
        };
        kind == "text" || (kind == "application" && is_text_format)
    }

    /// Converts a body to text; HTML becomes Markdown. If characters are lost, the second value is the name of the
    /// encoding. Returns `None` for binary data.
    fn to_text(&self, bytes: &[u8], url: &Url) -> Option<(String, Option<String>)> {
        let charset = self.charset.as_deref();
        let is_wide = charset.is_some_and(|charset| charset.starts_with("utf-16"));
        if is_binary(bytes) && !is_wide {
            return None;
        }
        let (mut text, lossy_charset) = decode_text(bytes, charset);
        let is_html = match self.essence.as_str() {
            "text/html" | "application/xhtml+xml" => true,
            essence => essence.is_empty() && is_html_document(&text),
        };
        if is_html {
            text = markdown::html_to_markdown(&text, url);
        }
        Some((text, lossy_charset))
    }
}

/// Returns whether the bytes are binary data: they contain a zero byte and do not start like UTF-16 text.
fn is_binary(bytes: &[u8]) -> bool {
    let is_wide = bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]);
    !is_wide && memchr::memchr(0, bytes).is_some()
}

fn is_html_document(text: &str) -> bool {
    let start: String = text.trim_start().chars().take(15).collect();
    let start = start.to_ascii_lowercase();
    start.starts_with("<!doctype html") || start.starts_with("<html")
}

/// Decodes bytes. The second value is the name of the encoding if it is not supported and characters are lost.
///
/// Other encodings are rare, and the tables of `encoding_rs` are 180 KB in the program.
fn decode_text(bytes: &[u8], charset: Option<&str>) -> (String, Option<String>) {
    match bytes {
        [0xef, 0xbb, 0xbf, rest @ ..] => return (String::from_utf8_lossy(rest).into_owned(), None),
        [0xff, 0xfe, rest @ ..] => return (decode_utf16(rest, u16::from_le_bytes), None),
        [0xfe, 0xff, rest @ ..] => return (decode_utf16(rest, u16::from_be_bytes), None),
        _ => {}
    }
    let declared = charset.map(str::to_owned);
    let declared = declared.or_else(|| declared_charset(bytes));
    let lossy = || String::from_utf8_lossy(bytes).into_owned();
    match declared.as_deref() {
        Some("utf-8" | "utf8") => (lossy(), None),
        Some("iso-8859-1" | "iso8859-1" | "latin1" | "windows-1252" | "cp1252") => {
            (decode_windows_1252(bytes), None)
        }
        Some("utf-16le" | "utf-16") => (decode_utf16(bytes, u16::from_le_bytes), None),
        Some("utf-16be") => (decode_utf16(bytes, u16::from_be_bytes), None),
        // A page truncated within a character is still UTF-8.
        _ => match std::str::from_utf8(bytes) {
            Err(error) if error.error_len().is_some() => match declared {
                Some(charset) if charset != "us-ascii" => (lossy(), Some(charset)),
                _ => (decode_windows_1252(bytes), None),
            },
            _ => (lossy(), None),
        },
    }
}

fn decode_utf16(bytes: &[u8], read: fn([u8; 2]) -> u16) -> String {
    let (pairs, _) = bytes.as_chunks();
    let units = pairs.iter().map(|pair| read(*pair));
    char::decode_utf16(units)
        .map(|unit| unit.unwrap_or(char::REPLACEMENT_CHARACTER))
        .collect()
}

/// Returns the encoding that a page declares in `<meta charset=…>` or in its XML declaration.
fn declared_charset(bytes: &[u8]) -> Option<String> {
    let head = String::from_utf8_lossy(bytes.get(..CHARSET_PROBE_BYTES).unwrap_or(bytes))
        .to_ascii_lowercase();
    let at = ["charset=", "encoding="]
        .iter()
        .find_map(|key| Some(head.find(key)? + key.len()))?;
    if !head.trim_start().starts_with('<') {
        return None;
    }
    let value = head.get(at..)?.trim_start_matches(['"', '\'']);
    let is_end = |c: char| !c.is_ascii_alphanumeric() && !matches!(c, '-' | '_');
    let name = value.split(is_end).next()?;
    (!name.is_empty()).then(|| name.to_owned())
}

/// Decodes Windows-1252, which browsers also use for Latin-1.
fn decode_windows_1252(bytes: &[u8]) -> String {
    const WINDOWS_1252_HIGH: &str = "€\u{81}‚ƒ„…†‡ˆ‰Š‹Œ\u{8d}Ž\u{8f}\u{90}‘’“”•–—˜™š›œ\u{9d}žŸ";
    let high: Vec<char> = WINDOWS_1252_HIGH.chars().collect();
    let read = |byte: &u8| {
        let special = high.get(usize::from(*byte).wrapping_sub(0x80));
        special.copied().unwrap_or(char::from(*byte))
    };
    bytes.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_decides_what_is_text() {
        for text in [
            "",
            "text/html",
            "text/csv; charset=x",
            "application/json",
            "application/problem+json",
            "Application/XHTML+XML",
        ] {
            assert!(ContentType::parse(text).is_text(), "{text}");
        }
        for other in [
            "image/png",
            "application/pdf",
            "application/octet-stream",
            "video/mp4",
            "nonsense",
        ] {
            assert!(!ContentType::parse(other).is_text(), "{other}");
        }
    }

    #[test]
    fn the_encoding_comes_from_the_mark_the_header_the_page_or_the_bytes() {
        let page = b"<html><head><meta charset=\"windows-1252\"><p>\x93caf\xe9\x94";
        let cases: [(&[u8], Option<&str>, &str); 8] = [
            (b"\xef\xbb\xbfcaf\xc3\xa9", Some("latin1"), "café"),
            (b"caf\xc3\xa9", None, "café"),
            (b"caf\xe9 au", None, "café au"),
            (b"caf\xe9 ok", Some("iso-8859-1"), "café ok"),
            (b"\xff\xfea\0b\0", None, "ab"),
            (b"\0a\0b", Some("utf-16be"), "ab"),
            (b"caf\xc3", Some("utf-8"), "caf\u{fffd}"),
            (b"charset=latin1 caf\xc3\xa9", None, "charset=latin1 café"),
        ];
        for (bytes, charset, expected) in cases {
            assert_eq!(
                decode_text(bytes, charset),
                (expected.to_owned(), None),
                "{bytes:?}"
            );
        }
        assert!(decode_text(page, None).0.ends_with("“café”"));
        assert_eq!(
            decode_text(b"<p>\x82\xa0\x82\xa2 and more", Some("shift_jis"))
                .1
                .as_deref(),
            Some("shift_jis")
        );
    }
}
