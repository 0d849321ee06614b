//! Tests that keys do not occur in logs of any level, in error texts, or in debug output.

use bub_model::{HttpOptions, ModelClient, Proxies, WireFormat};
use bub_settings::{Environment, Redactor};
use bub_testkit::model::{ModelServer, Reply};
use serde_json::json;

use super::support::{KEY, assert_no_key, client, collect, endpoint, logged, quick, request};

/// The log capture checks every record of every test in this binary for the key. In this test, the servers send the
/// key back.
#[tokio::test]
async fn a_server_that_repeats_the_key_does_not_get_it_into_errors_or_logs() {
    for wire in WireFormat::ALL {
        let spoken = format!("Incorrect API key provided: {KEY}");
        let server = ModelServer::start();
        server
            .script(Reply::status(401).message(&spoken))
            .script(
                Reply::status(500).with_json(&json!({"error": {"code": KEY, "message": spoken}})),
            )
            .script(Reply::html(503, &spoken))
            .script(Reply::status(400).with_json(&json!(format!("Bearer {KEY}"))))
            .script(Reply::text("x").error_event(json!({"code": KEY, "message": spoken})))
            .script(Reply::text("x").garbage(&spoken))
            .script(Reply::raw(spoken.clone()))
            .otherwise(Reply::status(503).message(&spoken));
        let client = client();
        for _ in 0..9 {
            let endpoint = endpoint(&server, wire);
            assert_no_key(&format!("{endpoint:?} {client:?} {:?}", quick()));
            let (_, error) = collect(client.stream(endpoint, request(true), quick())).await;
            let error = error.unwrap();
            assert_no_key(&format!("{error} {error:?} {error:#?}"));
        }
    }
    let logged = logged();
    assert!(
        logged.iter().any(|line| line.contains("model.retry")),
        "no records were captured"
    );
    assert!(
        logged
            .iter()
            .any(|line| line.contains("reqwest") || line.contains("hyper")),
        "no records of the libraries were captured"
    );
    for line in logged {
        assert_no_key(&line);
    }
}

#[test]
fn proxies_come_from_the_environment_and_are_not_printed() {
    let environment = Environment::from_pairs([
        ("https_proxy", "http://user:hunter2hunter2@proxy:3128"),
        ("HTTP_PROXY", " "),
        ("NO_PROXY", "internal,10.0.0.0/8"),
    ]);
    let proxies = Proxies::from_environment(&environment);
    assert!(proxies.https.is_some() && proxies.http.is_none() && proxies.all.is_none());
    assert_eq!(proxies.direct, "internal,10.0.0.0/8");
    let redactor = Redactor::new();
    let options = HttpOptions::from_environment(&environment);
    assert!(!format!("{options:?}").contains("hunter2"));
    let client = ModelClient::new(options, redactor.clone());
    assert!(!format!("{client:?}").contains("hunter2"));
    assert!(
        !redactor
            .redact("http://user:hunter2hunter2@proxy:3128")
            .contains("hunter2")
    );
    assert!(
        !redactor
            .redact("the password is hunter2hunter2")
            .contains("hunter2")
    );
    assert_eq!(redactor.redact("asked proxy:3128"), "asked proxy:3128");
}

#[test]
fn a_proxy_without_a_password_is_no_secret() {
    let redactor = Redactor::new();
    let environment = Environment::from_pairs([
        ("HTTPS_PROXY", "http://proxy.example:3128"),
        ("ALL_PROXY", "someone@proxy.example:3128"),
    ]);
    let _client = ModelClient::new(
        HttpOptions::from_environment(&environment),
        redactor.clone(),
    );
    for text in [
        "set http://proxy.example:3128 in",
        "someone@proxy.example:3128",
        "someone",
    ] {
        assert_eq!(redactor.redact(text), text);
    }
}

#[tokio::test]
async fn a_proxy_is_used_for_other_hosts_and_never_for_this_machine() {
    let (proxy, local) = (ModelServer::start(), ModelServer::start());
    proxy.otherwise(Reply::text("through the proxy"));
    local.otherwise(Reply::text("directly"));
    let mut options = HttpOptions::default();
    options.proxies.http = Some(proxy.url().as_str().into());
    let client = ModelClient::new(options, Redactor::new());
    let answer = client
        .complete(
            endpoint(&local, WireFormat::ChatCompletions),
            request(true),
            quick(),
        )
        .await
        .unwrap();
    assert_eq!((answer.text.as_str(), proxy.connections()), ("directly", 0));
    let mut far = endpoint(&local, WireFormat::ChatCompletions);
    far.base_url = bub_model::BaseUrl::parse("http://models.invalid/v1").unwrap();
    let answer = client.complete(far, request(true), quick()).await.unwrap();
    assert_eq!(answer.text, "through the proxy");
    assert_eq!(
        proxy.wait_request(0).await.path,
        "http://models.invalid/v1/chat/completions"
    );
}

#[tokio::test]
async fn a_proxy_that_is_no_url_is_named_but_not_shown() {
    let server = ModelServer::start();
    let mut options = HttpOptions::default();
    options.proxies.all = Some("http://[secret-proxy".into());
    let client = ModelClient::new(options, Redactor::new());
    let error = client
        .complete(
            endpoint(&server, WireFormat::ChatCompletions),
            request(true),
            quick(),
        )
        .await
        .unwrap_err();
    assert_eq!(
        error.message,
        "invalid proxy in ALL_PROXY: expected a URL such as `http://host:port`"
    );
}
