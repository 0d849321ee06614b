//! Tests of the report for `bub models`.

use bub_model::ProviderReport;

use super::fixture::{ModelsFixture, models_fixture};

async fn provider(fixture: &ModelsFixture, name: &str) -> ProviderReport {
    let report = fixture.models().report().await;
    report
        .providers
        .into_iter()
        .find(|provider| provider.name == name)
        .unwrap()
}

#[tokio::test]
async fn usable_and_unusable_providers_are_distinguished() {
    let fixture = models_fixture().env("GROQ_API_KEY", "groq-key-1").responds(
        "http://127.0.0.1:1234/v1/models",
        200,
        r#"{"data": [{"id": "a"}]}"#,
    );
    let groq = provider(&fixture, "groq").await;
    assert!(groq.usable && groq.todo.is_none());
    assert_eq!(
        groq.key.unwrap().to_string(),
        "environment variable GROQ_API_KEY"
    );
    let xai = provider(&fixture, "xai").await;
    assert!(!xai.usable && xai.key.is_none());
    assert_eq!(xai.todo.unwrap(), "set XAI_API_KEY");
    assert_eq!(
        provider(&fixture, "azure").await.todo.unwrap(),
        "set AZURE_OPENAI_ENDPOINT to its base URL"
    );
    assert_eq!(
        provider(&fixture, "openai").await.todo.unwrap(),
        "set OPENAI_API_KEY, or run `bub login openai`"
    );
    assert!(provider(&fixture, "lmstudio").await.usable);
    assert_eq!(
        provider(&fixture, "ollama").await.todo.unwrap(),
        "no server found at http://127.0.0.1:11434/v1; start it"
    );
    let report = fixture.models().report().await;
    assert_eq!(report.local_servers.len(), 1);
    assert_eq!(report.choice.unwrap().model.unwrap().provider(), "groq");
}

#[tokio::test]
async fn what_looks_like_a_mistake_is_noted() {
    let fixture = models_fixture().env("BUB_OPNAI_API_KEY", "some-key-1").env("GROQ_API_KEY", "some-key-2").config(
        "api_base: {unknown: 'https://x.example', groq: 'http://x.example', vllm: 'http://127.0.0.1:1'}\n",
    );
    assert_eq!(
        fixture.models().report().await.notes,
        [
            "`api_key.opnai`: unknown provider, did you mean `openai`?",
            "`api_base.unknown`: unknown provider; correct the name, or add the provider with `providers.unknown.base_url`",
            "the key for `groq` is sent to http://x.example/openai/v1 without encryption; use an `https` URL",
        ]
    );
}

// W-46: an invalid fallback is reported and does not affect the others.
#[tokio::test]
async fn broken_models_are_named_with_what_is_wrong() {
    let fixture = models_fixture()
        .config("model: groq:x\nfallback_models: [unknown:x, openai:y, 'ollama:z']\n");
    let report = fixture.models().report().await;
    assert!(report.problem.unwrap().starts_with("no API key for `groq`"));
    let problems: Vec<_> = report
        .fallbacks
        .into_iter()
        .map(|(model, problem)| (model, problem.is_some()))
        .collect();
    let expected = [("unknown:x", true), ("openai:y", true), ("ollama:z", false)];
    assert_eq!(
        problems,
        expected.map(|(model, broken)| (model.to_owned(), broken))
    );

    let fixture = models_fixture().config("model: unknown:x\n");
    assert!(fixture.models().report().await.choice.is_err());
}

// A turn can use every provider that `bub models` reports as available. Commands are checked without running them.
#[tokio::test]
async fn a_key_that_cannot_work_is_not_usable() {
    for (name, value, todo) in [
        (
            "BUB_API_KEY_COMMAND",
            r#"{"groq": "pass 'show"}"#,
            "`api_key_command` of `groq`: unclosed quote; add the missing quote",
        ),
        (
            "BUB_API_KEY_COMMAND",
            r#"{"groq": "no-such-program x"}"#,
            "`api_key_command` of `groq`: program `no-such-program` not found; install it or correct the path",
        ),
        (
            "BUB_API_KEY_COMMAND",
            r#"{"groq": "~/no/such x"}"#,
            "`api_key_command` of `groq`: program `~/no/such` not found; install it or correct the path",
        ),
        (
            "GROQ_API_KEY",
            "two words",
            "invalid API key for `groq` from environment variable GROQ_API_KEY: it contains spaces, line breaks or other \
             forbidden characters; check the key",
        ),
    ] {
        let fixture = models_fixture()
            .env("PATH", "/usr/bin:/bin")
            .env(name, value);
        let groq = provider(&fixture, "groq").await;
        assert_eq!((groq.usable, groq.todo.as_deref()), (false, Some(todo)));
        let error = fixture.endpoint("groq:x").await.unwrap_err().to_string();
        assert!(
            name == "BUB_API_KEY_COMMAND" && value.contains("no") || error == todo,
            "{error}"
        );
    }
    let fixture = models_fixture()
        .env("PATH", "/usr/bin:/bin")
        .env("BUB_API_KEY_COMMAND", r#"{"groq": "sh -c x"}"#);
    assert!(
        provider(&fixture, "groq").await.usable,
        "only running the command shows whether it works"
    );
}
