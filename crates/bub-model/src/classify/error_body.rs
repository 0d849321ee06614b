//! Parses error bodies of any form: object, array, string, web page, or an error inside another error.

use std::time::Duration;

use serde_json::Value;

use super::{retry_delay::delay_in_text, rules::RULES};
use crate::error::looks_like_html;

/// Maximum nesting depth of an error inside other errors.
const MAX_DEPTH: usize = 8;

/// Maximum length of the text that is searched for phrases. Servers put the reason at the beginning.
const MAX_TEXT_BYTES: usize = 16 * 1024;

/// The parts of an error body that are used for classification.
#[derive(Debug, Default)]
pub(super) struct ErrorBody {
    /// Codes, types, statuses and reasons in lower case. The innermost and most specific one is first.
    pub(super) codes: Vec<String>,
    /// HTTP status that the body contains, from 300 to 599.
    pub(super) status: Option<u16>,
    /// Error message in the body, or the whole body if it is not JSON.
    pub(super) text: String,
    /// Delay that the body requests before a retry.
    pub(super) retry_after: Option<Duration>,
    /// Whether the body is a web page.
    pub(super) is_html: bool,
}

impl ErrorBody {
    pub(super) fn parse(body: &[u8]) -> Self {
        let text = String::from_utf8_lossy(body);
        let mut parsed = Self::default();
        parsed.read_text(&text, MAX_DEPTH);
        let end = parsed.text.floor_char_boundary(MAX_TEXT_BYTES);
        parsed.text.truncate(end);
        if parsed.retry_after.is_none() && !parsed.is_html {
            parsed.retry_after = delay_in_text(&parsed.text);
        }
        parsed
    }

    /// Returns the first code, for error messages. Skips a code that only repeats the status.
    pub(super) fn display_code(&self, status: Option<u16>) -> Option<String> {
        let repeated = status.map(|status| status.to_string());
        self.codes
            .iter()
            .find(|code| Some(*code) != repeated.as_ref())
            .cloned()
    }

    fn read_text(&mut self, text: &str, depth: usize) {
        let text = text.trim();
        // Some proxies send a server-sent event as the body of an error.
        let json = text.strip_prefix("data:").map_or(text, str::trim);
        if let Ok(value) = serde_json::from_str::<Value>(json) {
            return self.read_value(&value, depth);
        }
        self.is_html = looks_like_html(text);
        text.clone_into(&mut self.text);
    }

    fn read_value(&mut self, value: &Value, depth: usize) {
        let Some(depth) = depth.checked_sub(1) else {
            return;
        };
        match value {
            Value::String(text) => self.read_nested(text, depth),
            Value::Array(list) => {
                if let Some(first) = list.first() {
                    self.read_value(first, depth);
                }
            }
            Value::Object(_) => {
                // Read the innermost error first, because it is the most specific.
                for inner in ["response", "error", "errors", "detail"] {
                    if let Some(inner) = value.get(inner).filter(|inner| !inner.is_null()) {
                        self.read_value(inner, depth);
                    }
                }
                self.read_upstream(value, depth);
                self.read_fields(value, depth);
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// Reads text that may be the JSON of another error.
    fn read_nested(&mut self, text: &str, depth: usize) {
        if text.trim_start().starts_with(['{', '['])
            && let Ok(nested) = serde_json::from_str(text)
        {
            self.read_value(&nested, depth);
        }
        if self.text.is_empty() {
            text.clone_into(&mut self.text);
        }
    }

    /// Reads the error of another provider to which this provider forwarded the call, and the fields of `details`.
    fn read_upstream(&mut self, error: &Value, depth: usize) {
        if let Some(raw) = error.pointer("/metadata/raw") {
            self.read_value(raw, depth);
        }
        for detail in items(error, "details") {
            self.add_code(detail.get("reason"));
            let delay = detail.get("retryDelay").and_then(Value::as_str);
            self.retry_after = self
                .retry_after
                .or_else(|| delay_in_text(&format!("retry in {}", delay?)));
            let mut quotas = items(detail, "violations")
                .filter_map(|violation| violation.get("quotaId")?.as_str());
            if quotas.any(|quota| quota.contains("PerDay")) {
                self.codes.insert(0, "quota_exceeded".to_owned());
            }
        }
        self.add_code(error.pointer("/innererror/code"));
    }

    fn read_fields(&mut self, error: &Value, depth: usize) {
        for key in &RULES.code_fields {
            self.add_code(error.get(key));
        }
        for key in &RULES.status_fields {
            let value = error.get(key).unwrap_or(&Value::Null);
            let text = || value.as_str()?.parse().ok();
            let status = value.as_u64().or_else(text);
            let status = status.and_then(|status| u16::try_from(status).ok());
            let status = status.filter(|status| (300..600).contains(status));
            self.status = self.status.or(status);
        }
        if let Some(seconds) = error.get("resets_in_seconds").and_then(Value::as_u64) {
            self.retry_after = self.retry_after.or(Some(Duration::from_secs(seconds)));
        }
        if !self.text.is_empty() {
            return;
        }
        let mut keys = RULES.message_fields.iter();
        if let Some(text) = keys.find_map(|key| error.get(key)?.as_str()) {
            self.read_nested(text, depth);
        }
    }

    fn add_code(&mut self, code: Option<&Value>) {
        let Some(code) = code.and_then(Value::as_str) else {
            return;
        };
        // A type may be a path ("…#ThrottlingException") or contain dashes.
        let code = code
            .rsplit(['#', '/'])
            .next()
            .unwrap_or(code)
            .to_ascii_lowercase()
            .replace('-', "_");
        let is_vague = matches!(code.as_str(), "" | "error" | "response.failed" | "response");
        if !is_vague && code.len() <= 80 && !self.codes.contains(&code) {
            self.codes.push(code);
        }
    }
}

/// Returns the items of a list in an object.
fn items<'a>(object: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    let list = object.get(key).and_then(Value::as_array);
    list.into_iter().flatten()
}
