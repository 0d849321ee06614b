//! The Bot API over HTTP: one call, one outcome that says what to do about it. The token never shows.

#![expect(
    clippy::indexing_slicing,
    reason = "a JSON value is `null` where there is nothing"
)]

use std::{fmt::Write as _, time::Duration};

use bub::kernel::{Error, ErrorKind};
use bub::settings::Secret;
use reqwest::{RequestBuilder, header, redirect};
use serde_json::{Map, Value};
use tokio::sync::OnceCell;

use super::{media::TOO_LARGE_TEXT, options::TelegramOptions};

/// How long an ordinary call may take.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Files take longer.
const FILE_TIMEOUT: Duration = Duration::from_secs(90);
/// No answer of the API is longer.
const MAX_RESPONSE_BYTES: usize = 16 * 1024 * 1024;
/// A token that is not known will not be known a moment later.
const INVALID_TOKEN_BACKOFF: Duration = Duration::from_mins(10);

/// Why a call came to nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ApiErrorKind {
    /// The token is wrong or was revoked.
    Token,
    /// Somebody else asks for updates, or a webhook gets them.
    Conflict,
    /// Too many calls.
    Flood,
    /// The markup of a text is not accepted.
    Markup,
    /// An edit that would change nothing.
    NotModified,
    /// The group has another id now.
    Moved(i64),
    /// Nobody there: blocked, deleted, left, no such topic.
    Gone,
    /// The message that is pointed at is gone.
    NoSuchMessage,
    /// Refused for another reason.
    Refused,
    /// No network, no answer, or a server in trouble: whether it was carried out is not known.
    Trouble,
}

/// A call that came to nothing.
#[derive(Clone, Debug)]
pub(super) struct ApiError {
    pub(super) error_kind: ApiErrorKind,
    /// In words, without the token.
    pub(super) text: String,
    pub(super) retry_after: Option<Duration>,
}

impl ApiError {
    fn new(error_kind: ApiErrorKind, text: impl Into<String>) -> Self {
        let retry_after = (error_kind == ApiErrorKind::Token).then_some(INVALID_TOKEN_BACKOFF);
        Self {
            error_kind,
            text: text.into(),
            retry_after,
        }
    }

    /// What the API says is wrong.
    fn refused(status: u16, body: &Value) -> Self {
        let description = body["description"].as_str().unwrap_or("no reason given");
        let is = |part: &str| description.to_ascii_lowercase().contains(part);
        let moved = body["parameters"]["migrate_to_chat_id"].as_i64();
        let error_kind = match status {
            401 | 404 => ApiErrorKind::Token,
            409 => ApiErrorKind::Conflict,
            429 => ApiErrorKind::Flood,
            403 => ApiErrorKind::Gone,
            400 if is("can't parse entities") => ApiErrorKind::Markup,
            400 if is("message to be replied not found") || is("reply message not found") => {
                ApiErrorKind::NoSuchMessage
            }
            400 if is("message is not modified") => ApiErrorKind::NotModified,
            400 if is("chat not found")
                || is("thread not found")
                || is("topic_deleted")
                || is("topic_closed") =>
            {
                ApiErrorKind::Gone
            }
            500.. => ApiErrorKind::Trouble,
            _ => moved.map_or(ApiErrorKind::Refused, ApiErrorKind::Moved),
        };
        let text = match error_kind {
            ApiErrorKind::Token => "Telegram does not know the bot's token; set `telegram.token`, or make a new one with @BotFather".to_owned(),
            _ => format!("Telegram: {description}"),
        };
        let mut failure = Self::new(error_kind, text);
        if let Some(seconds) = body["parameters"]["retry_after"].as_u64() {
            failure.retry_after = Some(Duration::from_secs(seconds));
        }
        failure
    }
}

impl From<ApiError> for Error {
    fn from(failure: ApiError) -> Self {
        let kind = match failure.error_kind {
            ApiErrorKind::Gone => ErrorKind::NotFound,
            ApiErrorKind::Markup
            | ApiErrorKind::NotModified
            | ApiErrorKind::NoSuchMessage
            | ApiErrorKind::Refused => ErrorKind::InvalidInput,
            ApiErrorKind::Token
            | ApiErrorKind::Conflict
            | ApiErrorKind::Flood
            | ApiErrorKind::Moved(_)
            | ApiErrorKind::Trouble => ErrorKind::Temporary,
        };
        let error = Self::new(kind, failure.text);
        match failure.retry_after {
            Some(delay) => error.with_retry_after(delay),
            None => error,
        }
    }
}

