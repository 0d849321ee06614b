//! The most that a day may cost, kept by all processes of a home together.
//!
//! The tapes are the truth, but reading them all before a call would cost more the longer bub is used. A ledger of
//! the day, `usage/<day>.jsonl`, has one line for each call; it is made from the tapes when it is missing, and read
//! on from where it was read last. Without a cap there is no ledger and nothing is done.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    pin::pin,
};

use bub_kernel::{Error, ErrorKind, Result, tape_error};
use bub_model::{Catalog, ModelId};
use bub_settings::Settings;
use bub_tape::{EntryRange, TapeListFilter, TapeStore};
use futures_util::TryStreamExt as _;
use jiff::{Timestamp, ToSpan as _, Zoned};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::{TokenCounts, calls};
use crate::settings::{USAGE_DAILY_COST, USAGE_DAILY_TOKENS};

/// The cap, and what is known of the day.
pub(crate) struct DailyLimit {
    tokens: Option<u64>,
    cost: Option<f64>,
    directory: PathBuf,
    today: Mutex<DailyUsage>,
}

/// What the ledger of a day said so far.
#[derive(Default)]
struct DailyUsage {
    day: String,
    /// How far the ledger is read.
    offset: u64,
    tokens: u64,
    cost: f64,
    /// Lines that could not be written: they count here all the same.
    unwritten: Vec<(String, TokenCounts)>,
}

impl DailyLimit {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            tokens: settings.get(&USAGE_DAILY_TOKENS),
            cost: settings.get(&USAGE_DAILY_COST),
            directory: settings.home().join("usage"),
            today: Mutex::default(),
        }
    }

    /// Whether there is a cap at all.
    pub(crate) fn is_set(&self) -> bool {
        self.tokens.is_some() || self.cost.is_some()
    }

    /// Whether one of these models may be called now; the error says why not, and when again.
    pub(crate) async fn check(
        &self,
        models: &[ModelId],
        catalogue: &Catalog,
        store: Option<&dyn TapeStore>,
    ) -> Result<()> {
        if !self.is_set() {
            return Ok(());
        }
        let unpriced = models.iter().find(|model| catalogue.price(model).is_none());
        if let Some(model) = unpriced.filter(|_| self.cost.is_some() && self.tokens.is_none()) {
            return Err(Error::config(format!(
                "the price of {model} is not known, so `usage.daily_cost` cannot be kept: set \
                 `providers.{}.prices`, or `usage.daily_tokens` as well, which then counts its tokens",
                model.provider()
            )));
        }
        let now = Zoned::now();
        let mut today = self.today.lock().await;
        self.read_on(&mut today, &now, catalogue, store).await?;
        let mut cost = today.cost;
        let mut tokens = today.tokens;
        for (model, own) in &today.unwritten {
            tokens = tokens.saturating_add(own.total());
            cost += cost_of(model, *own, catalogue);
        }
        let spent = if let Some(most) = self.tokens.filter(|most| tokens >= *most) {
            format!("{tokens} of {most} tokens (`usage.daily_tokens`)")
        } else if let Some(most) = self.cost.filter(|most| cost >= *most) {
            format!("${cost:.4} of ${most:.4} (`usage.daily_cost`)")
        } else {
            return Ok(());
        };
        let reset = now.date().saturating_add(1.day());
        let zone = now
            .time_zone()
            .iana_name()
            .map(|zone| format!(" {zone}"))
            .unwrap_or_default();
        Err(Error::new(
            ErrorKind::Provider,
            format!(
                "the cap of the day is reached: {spent}; it resets at {reset} 00:00{zone}, or raise the setting"
            ),
        ))
    }

    /// Counts a call that was made.
    pub(crate) async fn add(&self, model: &str, usage: &Value) {
        let Some(tokens) = TokenCounts::from_usage(usage).filter(|_| self.is_set()) else {
            return;
        };
        let mut today = self.today.lock().await;
        let day = Zoned::now().date().to_string();
        if let Err(error) = append(&self.ledger(&day), &line(model, tokens)) {
            let file = self.ledger(&day);
            tracing::error!(file = %file.display(), %error, "usage.write_failed");
            today.unwritten.push((model.to_owned(), tokens));
        }
    }

    fn ledger(&self, day: &str) -> PathBuf {
        self.directory.join(format!("{day}.jsonl"))
    }

    /// Reads what all processes have added since the last time.
    async fn read_on(
        &self,
        today: &mut DailyUsage,
        now: &Zoned,
        catalogue: &Catalog,
        store: Option<&dyn TapeStore>,
    ) -> Result<()> {
        let day = now.date().to_string();
        if today.day != day {
            *today = DailyUsage {
                day: day.clone(),
                ..DailyUsage::default()
            };
        }
        let path = self.ledger(&day);
        let failure = |error: io::Error| {
            let text = format!(
                "the usage of the day cannot be read from {}: {error}",
                path.display()
            );
            Error::new(ErrorKind::Temporary, text)
        };
        let mut file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let unwritten = std::mem::take(&mut today.unwritten);
                *today = DailyUsage {
                    day,
                    unwritten,
                    ..DailyUsage::default()
                };
                let start = now
                    .start_of_day()
                    .map_err(|error| failure(io::Error::other(error)))?
                    .timestamp();
                rebuild(&path, start, store).await?;
                File::open(&path).map_err(failure)?
            }
            opened => opened.map_err(failure)?,
        };
        if file.metadata().map_err(failure)?.len() < today.offset {
            // Somebody wrote another one.
            (today.offset, today.tokens, today.cost) = (0, 0, 0.0);
        }
        let mut text = Vec::new();
        file.seek(SeekFrom::Start(today.offset))
            .and_then(|_| file.read_to_end(&mut text))
            .map_err(failure)?;
        // A line without its end is still being written.
        let whole = memchr::memrchr(b'\n', &text).map_or(0, |end| end + 1);
        for line in text
            .get(..whole)
            .unwrap_or_default()
            .split(|byte| *byte == b'\n')
        {
            let Ok(call) = serde_json::from_slice::<Value>(line) else {
                continue;
            };
            let Some(tokens) = call.get("usage").and_then(TokenCounts::from_usage) else {
                continue;
            };
            today.tokens = today.tokens.saturating_add(tokens.total());
            today.cost += cost_of(
                call.get("model")
                    .and_then(Value::as_str)
                    .unwrap_or_default(),
                tokens,
                catalogue,
            );
        }
        today.offset += u64::try_from(whole).unwrap_or_default();
        Ok(())
    }
}

