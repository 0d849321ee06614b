//! Tests of which provider receives which key.

use bub_model::{Endpoint, KeySource, ModelError, ModelErrorKind, RecoveryAction};

use super::fixture::{ModelsFixture, header, models_fixture};

fn key(endpoint: &Endpoint) -> Option<String> {
    let value = header(endpoint, "authorization")?;
    Some(value.strip_prefix("Bearer ").unwrap().to_owned())
}

async fn key_for(fixture: &ModelsFixture, model: &str) -> Option<String> {
    fixture
        .endpoint(model)
        .await
        .ok()
        .and_then(|endpoint| key(&endpoint))
}

// H-81, H-23: the order is the provider's entry, the provider's own variable, the plain key.
#[tokio::test]
async fn the_more_specific_key_wins() {
    let fixture = models_fixture()
        .config("model: groq:x\n")
        .env("BUB_API_KEY", "plain-key");
    assert_eq!(key_for(&fixture, "groq:x").await.unwrap(), "plain-key");
    let fixture = fixture.env("GROQ_API_KEY", "own-variable");
    assert_eq!(key_for(&fixture, "groq:x").await.unwrap(), "own-variable");
    let fixture = fixture.env("BUB_GROQ_API_KEY", "entry-key");
    assert_eq!(key_for(&fixture, "groq:x").await.unwrap(), "entry-key");
}

#[tokio::test]
async fn keys_come_from_environment_dotenv_and_config() {
    let fixture = models_fixture().dotenv("GROQ_API_KEY=from-dotenv\nBUB_XAI_API_KEY=bub-dotenv\n");
    let fixture = fixture
        .config("api_key: {mistral: from-config}\n")
        .env("DEEPSEEK_API_KEY", "from-env");
    let key_and_source = async |model| {
        let endpoint = fixture.endpoint(model).await.unwrap();
        format!(
            "{} {}",
            key(&endpoint).unwrap(),
            fixture.shorten(endpoint.key.unwrap())
        )
    };
    assert_eq!(
        key_and_source("groq:x").await,
        "from-dotenv GROQ_API_KEY in .env"
    );
    assert_eq!(
        key_and_source("xai:x").await,
        "bub-dotenv work/.env:2 (BUB_XAI_API_KEY)"
    );
    assert_eq!(
        key_and_source("mistral:x").await,
        "from-config user/.bub/config.yml:1"
    );
    assert_eq!(
        key_and_source("deepseek:x").await,
        "from-env environment variable DEEPSEEK_API_KEY"
    );
}

// L7: a cloned repository must not decide which provider gets the user's key. A trusted one does, as in the
// Python version.
#[tokio::test]
async fn a_model_from_a_trusted_dotenv_gets_a_plain_key() {
    let user = || models_fixture().config("model: openai:gpt-5\napi_key: plain-key-1\n");
    let fixture = user().dotenv("BUB_MODEL=deepseek:x\nGROQ_BASE_URL=https://evil.example\n");
    let own = models_fixture().dotenv("BUB_MODEL=deepseek:x\nBUB_API_KEY=workspace-key\n");
    assert_eq!(key_for(&own, "deepseek:x").await.unwrap(), "workspace-key");
    let untrusted = fixture.untrusted();
    assert_eq!(key_for(&untrusted, "deepseek:x").await, None);
    let key = key_for(&untrusted, "openai:gpt-5").await;
    assert_eq!(key.unwrap(), "plain-key-1");
}

// W-39: a plain key and base URL belong to the provider of the configured model, not to fallbacks of other providers.
#[tokio::test]
async fn a_plain_key_and_base_never_go_to_another_provider() {
    let fixture = models_fixture().config(
        "model: openai:gpt-5\nfallback_models: [groq:x]\napi_key: plain-key-1\napi_base: https://proxy.example/v1\n",
    );
    let main = fixture.endpoint("openai:gpt-5").await.unwrap();
    assert_eq!(
        (key(&main).unwrap().as_str(), main.base_url.as_str()),
        ("plain-key-1", "https://proxy.example/v1")
    );
    let error = fixture.endpoint("groq:x").await.unwrap_err().to_string();
    assert!(error.starts_with("no API key for `groq`"), "{error}");
    let fixture = fixture.env("GROQ_API_KEY", "groq-key");
    let other = fixture.endpoint("groq:x").await.unwrap();
    assert_eq!(
        (key(&other).unwrap().as_str(), other.base_url.as_str()),
        ("groq-key", "https://api.groq.com/openai/v1")
    );
}

