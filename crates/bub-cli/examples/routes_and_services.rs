//! An HTTP route, a stream of events and a background service, on one counter.
//!
//! The listener of the webhook serves the routes, and the gateway runs the service:
//!
//! ```console
//! $ BUB_WEBHOOK_TOKEN=secret cargo run --example routes_and_services -- gateway
//! $ curl http://127.0.0.1:8787/ticks
//! $ curl -N -H "Authorization: Bearer secret" http://127.0.0.1:8787/ticks/stream
//! ```

use std::{process::ExitCode, sync::Arc, time::Duration};

use bub::{
    HttpBody, HttpRoute, Role, RouteAccess, RouteRequest, RouteResponse, Service, ServiceContext,
    futures::{StreamExt as _, stream},
    http::{Method, Response, header},
    prelude::*,
};
use tokio::sync::watch;

/// The number of seconds since the gateway started.
type Ticks = watch::Sender<u64>;

/// The service: counts the seconds.
struct Ticker(Ticks);

#[async_trait]
impl Service for Ticker {
    fn name(&self) -> &'static str {
        "ticker"
    }

    async fn run(&self, context: ServiceContext) -> Result<()> {
        let mut seconds = tokio::time::interval(Duration::from_secs(1));
        loop {
            tokio::select! {
                () = context.stop.cancelled() => return Ok(()),
                _ = seconds.tick() => self.0.send_modify(|ticks| *ticks += 1),
            }
        }
    }
}

/// Streams the number whenever it changes, as server-sent events.
fn stream_ticks(ticks: &Ticks, request: &RouteRequest) -> Result<RouteResponse> {
    let changes = stream::unfold(ticks.subscribe(), |mut ticks| async move {
        ticks.changed().await.ok()?;
        let event = format!("data: {}\n\n", *ticks.borrow_and_update());
        Some((Ok::<_, Error>(event), ticks))
    });
    // Without this, the stream would delay the stop of the gateway.
    let changes = changes.take_until(request.stop.clone().cancelled_owned());
    let response = Response::builder().header(header::CONTENT_TYPE, "text/event-stream");
    Ok(response.body(HttpBody::from_stream(changes))?)
}

#[derive(Default)]
struct Clock {
    ticks: Ticks,
}

#[hooks]
impl Clock {
    fn provide_services(&self) -> Vec<Arc<dyn Service>> {
        vec![Arc::new(Ticker(self.ticks.clone()))]
    }

    fn provide_routes(&self) -> Vec<HttpRoute> {
        let (current, changes) = (self.ticks.clone(), self.ticks.clone());
        let show = move |_| {
            let text = format!("{}\n", *current.borrow());
            async move { Ok(Response::new(HttpBody::from(text))) }
        };
        let stream = move |request: RouteRequest| {
            let response = stream_ticks(&changes, &request);
            async move { response }
        };
        let members = RouteAccess::Role(Role::Member);
        vec![
            HttpRoute::new(Method::GET, "/ticks", RouteAccess::Public, show),
            HttpRoute::new(Method::GET, "/ticks/stream", members, stream),
        ]
    }
}

fn main() -> ExitCode {
    bub_cli::app().plugin("clock", Clock::default()).main()
}

#[cfg(test)]
mod tests {
    use bub::{Sender, http::Request, testing};

    use super::*;

    // The gateway runs the service, and the test sends requests to the routes without a listener.
    #[tokio::test]
    async fn the_route_shows_what_the_service_counts() {
        let clock = testing::ManualClock::pause();
        let ticks = Ticks::default();
        let plugin = Clock {
            ticks: ticks.clone(),
        };
        let gateway = testing::gateway().plugin("clock", plugin);
        let gateway = gateway.start().await.unwrap();
        clock.advance(Duration::from_secs(2)).await;
        let mut changes = ticks.subscribe();
        changes.wait_for(|ticks| *ticks >= 3).await.unwrap();
        let request = |path| Request::get(path).body(HttpBody::default()).unwrap();
        let response = gateway.request(None, request("/ticks")).await.unwrap();
        let body = response.into_body().read().await.unwrap();
        assert_eq!(body, format!("{}\n", *ticks.borrow()));
        let refused = gateway
            .request(None, request("/ticks/stream"))
            .await
            .unwrap();
        assert_eq!(refused.status(), 401);
        gateway.stop().await.unwrap();
    }

    #[tokio::test]
    async fn the_stream_sends_events_until_it_is_stopped() {
        let plugin = Clock::default();
        let route = plugin.provide_routes().remove(1);
        let request = Request::get(&route.path).body(HttpBody::default()).unwrap();
        let request = RouteRequest::new(Sender::default(), request);
        let stop = request.stop.clone();
        let response = route.handle(request).await.unwrap();
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let body = tokio::spawn(response.into_body().read());
        plugin.ticks.send_replace(7);
        tokio::task::yield_now().await;
        stop.cancel();
        assert_eq!(body.await.unwrap().unwrap(), "data: 7\n\n");
    }
}
