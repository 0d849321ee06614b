//! `web.fetch`: a page of the web as text.

use bub_kernel::{Result, tools};
use serde_json::{Map, Value};

use crate::web::WebClient;

/// The tool that reads web pages.
#[derive(Debug)]
pub struct WebTools {
    web: WebClient,
}

impl WebTools {
    /// A tool that fetches with this client.
    pub fn new(web: WebClient) -> Self {
        Self { web }
    }
}

#[tools(crate = bub_kernel)]
impl WebTools {
    /// Reads a page of the web as Markdown or plain text. Private networks and this computer are out of reach.
    #[tool(name = "web.fetch", read_only)]
    async fn web_fetch(
        &self,
        /// The address, with http:// or https://.
        url: String,
        /// Headers to send, as an object; `accept` prefers Markdown unless it is given.
        headers: Option<Map<String, Value>>,
        /// The longest time in seconds for everything together, at most 60.
        timeout: Option<f64>,
    ) -> Result<String> {
        self.web
            .fetch(&url, &headers.unwrap_or_default(), timeout)
            .await
    }
}
