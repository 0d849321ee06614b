//! Text formats that a declaration can require: URLs, keys, model names, log filters.

use std::net::{IpAddr, Ipv6Addr};

/// A text format that a declaration requires; see
/// [`SettingKey::format`](crate::SettingKey::format).
#[derive(Debug, Clone, Copy)]
pub struct TextFormat {
    /// Returns whether a text has this format.
    pub fits: fn(&str) -> bool,
    /// What a user should write.
    pub expected: &'static str,
}

/// A model with its provider.
pub const MODEL: TextFormat = TextFormat {
    fits: is_model_id,
    expected: "a model, as `provider:model`",
};

/// An API key, which is sent in a header.
pub const KEY: TextFormat = TextFormat {
    fits: |text| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic()),
    expected: "a key of letters, digits and signs without spaces",
};

/// Base URL of a server.
pub const BASE_URL: TextFormat = TextFormat {
    fits: is_base_url,
    expected: "a URL such as `https://host/v1`, without user, query and fragment",
};

/// URL of a proxy.
pub const PROXY: TextFormat = TextFormat {
    fits: is_proxy_url,
    expected: "the URL of an HTTP or SOCKS proxy, such as `socks5://127.0.0.1:1080`",
};

/// Address and port that a server listens on.
pub const LISTEN: TextFormat = TextFormat {
    fits: is_listen_address,
    expected: "an address and a port, such as `127.0.0.1:8787`",
};

/// The text that starts a command, such as `,`.
pub const COMMAND_PREFIX: TextFormat = TextFormat {
    fits: |text| !text.is_empty() && !text.contains(char::is_whitespace),
    expected: "a text without white space, such as `,`",
};

/// Log filter: levels for all log lines or for single targets.
pub const LOG_FILTER: TextFormat = TextFormat {
    fits: is_log_filter,
    expected: "a log level (error, warn, info, debug, trace, off) or TARGET=LEVEL, separated by commas",
};

fn is_model_id(text: &str) -> bool {
    let parts = text
        .find([':', '/'])
        .and_then(|at| text.split_at_checked(at));
    parts.is_some_and(|(provider, model)| {
        !provider.trim().is_empty() && model.get(1..).is_some_and(|model| !model.trim().is_empty())
    })
}

/// Returns whether a text is the base URL of a server: `http` or `https`, a host, and an optional
/// path.
///
/// A user name or password is not allowed, because bub shows base URLs. A query or a fragment is
/// not allowed, because bub appends a path.
pub fn is_base_url(text: &str) -> bool {
    let plain = !text.contains(['?', '#', '@', '\\']) && text.chars().all(|c| c.is_ascii_graphic());
    plain && url_authority(text, &["http", "https"]).is_some_and(is_authority)
}

fn is_proxy_url(text: &str) -> bool {
    const SCHEMES: [&str; 6] = ["http", "https", "socks4", "socks4a", "socks5", "socks5h"];
    let is_valid = |authority: &str| is_authority(authority.rsplit('@').next().unwrap_or_default());
    url_authority(text, &SCHEMES).is_some_and(is_valid)
}

/// Returns the authority of a URL: the user, host and port before the path. Returns `None` if the
/// scheme is not one of `schemes`.
fn url_authority<'a>(text: &'a str, schemes: &[&str]) -> Option<&'a str> {
    let (scheme, rest) = text.split_once("://")?;
    let mut schemes = schemes.iter();
    schemes.find(|allowed| scheme.eq_ignore_ascii_case(allowed))?;
    rest.split('/').next()
}

fn is_authority(authority: &str) -> bool {
    let (host, port) = split_port(authority);
    let name = host
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'));
    let literal = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let valid = literal.map_or(name, |host| host.parse::<Ipv6Addr>().is_ok());
    !host.is_empty() && valid && port.is_none_or(|port| port.parse::<u16>().is_ok())
}

/// Splits host and port. The colons inside `[::1]` do not start a port.
pub fn split_port(authority: &str) -> (&str, Option<&str>) {
    match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (authority, None),
    }
}

fn is_listen_address(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let is_name =
            || host.contains(|letter: char| letter.is_ascii_alphabetic()) && !host.contains(':');
        port.parse::<u16>().is_ok() && (host.parse::<IpAddr>().is_ok() || is_name())
    })
}

fn is_log_filter(text: &str) -> bool {
    let is_level = |level: &str| {
        let words = ["error", "warn", "info", "debug", "trace", "off"];
        words.iter().any(|word| level.eq_ignore_ascii_case(word))
            || level.parse().is_ok_and(|n: u8| n <= 5)
    };
    let mut parts = text
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty());
    parts.all(|part| is_level(part.split_once('=').map_or(part, |(_, level)| level.trim())))
}

#[cfg(test)]
mod tests {
    use super::{BASE_URL, LISTEN, LOG_FILTER, MODEL, PROXY, TextFormat};

    #[test]
    fn each_form_knows_what_makes_sense() {
        let table: [(TextFormat, &[&str], &[&str]); 5] = [
            (
                MODEL,
                &["lab:m", "lab:a/b:c", "lab/m", " lab : m "],
                &["foo", ":m", "lab:", "lab: ", ""],
            ),
            (
                BASE_URL,
                &[
                    "https://api.example.com/v1/",
                    "http://127.0.0.1:8080",
                    "http://[::1]:80/x",
                    "HTTP://a_b",
                ],
                &[
                    "",
                    "api.example.com",
                    "ftp://a",
                    "https://",
                    "https://user:pass@host",
                    "https://host?x=1",
                    "https://host/#a",
                    "https://host:port",
                    "https://ho st",
                    "https://host/\u{7f}",
                    "https://[::1",
                    "https:///v1",
                ],
            ),
            (
                PROXY,
                &[
                    "http://proxy:3128",
                    "socks5://me:pass@proxy",
                    "socks5h://[::1]:1/",
                ],
                &[
                    "junk",
                    "10.0.0.1",
                    "nonsense://x",
                    "ftp://proxy",
                    "http://",
                    "http://me:pass@",
                ],
            ),
            (
                LISTEN,
                &[
                    "127.0.0.1:8787",
                    "0.0.0.0:0",
                    "[::1]:80",
                    "localhost:1",
                    "my-host.lan:65535",
                ],
                &[
                    "",
                    "foo",
                    "8787",
                    ":8787",
                    "999.1.1.1:80",
                    "127.0.0.1:99999",
                    "127.0.0.1:",
                    "127.0.0.1",
                ],
            ),
            (
                LOG_FILTER,
                &["warn", "OFF", "3", "warn, a::b=debug,c = off"],
                &["loud", "bub=loud", "bub", "6"],
            ),
        ];
        for (form, right, wrong) in table {
            for text in right {
                assert!((form.fits)(text), "{text}");
            }
            for text in wrong {
                assert!(!(form.fits)(text), "{text}");
            }
        }
    }
}
