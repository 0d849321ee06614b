//! Tests of the choice of the model.

use bub_model::{ChoiceReason, ModelChoice};

use super::fixture::models_fixture;

const MODELS: &str =
    r#"{"object": "list", "data": [{"id": "nomic-embed-text"}, {"id": "qwen3:8b"}, {"id": "x"}]}"#;

fn model(choice: &ModelChoice) -> String {
    choice
        .model
        .as_ref()
        .map(ToString::to_string)
        .unwrap_or_default()
}

// design §6: the order is configured model, key, login, fallback; then a local server is offered, or a guide.
#[tokio::test]
async fn the_configured_model_is_used_whatever_else_is_there() {
    let fixture = models_fixture()
        .config("model: groq/x\nfallback_models: [broken, openai:y]\n")
        .env("OPENROUTER_API_KEY", "or-key-123");
    let choice = fixture.choice().await;
    assert_eq!(model(&choice), "groq:x");
    assert_eq!(
        fixture.shorten(&choice.reason),
        "configured in user/.bub/config.yml:1"
    );
    assert_eq!(
        choice.fallbacks,
        ["broken", "openai:y"],
        "W-46: they are not checked yet"
    );
    let candidates: Vec<_> = choice
        .candidates()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(candidates, ["groq:x", "openai:y"]);
    assert!(fixture.network.requests().is_empty());
}

#[tokio::test]
async fn a_configured_model_that_cannot_be_is_an_error() {
    assert!(
        models_fixture()
            .env("BUB_MODEL", "unknown:x")
            .models()
            .choose_model()
            .await
            .is_err()
    );
}

// H-23: if only the key of its provider is set, the default model of the Python version is used.
#[tokio::test]
async fn a_key_in_the_environment_decides_in_a_fixed_order() {
    let mut fixture = models_fixture();
    for (variable, expected) in [
        ("GROQ_API_KEY", "groq:openai/gpt-oss-120b"),
        ("GEMINI_API_KEY", "gemini:gemini-flash-latest"),
        ("OPENAI_API_KEY", "openai:gpt-6-luna"),
        ("ANTHROPIC_API_KEY", "anthropic:claude-sonnet-5-5"),
        ("OPENROUTER_API_KEY", "openrouter:openrouter/free"),
    ] {
        fixture = fixture.env(variable, "some-key-123");
        let choice = fixture.choice().await;
        assert_eq!(model(&choice), expected);
        assert_eq!(
            choice.reason.to_string(),
            format!("`model` is not set; key from environment variable {variable}")
        );
    }
    assert!(
        fixture.network.requests().is_empty(),
        "no server is queried if a key is set"
    );
}

#[tokio::test]
async fn a_plain_key_decides_too() {
    let fixture = models_fixture().env("BUB_API_KEY", "0123456789");
    assert_eq!(model(&fixture.choice().await), "openrouter:openrouter/free");
    let fixture = models_fixture().env("BUB_API_KEY", "sk-ant-0123456789");
    assert_eq!(
        model(&fixture.choice().await),
        "anthropic:claude-sonnet-5-5"
    );
}

// Users set these tokens for other purposes.
#[tokio::test]
async fn a_token_for_other_things_does_not_decide() {
    let fixture = models_fixture()
        .env("GITHUB_TOKEN", "ghp_0123456789")
        .env("HF_TOKEN", "hf_0123456789");
    assert_eq!(fixture.choice().await.reason, ChoiceReason::Nothing);
}

#[tokio::test]
async fn an_added_provider_with_a_model_and_without_a_key_is_chosen() {
    let fixture = models_fixture().config(
        "providers:\n  lab: {base_url: 'https://lab.example', needs_key: false, default_model: small}\n",
    );
    let choice = fixture.choice().await;
    assert_eq!(model(&choice), "lab:small");
    assert_eq!(
        fixture.shorten(choice.reason),
        "`model` is not set; provider from user/.bub/config.yml:2"
    );
}

