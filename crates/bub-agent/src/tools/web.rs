//! The tool `web.fetch`.

use bub_kernel::{Result, tools};
use serde_json::{Map, Value};

use crate::web::WebClient;

/// The tool that fetches web pages.
#[derive(Debug)]
pub struct WebTools {
    web: WebClient,
}

impl WebTools {
    /// Creates the tool with this client.
    pub fn new(web: WebClient) -> Self {
        Self { web }
    }
}

#[tools(crate = bub_kernel)]
impl WebTools {
    /// Fetch a web page as Markdown or plain text. Private networks and localhost are not reachable.
    #[tool(name = "web.fetch", read_only)]
    async fn web_fetch(
        &self,
        /// URL of the page, starting with http:// or https://
        url: String,
        /// Request headers as an object; the default `accept` prefers Markdown
        headers: Option<Map<String, Value>>,
        /// Timeout in seconds for the complete request, at most 60; 10 by default
        timeout: Option<f64>,
    ) -> Result<String> {
        self.web
            .fetch(&url, &headers.unwrap_or_default(), timeout)
            .await
    }
}
