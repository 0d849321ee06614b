//! What `bub models` is told.

use bub_model::ProviderReport;

use crate::fixture::ModelsFixture;

async fn provider(given: &ModelsFixture, name: &str) -> ProviderReport {
    let report = given.models().report().await;
    report
        .providers
        .into_iter()
        .find(|provider| provider.name == name)
        .unwrap()
}

#[tokio::test]
async fn what_is_usable_is_told_from_what_is_not() {
    let given = ModelsFixture::new()
        .env("GROQ_API_KEY", "groq-key-1")
        .answers(
            "http://127.0.0.1:1234/v1/models",
            200,
            r#"{"data": [{"id": "a"}]}"#,
        );
    let groq = provider(&given, "groq").await;
    assert!(groq.usable && groq.todo.is_none());
    assert_eq!(
        groq.key.unwrap().to_string(),
        "environment variable GROQ_API_KEY"
    );
    let xai = provider(&given, "xai").await;
    assert!(!xai.usable && xai.key.is_none());
    assert_eq!(xai.todo.unwrap(), "set XAI_API_KEY");
    assert_eq!(
        provider(&given, "azure").await.todo.unwrap(),
        "set AZURE_OPENAI_ENDPOINT to its address"
    );
    assert_eq!(
        provider(&given, "openai").await.todo.unwrap(),
        "set OPENAI_API_KEY, or run `bub login openai`"
    );
    assert!(provider(&given, "lmstudio").await.usable);
    assert_eq!(
        provider(&given, "ollama").await.todo.unwrap(),
        "no server answers at http://127.0.0.1:11434/v1: start it"
    );
    let report = given.models().report().await;
    assert_eq!(report.local_servers.len(), 1);
    assert_eq!(report.choice.unwrap().model.unwrap().provider(), "groq");
}

#[tokio::test]
async fn what_looks_like_a_mistake_is_noted() {
    let given = ModelsFixture::new().env("BUB_OPNAI_API_KEY", "some-key-1").env("GROQ_API_KEY", "some-key-2").config(
        "api_base: {nobody: 'https://x.example', groq: 'http://x.example', vllm: 'http://127.0.0.1:1'}\n",
    );
    assert_eq!(
        given.models().report().await.notes,
        [
            "`api_key.opnai` is for no known provider, did you mean `openai`?",
            "`api_base.nobody` is for no known provider",
            "the key of `groq` goes to http://x.example/openai/v1 without encryption",
        ]
    );
}

// W-46: a broken fallback is told of, and breaks nothing
#[tokio::test]
async fn broken_models_are_named_with_what_is_wrong() {
    let given = ModelsFixture::new()
        .config("model: groq:x\nfallback_models: [nobody:x, openai:y, 'ollama:z']\n");
    let report = given.models().report().await;
    assert!(report.problem.unwrap().starts_with("no API key for `groq`"));
    let problems: Vec<_> = report
        .fallbacks
        .into_iter()
        .map(|(model, problem)| (model, problem.is_some()))
        .collect();
    let expected = [("nobody:x", true), ("openai:y", true), ("ollama:z", false)];
    assert_eq!(
        problems,
        expected.map(|(model, broken)| (model.to_owned(), broken))
    );

    let given = ModelsFixture::new().config("model: nobody:x\n");
    assert!(given.models().report().await.choice.is_err());
}

// What `bub models` calls usable, a turn can use: commands and keys are looked at as far as that costs nothing.
#[tokio::test]
async fn a_key_that_cannot_work_is_not_usable() {
    for (name, value, todo) in [
        (
            "BUB_API_KEY_COMMAND",
            r#"{"groq": "pass 'show"}"#,
            "`api_key_command` of `groq` has a quote that is not closed",
        ),
        (
            "BUB_API_KEY_COMMAND",
            r#"{"groq": "no-such-program x"}"#,
            "`api_key_command` of `groq` cannot be run: there is no program `no-such-program`",
        ),
        (
            "BUB_API_KEY_COMMAND",
            r#"{"groq": "~/no/such x"}"#,
            "`api_key_command` of `groq` cannot be run: there is no program `~/no/such`",
        ),
        (
            "GROQ_API_KEY",
            "two words",
            "the key of `groq` from environment variable GROQ_API_KEY has spaces, line breaks or other characters no key has",
        ),
    ] {
        let given = ModelsFixture::new()
            .env("PATH", "/usr/bin:/bin")
            .env(name, value);
        let groq = provider(&given, "groq").await;
        assert_eq!((groq.usable, groq.todo.as_deref()), (false, Some(todo)));
        let error = given.endpoint("groq:x").await.unwrap_err().to_string();
        assert!(
            name == "BUB_API_KEY_COMMAND" && value.contains("no") || error == todo,
            "{error}"
        );
    }
    let given = ModelsFixture::new()
        .env("PATH", "/usr/bin:/bin")
        .env("BUB_API_KEY_COMMAND", r#"{"groq": "sh -c x"}"#);
    assert!(
        provider(&given, "groq").await.usable,
        "whether it works is known when it is run"
    );
}
