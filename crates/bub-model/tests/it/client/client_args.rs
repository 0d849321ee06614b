//! Tests of the setting `client_args`.

use std::sync::Arc;
use std::time::Duration;

use bub_model::{CallOptions, Candidates, ModelClient, Models};
use bub_settings::{Settings, testing::load};
use bub_testkit::model::{ModelServer, Reply};

use super::support::{client, collect, logged, request, text};

fn settings(home: &std::path::Path, config: &str) -> Arc<Settings> {
    std::fs::create_dir_all(home.join(".bub")).unwrap();
    std::fs::write(home.join(".bub/config.yml"), config).unwrap();
    Arc::new(load([("HOME", home)], bub_model::settings::sections()))
}

// H-23, H-81, W-39: headers may be credentials, so they are sent only to the provider that owns a plain key.
#[tokio::test]
async fn headers_of_client_args_go_to_the_provider_of_the_model_only() {
    drop(client());
    let (first, second) = (ModelServer::start(), ModelServer::start());
    first.otherwise(Reply::status(404));
    second.otherwise(Reply::text("ok"));
    let home = tempfile::tempdir().unwrap();
    let settings = settings(
        home.path(),
        &format!(
            "model: one:a\nproviders:\n  one: {{base_url: '{}/v1'}}\n  two: {{base_url: '{}/v1'}}\n\
             client_args: {{default_headers: {{X-Team: blue}}, organization: org-1, http_client: x}}\n",
            first.url(),
            second.url()
        ),
    );
    let client = ModelClient::from_settings(&settings);
    let models =
        Arc::new(Models::new(Arc::clone(&settings), Arc::new(client.clone()), &[]).unwrap());
    let ids = ["one:a", "two:b"].map(|id| models.resolve_model(id).unwrap());
    let options = CallOptions::from_settings(&settings);
    let (events, _) =
        collect(client.stream(Candidates::new(models, ids), request(true), options)).await;
    assert_eq!(text(&events), "ok");
    let (own, other) = (&first.requests()[0], &second.requests()[0]);
    assert_eq!(
        (own.header("x-team"), own.header("openai-organization")),
        (Some("blue"), Some("org-1"))
    );
    assert_eq!(
        (other.header("x-team"), other.header("openai-organization")),
        (None, None)
    );
    let warned = logged().into_iter().any(|line| {
        line.contains("model.setting_ignored") && line.contains("setting=client_args.http_client ")
    });
    assert!(warned, "unsupported members are logged");
}

// H-23
#[test]
fn timeout_and_retries_of_client_args_count_unless_the_setting_says_otherwise() {
    let home = tempfile::tempdir().unwrap();
    let options = |config: &str| CallOptions::from_settings(&settings(home.path(), config));
    let of_args = options("client_args: {timeout: 30, max_retries: 0}\n");
    assert_eq!(
        (of_args.idle_timeout, of_args.attempts),
        (Duration::from_secs(30), 1)
    );
    let of_both = options("client_args: {timeout: 30}\nmodel_idle_timeout_seconds: 9\n");
    assert_eq!(
        (of_both.idle_timeout, of_both.attempts),
        (Duration::from_secs(9), 3)
    );
    assert_eq!(
        options("client_args: {timeout: soon}\n").idle_timeout,
        Duration::from_mins(2)
    );
}