#[tokio::test]
async fn a_local_server_is_found_and_its_first_model_for_conversation_offered() {
    let fixture = models_fixture()
        .responds(
            "http://127.0.0.1:8000/v1/models",
            200,
            r#"{"data": [{"id": "vllm-model"}]}"#,
        )
        .responds("http://127.0.0.1:11434/v1/models", 200, MODELS);
    let choice = fixture.choice().await;
    // Bub does not use a model only because a program listens on this machine.
    assert_eq!((&choice.model, choice.candidates().len()), (&None, 0));
    assert_eq!(
        choice.reason.to_string(),
        "found `ollama:qwen3:8b` at http://127.0.0.1:11434/v1; to use it, run `bub config set model ollama:qwen3:8b`"
    );
    let mut requests = fixture.network.requests();
    requests.sort();
    let ports =
        [11434, 1234, 8000, 8080, 9090].map(|port| format!("http://127.0.0.1:{port}/v1/models"));
    assert_eq!(
        requests, ports,
        "each port is queried once; llama.cpp and llamafile share a port"
    );
}

// Another user of the machine may listen on the port.
#[tokio::test]
async fn a_server_of_another_user_is_not_even_asked() {
    let fixture = models_fixture()
        .responds("http://127.0.0.1:11434/v1/models", 200, MODELS)
        .responds("http://127.0.0.1:8000/v1/models", 200, MODELS);
    fixture.network.set_foreign_port(11434);
    let (offered, _) = fixture.models().local_model_offer().await.unwrap();
    assert_eq!(offered.provider(), "vllm");
    let requests = fixture.network.requests();
    assert!(
        !requests.iter().any(|url| url.contains("11434")),
        "{requests:?}"
    );
}

#[tokio::test]
async fn a_fallback_model_is_used_before_a_local_server_is_searched() {
    let fixture = models_fixture()
        .config("fallback_models: [groq:x]\n")
        .responds("http://127.0.0.1:11434/v1/models", 200, MODELS);
    assert_eq!(model(&fixture.choice().await), "groq:x");
    assert!(fixture.network.requests().is_empty());
}

// A name must not control the terminal that shows it.
#[tokio::test]
async fn a_model_with_an_odd_name_is_not_offered() {
    let long = "x".repeat(201);
    let body =
        format!(r#"{{"data": [{{"id": "a\u001b[2Jb"}}, {{"id": "{long}"}}, {{"id": "plain"}}]}}"#);
    let fixture = models_fixture().responds("http://127.0.0.1:8000/v1/models", 200, &body);
    let (offered, _) = fixture.models().local_model_offer().await.unwrap();
    assert_eq!(offered.model(), "plain");
}

#[tokio::test]
async fn a_server_elsewhere_is_asked_at_its_own_address_only_on_this_machine() {
    let fixture = models_fixture()
        .env("OLLAMA_HOST", "127.0.0.1:7777")
        .env("BUB_VLLM_API_BASE", "http://10.0.0.7:8000/v1")
        .responds("http://127.0.0.1:7777/v1/models", 200, MODELS)
        .responds("http://10.0.0.7:8000/v1/models", 200, MODELS);
    let (offered, _) = fixture.models().local_model_offer().await.unwrap();
    assert_eq!(offered.to_string(), "ollama:qwen3:8b");
    assert!(
        !fixture
            .network
            .requests()
            .iter()
            .any(|url| url.contains("10.0.0.7"))
    );
}

// Any program may listen on port 8000 or 8080.
#[tokio::test]
async fn what_does_not_answer_like_a_model_server_is_none() {
    for (status, body) in [
        (200, "<html>"),
        (200, "{}"),
        (200, r#"{"data": "x"}"#),
        (200, r#"{"data": [{"name": "x"}]}"#),
        (200, r#"{"data": []}"#),
        (200, r#"{"data": null}"#),
        (404, MODELS),
        (401, MODELS),
    ] {
        let fixture = models_fixture().responds("http://127.0.0.1:8000/v1/models", status, body);
        assert_eq!(
            fixture.choice().await.reason,
            ChoiceReason::Nothing,
            "{status} {body}"
        );
    }
}

#[tokio::test]
async fn without_anything_there_is_no_model_and_it_says_so() {
    let choice = models_fixture().choice().await;
    assert!(choice.model.is_none() && choice.candidates().is_empty());
    assert_eq!(
        choice.reason.to_string(),
        "no model is configured, no key is set and no local server answers"
    );
}

#[tokio::test]
async fn local_servers_are_not_asked_when_that_is_switched_off() {
    let fixture = models_fixture().env("BUB_LOCAL_MODELS", "off").responds(
        "http://127.0.0.1:11434/v1/models",
        200,
        MODELS,
    );
    assert_eq!(fixture.choice().await.reason, ChoiceReason::Nothing);
    assert!(fixture.network.requests().is_empty());
}