/// What is known of the cost; what is not counts as tokens.
fn cost_of(model: &str, tokens: TokenCounts, catalogue: &Catalog) -> f64 {
    let price = model
        .parse()
        .ok()
        .and_then(|model: ModelId| catalogue.price(&model));
    price.map(|price| tokens.cost(price)).unwrap_or_default()
}

/// One call. It begins a line of its own, whatever a crash has left before it.
fn line(model: &str, tokens: TokenCounts) -> String {
    let usage = json!({
        "prompt_tokens": tokens.input,
        "completion_tokens": tokens.output,
        "prompt_tokens_details": {"cached_tokens": tokens.cached, "cache_write_tokens": tokens.cache_write},
    });
    format!("\n{}\n", json!({"model": model, "usage": usage}))
}

fn append(path: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().append(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())
}

/// Makes the ledger of a day from the tapes, reading of each only what is of that day.
async fn rebuild(path: &Path, start: Timestamp, store: Option<&dyn TapeStore>) -> Result<()> {
    let mut text = String::from("\n");
    if let Some(store) = store {
        for tape in store
            .list(TapeListFilter::SessionsSince(start.into()))
            .await
            .map_err(tape_error)?
        {
            let mut calls = pin!(calls(store, &tape, EntryRange::ALL.newest_first()));
            while let Some(call) = calls.try_next().await.map_err(tape_error)? {
                if call.at < start {
                    break;
                }
                text.push_str(&line(&call.model, call.tokens));
            }
        }
    }
    let write = || {
        let directory = path.parent().unwrap_or(path);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)?;
        let own = directory.join(format!(".{:016x}", crate::random()));
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&own)?;
        let made = file
            .write_all(text.as_bytes())
            .and_then(|()| match fs::hard_link(&own, path) {
                // Another process was quicker, and has added to it since.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                linked => linked,
            });
        fs::remove_file(&own)?;
        made
    };
    write().map_err(|error| {
        let text = format!(
            "the usage of the day cannot be written to {}: {error}",
            path.display()
        );
        Error::new(ErrorKind::Temporary, text)
    })
}
