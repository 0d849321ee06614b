//! Sends one message to a model and prints the events: `ask WIRE BASE_URL MODEL TEXT [IDLE_SECONDS]`.
//!
//! Use it to test a server manually, without settings. If stdin is a pipe, the API key is read from it.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "an example prints its results"
)]

use std::io::{IsTerminal, Read};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bub_model::{
    BaseUrl, CallOptions, ChatRequest, Endpoint, HttpOptions, ModelClient, ModelEvent, ModelId,
    WireFormat,
};
use bub_settings::{Environment, Redactor, Secret};
use futures_util::StreamExt;
use serde_json::json;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [wire, base, model, text, rest @ ..] = arguments.as_slice() else {
        return Err("usage: ask WIRE BASE_URL MODEL TEXT [IDLE_SECONDS]".into());
    };
    let wire = WireFormat::from_name(wire).ok_or("unknown wire format")?;
    let base = BaseUrl::parse(base).ok_or("not a base URL")?;
    let mut endpoint = Endpoint::new(ModelId::new("ask", model), wire, base);
    if !std::io::stdin().is_terminal() {
        let mut key = String::new();
        std::io::stdin().read_to_string(&mut key)?;
        if !key.trim().is_empty() {
            endpoint = endpoint.with_key(&Secret::from(key.trim()));
        }
    }
    let messages = Arc::new(vec![json!({"role": "user", "content": text})]);
    let request = ChatRequest {
        model: model.clone(),
        messages,
        stream: true,
        ..ChatRequest::default()
    };
    let mut options = CallOptions::default();
    if let Some(seconds) = rest.first() {
        options.idle_timeout = Duration::from_secs(seconds.parse()?);
    }
    let client = ModelClient::new(
        HttpOptions::from_environment(&Environment::from_process()),
        Redactor::new(),
    );
    let started = Instant::now();
    let mut events = client.stream(endpoint, request, options);
    let mut texts = 0;
    while let Some(event) = events.next().await {
        match event {
            Ok(ModelEvent::Text(_)) if texts >= 3 => texts += 1,
            Ok(event) => {
                texts += usize::from(matches!(event, ModelEvent::Text(_)));
                println!("{:>6} ms  {event:?}", started.elapsed().as_millis());
            }
            Err(error) => println!(
                "{:>6} ms  {:?} {:?}: {error}",
                started.elapsed().as_millis(),
                error.action,
                error.kind
            ),
        }
    }
    println!(
        "{:>6} ms  end, {texts} texts",
        started.elapsed().as_millis()
    );
    Ok(())
}
