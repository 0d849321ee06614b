//! The HTTP client of the Bot API. Errors are classified by what the caller can do, and never contain the token.

#![expect(
    clippy::indexing_slicing,
    reason = "a JSON value is `null` where there is nothing"
)]

use std::{fmt::Write as _, io::Read as _, time::Duration};

use bub::kernel::{Error, ErrorKind, tool::run_blocking};
use bub::settings::Secret;
use reqwest::{RequestBuilder, header, redirect};
use serde_json::{Map, Value};
use tokio::sync::OnceCell;

use super::{media::TOO_LARGE_TEXT, options::TelegramOptions};

/// Timeout of an ordinary call.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout of a file upload. Also the maximum time without data while the response to any call is read.
const FILE_TIMEOUT: Duration = Duration::from_secs(90);
/// Maximum size of an API response.
const MAX_RESPONSE_BYTES: usize = 16 * 1024 * 1024;
/// Delay before the next request after the platform rejected the token.
const INVALID_TOKEN_BACKOFF: Duration = Duration::from_mins(10);

/// The class of a failed call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ApiErrorKind {
    /// The token is invalid or was revoked.
    Token,
    /// Another program polls for updates, or a webhook receives them.
    Conflict,
    /// Too many calls; the platform asks to wait.
    Flood,
    /// The platform rejected the markup of a text.
    Markup,
    /// An edit would change nothing.
    NotModified,
    /// The group was upgraded and has this new id.
    ChatMoved(i64),
    /// The chat cannot be used: the bot was blocked or removed, or the chat or topic does not exist.
    ChatUnavailable,
    /// The message to reply to does not exist.
    NoSuchMessage,
    /// The platform rejected the call for another reason.
    Rejected,
    /// Network failure, timeout or server error. The call may have taken effect.
    Unavailable,
}

/// A failed call.
#[derive(Clone, Debug)]
pub(super) struct ApiError {
    pub(super) error_kind: ApiErrorKind,
    /// The error text, without the token.
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

    /// Whether the platform rejects the content of a message, so that other content may be accepted.
    pub(super) fn is_rejection(&self) -> bool {
        matches!(
            self.error_kind,
            ApiErrorKind::Rejected | ApiErrorKind::Markup
        )
    }

    /// Classifies an error response of the API.
    fn from_response(status: u16, body: &Value) -> Self {
        let description = body["description"].as_str().unwrap_or("no reason given");
        let contains = |part: &str| description.to_ascii_lowercase().contains(part);
        let moved = body["parameters"]["migrate_to_chat_id"].as_i64();
        let error_kind = match status {
            401 | 404 => ApiErrorKind::Token,
            409 => ApiErrorKind::Conflict,
            429 => ApiErrorKind::Flood,
            403 => ApiErrorKind::ChatUnavailable,
            400 if contains("can't parse entities") => ApiErrorKind::Markup,
            400 if contains("message to be replied not found")
                || contains("reply message not found") =>
            {
                ApiErrorKind::NoSuchMessage
            }
            400 if contains("message is not modified") => ApiErrorKind::NotModified,
            400 if contains("chat not found")
                || contains("thread not found")
                || contains("topic_deleted")
                || contains("topic_closed") =>
            {
                ApiErrorKind::ChatUnavailable
            }
            500.. => ApiErrorKind::Unavailable,
            _ => moved.map_or(ApiErrorKind::Rejected, ApiErrorKind::ChatMoved),
        };
        let text = match error_kind {
            ApiErrorKind::Token => "Telegram rejected the bot token; set `telegram.token`, or create a new token with @BotFather".to_owned(),
            ApiErrorKind::Flood => format!("Telegram limits the rate of requests: {description}"),
            ApiErrorKind::Unavailable => format!("Telegram is unavailable: {description}; try again later"),
            _ => format!("Telegram rejected the request: {description}"),
        };
        let mut api_error = Self::new(error_kind, text);
        if let Some(seconds) = body["parameters"]["retry_after"].as_u64() {
            api_error.retry_after = Some(Duration::from_secs(seconds));
        }
        api_error
    }
}

impl From<ApiError> for Error {
    fn from(api_error: ApiError) -> Self {
        let kind = match api_error.error_kind {
            ApiErrorKind::ChatUnavailable => ErrorKind::NotFound,
            ApiErrorKind::Markup
            | ApiErrorKind::NotModified
            | ApiErrorKind::NoSuchMessage
            | ApiErrorKind::Rejected => ErrorKind::InvalidInput,
            ApiErrorKind::Token
            | ApiErrorKind::Conflict
            | ApiErrorKind::Flood
            | ApiErrorKind::ChatMoved(_)
            | ApiErrorKind::Unavailable => ErrorKind::Temporary,
        };
        let error = Self::new(kind, api_error.text);
        match api_error.retry_after {
            Some(delay) => error.with_retry_after(delay),
            None => error,
        }
    }
}

/// A file to upload.
pub(super) struct Upload {
    /// The name of the parameter, such as `photo`, or of the file in an album.
    pub(super) name: String,
    pub(super) filename: String,
    pub(super) mime: String,
    pub(super) bytes: Vec<u8>,
}

