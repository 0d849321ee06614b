//! Errors of connections: DNS, TCP, TLS and proxies. The texts say what to do.

use std::error::Error as StdError;
use std::io;

use crate::error::{ModelError, ModelErrorKind, RecoveryAction};

/// Cause of an error if the server closes the connection before it responds.
const CLOSED_CAUSE: &str = "connection closed before message completed";

/// Returns whether the server closed the connection before it responded. A server does that with idle connections, and
/// its notice can cross the next request.
pub(super) fn is_closed_connection(error: &ModelError) -> bool {
    error.kind == ModelErrorKind::Transport && error.message.contains(CLOSED_CAUSE)
}

/// Returns the error for a call without a response. `server` is the base URL without secrets; `proxy` is the host of
/// the proxy in use.
pub(super) fn request_error(
    error: &reqwest::Error,
    server: &str,
    proxy: Option<&str>,
) -> ModelError {
    let via_proxy = proxy
        .map(|proxy| format!(" through proxy {proxy}"))
        .unwrap_or_default();
    let cause = innermost_cause(error);
    if error.is_timeout() {
        return ModelError::timeout(format!(
            "connection to {server}{via_proxy} timed out; check the network and the URL"
        ));
    }
    let (message, action) = if let Some(tls) = find_cause::<rustls::Error>(error) {
        let problem = tls_error_text(tls);
        let message = format!("no secure connection to {server}{via_proxy}: {problem}");
        (message, RecoveryAction::NextModel)
    } else if cause_with_prefix(error, "dns error").is_some() {
        let (host, action) = match proxy {
            Some(proxy) => (format!("proxy {proxy}"), RecoveryAction::NextModel),
            // The resolver may be down temporarily. A name that does not exist costs a few useless retries.
            None => (server.to_owned(), RecoveryAction::Retry),
        };
        let message =
            format!("cannot resolve the name of {host}: {cause}; check the network and the URL");
        (message, action)
    } else if find_cause::<io::Error>(error)
        .is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    {
        // No server listens at this address, and a short delay does not change that.
        let message = match proxy {
            Some(proxy) => {
                format!("proxy {proxy} refused the connection; check that it is running")
            }
            None => format!("{server} refused the connection; check that the server is running"),
        };
        (message, RecoveryAction::NextModel)
    } else if let Some(reason) = cause_with_prefix(error, "tunnel error: ")
        .or_else(|| cause_with_prefix(error, "SOCKS error"))
    {
        let proxy = proxy.unwrap_or("(unknown)");
        let message = format!(
            "proxy {proxy} does not connect to {server}: {reason}; check the URL and the rules of the proxy"
        );
        (message, RecoveryAction::NextModel)
    } else if error.is_builder() {
        let message = format!(
            "cannot build the request to {server}: {cause}; check the base URL and the configured headers"
        );
        (message, RecoveryAction::GiveUp)
    } else {
        let problem = if error.is_connect() {
            "cannot connect to"
        } else {
            "no response from"
        };
        let message =
            format!("{problem} {server}{via_proxy}: {cause}; check the network and the URL");
        (message, RecoveryAction::Retry)
    };
    ModelError::transport(message).with_action(action)
}

/// Describes a TLS error and what to do about it. The most common cause is the certificate of a company proxy.
fn tls_error_text(error: &rustls::Error) -> String {
    use rustls::CertificateError::{
        Expired, ExpiredContext, InvalidPurpose, InvalidPurposeContext, NotValidForName,
        NotValidForNameContext, NotValidYet, NotValidYetContext, Revoked, UnknownIssuer,
    };
    let rustls::Error::InvalidCertificate(problem) = error else {
        return format!("{error}; check that the server supports HTTPS with TLS 1.2 or 1.3");
    };
    match problem {
        UnknownIssuer => {
            "its certificate has an unknown issuer; for a company proxy or your own server, set SSL_CERT_FILE to a \
             file with its CA certificate"
                .to_owned()
        }
        Expired | ExpiredContext { .. } => {
            "its certificate has expired, or the clock of this machine is wrong; check both".to_owned()
        }
        NotValidForName | NotValidForNameContext { .. } => "its certificate is for another host; check the base URL".to_owned(),
        NotValidYet | NotValidYetContext { .. } => {
            "its certificate is not valid yet, or the clock of this machine is wrong; check both".to_owned()
        }
        Revoked => "its certificate has been revoked; install a new one on the server".to_owned(),
        InvalidPurpose | InvalidPurposeContext { .. } => "its certificate is not for servers; install a server certificate".to_owned(),
        // The type of this error is not exported.
        other if format!("{other:?}").contains("CaUsedAsEndEntity") => {
            "it uses a CA certificate (CA:TRUE) as its server certificate; give the server a certificate without \
             CA:TRUE, signed by that CA or self-signed"
                .to_owned()
        }
        other => format!("its certificate is not valid: {other}; check the certificate of the server"),
    }
}

/// Returns the error for a connection that failed during the response.
pub(super) fn body_error(error: &reqwest::Error) -> ModelError {
    ModelError::truncated(format!(
        "the connection failed during the response: {}",
        innermost_cause(error)
    ))
}

/// Returns the error for a call that the caller cancelled.
pub(crate) fn cancelled_error() -> ModelError {
    let message = "the call was cancelled";
    ModelError::new(ModelErrorKind::Cancelled, RecoveryAction::GiveUp, message)
}

/// Returns the text of the innermost cause of an error. The outer layers only repeat the URL.
pub(crate) fn innermost_cause(error: &(dyn StdError + 'static)) -> String {
    causes(error)
        .last()
        .map(ToString::to_string)
        .unwrap_or_default()
}

/// Returns the text of the first cause that starts with `prefix`, without the prefix. Compares text, because the types
/// of some causes are not public.
fn cause_with_prefix(error: &(dyn StdError + 'static), prefix: &str) -> Option<String> {
    causes(error)
        .map(ToString::to_string)
        .find_map(|text| text.strip_prefix(prefix).map(str::to_owned))
}

/// Returns the first cause of the type `E`.
fn find_cause<'a, E: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a E> {
    causes(error).find_map(|error| {
        // `source` of an I/O error skips the error that it wraps.
        let wrapped = || error.downcast_ref::<io::Error>()?.get_ref();
        let in_wrapped = || find_cause::<E>(wrapped()?);
        error.downcast_ref().or_else(in_wrapped)
    })
}

/// Returns an error and its causes, from the outside in.
fn causes<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}