/// A file on its way to a chat.
pub(super) struct Upload {
    /// The parameter it is: `photo`, `document`.
    pub(super) name: &'static str,
    pub(super) filename: String,
    pub(super) mime: String,
    pub(super) bytes: Vec<u8>,
}

/// The API, with a token.
pub(super) struct BotApiClient {
    base: String,
    token: Option<Secret>,
    proxy: Option<String>,
    http: OnceCell<reqwest::Client>,
}

impl BotApiClient {
    pub(super) fn new(options: &TelegramOptions) -> Self {
        Self {
            base: options.api_base.trim_end_matches('/').to_owned(),
            token: options.token.clone(),
            proxy: options.proxy.clone(),
            http: OnceCell::new(),
        }
    }

    /// Makes a call.
    pub(super) async fn call(&self, method: &str, params: &Value) -> Result<Value, ApiError> {
        self.call_within(method, params, CALL_TIMEOUT).await
    }

    /// Makes a call that may take so long.
    pub(super) async fn call_within(
        &self,
        method: &str,
        params: &Value,
        limit: Duration,
    ) -> Result<Value, ApiError> {
        let url = self.url("", method)?;
        let request = self.http().await?.post(url).timeout(limit);
        let request = request
            .header(header::CONTENT_TYPE, "application/json")
            .body(params.to_string());
        answer(request).await
    }

    /// Makes a call with a file.
    pub(super) async fn upload(
        &self,
        method: &str,
        params: &Map<String, Value>,
        upload: &Upload,
    ) -> Result<Value, ApiError> {
        let boundary = format!("bub-{:016x}", getrandom::u64().unwrap_or_default());
        let mut body = Vec::with_capacity(upload.bytes.len() + 1024);
        for (name, value) in params {
            let value = value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned);
            let head = format!(
                "--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n"
            );
            body.extend_from_slice(head.as_bytes());
        }
        let (name, mime) = (upload.name, quotable(&upload.mime));
        let filename = quotable(&upload.filename);
        let head = format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"; filename=\"{filename}\"\r\nContent-Type: {mime}\r\n\r\n"
        );
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(&upload.bytes);
        body.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
        let url = self.url("", method)?;
        let request = self
            .http()
            .await?
            .post(url)
            .timeout(FILE_TIMEOUT)
            .body(body);
        answer(request.header(
            header::CONTENT_TYPE,
            format!("multipart/form-data; boundary={boundary}"),
        ))
        .await
    }

    /// Downloads a file that is not longer than `most`. When nothing comes for as long as `patience`, it is given up.
    pub(super) async fn download(
        &self,
        file_id: &str,
        most: usize,
        wait_timeout: Duration,
    ) -> Result<Vec<u8>, ApiError> {
        let refused = |error_kind: &str| ApiError::new(ApiErrorKind::Refused, error_kind);
        let params = serde_json::json!({"file_id": file_id});
        let found = self.call_within("getFile", &params, wait_timeout).await?;
        let is_long = found["file_size"]
            .as_u64()
            .is_some_and(|size| usize::try_from(size).unwrap_or(usize::MAX) > most);
        if is_long {
            return Err(refused(TOO_LARGE_TEXT));
        }
        let path = found["file_path"].as_str().and_then(url_path);
        let url = self.url(
            "/file",
            &path.ok_or_else(|| refused("the platform does not say where it is"))?,
        )?;
        let sending = self.http().await?.get(url).send();
        let response = tokio::time::timeout(wait_timeout, sending)
            .await
            .map_err(|_| stalled())?
            .map_err(trouble)?;
        if !response.status().is_success() {
            let status = response.status().as_u16();
            let error_kind = if matches!(status, 429 | 500..) {
                ApiErrorKind::Trouble
            } else {
                ApiErrorKind::Refused
            };
            return Err(ApiError::new(
                error_kind,
                format!("the platform answers with status {status}"),
            ));
        }
        read(response, most, wait_timeout)
            .await?
            .ok_or_else(|| refused(TOO_LARGE_TEXT))
    }

    fn url(&self, prefix: &str, rest: &str) -> Result<String, ApiError> {
        let Some(token) = self.token.as_ref().filter(|token| is_token(token)) else {
            let text =
                "the token of the Telegram bot looks like `123456:ABC…`; set `telegram.token`";
            return Err(ApiError::new(ApiErrorKind::Token, text));
        };
        Ok(format!(
            "{}{prefix}/bot{}/{rest}",
            self.base,
            token.expose()
        ))
    }

    async fn http(&self) -> Result<&reqwest::Client, ApiError> {
        self.http.get_or_try_init(|| async { self.build() }).await
    }

    fn build(&self) -> Result<reqwest::Client, ApiError> {
        // An error means that somebody chose a provider before, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let wrong = |error: reqwest::Error| {
            ApiError::new(
                ApiErrorKind::Trouble,
                format!("no way to Telegram: {}", words(error)),
            )
        };
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("bub/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(Duration::from_secs(15))
            // Many chats at once need many connections, but not for long.
            .pool_max_idle_per_host(8)
            .pool_idle_timeout(Duration::from_secs(30))
            .redirect(redirect::Policy::none())
            .referer(false);
        if let Some(proxy) = &self.proxy {
            builder = builder.proxy(reqwest::Proxy::all(proxy).map_err(wrong)?);
        } else if self.base.starts_with("http:") {
            // A server of one's own, nearby.
            builder = builder.no_proxy().tls_certs_only([]);
        }
        builder.build().map_err(wrong)
    }
}