/// Client of the Bot API for one token.
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

    /// Calls a method with the default timeout.
    pub(super) async fn call(&self, method: &str, params: &Value) -> Result<Value, ApiError> {
        self.call_with_timeout(method, params, CALL_TIMEOUT).await
    }

    /// Calls a method with a timeout.
    pub(super) async fn call_with_timeout(
        &self,
        method: &str,
        params: &Value,
        limit: Duration,
    ) -> Result<Value, ApiError> {
        let url = self.bot_url("", method)?;
        let request = self.http_client().await?.post(url).timeout(limit);
        let request = request
            .header(header::CONTENT_TYPE, "application/json")
            .body(params.to_string());
        send_request(request).await
    }

    /// Calls a method with files.
    pub(super) async fn upload(
        &self,
        method: &str,
        params: &Map<String, Value>,
        uploads: &[Upload],
    ) -> Result<Value, ApiError> {
        let boundary = format!("bub-{:016x}", getrandom::u64().unwrap_or_default());
        let mut body = Vec::new();
        for (name, value) in params {
            let value = value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned);
            let header = format!(
                "--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n"
            );
            body.extend_from_slice(header.as_bytes());
        }
        for upload in uploads {
            let (name, mime) = (&upload.name, escape_header_value(&upload.mime));
            let filename = escape_header_value(&upload.filename);
            let header = format!(
                "--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"; filename=\"{filename}\"\r\nContent-Type: {mime}\r\n\r\n"
            );
            body.extend_from_slice(header.as_bytes());
            body.extend_from_slice(&upload.bytes);
            body.extend_from_slice(b"\r\n");
        }
        body.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
        let url = self.bot_url("", method)?;
        let request = self
            .http_client()
            .await?
            .post(url)
            .timeout(FILE_TIMEOUT)
            .body(body);
        send_request(request.header(
            header::CONTENT_TYPE,
            format!("multipart/form-data; boundary={boundary}"),
        ))
        .await
    }

    /// Downloads a file of at most `max_bytes` bytes. Fails if no data arrives for `wait_timeout`.
    pub(super) async fn download(
        &self,
        file_id: &str,
        max_bytes: usize,
        wait_timeout: Duration,
    ) -> Result<Vec<u8>, ApiError> {
        let rejected_error = |reason: &str| ApiError::new(ApiErrorKind::Rejected, reason);
        let params = serde_json::json!({"file_id": file_id});
        let file = self
            .call_with_timeout("getFile", &params, wait_timeout)
            .await?;
        let is_too_large = file["file_size"]
            .as_u64()
            .is_some_and(|size| usize::try_from(size).unwrap_or(usize::MAX) > max_bytes);
        if is_too_large {
            return Err(rejected_error(TOO_LARGE_TEXT));
        }
        let path = file["file_path"].as_str().unwrap_or_default();
        let path = match self.local_file(path) {
            Some(local) => match read_local_file(path.to_owned(), max_bytes).await {
                Ok(bytes) => return bytes.ok_or_else(|| rejected_error(TOO_LARGE_TEXT)),
                // The server runs on another machine, or in a container with other paths.
                Err(_) => encode_url_path(local),
            },
            None => encode_url_path(path),
        };
        let url = self.bot_url(
            "/file",
            &path.ok_or_else(|| {
                rejected_error(
                    "cannot download: Telegram returned no path for the file; send it again",
                )
            })?,
        )?;
        let sending = self.http_client().await?.get(url).send();
        let response = tokio::time::timeout(wait_timeout, sending)
            .await
            .map_err(|_| stalled_error())?
            .map_err(connection_error)?;
        if !response.status().is_success() {
            let status = response.status().as_u16();
            let error_kind = if matches!(status, 429 | 500..) {
                ApiErrorKind::Unavailable
            } else {
                ApiErrorKind::Rejected
            };
            return Err(ApiError::new(
                error_kind,
                format!(
                    "cannot download: Telegram responded with status {status}; send the file again"
                ),
            ));
        }
        read_body(response, max_bytes, wait_timeout)
            .await?
            .ok_or_else(|| rejected_error(TOO_LARGE_TEXT))
    }

    /// Returns the part of an absolute path after the directory of the bot. A Bot API server in local mode stores the
    /// files of each bot in a directory with the name of its token, and returns absolute paths. No other absolute path is
    /// valid.
    fn local_file<'a>(&self, path: &'a str) -> Option<&'a str> {
        let token = self.token.as_ref().filter(|_| path.starts_with('/'))?;
        let (_, local) = path.split_once(&format!("/{}/", token.expose()))?;
        (!path.split('/').any(|segment| segment == "..")).then_some(local)
    }

    fn bot_url(&self, prefix: &str, path: &str) -> Result<String, ApiError> {
        let Some(token) = self.token.as_ref().filter(|token| is_valid_token(token)) else {
            let text =
                "invalid bot token: expected a token such as `123456:ABC…`; set `telegram.token`";
            return Err(ApiError::new(ApiErrorKind::Token, text));
        };
        Ok(format!(
            "{}{prefix}/bot{}/{path}",
            self.base,
            token.expose()
        ))
    }

    async fn http_client(&self) -> Result<&reqwest::Client, ApiError> {
        self.http
            .get_or_try_init(|| async { self.build_http_client() })
            .await
    }

    fn build_http_client(&self) -> Result<reqwest::Client, ApiError> {
        // Ignore the result: this fails only if a TLS crypto provider is already installed.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client_error = |error: reqwest::Error| {
            ApiError::new(
                ApiErrorKind::Unavailable,
                format!(
                    "cannot create the HTTP client for Telegram: {}; check `telegram.proxy`",
                    root_cause(error)
                ),
            )
        };
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("bub/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(Duration::from_secs(15))
            // Many concurrent chats need many connections, but only for a short time.
            .pool_max_idle_per_host(8)
            .pool_idle_timeout(Duration::from_secs(30))
            .redirect(redirect::Policy::none())
            .referer(false);
        if let Some(proxy) = &self.proxy {
            builder = builder.proxy(reqwest::Proxy::all(proxy).map_err(client_error)?);
        } else if self.base.starts_with("http:") {
            // A self-hosted server on a local network.
            builder = builder.no_proxy().tls_certs_only([]);
        }
        builder.build().map_err(client_error)
    }
}

