//! The plugin `fetch`: the tool `web.fetch`, which reads public web pages as text.
//!
//! * [`FetchPlugin`]: adds the tool to the program.
//! * [`WebTools`]: the tool. [`WebClient`] sends its requests and refuses private addresses.
//! * [`settings`]: the settings of the tool.
//! * `allowlist`: decides which private addresses may be reached.
//! * `resolve`: resolves names and checks their addresses; the connection uses the checked addresses.
//! * `page`: reads a response as text; `html` and `markdown` convert a page to Markdown.

mod allowlist;
mod client;
mod html;
mod markdown;
mod page;
mod resolve;
pub mod settings;

use std::sync::Arc;

use bub::{UntrustedSource, prelude::*};
use serde_json::{Map, Value, json};

#[doc(hidden)]
pub use page::page_text;
pub use {client::WebClient, markdown::html_to_markdown, page::FetchedPage, resolve::HostResolver};

/// Provides the tool `web.fetch`.
#[derive(Debug)]
pub struct FetchPlugin;

impl FetchPlugin {
    /// Name under which the plugin is registered.
    pub const NAME: &'static str = "fetch";

    /// Creates the plugin and adds its tool, with the settings of the program.
    pub fn new(context: &PluginContext<'_>) -> Self {
        let tools = Arc::new(WebTools::new(WebClient::new(context.settings)));
        // The order of the tools is part of every request to the model. It stays the same, so that the prompt caches of
        // providers and recorded requests stay valid.
        context.add_tools_before("subagent", tools.tools());
        Self
    }
}

#[hooks]
impl FetchPlugin {}

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

#[tools]
impl WebTools {
    /// Fetch a web page as Markdown or plain text. Private networks are not reachable.
    #[tool(name = "web.fetch", read_only, render = render_page, output = page_schema)]
    async fn web_fetch(
        &self,
        context: &ToolContext,
        url: String,
        headers: Option<Map<String, Value>>,
        /// Seconds, at most 60
        timeout: Option<f64>,
    ) -> Result<Value> {
        // Also if the request fails later: the error can contain text of the server.
        let mark = || context.turn.mark_untrusted(UntrustedSource::WebPage);
        let headers = headers.unwrap_or_default();
        let page = self.web.fetch_from(&url, &headers, timeout, &mark).await?;
        Ok(json!({
            "url": page.url, "status": page.status, "content_type": page.content_type, "content": page.content,
        }))
    }
}

/// Returns the text of the page.
fn render_page(page: &Value) -> Option<String> {
    Some(page.get("content")?.as_str()?.to_owned())
}

fn page_schema() -> Value {
    let text = json!({"type": "string"});
    json!({
        "type": "object",
        "properties": {"url": text, "status": {"type": "integer"}, "content_type": text, "content": text},
        "required": ["url", "status", "content_type", "content"],
    })
}
