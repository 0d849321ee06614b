//! Requests to the routes of plugins in a test.

use std::sync::Arc;

use bub_kernel::{
    HttpBody, HttpRoute, MessageHandler, Result, Role, RouteAccess, RouteRequest, RouteResponse,
    Sender,
    http::{Method, Request, Response, StatusCode},
    route_error_status,
};

use super::{CHANNEL, TestedGateway};

impl TestedGateway {
    /// Sends a request to a route of a plugin, as the HTTP listener does: it matches the path, checks the access, and
    /// answers an error with its status and its message. `role` is the role of a client with the token; `None` is a client
    /// without it. The listener's limits of size and time do not apply.
    ///
    /// ```
    /// use bub::{HttpBody, HttpRoute, Role, RouteAccess, http::{Method, Request, Response}, prelude::*, testing};
    ///
    /// struct Hello;
    ///
    /// #[hooks]
    /// impl Hello {
    ///     fn provide_routes(&self) -> Vec<HttpRoute> {
    ///         let access = RouteAccess::Role(Role::Member);
    ///         vec![HttpRoute::new(Method::GET, "/hello/{name}", access, |request| async move {
    ///             let name = request.param("name").unwrap_or_default();
    ///             Ok(Response::new(HttpBody::from(format!("hello {name}"))))
    ///         })]
    ///     }
    /// }
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// let gateway = testing::gateway().plugin("hello", Hello).start().await?;
    /// let request = || Request::get("/hello/ada").body(HttpBody::default());
    /// let response = gateway.request(Some(Role::Member), request()?).await?;
    /// assert_eq!(response.into_body().read().await?, "hello ada");
    /// assert_eq!(gateway.request(None, request()?).await?.status(), 401);
    /// gateway.stop().await?;
    /// # Ok::<(), Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// Fails if the hook `provide_routes` of a plugin fails.
    pub async fn request(
        &self,
        role: Option<Role>,
        request: Request<HttpBody>,
    ) -> Result<RouteResponse> {
        let handler: MessageHandler = self.message_handler()?;
        let routes = self.framework().routes(&handler)?;
        let (path, method) = (request.uri().path().to_owned(), request.method().clone());
        let matching: Vec<_> = routes
            .iter()
            .filter_map(|(_, route)| Some((route, path_params(route, &path)?)))
            .collect();
        if matching.is_empty() {
            return Ok(error_response(StatusCode::NOT_FOUND, "unknown path"));
        }
        let found = matching
            .into_iter()
            .find(|(route, _)| has_method(route, &method));
        let Some((route, params)) = found else {
            return Ok(error_response(
                StatusCode::METHOD_NOT_ALLOWED,
                "method not allowed",
            ));
        };
        match (route.access, role) {
            (RouteAccess::Role(_), None) => {
                return Ok(error_response(StatusCode::UNAUTHORIZED, "unauthorized"));
            }
            (RouteAccess::Role(required), Some(role)) if role < required => {
                return Ok(error_response(StatusCode::FORBIDDEN, "forbidden"));
            }
            _ => {}
        }
        let sender = Sender {
            channel: CHANNEL.to_owned(),
            role: role.unwrap_or(Role::Guest),
            ..Sender::default()
        };
        let mut request = RouteRequest::new(Arc::new(sender), request);
        request.params = params;
        let answered = route.handle(request).await;
        Ok(answered
            .unwrap_or_else(|error| error_response(route_error_status(&error), error.message())))
    }
}

/// Returns the names in the pattern of a route with the text that each matches, if the route serves the path.
fn path_params(route: &HttpRoute, path: &str) -> Option<Vec<(String, String)>> {
    let mut router = matchit::Router::new();
    if route.is_prefix {
        let rest = path.strip_prefix(&route.path)?;
        return (rest.is_empty() || rest.starts_with('/')).then(Vec::new);
    }
    router.insert(route.path.as_str(), ()).ok()?;
    let found = router.at(path).ok()?;
    let params = found.params.iter();
    Some(
        params
            .map(|(name, text)| (name.to_owned(), text.to_owned()))
            .collect(),
    )
}

fn has_method(route: &HttpRoute, method: &Method) -> bool {
    let is_head_of_get = method == Method::HEAD && route.method == Some(Method::GET);
    is_head_of_get || route.method.as_ref().is_none_or(|own| own == method)
}

fn error_response(status: StatusCode, message: &str) -> RouteResponse {
    let mut response = Response::new(HttpBody::from(message.to_owned()));
    *response.status_mut() = status;
    response
}
