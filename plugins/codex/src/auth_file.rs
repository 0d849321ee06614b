//! The login file `auth.json`: parsed leniently, written atomically, readable only by the user who owns it.

use std::fmt::Write as _;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bub::model::fetch::FetchResponse;
use bub::settings::Redactor;
use bub::{CredentialError, Secret};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::jwt;
use crate::token::{self, TokenGrant};

/// Assumed lifetime of a token without an expiry time.
const DEFAULT_TOKEN_TTL_SECONDS: i64 = 3600;

/// Maximum size of the file. Logins are much smaller; the limit keeps a wrong file from filling memory.
const MAX_AUTH_FILE_BYTES: u64 = 1024 * 1024;

/// How long `lock` waits between two attempts while another process holds the lock.
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The tokens of a login.
#[derive(Clone, Debug)]
pub struct OAuthTokens {
    /// Token sent with model calls.
    pub access_token: Secret,
    /// Token that is exchanged for new tokens.
    pub refresh_token: Option<Secret>,
    /// Expiry time of the access token, in seconds since the Unix epoch.
    pub expires_at: i64,
    /// The account that the tokens belong to.
    pub account_id: Option<String>,
}

impl OAuthTokens {
    pub(crate) fn register_secrets(&self, redactor: &Redactor) {
        redactor.register(&self.access_token);
        self.refresh_token
            .iter()
            .for_each(|token| redactor.register(token));
    }
}

/// The file that holds a login.
#[derive(Clone)]
pub(crate) struct AuthFile {
    path: PathBuf,
}

impl AuthFile {
    pub(crate) fn in_directory(directory: &Path) -> Self {
        Self {
            path: directory.join("auth.json"),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the tokens in the file, or `None` if the file or its tokens are missing.
    pub(crate) fn read_tokens(&self, now: i64) -> Result<Option<OAuthTokens>, String> {
        let text = self.read_bytes().map_err(self.file_error("cannot read"))?;
        let Some(text) = text else { return Ok(None) };
        // Omit the parser's message: it could quote a token.
        let document = serde_json::from_slice(&text)
            .map_err(|_| format!("{} is not valid JSON", self.path.display()))?;
        Ok(parse_tokens(&document, now))
    }

    /// Writes granted tokens to the file and preserves all other content.
    pub(crate) fn store_tokens(&self, granted: &TokenGrant, now: i64) -> Result<(), String> {
        let text = self.read_bytes().map_err(self.file_error("cannot read"))?;
        // A file that is not a JSON object has no content to preserve.
        let mut document: Map<_, _> = text
            .and_then(|text| serde_json::from_slice(&text).ok())
            .unwrap_or_default();
        let tokens = match document.remove("tokens") {
            Some(Value::Object(tokens)) => tokens,
            _ => Map::new(),
        };
        let tokens = merge_tokens(tokens, granted, now);
        document.insert("tokens".into(), Value::Object(tokens));
        document.insert("last_refresh".into(), json!(format_time(now)));
        let text = escape_non_ascii(&format!("{:#}\n", Value::Object(document)));
        self.write_atomically(text.as_bytes())
            .map_err(self.file_error("cannot write"))
    }

    /// Locks the login against changes by other processes. Waits at most `wait_timeout`, without blocking the thread.
    /// The returned file holds the lock. The operating system releases the lock when the process ends.
    pub(crate) async fn lock(&self, wait_timeout: Duration) -> Result<File, CredentialError> {
        let open = || {
            self.create_directory()?;
            let path = self.path.with_extension("json.lock");
            check_regular_file(&path)?;
            OpenOptions::new()
                .create(true)
                .truncate(false)
                .write(true)
                .mode(0o600)
                .open(path)
        };
        let file = open().map_err(self.file_error("cannot lock"))?;
        let wait = async {
            loop {
                match file.try_lock() {
                    Ok(()) => return Ok(()),
                    Err(TryLockError::WouldBlock) => tokio::time::sleep(LOCK_POLL_INTERVAL).await,
                    Err(TryLockError::Error(error)) => {
                        return Err(self.file_error("cannot lock")(error));
                    }
                }
            }
        };
        let Ok(result) = tokio::time::timeout(wait_timeout, wait).await else {
            let text = format!("{} is locked by another process", self.path.display());
            return Err(CredentialError::temporary(text));
        };
        result?;
        Ok(file)
    }

    /// Checks that the file can be written, so that a login fails before the user signs in. Leaves no files or
    /// directories behind.
    pub(crate) fn check_writable(&self) -> Result<(), String> {
        let probe = || {
            self.read_bytes()?;
            let mut directories = self.path.ancestors().skip(1);
            let existing = directories.find(|directory| directory.exists());
            let probe = temporary_path(&existing.unwrap_or(Path::new(".")).join("auth.json"));
            create_private(&probe)?;
            fs::remove_file(&probe)
        };
        probe().map_err(self.file_error("cannot write"))
    }

    /// Returns the content of the file, or `None` if it does not exist.
    fn read_bytes(&self) -> io::Result<Option<Vec<u8>>> {
        check_regular_file(&self.path)?;
        let file = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let mut text = Vec::new();
        file.take(MAX_AUTH_FILE_BYTES + 1).read_to_end(&mut text)?;
        if text.len() as u64 > MAX_AUTH_FILE_BYTES {
            return Err(io::Error::other("larger than 1 MiB"));
        }
        Ok(Some(text))
    }

    /// Writes a temporary file and renames it, so that readers see either the old or the new content. If the path is a
    /// symbolic link, its target is replaced and the link is kept.
    ///
    /// The crate `tempfile` would add a random path to the error texts.
    fn write_atomically(&self, text: &[u8]) -> io::Result<()> {
        self.create_directory()?;
        let target = fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone());
        let new = temporary_path(&target);
        let write = || {
            let mut file = create_private(&new)?;
            file.write_all(text)?;
            file.sync_all()?;
            fs::rename(&new, &target)
        };
        write().inspect_err(|_| {
            let _ = fs::remove_file(&new);
        })
    }

    fn create_directory(&self) -> io::Result<()> {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700);
        self.path
            .parent()
            .map_or(Ok(()), |directory| builder.create(directory))
    }