/// Minimum characters of a token after the colon. Telegram's tokens have 35.
const MIN_TOKEN_CHARS: usize = 30;

/// Whether a token can be one of Telegram. Its characters cannot change the path of the URL.
pub(super) fn is_valid_token(token: &Secret) -> bool {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_');
    token.expose().split_once(':').is_some_and(|(id, secret)| {
        let is_id = !id.is_empty() && id.chars().all(|digit| digit.is_ascii_digit());
        is_id && secret.len() >= MIN_TOKEN_CHARS && secret.chars().all(is_plain)
    })
}

async fn send_request(request: RequestBuilder) -> Result<Value, ApiError> {
    let response = request.send().await.map_err(connection_error)?;
    let status = response.status().as_u16();
    let body = read_body(response, MAX_RESPONSE_BYTES, FILE_TIMEOUT)
        .await?
        .unwrap_or_default();
    let Ok(mut body) = serde_json::from_slice::<Value>(&body) else {
        return Err(ApiError::new(
            ApiErrorKind::Unavailable,
            format!(
                "unexpected response from Telegram: status {status}, not JSON; check `telegram.api_base`"
            ),
        ));
    };
    if body["ok"] == true {
        return Ok(body["result"].take());
    }
    let code = body["error_code"]
        .as_u64()
        .and_then(|code| u16::try_from(code).ok());
    Err(ApiError::from_response(code.unwrap_or(status), &body))
}

/// Reads the body of a response. Returns `None` if it is longer than `max_bytes`. Fails if no data arrives for
/// `wait_timeout`.
async fn read_body(
    mut response: reqwest::Response,
    max_bytes: usize,
    wait_timeout: Duration,
) -> Result<Option<Vec<u8>>, ApiError> {
    let mut bytes = Vec::new();
    while let Some(chunk) = tokio::time::timeout(wait_timeout, response.chunk())
        .await
        .map_err(|_| stalled_error())?
        .map_err(connection_error)?
    {
        if bytes.len() + chunk.len() > max_bytes {
            return Ok(None);
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(Some(bytes))
}

/// Reads a file that a Bot API server on this machine has stored. Returns `None` if it is longer than `max_bytes`.
async fn read_local_file(path: String, max_bytes: usize) -> std::io::Result<Option<Vec<u8>>> {
    let reading = run_blocking(move || {
        let (mut bytes, max_bytes) = (Vec::new(), max_bytes as u64);
        let file = std::fs::File::open(path)?;
        file.take(max_bytes + 1).read_to_end(&mut bytes)?;
        Ok((bytes.len() as u64 <= max_bytes).then_some(bytes))
    });
    reading.await.map_err(std::io::Error::other)?
}

fn stalled_error() -> ApiError {
    ApiError::new(
        ApiErrorKind::Unavailable,
        "Telegram stopped responding: no data received in time; check the network",
    )
}

fn connection_error(error: reqwest::Error) -> ApiError {
    let text = if error.is_timeout() {
        "request timed out".to_owned()
    } else {
        root_cause(error)
    };
    ApiError::new(
        ApiErrorKind::Unavailable,
        format!(
            "cannot reach Telegram: {text}; check the network, `telegram.proxy` and `telegram.api_base`"
        ),
    )
}

/// Returns the innermost cause of an error, without the URL, which contains the token.
fn root_cause(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut cause: &dyn std::error::Error = &error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

/// Percent-encodes a file path for a URL. Returns `None` if a segment is empty, `.` or `..`.
fn encode_url_path(path: &str) -> Option<String> {
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
                // Writing to a string cannot fail.
                _ => drop(write!(url, "%{byte:02X}")),
            }
        }
    }
    Some(url)
}

/// Replaces characters that are not allowed in a quoted header value by `_`.
fn escape_header_value(text: &str) -> String {
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
