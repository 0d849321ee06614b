//! A route returns a response.
use bub_kernel::{HttpRoute, RouteAccess, http::Method};

fn main() {
    let _ = HttpRoute::new(Method::GET, "/hello", RouteAccess::Public, |_| async { "hello" });
}