    /// Returns a function that describes an error of an action with the file.
    fn file_error(&self, action: &str) -> impl FnOnce(io::Error) -> String {
        move |error| format!("{action} {}: {error}", self.path.display())
    }
}

fn temporary_path(target: &Path) -> PathBuf {
    target.with_file_name(format!(".auth.json.{}", std::process::id()))
}

/// Creates a file that only its owner can access. Replaces the leftover of a crashed process with the same process id.
fn create_private(path: &Path) -> io::Result<File> {
    let _ = fs::remove_file(path);
    OpenOptions::new()
        .create_new(true)
        .write(true)
        .mode(0o600)
        .open(path)
}

/// Fails if the path exists and is not a regular file. Opening a pipe without a writer would block forever.
fn check_regular_file(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => Err(io::Error::other("not a regular file")),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn parse_tokens(document: &Map<String, Value>, now: i64) -> Option<OAuthTokens> {
    let tokens = document.get("tokens")?.as_object()?;
    let text = |name: &str| tokens.get(name)?.as_str().filter(|text| !text.is_empty());
    let access_token = text("access_token")?;
    let time = |value: Option<&Value>| value.and_then(parse_time);
    let expires_at = time(tokens.get("expires_at")).or_else(|| jwt::expiry(access_token));
    let refreshed_at = || time(document.get("last_refresh"));
    let account = text("account_id").map(str::to_owned);
    Some(OAuthTokens {
        access_token: Secret::from(access_token),
        refresh_token: text("refresh_token").map(Secret::from),
        expires_at: expires_at.unwrap_or_else(|| {
            let since = refreshed_at().unwrap_or(now);
            since.saturating_add(DEFAULT_TOKEN_TTL_SECONDS)
        }),
        account_id: account.or_else(|| jwt::account_id(access_token)),
    })
}

/// Parses tokens, for fuzzing. With a `status`, `body` is a response of the token endpoint; without one, it is the
/// content of a login file.
#[doc(hidden)]
pub fn read_login(
    status: Option<u16>,
    body: &[u8],
    now: i64,
) -> Result<Option<OAuthTokens>, String> {
    let Some(status) = status else {
        return Ok(serde_json::from_slice(body)
            .ok()
            .and_then(|document| parse_tokens(&document, now)));
    };
    let answer = FetchResponse {
        status,
        body: body.to_vec(),
    };
    let granted = token::parse_response(&answer).map_err(|error| error.text)?;
    let stored_tokens = Value::Object(merge_tokens(Map::new(), &granted, now));
    Ok(parse_tokens(
        &Map::from_iter([("tokens".to_owned(), stored_tokens)]),
        now,
    ))
}

fn merge_tokens(
    mut tokens: Map<String, Value>,
    granted: &TokenGrant,
    now: i64,
) -> Map<String, Value> {
    let access_token = granted.access_token.expose();
    tokens.insert("access_token".into(), json!(access_token));
    // A server that does not replace the refresh token omits it; keep the old one. The same applies to the id token.
    for (name, token) in [
        ("refresh_token", &granted.refresh_token),
        ("id_token", &granted.id_token),
    ] {
        if let Some(token) = token {
            tokens.insert(name.into(), json!(token.expose()));
        }
    }
    // The server's number of seconds may be arbitrarily large, so the sum saturates.
    let lifetime = granted
        .expires_in
        .map(|seconds| now.saturating_add(seconds));
    let expires_at = lifetime
        .or_else(|| jwt::expiry(access_token))
        .unwrap_or(now + DEFAULT_TOKEN_TTL_SECONDS);
    tokens.insert("expires_at".into(), json!(format_time(expires_at)));
    if let Some(account) = granted.account_id() {
        tokens.insert("account_id".into(), json!(account));
    }
    tokens
}

/// Parses a time: seconds since the Unix epoch, or an RFC 3339 date.
fn parse_time(value: &Value) -> Option<i64> {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "fractions of a second do not matter"
    )]
    let seconds = || value.as_f64().map(|seconds| seconds as i64);
    let date = || {
        value
            .as_str()?
            .trim()
            .parse::<Timestamp>()
            .ok()
            .map(Timestamp::as_second)
    };
    value.as_i64().or_else(seconds).or_else(date)
}

/// Formats seconds since the Unix epoch like the Python version: an RFC 3339 date with whole seconds and `Z`.
fn format_time(seconds: i64) -> String {
    let seconds = seconds.clamp(0, Timestamp::MAX.as_second());
    Timestamp::from_second(seconds)
        .unwrap_or(Timestamp::UNIX_EPOCH)
        .to_string()
}

/// Escapes all non-ASCII characters of a JSON text. Such characters occur only inside strings.
fn escape_non_ascii(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for character in json.chars() {
        if character.is_ascii() {
            text.push(character);
        } else {
            for unit in character.encode_utf16(&mut [0; 2]) {
                // Writing to a `String` cannot fail.
                let _ = write!(text, "\\u{unit:04x}");
            }
        }
    }
    text
}
