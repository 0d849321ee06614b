//! Records which parts of each reply the platform has accepted. A part is one Telegram message of a reply. The record
//! is a file, so that the next process resumes where this one ended and does not send delivered parts again.

use std::{
    collections::{HashMap, VecDeque},
    fs::{File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::Mutex,
};

use serde::{Deserialize, Serialize};

use crate::lock;

/// Maximum number of replies that are tracked.
const MAX_TRACKED_REPLIES: usize = 4096;

/// The delivery progress of a reply or a preview.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DeliveryProgress {
    /// Number of delivered parts.
    pub(super) parts: usize,
    /// Message id of the first delivered part, or of the message that shows the preview.
    pub(super) first: Option<i64>,
    /// Number of delivered pieces of the next part, if the platform accepted it only in pieces.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) pieces: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "required by serde")]
fn is_zero(value: &usize) -> bool {
    *value == 0
}

#[derive(Serialize, Deserialize)]
struct DeliveryLogLine {
    id: String,
    #[serde(flatten)]
    sent: DeliveryProgress,
}

pub(super) struct DeliveryLog {
    path: PathBuf,
    cache: Mutex<Option<DeliveryCache>>,
}

#[derive(Default)]
struct DeliveryCache {
    sent: HashMap<String, DeliveryProgress>,
    order: VecDeque<String>,
    lines: usize,
    file: Option<File>,
}

impl DeliveryLog {
    pub(super) fn new(home: &Path) -> Self {
        Self {
            path: home.join("telegram").join("sent.jsonl"),
            cache: Mutex::default(),
        }
    }

    pub(super) fn progress(&self, id: &str) -> DeliveryProgress {
        self.with_cache(|cache| cache.sent.get(id).cloned().unwrap_or_default())
    }

    /// Records the progress of a reply. Write errors are logged.
    pub(super) fn record(&self, id: &str, sent: DeliveryProgress) {
        self.with_cache(|cache| {
            let line = serde_json::to_string(&DeliveryLogLine {
                id: id.to_owned(),
                sent: sent.clone(),
            });
            cache.insert(id.to_owned(), sent);
            let written = line
                .map_err(io::Error::from)
                .and_then(|line| cache.append_line(&self.path, &line));
            if let Err(error) = written {
                cache.file = None;
                let hint = "after a crash, a part of a reply may be sent twice";
                tracing::warn!(%error, hint, "telegram.delivery_log_failed");
            }
        });
    }

    fn with_cache<T>(&self, function: impl FnOnce(&mut DeliveryCache) -> T) -> T {
        let mut cache = lock(&self.cache);
        function(cache.get_or_insert_with(|| DeliveryCache::load(&self.path)))
    }
}

impl DeliveryCache {
    fn load(path: &Path) -> Self {
        let mut cache = Self::default();
        let text = std::fs::read(path).unwrap_or_default();
        for line in text.split(|byte| *byte == b'\n') {
            // Skip invalid lines: the last line may be incomplete after a crash.
            if let Ok(line) = serde_json::from_slice::<DeliveryLogLine>(line) {
                cache.insert(line.id, line.sent);
            }
        }
        // Force a rewrite at the next append, so that an incomplete last line does not merge with the new one.
        cache.lines = usize::MAX;
        cache
    }

    fn insert(&mut self, id: String, sent: DeliveryProgress) {
        if self.sent.insert(id.clone(), sent).is_none() {
            self.order.push_back(id);
        }
        while self.order.len() > MAX_TRACKED_REPLIES {
            if let Some(oldest) = self.order.pop_front() {
                self.sent.remove(&oldest);
            }
        }
    }

    fn append_line(&mut self, path: &Path, line: &str) -> io::Result<()> {
        if self.lines > 4 * MAX_TRACKED_REPLIES {
            return self.rewrite(path);
        }
        if self.file.is_none() {
            self.file = Some(
                OpenOptions::new()
                    .append(true)
                    .create(true)
                    .mode(0o600)
                    .open(path)?,
            );
        }
        if let Some(file) = &mut self.file {
            file.write_all(format!("{line}\n").as_bytes())?;
        }
        self.lines += 1;
        Ok(())
    }

    fn rewrite(&mut self, path: &Path) -> io::Result<()> {
        let mut text = Vec::new();
        for id in &self.order {
            let sent = self.sent.get(id).cloned().unwrap_or_default();
            serde_json::to_writer(
                &mut text,
                &DeliveryLogLine {
                    id: id.clone(),
                    sent,
                },
            )?;
            text.push(b'\n');
        }
        replace_file(path, &text)?;
        (self.file, self.lines) = (None, self.order.len());
        Ok(())
    }
}

/// Replaces a file atomically. Creates its directory if necessary. Only the user can read both.
pub(super) fn replace_file(path: &Path, content: &[u8]) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)?;
    }
    let new = path.with_extension("new");
    let _ = std::fs::remove_file(&new);
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)?
        .write_all(content)?;
    std::fs::rename(&new, path)
}
