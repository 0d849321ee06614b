//! The routes of all plugins: matching a request, checking its access and its size, and answering errors.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use bub::kernel::{
    Error, HttpBody, HttpRoute, Result, RouteAccess, RouteRequest, RouteResponse, Sender,
    route_error_status,
};
use bub::settings::Secret;
use futures_util::FutureExt as _;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header};
use http_body::Body as _;
use http_body_util::{LengthLimitError, Limited};
use hyper::body::Incoming;
use matchit::InsertError;
use ring::{hmac, rand::SystemRandom};
use tokio_util::sync::CancellationToken;

use crate::{
    request_body::{SharedBody, TimedBody},
    response::HttpError,
    webhook::{CHANNEL_NAME, WebhookOptions},
};

/// Value of `Retry-After` when bub is busy.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The routes of all plugins, with what every request needs.
pub(crate) struct RouteTable {
    /// The routes by the pattern of their path, with at most one route per method.
    patterns: matchit::Router<Vec<MountedRoute>>,
    verifier: TokenVerifier,
    client: Arc<Sender>,
    guest: Arc<Sender>,
    options: Arc<WebhookOptions>,
    /// Cancelled when responses must end.
    pub(crate) stop: CancellationToken,
}

struct MountedRoute {
    plugin: Arc<str>,
    route: HttpRoute,
}

impl RouteTable {
    /// Creates the table from the routes of all plugins. Without a token, only public routes can be used.
    ///
    /// # Errors
    ///
    /// Fails if two routes have the same method and path, or if the pattern of a path is invalid.
    pub(crate) fn new(
        options: &Arc<WebhookOptions>,
        token: Option<&Secret>,
        routes: impl IntoIterator<Item = (Arc<str>, HttpRoute)>,
    ) -> Result<Self> {
        let guest = Sender {
            channel: CHANNEL_NAME.to_owned(),
            ..Sender::default()
        };
        let client = Sender {
            role: options.role,
            id: "token".to_owned(),
            ..guest.clone()
        };
        let mut patterns: Vec<(String, Vec<MountedRoute>)> = Vec::new();
        for (plugin, route) in routes {
            for pattern in route_patterns(&route) {
                let mounted = MountedRoute {
                    plugin: Arc::clone(&plugin),
                    route: route.clone(),
                };
                match patterns.iter_mut().find(|(other, _)| *other == pattern) {
                    Some((_, routes)) => {
                        if let Some(other) = routes.iter().find(|other| other.overlaps(&route)) {
                            return Err(mounted.conflict_error(other));
                        }
                        routes.push(mounted);
                    }
                    None => patterns.push((pattern, vec![mounted])),
                }
            }
        }
        Ok(Self {
            patterns: build_router(patterns)?,
            verifier: TokenVerifier::new(token)?,
            client: Arc::new(client),
            guest: Arc::new(guest),
            options: Arc::clone(options),
            stop: CancellationToken::new(),
        })
    }

    /// Returns how long a client may take to send the head of a request, and then its body.
    pub(crate) fn read_timeout(&self) -> Duration {
        self.options.read_timeout
    }