// A model from a source with higher precedence, or chosen for a session, does not get the plain values of the file.
#[tokio::test]
async fn a_plain_value_belongs_to_the_model_of_its_own_source() {
    let file = "model: openai:gpt-5\napi_key: plain-key-1\napi_base: https://proxy.example/v1\nclient_args: {headers: {x-team: blue}}\n";
    let fixture = models_fixture().config(file).env("BUB_MODEL", "groq:z");
    let error = fixture.endpoint("groq:z").await.unwrap_err().to_string();
    assert!(error.starts_with("no API key for `groq`"), "{error}");
    let own = fixture.env("GROQ_API_KEY", "groq-key");
    let groq = own.endpoint("groq:z").await.unwrap();
    assert_eq!(
        (groq.base_url.as_str(), header(&groq, "x-team")),
        ("https://api.groq.com/openai/v1", None)
    );
    let openai = own.endpoint("openai:other").await.unwrap();
    assert_eq!(
        (
            key(&openai).unwrap().as_str(),
            openai.base_url.as_str(),
            header(&openai, "x-team").is_some()
        ),
        ("plain-key-1", "https://proxy.example/v1", true)
    );
    let command = models_fixture().config("model: openai:gpt-5\napi_key_command: printf printed\n");
    let command = command
        .env("PATH", "/usr/bin:/bin")
        .env("BUB_MODEL", "groq:z");
    assert_eq!(key_for(&command, "groq:z").await, None);
    assert_eq!(key_for(&command, "openai:x").await.unwrap(), "printed");
    // A key from the source of the model, and one from a source without a model, belong to the effective model.
    let beside = models_fixture()
        .config(file)
        .env("BUB_MODEL", "groq:z")
        .env("BUB_API_KEY", "plain-key-2");
    assert_eq!(key_for(&beside, "groq:z").await.unwrap(), "plain-key-2");
    let alone = models_fixture()
        .config("api_key: plain-key-1\n")
        .env("BUB_MODEL", "groq:z");
    assert_eq!(key_for(&alone, "groq:z").await.unwrap(), "plain-key-1");
    let apart = models_fixture()
        .config("model: groq:z\n")
        .env("BUB_API_KEY", "plain-key-2");
    assert_eq!(key_for(&apart, "groq:z").await.unwrap(), "plain-key-2");
}

// Without a model, the Python version sends a plain key to its default provider. A key with a known prefix goes to the
// provider of that prefix.
#[tokio::test]
async fn a_plain_key_without_a_model_belongs_to_whom_it_looks_like() {
    let fixture = models_fixture().env("BUB_API_KEY", "sk-ant-abcdef");
    assert_eq!(
        header(&fixture.endpoint("anthropic:x").await.unwrap(), "x-api-key").unwrap(),
        "sk-ant-abcdef"
    );
    assert!(fixture.endpoint("openrouter:x").await.is_err());
    let fixture = models_fixture().env("BUB_API_KEY", "0123456789");
    assert_eq!(
        key_for(&fixture, "openrouter:x").await.unwrap(),
        "0123456789"
    );
    assert!(fixture.endpoint("openai:x").await.is_err());
}

// For all pairs of providers with their own keys: no provider gets the key of another.
#[tokio::test]
async fn no_provider_ever_gets_the_key_of_another() {
    let models = models_fixture().models();
    let names: Vec<String> = models
        .catalog()
        .iter()
        .filter(|provider| !provider.is_plugin)
        .map(|provider| provider.name.clone())
        .collect();
    let yaml: Vec<String> = names
        .iter()
        .map(|name| format!("  {name}: {name}-secret\n"))
        .collect();
    let fixture = models_fixture()
        .config(&format!("api_key:\n{}", yaml.concat()))
        .env("AZURE_OPENAI_ENDPOINT", "https://a.example")
        .env("AZURE_ANTHROPIC_API_BASE", "https://c.example")
        .env("OTARI_API_BASE", "https://o.example")
        .env("DATABRICKS_HOST", "https://d.example");
    for name in &names {
        let endpoint = fixture.endpoint(&format!("{name}:x")).await.unwrap();
        let sent: String = endpoint
            .headers
            .iter()
            .map(|(_, value)| value.expose().to_owned())
            .collect();
        assert!(sent.contains(&format!("{name}-secret")), "{name}");
        for other in names.iter().filter(|other| !name.ends_with(other.as_str())) {
            assert!(
                !sent
                    .replace("azure", "")
                    .contains(&format!("{other}-secret")),
                "{name} got the key of {other}"
            );
        }
    }
}

