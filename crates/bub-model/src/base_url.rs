//! Base URLs of providers: where bub sends requests and keys.

use std::fmt;
use std::net::IpAddr;

use bub_settings::{is_base_url, split_port};
use serde::Serialize;

use crate::WireFormat;

/// A validated base URL of a provider: `http` or `https`, a host, an optional path, no trailing slash.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct BaseUrl(String);

/// Expected format of a base URL, for error messages.
pub(crate) const EXPECTED_FORMAT: &str =
    "a URL such as `https://host/v1`, without user, query or fragment";

const LOCALHOST: &str = "127.0.0.1";

impl BaseUrl {
    /// Parses a base URL. Returns `None` if the text is not a valid base URL.
    ///
    /// A user name or password is rejected because bub displays URLs. A query or fragment is rejected because bub
    /// appends paths.
    ///
    /// ```
    /// use bub_model::BaseUrl;
    ///
    /// let url = BaseUrl::parse("https://api.example.com/v1/").unwrap();
    /// assert_eq!(url.as_str(), "https://api.example.com/v1");
    /// assert_eq!(BaseUrl::parse("https://user@api.example.com"), None);
    /// ```
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim().trim_end_matches('/');
        is_base_url(text).then(|| Self(text.to_owned()))
    }

    /// Creates a base URL without validating it. For constants that a test validates with [`BaseUrl::parse`].
    pub fn unchecked(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// Parses the value of a variable such as `OLLAMA_HOST`: a URL, or a host and port.
    ///
    /// A missing host is localhost; a missing port is taken from `default`. The unspecified addresses `0.0.0.0` and
    /// `[::]` also mean localhost.
    pub(crate) fn parse_host(text: &str, default: &Self) -> Option<Self> {
        let text = text.trim();
        if text.contains("://") {
            return Self::parse(text).map(Self::with_reachable_host);
        }
        let (authority, path) = text.split_once('/').unwrap_or((text, ""));
        let (host, port) = split_port(authority);
        let host = if host.is_empty() { LOCALHOST } else { host };
        let default_port = split_port(default.authority()).1;
        let port = port.or(default_port).map(|port| format!(":{port}"));
        let port = port.unwrap_or_default();
        Self::parse(&format!("http://{host}{port}/{path}")).map(Self::with_reachable_host)
    }

    /// Appends `path` unless the URL has a path already.
    #[must_use]
    pub(crate) fn with_default_path(self, path: &str) -> Self {
        if self.after_scheme().contains('/') {
            return self;
        }
        Self(format!("{}{path}", self.0))
    }

    /// Removes a trailing `/v1` for the Messages format, because its request paths start with `/v1`. Users often
    /// include `/v1` in the base URL.
    #[must_use]
    pub(crate) fn for_wire_format(self, wire: WireFormat) -> Self {
        match (wire, self.0.strip_suffix("/v1")) {
            (WireFormat::Messages, Some(without)) => Self(without.to_owned()),
            _ => self,
        }
    }

    /// Returns the URL as text, without a trailing slash.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether the scheme is `https`.
    pub fn is_secure(&self) -> bool {
        self.0
            .get(..6)
            .is_some_and(|scheme| scheme.eq_ignore_ascii_case("https:"))
    }

    /// Returns whether the host is `localhost` or a loopback address.
    pub fn is_loopback(&self) -> bool {
        let (host, _) = split_port(self.authority());
        let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
        address.map_or_else(
            |_| host.eq_ignore_ascii_case("localhost"),
            |address| address.is_loopback(),
        )
    }

    /// Returns the port, which may be the default of the scheme.
    pub(crate) fn port(&self) -> Option<u16> {
        let default = if self.is_secure() { 443 } else { 80 };
        let (_, port) = split_port(self.authority());
        port.map_or(Some(default), |port| port.parse().ok())
    }

    /// Replaces an unspecified address such as `0.0.0.0` with the loopback address.
    fn with_reachable_host(self) -> Self {
        match split_port(self.authority()).0 {
            host @ ("0.0.0.0" | "[::]") => Self(self.0.replacen(host, LOCALHOST, 1)),
            _ => self,
        }
    }

    /// Returns the host with the port, if the URL has one.
    pub(crate) fn authority(&self) -> &str {
        self.after_scheme().split('/').next().unwrap_or_default()
    }

    fn after_scheme(&self) -> &str {
        self.0.split_once("://").map_or("", |(_, rest)| rest)
    }
}

impl fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slash_at_the_end_is_omitted() {
        assert_eq!(
            BaseUrl::parse(" https://api.example.com/v1/ ")
                .unwrap()
                .as_str(),
            "https://api.example.com/v1"
        );
        assert_eq!(BaseUrl::parse("ftp://api.example.com"), None);
    }

    #[test]
    fn this_machine_is_recognized() {
        let loopback = |text| BaseUrl::parse(text).unwrap().is_loopback();
        for yes in [
            "http://127.0.0.1",
            "http://127.1.2.3:80/v1",
            "http://localhost:1",
            "http://[::1]:80",
        ] {
            assert!(loopback(yes), "{yes}");
        }
        for no in [
            "http://10.0.0.1",
            "http://localhost.example.com",
            "http://127.0.0.1.example.com",
            "http://[::2]",
        ] {
            assert!(!loopback(no), "{no}");
        }
    }

    #[test]
    fn host_variables_are_read_as_users_write_them() {
        let default = BaseUrl::parse("http://127.0.0.1:11434/v1").unwrap();
        for (written, expected) in [
            ("0.0.0.0", "http://127.0.0.1:11434/v1"),
            (":9000", "http://127.0.0.1:9000/v1"),
            ("box", "http://box:11434/v1"),
            ("box:80/llm", "http://box:80/llm"),
            ("https://box", "https://box/v1"),
            ("http://0.0.0.0:5", "http://127.0.0.1:5/v1"),
        ] {
            let url = BaseUrl::parse_host(written, &default)
                .unwrap()
                .with_default_path("/v1");
            assert_eq!(url.as_str(), expected, "{written}");
        }
    }
}
