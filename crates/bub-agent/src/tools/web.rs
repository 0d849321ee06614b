//! `web.fetch`: a page of the web as text.

use bub_kernel::{Error, Result, ToolContext, tool};
use serde_json::{Map, Value};

use crate::web::Web;

/// Reads a page of the web as Markdown or plain text. Private networks and this computer are out of reach.
#[tool(crate = bub_kernel, name = "web.fetch", read_only)]
pub async fn web_fetch(
    context: &ToolContext,
    /// The address, with http:// or https://.
    url: String,
    /// Headers to send, as an object; `accept` prefers Markdown unless it is given.
    headers: Option<Map<String, Value>>,
    /// The longest time in seconds for everything together, at most 60.
    timeout: Option<f64>,
) -> Result<String> {
    let missing = || Error::not_found("the web is not part of this turn");
    let web = context.state.slot::<Web>().ok_or_else(missing)?;
    web.fetch(&url, &headers.unwrap_or_default(), timeout).await
}