/// Whether a text can be a token. What has other letters in it would be another path.
pub(super) fn is_token(token: &Secret) -> bool {
    let is_plain =
        |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, ':' | '-' | '_');
    !token.expose().is_empty() && token.expose().chars().all(is_plain)
}

async fn answer(request: RequestBuilder) -> Result<Value, ApiError> {
    let response = request.send().await.map_err(trouble)?;
    let status = response.status().as_u16();
    let body = read(response, MAX_RESPONSE_BYTES, FILE_TIMEOUT)
        .await?
        .unwrap_or_default();
    let Ok(mut body) = serde_json::from_slice::<Value>(&body) else {
        return Err(ApiError::new(
            ApiErrorKind::Trouble,
            format!("Telegram: something else answered, with status {status}"),
        ));
    };
    if body["ok"] == true {
        return Ok(body["result"].take());
    }
    let code = body["error_code"]
        .as_u64()
        .and_then(|code| u16::try_from(code).ok());
    Err(ApiError::refused(code.unwrap_or(status), &body))
}

/// The body, or `None` when it is longer than that. Nothing for as long as `patience` is a failure.
async fn read(
    mut response: reqwest::Response,
    most: usize,
    wait_timeout: Duration,
) -> Result<Option<Vec<u8>>, ApiError> {
    let mut bytes = Vec::new();
    while let Some(chunk) = tokio::time::timeout(wait_timeout, response.chunk())
        .await
        .map_err(|_| stalled())?
        .map_err(trouble)?
    {
        if bytes.len() + chunk.len() > most {
            return Ok(None);
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(Some(bytes))
}

fn stalled() -> ApiError {
    ApiError::new(ApiErrorKind::Trouble, "nothing more came")
}

fn trouble(error: reqwest::Error) -> ApiError {
    let text = if error.is_timeout() {
        "no answer in time".to_owned()
    } else {
        words(error)
    };
    ApiError::new(
        ApiErrorKind::Trouble,
        format!("Telegram cannot be reached: {text}"),
    )
}

/// What went wrong at the bottom of it; the URL, which has the token, is left out.
fn words(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut cause: &dyn std::error::Error = &error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

/// The path of a file as part of a URL; `None` when it leads elsewhere.
fn url_path(path: &str) -> Option<String> {
    let mut url = String::with_capacity(path.len());
    for segment in path.split('/') {
        if matches!(segment, "" | "." | "..") {
            return None;
        }
        if !url.is_empty() {
            url.push('/');
        }
        for byte in segment.bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                    url.push(char::from(byte));
                }
                // Writing to a string does not fail.
                _ => drop(write!(url, "%{byte:02X}")),
            }
        }
    }
    Some(url)
}

/// Text that may stand between quotes in a header.
fn quotable(text: &str) -> String {
    text.chars()
        .map(|letter| {
            if letter.is_control() || letter == '"' || letter == '\\' {
                '_'
            } else {
                letter
            }
        })
        .collect()
}
