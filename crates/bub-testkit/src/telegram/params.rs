//! Parameters of a call: JSON, or a form with files.

use serde_json::{Map, Value, json};

use crate::model::log::Request;

/// Returns the parameters as one object; an uploaded file is `{"filename", "size"}`.
pub(super) fn parse_params(request: &Request) -> Result<Value, String> {
    let kind = request.header("content-type").unwrap_or_default();
    if request.body.is_empty() {
        return Ok(json!({}));
    }
    if kind.starts_with("application/json") {
        return serde_json::from_slice(&request.body)
            .map_err(|error| format!("invalid JSON: {error}"));
    }
    let boundary = kind
        .strip_prefix("multipart/form-data; boundary=")
        .ok_or("neither JSON nor a form")?;
    parse_form(&request.body, boundary.trim_matches('"')).ok_or_else(|| "invalid form".to_owned())
}

fn parse_form(body: &[u8], boundary: &str) -> Option<Value> {
    let mut params = Map::new();
    let open = format!("--{boundary}\r\n").into_bytes();
    let close = format!("\r\n--{boundary}").into_bytes();
    let mut rest = body.strip_prefix(open.as_slice())?;
    loop {
        let head_end = find_bytes(rest, b"\r\n\r\n")?;
        let (head, content) = (
            String::from_utf8_lossy(rest.get(..head_end)?).into_owned(),
            rest.get(head_end + 4..)?,
        );
        let end = find_bytes(content, &close)?;
        let bytes = content.get(..end)?;
        let attribute = |name: &str| {
            Some(
                head.split_once(&format!("{name}=\""))?
                    .1
                    .split_once('"')?
                    .0
                    .to_owned(),
            )
        };
        let text = || {
            let text = String::from_utf8_lossy(bytes).into_owned();
            serde_json::from_str::<Value>(&text)
                .ok()
                .filter(|value| !value.is_string())
                .unwrap_or(Value::String(text))
        };
        let file = |filename: String| json!({"filename": filename, "size": bytes.len()});
        let value = attribute("filename").map_or_else(text, file);
        params.insert(attribute(" name")?, value);
        rest = content.get(end + close.len()..)?;
        if rest.starts_with(b"--") {
            return Some(Value::Object(params));
        }
        rest = rest.strip_prefix(b"\r\n")?;
    }
}

fn find_bytes(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    bytes
        .windows(needle.len())
        .position(|window| window == needle)
}