// L7: the `.env` of a cloned repository cannot change a base URL with any variable.
#[tokio::test]
async fn an_untrusted_workspace_cannot_redirect_a_key() {
    let fixture = models_fixture().env("OPENAI_API_KEY", "oa-key-123").dotenv(
        "BUB_API_BASE=https://evil.example\nBUB_OPENAI_API_BASE=https://evil.example\nOPENAI_BASE_URL=https://evil.example\n\
         BUB_API_KEY_COMMAND='touch pwned'\nBUB_MODEL=openai:x\n",
    ).untrusted();
    let endpoint = fixture.endpoint("openai:x").await.unwrap();
    assert_eq!(endpoint.base_url.as_str(), "https://api.openai.com/v1");
    assert!(!format!("{endpoint:?}").contains("evil.example"));
    assert_eq!(
        endpoint.key,
        Some(KeySource::Variable("OPENAI_API_KEY".into()))
    );
}

// H-91: the providers' own variables for base URLs.
#[tokio::test]
async fn addresses_come_from_settings_and_the_providers_own_variables() {
    let fixture = models_fixture()
        .env("OLLAMA_HOST", "0.0.0.0:7777")
        .env("ANTHROPIC_BASE_URL", "https://proxy.example/v1/")
        .env("ANTHROPIC_API_KEY", "an-key-123")
        .env("AZURE_OPENAI_ENDPOINT", "https://me.openai.azure.com/")
        .env("AZURE_OPENAI_API_KEY", "az-key-123")
        .env("BUB_GROQ_API_BASE", "http://127.0.0.1:9/v1");
    let base = async |model| fixture.endpoint(model).await.unwrap().base_url.to_string();
    assert_eq!(base("ollama:x").await, "http://127.0.0.1:7777/v1");
    assert_eq!(
        base("anthropic:x").await,
        "https://proxy.example",
        "the paths of this wire format start with /v1"
    );
    assert_eq!(
        base("azure:x").await,
        "https://me.openai.azure.com/openai/v1"
    );
    assert_eq!(
        base("groq:x").await,
        "http://127.0.0.1:9/v1",
        "no key is needed on localhost"
    );
    let azure = fixture.endpoint("azure:x").await.unwrap();
    assert_eq!(header(&azure, "api-key").as_deref(), Some("az-key-123"));
    assert_eq!(header(&azure, "authorization"), None);
}

#[tokio::test]
async fn a_wrong_or_missing_address_says_where_and_what() {
    let fixture = models_fixture()
        .env("OPENAI_BASE_URL", "localhost")
        .env("OPENAI_API_KEY", "oa-key-123");
    let error = fixture.endpoint("openai:x").await.unwrap_err();
    assert_eq!(
        fixture.shorten(error),
        "environment variable OPENAI_BASE_URL: invalid base URL for `openai`: expected a URL such as `https://host/v1`, \
         without user, query or fragment"
    );
    let error = fixture.endpoint("azure:x").await.unwrap_err();
    assert_eq!(
        fixture.shorten(error),
        "no base URL for `azure`: set AZURE_OPENAI_ENDPOINT or `api_base.azure` in user/.bub/config.yml"
    );
}

// B.18: the error for a missing key names the variable and what to do.
#[tokio::test]
async fn a_missing_key_names_the_variable_and_the_way_out() {
    let fixture = models_fixture();
    let error = fixture.endpoint("openrouter:x").await.unwrap_err();
    assert_eq!(
        fixture.shorten(&error),
        "no API key for `openrouter`: set OPENROUTER_API_KEY or `api_key.openrouter` in user/.bub/config.yml"
    );
    let error = ModelError::from(error);
    assert_eq!(
        (error.kind, error.action),
        (ModelErrorKind::Setup, RecoveryAction::Reauthenticate)
    );
    let error = fixture.endpoint("openai:x").await.unwrap_err();
    assert_eq!(
        fixture.shorten(error),
        "no API key for `openai`: set OPENAI_API_KEY or `api_key.openai` in user/.bub/config.yml, or run `bub login openai`"
    );
    assert!(fixture.network.requests().is_empty());
}

#[tokio::test]
async fn a_key_that_cannot_be_sent_is_refused_without_being_shown() {
    let fixture = models_fixture().env("GROQ_API_KEY", "two words");
    let error = fixture.endpoint("groq:x").await.unwrap_err();
    assert_eq!(
        fixture.shorten(error),
        "invalid API key for `groq` from environment variable GROQ_API_KEY: it contains spaces, line breaks or other \
         forbidden characters; check the key"
    );
}

/// Adds a script that counts its runs and prints a key surrounded by whitespace.
fn key_script(fixture: ModelsFixture) -> ModelsFixture {
    let script = "echo run >> \"$2/runs\"\nprintf '  %s-from-command \\n\\n' \"$1\"\n";
    fixture.file("key.sh", script)
}

fn runs(fixture: &ModelsFixture) -> usize {
    std::fs::read_to_string(fixture.path("runs")).map_or(0, |text| text.lines().count())
}

