//! Tests of error messages: provider, host, reason and next step, without web pages and keys.

use bub_model::{
    BaseUrl, CallOptions, Endpoint, HttpOptions, ModelClient, ModelError, ModelErrorKind,
    RecoveryAction, WireFormat,
};
use bub_settings::Redactor;
use bub_testkit::model::{ModelServer, Reply};

use super::support::{KEY, assert_no_key, client, collect, endpoint, quick, request};

async fn error(client: &ModelClient, endpoint: Endpoint) -> ModelError {
    let options = CallOptions {
        attempts: 1,
        ..quick()
    };
    collect(client.stream(endpoint, request(true), options))
        .await
        .1
        .unwrap()
}

#[tokio::test]
async fn a_refusal_names_the_provider_the_host_and_the_next_step() {
    for (status, advice) in [
        (401, "HOST rejected the key; check the configured headers"),
        (403, "HOST rejected the key; check the configured headers"),
        (
            404,
            "check that HOST has the model `model` and that http://HOST/v1 is its base URL",
        ),
        (
            413,
            "too large for HOST; shorten the conversation or send smaller files",
        ),
    ] {
        let server = ModelServer::start();
        server.script(Reply::status(status).message("no"));
        let error = error(&client(), endpoint(&server, WireFormat::ChatCompletions)).await;
        let host = server.url().trim_start_matches("http://").to_owned();
        let expected_text = format!(
            "test:model: no; {} (HTTP {status}",
            advice.replace("HOST", &host)
        );
        assert!(
            error.to_string().starts_with(&expected_text),
            "{error}\n{expected_text}"
        );
    }
}

#[tokio::test]
async fn pages_and_xml_are_reduced_to_what_they_say() {
    for (body, expected_text) in [
        (
            "<html><head><title>Blocked</title></head><body>secret stuff</body></html>",
            "Blocked",
        ),
        (
            "<!-- x --><html><body><h1>Access denied</h1></body></html>",
            "Access denied",
        ),
        (
            "<?xml version=\"1.0\"?><Error><Code>X</Code><Message>Denied by rule</Message></Error>",
            "Denied by rule",
        ),
        (
            "<html><body>nothing</body></html>",
            "a page without a title",
        ),
    ] {
        let server = ModelServer::start();
        server.script(Reply::raw(body).with_status(403));
        let error = error(&client(), endpoint(&server, WireFormat::ChatCompletions)).await;
        assert!(
            error
                .message
                .starts_with(&format!("received a web page: {expected_text}; ")),
            "{error}"
        );
        assert!(
            error
                .message
                .contains("denies access to this machine, region or account"),
            "{error}"
        );
        assert!(
            !error.message.contains(['<', '>']) && !error.message.contains("secret stuff"),
            "{error}"
        );
    }
}

/// A name that is too long for DNS fails without a network request.
#[tokio::test]
async fn a_name_without_an_address_is_said_to_be_one() {
    let base = BaseUrl::parse(&format!("http://{}.invalid/v1", "a".repeat(70))).unwrap();
    let far = Endpoint::new(
        "far:model".parse().unwrap(),
        WireFormat::ChatCompletions,
        base,
    );
    let error = error(&client(), far).await;
    assert_eq!(error.kind, ModelErrorKind::Transport);
    assert!(
        error
            .message
            .starts_with("cannot resolve the name of http://")
            && error.message.contains(".invalid/v1: "),
        "{error}"
    );
}

#[tokio::test]
async fn a_proxy_that_fails_is_named_without_its_password() {
    let far = || {
        let base = BaseUrl::parse("https://models.invalid/v1").unwrap();
        Endpoint::new(
            "far:model".parse().unwrap(),
            WireFormat::ChatCompletions,
            base,
        )
        .with_key(&KEY.into())
    };
    let through = |url: &str| {
        let mut options = HttpOptions::default();
        options.proxies.https = Some(
            url.replace("http://", "http://user:hunter2hunter2@")
                .as_str()
                .into(),
        );
        ModelClient::new(options, Redactor::new())
    };
    for (status, expected_text) in [(407, "proxy authorization required"), (403, "unsuccessful")] {
        let proxy = ModelServer::start();
        proxy.otherwise(Reply::status(status));
        let error = error(&through(&proxy.url()), far()).await;
        let host = proxy.url().trim_start_matches("http://").to_owned();
        let expected = format!(
            "proxy {host} does not connect to https://models.invalid/v1: {expected_text}; \
             check the URL and the rules of the proxy"
        );
        assert_eq!(
            (error.message.as_str(), error.action),
            (expected.as_str(), RecoveryAction::NextModel)
        );
        assert!(!format!("{error:?}").contains("hunter2"));
        assert_no_key(&format!("{error:?}"));
    }
    let proxy = ModelServer::start();
    let url = proxy.url();
    drop(proxy);
    let error = error(&through(&url), far()).await;
    assert!(
        error
            .message
            .ends_with("refused the connection; check that it is running"),
        "{error}"
    );
    assert!(error.message.starts_with("proxy 127.0.0.1:"), "{error}");
}
