//! One line of the conversation, read.

use bub_kernel::Error;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// A message: a request, a notification or an answer. A field that is there twice is no message: which of the two is
/// meant, nobody knows.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct RpcMessage {
    #[serde(deserialize_with = "present")]
    pub(crate) id: Option<Value>,
    pub(crate) method: Option<String>,
    pub(crate) params: Value,
    #[serde(deserialize_with = "present")]
    pub(crate) result: Option<Value>,
    pub(crate) error: Value,
}

/// What is there, also when it is `null`.
fn present<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(from).map(Some)
}

/// Reads a line. A mark at its beginning, and a list around a single message, are what some programs cannot help.
pub(crate) fn read(line: &[u8]) -> Result<RpcMessage, serde_json::Error> {
    let line = line
        .strip_prefix(b"\xef\xbb\xbf")
        .unwrap_or(line)
        .trim_ascii();
    let only = line
        .strip_prefix(b"[")
        .and_then(|line| line.strip_suffix(b"]"))
        .map(<[u8]>::trim_ascii);
    let line = only.filter(|line| line.starts_with(b"{")).unwrap_or(line);
    if line.starts_with(b"[") {
        // The parser would take a list for the fields in their order.
        return Err(serde::de::Error::custom("a list of messages"));
    }
    serde_json::from_slice(line)
}

/// What can still be seen in a line that cannot be read.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct PartialRpcMessage {
    /// The number it belongs to.
    pub(crate) id: Option<u64>,
    /// It was meant to be an answer.
    pub(crate) is_answer: bool,
    /// It was meant to be a request or a notification.
    pub(crate) is_call: bool,
}

/// The error in an answer.
pub(crate) fn read_error(error: &Value) -> Error {
    if let Some(data) = error
        .get("data")
        .filter(|data| data.get("message").is_some())
    {
        return Error::from_value(data);
    }
    let text = error.get("message").unwrap_or(error);
    Error::unknown(text.as_str().unwrap_or("it failed"))
}

/// Looks for the names of the outermost object.
pub(crate) fn read_partial(line: &[u8]) -> PartialRpcMessage {
    let mut seen = PartialRpcMessage::default();
    let (mut depth, mut at) = (0_u32, 0);
    // A list around it is not counted.
    let is_list = line.iter().find(|byte| b"[{".contains(byte)) == Some(&b'[');
    while let Some(byte) = line.get(at) {
        at += 1;
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => {
                let text = line.get(at..).unwrap_or_default();
                let mut is_escaped = false;
                let end = text.iter().position(|byte| {
                    let is_end = *byte == b'"' && !is_escaped;
                    is_escaped = *byte == b'\\' && !is_escaped;
                    is_end
                });
                let Some(end) = end else { break };
                let (name, rest) = text.split_at(end);
                at += end + 1;
                let value = rest
                    .get(1..)
                    .unwrap_or_default()
                    .trim_ascii_start()
                    .strip_prefix(b":");
                if let Some(value) = value.filter(|_| depth == 1 + u32::from(is_list)) {
                    match name {
                        b"id" => seen.id = seen.id.or_else(|| number(value.trim_ascii_start())),
                        b"result" | b"error" => seen.is_answer = true,
                        b"method" => seen.is_call = true,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    seen
}

fn number(text: &[u8]) -> Option<u64> {
    let end = text
        .iter()
        .position(|byte| !byte.is_ascii_digit())
        .unwrap_or(text.len());
    std::str::from_utf8(text.get(..end)?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{PartialRpcMessage, read_partial};

    #[test]
    fn names_of_the_outermost_object_are_seen_in_a_line_that_cannot_be_read() {
        let answer = |id| PartialRpcMessage {
            id,
            is_answer: true,
            is_call: false,
        };
        let cases: &[(&[u8], PartialRpcMessage)] = &[
            (
                br#"{"result": {"id": 4, "method": "x", "a": NaN}, "id":7}"#,
                answer(Some(7)),
            ),
            (
                br#"{"result": "\"id\": 4, \\", "error": NaN}"#,
                answer(None),
            ),
            (br#" [{"id": 7, "result": NaN}]"#, answer(Some(7))),
            (
                br#"{"id": 1, "method": "#,
                PartialRpcMessage {
                    id: Some(1),
                    is_answer: false,
                    is_call: true,
                },
            ),
            (br#"{"id": "7", "result"#, PartialRpcMessage::default()),
            (b"\"id\": 7, \"result\": 3", PartialRpcMessage::default()),
            (b"\\\"\xff{[}]", PartialRpcMessage::default()),
        ];
        for (line, expected) in cases {
            assert_eq!(
                &read_partial(line),
                expected,
                "{}",
                String::from_utf8_lossy(line)
            );
        }
    }
}
