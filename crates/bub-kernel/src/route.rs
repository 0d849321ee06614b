//! HTTP routes of plugins. The plugin that runs the HTTP listener serves the routes of all plugins.

use std::{
    ops::Deref,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_core::Stream;
use futures_util::TryStreamExt as _;
use http::{Method, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use tokio_util::sync::CancellationToken;

use crate::{
    BoxFuture,
    error::{BoxError, Error, ErrorKind, Result},
    sender::{Role, Sender},
};

/// A path of the HTTP listener and the code that answers its requests.
///
/// The path is a pattern: `{name}` matches one segment, and `{*name}` at the end matches the rest of the path. A route
/// for `GET` also answers `HEAD`.
///
/// The listener checks the access, limits the size of the request and the time to read it, and answers an error with
/// JSON. If the client goes away, it drops the future and the body of the response.
///
/// ```
/// use bub_kernel::{HttpBody, HttpRoute, Role, RouteAccess, http::{Method, Response}};
///
/// let access = RouteAccess::Role(Role::Member);
/// let route = HttpRoute::new(Method::GET, "/hello/{name}", access, |request| async move {
///     let name = request.param("name").unwrap_or("world");
///     Ok(Response::new(HttpBody::from(format!("hello {name}\n"))))
/// });
/// ```
#[derive(Clone)]
pub struct HttpRoute {
    /// The method. `None` for all methods.
    pub method: Option<Method>,
    /// The pattern of the path.
    pub path: String,
    /// Whether the route also serves all paths below `path`.
    pub is_prefix: bool,
    /// Who may send requests.
    pub access: RouteAccess,
    /// Maximum size of a request body in bytes. `None` for the limit of the listener.
    pub body_limit: Option<usize>,
    handler: Arc<dyn Fn(RouteRequest) -> BoxFuture<'static, Result<RouteResponse>> + Send + Sync>,
}

/// Who may send requests to a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RouteAccess {
    /// All clients. The sender is a guest unless the client has authenticated.
    Public,
    /// Clients that have authenticated and have at least this role.
    Role(Role),
}

/// The response of a route.
pub type RouteResponse = Response<HttpBody>;

/// Returns the status with which the listener answers an error of a route.
pub fn route_error_status(error: &Error) -> StatusCode {
    match error.kind() {
        ErrorKind::InvalidInput => StatusCode::BAD_REQUEST,
        ErrorKind::NotFound => StatusCode::NOT_FOUND,
        ErrorKind::Temporary | ErrorKind::SessionFull => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl HttpRoute {
    /// Creates a route for a method.
    pub fn new<F>(
        method: Method,
        path: &str,
        access: RouteAccess,
        handler: impl Fn(RouteRequest) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<RouteResponse>> + Send + 'static,
    {
        Self {
            method: Some(method),
            path: path.to_owned(),
            is_prefix: false,
            access,
            body_limit: None,
            handler: Arc::new(move |request| Box::pin(handler(request))),
        }
    }

    /// Creates a route for a path and all paths below it, with all methods. Use it to mount another router. The URI of
    /// the request keeps the prefix.
    pub fn prefix<F>(
        path: &str,
        access: RouteAccess,
        handler: impl Fn(RouteRequest) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<RouteResponse>> + Send + 'static,
    {
        Self {
            method: None,
            is_prefix: true,
            ..Self::new(Method::GET, path.trim_end_matches('/'), access, handler)
        }
    }

    /// Sets the maximum size of a request body in bytes.
    #[must_use]
    pub fn body_limit(mut self, bytes: usize) -> Self {
        self.body_limit = Some(bytes);
        self
    }

    /// Answers a request. Called by the listener, after it has checked the access.
    pub fn handle(&self, request: RouteRequest) -> BoxFuture<'static, Result<RouteResponse>> {
        (self.handler)(request)
    }
}

/// A request to a route, with the sender that the listener has authenticated.
#[derive(Debug)]
#[non_exhaustive]
pub struct RouteRequest {
    /// The sender. Its role is at least the role that the route requires.
    pub sender: Arc<Sender>,
    /// The names in the pattern of the path, with the text that each matches. The text is percent-encoded.
    pub params: Vec<(String, String)>,
    /// Cancelled when the listener stops. Responses that wait or stream must end then.
    pub stop: CancellationToken,
    /// The request.
    pub request: Request<HttpBody>,
}

impl RouteRequest {
    /// Creates a request. Called by the listener, and by tests of routes.
    pub fn new(sender: impl Into<Arc<Sender>>, request: Request<HttpBody>) -> Self {
        Self {
            sender: sender.into(),
            params: Vec::new(),
            stop: CancellationToken::new(),
            request,
        }
    }

    /// Returns the text that a name in the pattern of the path matches.
    pub fn param(&self, name: &str) -> Option<&str> {
        let mut params = self.params.iter();
        let (_, text) = params.find(|(param, _)| param == name)?;
        Some(text)
    }

    /// Reads the complete body.
    ///
    /// # Errors
    ///
    /// Fails if the body is larger than the limit, or if the client is too slow. Return this error from the handler: the
    /// listener answers with the matching status.
    pub async fn read_body(&mut self) -> Result<Bytes> {
        std::mem::take(self.request.body_mut()).read().await
    }
}

impl Deref for RouteRequest {
    type Target = Request<HttpBody>;

    fn deref(&self) -> &Request<HttpBody> {
        &self.request
    }
}

/// The body of a request or response: bytes, or a stream of bytes. The default is an empty body.
#[derive(Debug)]
pub struct HttpBody(UnsyncBoxBody<Bytes, BoxError>);

impl HttpBody {
    /// Wraps a body of another library.
    pub fn new<B>(body: B) -> Self
    where
        B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        Self(body.map_err(Into::into).boxed_unsync())
    }

    /// Creates a body that is sent while the stream produces it, such as server-sent events.
    pub fn from_stream<T, E>(stream: impl Stream<Item = Result<T, E>> + Send + 'static) -> Self
    where
        T: Into<Bytes> + 'static,
        E: Into<BoxError> + 'static,
    {
        let frames = stream.map_ok(|data| Frame::data(data.into()));
        Self::new(StreamBody::new(frames.map_err(Into::into)))
    }

    /// Reads the complete body.
    pub async fn read(self) -> Result<Bytes> {
        let collected = self.0.collect().await.map_err(Error::from_boxed)?;
        Ok(collected.to_bytes())
    }
}

impl Default for HttpBody {
    fn default() -> Self {
        Self::from(Bytes::new())
    }
}

impl<T: Into<Bytes>> From<T> for HttpBody {
    fn from(data: T) -> Self {
        Self::new(Full::new(data.into()))
    }
}

impl Body for HttpBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.0).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}
