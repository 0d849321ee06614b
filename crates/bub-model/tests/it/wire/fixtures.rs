//! Recordings of real servers in `$BUB_FIXTURES/wire`, with a manifest that describes each.

use bub_model::WireFormat;
use serde_json::Value;

pub(crate) struct Recording {
    pub(crate) file: String,
    pub(crate) api: String,
    pub(crate) status: Option<u16>,
    pub(crate) shows: Vec<String>,
    pub(crate) bytes: Vec<u8>,
    request: Option<Value>,
}

/// Returns all recordings.
pub(crate) fn all() -> Vec<Recording> {
    let root = bub_testkit::fixtures("wire");
    let manifest = std::fs::read_to_string(root.join("manifest.jsonl")).unwrap();
    let row = |line: &str| {
        let row: Value = serde_json::from_str(line).unwrap();
        let text = |key: &str| row[key].as_str().unwrap().to_owned();
        let shows = row["shows"]
            .as_array()
            .unwrap()
            .iter()
            .map(|label| label.as_str().unwrap().to_owned());
        Recording {
            file: text("file"),
            api: text("api"),
            status: row["status"]
                .as_u64()
                .map(|status| u16::try_from(status).unwrap()),
            shows: shows.collect(),
            bytes: std::fs::read(root.join(text("file"))).unwrap(),
            request: row["request"].as_str().and_then(|file| {
                serde_json::from_slice(&std::fs::read(root.join(file)).ok()?).ok()
            }),
        }
    };
    manifest
        .lines()
        .filter(|line| !line.is_empty())
        .map(row)
        .collect()
}

impl Recording {
    /// Returns the wire format of a recording, or `None` if bub does not support it.
    pub(crate) fn wire(&self) -> Option<WireFormat> {
        const UNSUPPORTED_APIS: [&str; 4] = [
            "bedrock-converse",
            "cohere-chat",
            "gemini-interactions",
            "ollama-chat",
        ];
        let wire = WireFormat::from_name(&self.api);
        assert!(
            wire.is_some() || UNSUPPORTED_APIS.contains(&self.api.as_str()),
            "undeclared API {}",
            self.api
        );
        wire
    }

    /// Returns the name of the recording and its request, if the request was recorded.
    pub(crate) fn request(&self) -> Option<(&str, &Value)> {
        Some((&self.file, self.request.as_ref()?))
    }

    pub(crate) fn is_stream(&self) -> bool {
        self.file.starts_with("streams/")
    }

    pub(crate) fn is_error(&self) -> bool {
        self.file.starts_with("errors/")
    }

    pub(crate) fn contains(&self, text: &str) -> bool {
        String::from_utf8_lossy(&self.bytes).contains(text)
    }

    pub(crate) fn shows(&self, label: &str) -> bool {
        self.shows.iter().any(|shown| shown == label)
    }

    /// Returns the received bytes. Adds SSE framing to recordings that contain only frames.
    pub(crate) fn wire_bytes(&self) -> Vec<u8> {
        if !self.file.ends_with(".chunks.txt") {
            return self.bytes.clone();
        }
        let text = std::str::from_utf8(&self.bytes).unwrap();
        let frames = text.lines().filter(|line| !line.trim().is_empty());
        frames
            .flat_map(|line| format!("data: {line}\n\n").into_bytes())
            .collect()
    }
}
