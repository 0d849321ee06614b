//! Parses one line of the plugin protocol.

use bub_kernel::Error;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// A JSON-RPC message: a request, a notification or a response. A duplicate field is an error, because it is ambiguous.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct RpcMessage {
    #[serde(deserialize_with = "deserialize_present")]
    pub(crate) id: Option<Value>,
    pub(crate) method: Option<String>,
    pub(crate) params: Value,
    #[serde(deserialize_with = "deserialize_present")]
    pub(crate) result: Option<Value>,
    pub(crate) error: Value,
}

/// Deserializes a present field to `Some`, even if its value is `null`.
fn deserialize_present<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(from).map(Some)
}

/// Parses a line as a message. Accepts a byte order mark and a list with one message, because some JSON libraries write
/// them.
pub(crate) fn parse_line(line: &[u8]) -> Result<RpcMessage, serde_json::Error> {
    let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
    let line = line.trim_ascii();
    let single = line
        .strip_prefix(b"[")
        .and_then(|line| line.strip_suffix(b"]"));
    let single = single.map(<[u8]>::trim_ascii);
    let line = single.filter(|line| line.starts_with(b"{")).unwrap_or(line);
    if line.starts_with(b"[") {
        // serde would read the elements of a list as the fields of `RpcMessage`, in declaration order.
        return Err(serde::de::Error::custom(
            "batches of messages are not supported; send one message per line",
        ));
    }
    serde_json::from_slice(line)
}

/// The fields of an invalid line that can still be recognized.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct PartialRpcMessage {
    /// The field `id`, if it is a non-negative integer.
    pub(crate) id: Option<u64>,
    /// Whether the line has a `result` or an `error`, as a response does.
    pub(crate) is_answer: bool,
    /// Whether the line has a `method`, as a request or a notification does.
    pub(crate) is_call: bool,
}

/// Converts the field `error` of a JSON-RPC response to an [`Error`].
pub(crate) fn response_error(error: &Value) -> Error {
    if let Some(data) = error.get("data")
        && data.get("message").is_some()
    {
        return Error::from_value(data);
    }
    let text = error.get("message").unwrap_or(error).as_str();
    Error::unknown(text.unwrap_or("the plugin returned an error without a message"))
}

/// Parses an invalid line as far as possible: returns its id, and whether it is a request or a response. Ignores fields
/// of nested objects.
pub(crate) fn parse_partial(line: &[u8]) -> PartialRpcMessage {
    let mut partial = PartialRpcMessage::default();
    let (mut depth, mut position) = (0_u32, 0);
    // The message's own fields are at depth 1, or at depth 2 if the message is in a list.
    let is_list = line.iter().find(|byte| b"[{".contains(byte)) == Some(&b'[');
    while let Some(byte) = line.get(position) {
        position += 1;
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => {
                let text = line.get(position..).unwrap_or_default();
                let mut is_escaped = false;
                let end = text.iter().position(|byte| {
                    let is_end = *byte == b'"' && !is_escaped;
                    is_escaped = *byte == b'\\' && !is_escaped;
                    is_end
                });
                let Some(end) = end else { break };
                let (name, tail) = text.split_at(end);
                position += end + 1;
                let tail = tail.get(1..).unwrap_or_default().trim_ascii_start();
                let value = tail.strip_prefix(b":");
                if let Some(value) = value.filter(|_| depth == 1 + u32::from(is_list)) {
                    match name {
                        b"id" if partial.id.is_none() => {
                            partial.id = parse_number(value.trim_ascii_start());
                        }
                        b"result" | b"error" => partial.is_answer = true,
                        b"method" => partial.is_call = true,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    partial
}

fn parse_number(text: &[u8]) -> Option<u64> {
    let digits = text.split(|byte| !byte.is_ascii_digit()).next()?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{PartialRpcMessage, parse_partial};

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
                &parse_partial(line),
                expected,
                "{}",
                String::from_utf8_lossy(line)
            );
        }
    }
}
