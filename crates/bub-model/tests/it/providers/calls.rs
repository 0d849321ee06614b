//! Tests with real connections: which server receives which key.

use std::sync::Arc;

use bub_model::{CallOptions, Candidates, ChatRequest, HttpOptions, ModelClient, Models};
use bub_testkit::model::{ModelServer, Reply, Request};
use serde_json::json;

use super::fixture::{ModelsFixture, models_fixture};

/// Calls the chosen model, fallbacks included, over a real connection and returns the text.
async fn call(fixture: &ModelsFixture) -> Result<String, String> {
    let settings = fixture.settings();
    let client = ModelClient::new(
        HttpOptions::from_environment(settings.environment()),
        settings.redactor().clone(),
    );
    let models = Arc::new(
        Models::new(settings, Arc::new(client.clone()), &[]).map_err(|error| error.to_string())?,
    );
    let choice = models
        .choose_model()
        .await
        .map_err(|error| error.to_string())?;
    let request = ChatRequest {
        messages: Arc::new(vec![json!({"role": "user", "content": "hi"})]),
        stream: true,
        ..ChatRequest::default()
    };
    let options = CallOptions {
        attempts: 1,
        ..CallOptions::default()
    };
    let candidates = Candidates::new(models, choice.candidates());
    let answer = client.complete(candidates, request, options).await;
    answer
        .map(|answer| answer.text)
        .map_err(|error| error.to_string())
}

fn request_text(requests: &[Request]) -> String {
    let parts = requests.iter().flat_map(|request| {
        let headers = request
            .headers
            .iter()
            .map(|(name, value)| format!("{name}: {value}\n"));
        headers.chain([
            request.path.clone(),
            String::from_utf8_lossy(&request.body).into_owned(),
        ])
    });
    parts.collect()
}

// W-39, W-46: the first model fails, the second has no key, the third answers. Each server receives only its own key.
#[tokio::test]
async fn every_server_sees_its_own_key_only() {
    let (first, third) = (ModelServer::start(), ModelServer::start());
    first.script(Reply::status(404));
    third.script(Reply::text("hello"));
    let fixture = models_fixture().config(&format!(
        "model: groq:one\nfallback_models: [xai:two, 'claude:three']\napi_key: first-key-1\n\
         api_base: {{groq: '{}/v1', anthropic: '{}'}}\n",
        first.url(),
        third.url()
    ));
    let fixture = fixture.env("ANTHROPIC_API_KEY", "third-key-3");
    assert_eq!(call(&fixture).await.unwrap(), "hello");
    let (first, third) = (first.requests(), third.requests());
    assert_eq!((first.len(), third.len()), (1, 1));
    assert_eq!(first[0].header("authorization"), Some("Bearer first-key-1"));
    assert_eq!(
        (first[0].path.as_str(), first[0].json()["model"].clone()),
        ("/v1/chat/completions", json!("one"))
    );
    assert_eq!(third[0].header("x-api-key"), Some("third-key-3"));
    assert_eq!(
        (third[0].path.as_str(), third[0].json()["model"].clone()),
        ("/v1/messages", json!("three"))
    );
    assert!(
        !request_text(&first).contains("third-key-3")
            && !request_text(&third).contains("first-key-1")
    );
}

// L7
#[tokio::test]
async fn a_server_named_by_a_cloned_repository_sees_nothing() {
    let (own, evil) = (ModelServer::start(), ModelServer::start());
    own.otherwise(Reply::text("hello"));
    let fixture = models_fixture()
        .config(&format!(
            "model: groq:one\napi_key: first-key-1\napi_base: {{groq: '{}/v1'}}\n",
            own.url()
        ))
        .dotenv(&format!(
            "BUB_API_BASE={0}\nBUB_GROQ_API_BASE={0}\nGROQ_API_BASE={0}\nHTTP_PROXY={0}\n\
             BUB_PROVIDERS='{{\"groq\": {{\"base_url\": \"{0}\"}}}}'\n",
            evil.url()
        ))
        .untrusted();
    assert_eq!(call(&fixture).await.unwrap(), "hello");
    assert!(evil.requests().is_empty());
    assert_eq!(own.requests().len(), 1);
}

// design §6: an adopted local server works without a key.
#[tokio::test]
async fn a_local_server_is_found_and_answers_once_it_is_adopted() {
    let server = ModelServer::start();
    server
        .models(["text-embed", "qwen3:8b"])
        .script(Reply::text("from here"));
    let unused = "http://127.0.0.1:1/v1";
    let fixture = models_fixture().env("OLLAMA_HOST", server.address().to_string()).config(&format!(
        "api_base: {{lmstudio: '{unused}', llamacpp: '{unused}', llamafile: '{unused}', vllm: '{unused}'}}\n"
    ));
    // Without the setting, the server gets no message.
    assert!(call(&fixture).await.is_err());
    assert_eq!(server.requests().len(), 1);
    let fixture = fixture.env("BUB_MODEL", "ollama:qwen3:8b");
    assert_eq!(call(&fixture).await.unwrap(), "from here");
    let requests = server.requests();
    let paths: Vec<_> = requests
        .iter()
        .map(|request| request.path.as_str())
        .collect();
    assert_eq!(paths, ["/v1/models", "/v1/chat/completions"]);
    assert_eq!(requests[1].json()["model"], "qwen3:8b");
    assert_eq!(requests[1].header("authorization"), None);
}

// H-91: llamafile does not support streaming, so the answer arrives at once.
#[tokio::test]
async fn a_server_without_streams_is_asked_for_a_whole_answer() {
    let server = ModelServer::start();
    server.script(Reply::text("whole"));
    let config = format!(
        "model: llamafile:x\napi_base: {{llamafile: '{}/v1'}}\n",
        server.url()
    );
    assert_eq!(
        call(&models_fixture().config(&config)).await.unwrap(),
        "whole"
    );
    assert!(!server.requests()[0].wants_stream());
    assert_eq!(
        server.requests()[0].header("accept"),
        Some("application/json")
    );
}

#[tokio::test]
async fn without_a_key_the_error_says_what_to_do_and_nothing_is_sent() {
    let fixture = models_fixture().env("BUB_MODEL", "groq:x");
    let error = fixture.shorten(call(&fixture).await.unwrap_err());
    assert_eq!(
        error,
        "groq:x: no API key for `groq`: set GROQ_API_KEY or `api_key.groq` in user/.bub/config.yml"
    );
}