    /// Answers a request.
    pub(crate) async fn handle(&self, request: Request<Incoming>) -> RouteResponse {
        let is_authorized = self.verifier.is_authorized(request.headers());
        let (parts, incoming) = request.into_parts();
        let body = SharedBody::new(incoming);
        let timed = TimedBody::new(&body, self.read_timeout());
        let request = Request::from_parts(parts, timed);
        let response = self.answer(request, is_authorized).await;
        let mut response = response.unwrap_or_else(HttpError::into_response);
        // Clients without the token must not keep connections that others need.
        if body.discard_rest(self.read_timeout()) || !is_authorized {
            response
                .headers_mut()
                .insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    async fn answer(
        &self,
        request: Request<TimedBody>,
        is_authorized: bool,
    ) -> Result<RouteResponse, HttpError> {
        let (path, method) = (request.uri().path().to_owned(), request.method());
        let unknown_path_error = || {
            let text = "unknown path; use `/v1/messages`, `/v1/messages/ID`, `/healthz`, or a path of a plugin";
            HttpError::new(StatusCode::NOT_FOUND, "not_found", text)
        };
        let found = self.patterns.at(&path).map_err(|_| unknown_path_error())?;
        let mut routes = found.value.iter().map(|mounted| &mounted.route);
        let Some(route) = routes.find(|route| has_method(route, method)) else {
            return Err(method_error(found.value));
        };
        let sender = self.check_access(route.access, is_authorized)?;
        let limit = route.body_limit.unwrap_or(self.options.body_limit);
        if request.body().size_hint().lower() > u64::try_from(limit).unwrap_or(u64::MAX) {
            return Err(too_large_error(limit));
        }
        let request = request.map(|body| HttpBody::new(Limited::new(body, limit)));
        let mut request = RouteRequest::new(Arc::clone(sender), request);
        let params = found.params.iter();
        request.params = params.map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
        request.stop = self.stop.clone();
        let handled = AssertUnwindSafe(async { route.handle(request).await }).catch_unwind();
        let handled = handled.await.unwrap_or_else(|_| {
            Err(Error::unknown(
                "cannot answer the request: internal error (panic); see the log for the panic",
            ))
        });
        handled.map_err(|error| self.route_error(&path, limit, &error))
    }

    /// Returns the sender of a request, if the sender may use the route.
    fn check_access(
        &self,
        access: RouteAccess,
        is_authorized: bool,
    ) -> Result<&Arc<Sender>, HttpError> {
        match access {
            RouteAccess::Public if !is_authorized => Ok(&self.guest),
            RouteAccess::Public => Ok(&self.client),
            _ if !is_authorized => {
                let text = "unauthorized: pass the token of `webhook.token` in the header `Authorization: Bearer`";
                let error = HttpError::new(StatusCode::UNAUTHORIZED, "unauthorized", text);
                Err(error.with_header(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")))
            }
            RouteAccess::Role(role) if self.client.role >= role => Ok(&self.client),
            _ => {
                let text = format!(
                    "forbidden: clients with the token have role {}; the owner can change `webhook.role`",
                    self.client.role.name()
                );
                Err(HttpError::new(StatusCode::FORBIDDEN, "forbidden", text))
            }
        }
    }

    /// Builds the response to a request whose route failed.
    fn route_error(&self, path: &str, limit: usize, error: &Error) -> HttpError {
        if error.downcast_ref::<LengthLimitError>().is_some() {
            return too_large_error(limit);
        }
        if error.downcast_ref::<hyper::Error>().is_some() {
            return HttpError::new(
                StatusCode::BAD_REQUEST,
                "incomplete",
                "incomplete body: the connection ended early; send the request again",
            );
        }
        let is_late = |error: &std::io::Error| error.kind() == std::io::ErrorKind::TimedOut;
        if error.downcast_ref().is_some_and(is_late) {
            let text = format!(
                "body not received within {} s; send the request again",
                self.read_timeout().as_secs_f64()
            );
            return HttpError::new(StatusCode::REQUEST_TIMEOUT, "too_slow", text);
        }
        let message = self.options.redactor.redact(error.message()).into_owned();
        let status = route_error_status(error);
        match status {
            StatusCode::BAD_REQUEST => HttpError::new(status, "invalid_request", message),
            StatusCode::NOT_FOUND => HttpError::new(status, "not_found", message),
            StatusCode::SERVICE_UNAVAILABLE => HttpError::new(status, "busy", message)
                .with_retry_after(error.retry_after().unwrap_or(RETRY_AFTER)),
            _ => {
                tracing::warn!(path, error = %message, "http.route_failed");
                HttpError::new(status, "failed", message)
            }
        }
    }
}

/// Returns the patterns of the paths that a route serves.
fn route_patterns(route: &HttpRoute) -> Vec<String> {
    let path = &route.path;
    if !route.is_prefix {
        return vec![path.clone()];
    }
    let mut patterns = vec![format!("{path}/"), format!("{path}/{{*rest}}")];
    if !path.is_empty() {
        patterns.push(path.clone());
    }
    patterns
}

fn build_router(
    patterns: Vec<(String, Vec<MountedRoute>)>,
) -> Result<matchit::Router<Vec<MountedRoute>>> {
    let mut router = matchit::Router::new();
    let mut first_routes: Vec<(String, MountedRoute)> = Vec::new();
    for (pattern, routes) in patterns {
        let Some(MountedRoute { plugin, route }) = routes.first() else {
            continue;
        };
        let first = MountedRoute {
            plugin: Arc::clone(plugin),
            route: route.clone(),
        };
        match router.insert(pattern.as_str(), routes) {
            Ok(()) => first_routes.push((pattern, first)),
            Err(InsertError::Conflict { with }) => {
                let other = first_routes.iter().find(|(pattern, _)| *pattern == with);
                let other = other.map_or(&first, |(_, other)| other);
                return Err(first.conflict_error(other));
            }
            Err(error) => {
                return Err(Error::config(format!(
                    "invalid HTTP route `{pattern}` of plugin `{}`: {error}; update or remove the plugin",
                    first.plugin
                )));
            }
        }
    }
    Ok(router)
}

impl MountedRoute {
    /// Returns whether some method belongs to both routes.
    fn overlaps(&self, other: &HttpRoute) -> bool {
        match (&self.route.method, &other.method) {
            (Some(method), Some(other)) => method == other,
            _ => true,
        }
    }

    fn conflict_error(&self, other: &Self) -> Error {
        Error::config(format!(
            "conflicting HTTP routes: `{}` of plugin `{}` and `{}` of plugin `{}`; remove one of the plugins, or change its path",
            other.route.path, other.plugin, self.route.path, self.plugin
        ))
    }
}

/// Returns whether a route answers requests with this method. Load balancers often use `HEAD` instead of `GET`.
fn has_method(route: &HttpRoute, method: &Method) -> bool {
    let is_head_of_get = method == Method::HEAD && route.method == Some(Method::GET);
    is_head_of_get || route.method.as_ref().is_none_or(|own| own == method)
}

fn method_error(routes: &[MountedRoute]) -> HttpError {
    let methods = routes
        .iter()
        .filter_map(|mounted| mounted.route.method.as_ref());
    let allowed = methods.map(Method::as_str).collect::<Vec<_>>().join(", ");
    let text = format!("method not allowed; use `{allowed}`");
    let value = HeaderValue::from_str(&allowed).unwrap_or(HeaderValue::from_static("GET"));
    HttpError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", text)
        .with_header(header::ALLOW, value)
}

fn too_large_error(limit: usize) -> HttpError {
    let text = format!(
        "body too large: it has more than {limit} bytes; the owner can raise `webhook.body_limit`"
    );
    HttpError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", text)
}

/// Checks the token of a request. Compares HMACs under a random key instead of tokens, so that the time does not depend
/// on the token.
struct TokenVerifier {
    key: hmac::Key,
    /// `None` without a token; no request is then authorized.
    tag: Option<hmac::Tag>,
}

impl TokenVerifier {
    fn new(token: Option<&Secret>) -> Result<Self> {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).map_err(|_| {
            Error::unknown("cannot start the webhook: the system returned no random numbers")
        })?;
        let tag = token.map(|token| hmac::sign(&key, token.expose().as_bytes()));
        Ok(Self { key, tag })
    }

    fn is_authorized(&self, headers: &HeaderMap) -> bool {
        let authorization = headers
            .get(header::AUTHORIZATION)
            .map(HeaderValue::as_bytes)
            .unwrap_or_default();
        let token = authorization
            .split_at_checked(7)
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer "));
        let (Some((_, token)), Some(tag)) = (token, &self.tag) else {
            return false;
        };
        hmac::verify(&self.key, token.trim_ascii(), tag.as_ref()).is_ok()
    }
}