#[tokio::test]
async fn a_command_prints_the_key_once_and_is_asked_again_when_it_is_refused() {
    let fixture = key_script(models_fixture());
    let (script, directory) = (fixture.path("key.sh"), fixture.path(""));
    let line = format!("sh {} groq {}", script.display(), directory.display());
    let fixture = fixture
        .config(&format!("api_key_command:\n  groq: {line}\n"))
        .env("PATH", "/usr/bin:/bin");
    let models = fixture.models();
    let id = models.resolve_model("groq:x").unwrap();
    assert_eq!(runs(&fixture), 0, "nothing runs before a call");
    let (first, second) = tokio::join!(models.endpoint(&id), models.endpoint(&id));
    let endpoint = first.unwrap();
    assert_eq!(key(&endpoint).unwrap(), "groq-from-command");
    assert_eq!(key(&second.unwrap()).unwrap(), "groq-from-command");
    assert_eq!(runs(&fixture), 1, "two calls at once run it once");
    assert_eq!(fixture.redactor.redact("x groq-from-command x"), "x *** x");
    assert_eq!(
        fixture.shorten(endpoint.key.as_ref().unwrap()),
        "the command in user/.bub/config.yml:2"
    );
    models.renew_endpoint(&endpoint).await.unwrap().unwrap();
    assert_eq!(runs(&fixture), 2);
    assert!(
        models.resolve_model("xai:x").is_ok() && fixture.endpoint("xai:x").await.is_err(),
        "the key belongs to groq"
    );
}

#[tokio::test]
async fn a_plain_command_belongs_to_the_provider_of_the_model() {
    let fixture = models_fixture().config("model: groq:x\napi_key_command: printf plain-printed\n");
    let fixture = fixture.env("PATH", "/usr/bin:/bin");
    assert_eq!(key_for(&fixture, "groq:x").await.unwrap(), "plain-printed");
    assert!(fixture.endpoint("xai:x").await.is_err());
}

// No shell interprets the special characters of the line.
#[tokio::test]
async fn a_command_is_run_without_a_shell() {
    let fixture = models_fixture()
        .env("PATH", "/usr/bin:/bin")
        .config("api_key_command: {groq: 'echo $HOME;id|cat'}\n");
    assert_eq!(key_for(&fixture, "groq:x").await.unwrap(), "$HOME;id|cat");
}

#[tokio::test]
async fn a_command_does_not_see_the_secrets_of_bub() {
    let fixture = models_fixture()
        .env("PATH", "/usr/bin:/bin")
        .env("BUB_API_KEY", "super-secret-1")
        .env("HARMLESS", "yes")
        .config("api_key_command: {groq: \"sh -c 'echo ${BUB_API_KEY:-none}-$HARMLESS'\"}\n");
    assert_eq!(key_for(&fixture, "groq:x").await.unwrap(), "none-yes");
}

#[tokio::test]
async fn a_command_that_fails_says_how() {
    for (line, problem) in [
        (
            "no-such-program-here",
            "cannot run `no-such-program-here`: ",
        ),
        (
            "sh -c 'echo broken store >&2; echo the-key; exit 3'",
            "`sh` failed with exit status: 3: broken store",
        ),
        ("true", "`true` printed nothing"),
        ("printf 'a\\nb'", "`printf` printed more than one line"),
        ("echo 'open", "unclosed quote"),
    ] {
        let yaml = serde_json::json!({"api_key_command": {"groq": line}}).to_string();
        let fixture = models_fixture().env("PATH", "/usr/bin:/bin").config(&yaml);
        let error = fixture.endpoint("groq:x").await.unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("`api_key_command` of `groq`: {problem}")),
            "{error}"
        );
        assert!(!error.contains("the-key"), "{error}");
    }
}

// The clock is paused and advances when all tasks are idle.
#[tokio::test(start_paused = true)]
async fn a_command_that_hangs_is_ended() {
    let fixture = models_fixture()
        .env("PATH", "/usr/bin:/bin")
        .config("api_key_command: {groq: sleep 1000}\n");
    let error = fixture.endpoint("groq:x").await.unwrap_err().to_string();
    assert_eq!(
        error,
        "`api_key_command` of `groq`: `sleep` did not finish within 60 seconds; run it in a terminal to see why"
    );
}

// No debug or report output contains the key.
#[tokio::test]
async fn nothing_shows_a_key() {
    let fixture = models_fixture().env("OPENAI_API_KEY", "sk-very-secret-key");
    let models = fixture.models();
    let endpoint = models
        .endpoint(&models.resolve_model("openai:x").unwrap())
        .await
        .unwrap();
    let report = models.report().await;
    let text = format!(
        "{endpoint:?} {:?} {:?} {report:?}",
        endpoint.key,
        models.choose_model().await
    );
    assert!(!text.contains("sk-very-secret-key"), "{text}");
    assert!(text.contains("OPENAI_API_KEY"));
}
