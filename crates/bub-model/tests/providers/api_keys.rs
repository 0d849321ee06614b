//! Whose key goes where.

use bub_model::{Endpoint, KeySource, ModelError, ModelErrorKind, RecoveryAction};

use crate::fixture::{ModelsFixture, header};

fn key(endpoint: &Endpoint) -> Option<String> {
    let value = header(endpoint, "authorization")?;
    Some(value.strip_prefix("Bearer ").unwrap().to_owned())
}

async fn key_for(given: &ModelsFixture, model: &str) -> Option<String> {
    given
        .endpoint(model)
        .await
        .ok()
        .and_then(|endpoint| key(&endpoint))
}

// H-81, H-23: provider's entry, provider's own variable, plain one
#[tokio::test]
async fn the_more_specific_key_wins() {
    let given = ModelsFixture::new()
        .config("model: groq:x\n")
        .env("BUB_API_KEY", "plain-key");
    assert_eq!(key_for(&given, "groq:x").await.unwrap(), "plain-key");
    let given = given.env("GROQ_API_KEY", "own-variable");
    assert_eq!(key_for(&given, "groq:x").await.unwrap(), "own-variable");
    let given = given.env("BUB_GROQ_API_KEY", "entry-key");
    assert_eq!(key_for(&given, "groq:x").await.unwrap(), "entry-key");
}

#[tokio::test]
async fn keys_come_from_environment_dotenv_and_config() {
    let given =
        ModelsFixture::new().dotenv("GROQ_API_KEY=from-dotenv\nBUB_XAI_API_KEY=bub-dotenv\n");
    let given = given
        .config("api_key: {mistral: from-config}\n")
        .env("DEEPSEEK_API_KEY", "from-env");
    let found = async |model| {
        let endpoint = given.endpoint(model).await.unwrap();
        format!(
            "{} {}",
            key(&endpoint).unwrap(),
            given.shorten(endpoint.key.unwrap())
        )
    };
    assert_eq!(
        found("groq:x").await,
        "from-dotenv GROQ_API_KEY in the workspace's .env"
    );
    assert_eq!(
        found("xai:x").await,
        "bub-dotenv work/.env:2 (BUB_XAI_API_KEY)"
    );
    assert_eq!(
        found("mistral:x").await,
        "from-config user/.bub/config.yml:1"
    );
    assert_eq!(
        found("deepseek:x").await,
        "from-env environment variable DEEPSEEK_API_KEY"
    );
}

// L7: a cloned repository chooses a model, but not who gets the user's key
#[tokio::test]
async fn a_model_from_the_workspace_does_not_get_a_plain_key() {
    let user = || ModelsFixture::new().config("model: openai:gpt-5\napi_key: plain-key-1\n");
    assert_eq!(
        key_for(&user(), "openai:gpt-5").await.unwrap(),
        "plain-key-1"
    );
    let cloned = user().dotenv("BUB_MODEL=deepseek:x\n");
    assert_eq!(key_for(&cloned, "deepseek:x").await, None);
    let environment = ModelsFixture::new()
        .env("BUB_API_KEY", "plain-key-1")
        .dotenv("BUB_MODEL=deepseek:x\n");
    assert_eq!(key_for(&environment, "deepseek:x").await, None);
    // What the workspace brings itself is its own.
    let own = ModelsFixture::new().dotenv("BUB_MODEL=deepseek:x\nBUB_API_KEY=workspace-key\n");
    assert_eq!(key_for(&own, "deepseek:x").await.unwrap(), "workspace-key");
}

// W-39: a plain key and base belong to the provider of the configured model, not to fallbacks of others
#[tokio::test]
async fn a_plain_key_and_base_never_go_to_another_provider() {
    let given = ModelsFixture::new().config(
        "model: openai:gpt-5\nfallback_models: [groq:x]\napi_key: plain-key-1\napi_base: https://proxy.example/v1\n",
    );
    let main = given.endpoint("openai:gpt-5").await.unwrap();
    assert_eq!(
        (key(&main).unwrap().as_str(), main.base_url.as_str()),
        ("plain-key-1", "https://proxy.example/v1")
    );
    let error = given.endpoint("groq:x").await.unwrap_err().to_string();
    assert!(error.starts_with("no API key for `groq`"), "{error}");
    let given = given.env("GROQ_API_KEY", "groq-key");
    let other = given.endpoint("groq:x").await.unwrap();
    assert_eq!(
        (key(&other).unwrap().as_str(), other.base_url.as_str()),
        ("groq-key", "https://api.groq.com/openai/v1")
    );
}

// A model that a stronger place names, or somebody chooses for a session, does not take over what the file's model has.
#[tokio::test]
async fn a_plain_value_belongs_to_the_model_of_its_own_place() {
    let file = "model: openai:gpt-5\napi_key: plain-key-1\napi_base: https://proxy.example/v1\nclient_args: {headers: {x-team: blue}}\n";
    let given = ModelsFixture::new().config(file).env("BUB_MODEL", "groq:z");
    let error = given.endpoint("groq:z").await.unwrap_err().to_string();
    assert!(error.starts_with("no API key for `groq`"), "{error}");
    let own = given.env("GROQ_API_KEY", "groq-key");
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
    let command =
        ModelsFixture::new().config("model: openai:gpt-5\napi_key_command: printf printed\n");
    let command = command
        .env("PATH", "/usr/bin:/bin")
        .env("BUB_MODEL", "groq:z");
    assert_eq!(key_for(&command, "groq:z").await, None);
    assert_eq!(key_for(&command, "openai:x").await.unwrap(), "printed");
    // A key beside the model, and one whose place names none, belong to the model in force.
    let beside = ModelsFixture::new()
        .config(file)
        .env("BUB_MODEL", "groq:z")
        .env("BUB_API_KEY", "plain-key-2");
    assert_eq!(key_for(&beside, "groq:z").await.unwrap(), "plain-key-2");
    let alone = ModelsFixture::new()
        .config("api_key: plain-key-1\n")
        .env("BUB_MODEL", "groq:z");
    assert_eq!(key_for(&alone, "groq:z").await.unwrap(), "plain-key-1");
    let apart = ModelsFixture::new()
        .config("model: groq:z\n")
        .env("BUB_API_KEY", "plain-key-2");
    assert_eq!(key_for(&apart, "groq:z").await.unwrap(), "plain-key-2");
}

// Without a model the original would send it to its default provider; a key that says whose it is goes there.
#[tokio::test]
async fn a_plain_key_without_a_model_belongs_to_whom_it_looks_like() {
    let given = ModelsFixture::new().env("BUB_API_KEY", "sk-ant-abcdef");
    assert_eq!(
        header(&given.endpoint("anthropic:x").await.unwrap(), "x-api-key").unwrap(),
        "sk-ant-abcdef"
    );
    assert!(given.endpoint("openrouter:x").await.is_err());
    let given = ModelsFixture::new().env("BUB_API_KEY", "0123456789");
    assert_eq!(key_for(&given, "openrouter:x").await.unwrap(), "0123456789");
    assert!(given.endpoint("openai:x").await.is_err());
}

// For all pairs of providers with keys of their own: nobody gets somebody else's.
#[tokio::test]
async fn no_provider_ever_gets_the_key_of_another() {
    let catalogue = ModelsFixture::new().models();
    let names: Vec<String> = catalogue
        .catalog()
        .iter()
        .map(|provider| provider.name.clone())
        .collect();
    let yaml: Vec<String> = names
        .iter()
        .map(|name| format!("  {name}: {name}-secret\n"))
        .collect();
    let given = ModelsFixture::new()
        .config(&format!("api_key:\n{}", yaml.concat()))
        .env("AZURE_OPENAI_ENDPOINT", "https://a.example")
        .env("DATABRICKS_HOST", "https://d.example");
    for name in &names {
        let endpoint = given.endpoint(&format!("{name}:x")).await.unwrap();
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

// L7: the `.env` of a cloned repository moves no address, by whichever variable
#[tokio::test]
async fn an_untrusted_workspace_cannot_redirect_a_key() {
    let given = ModelsFixture::new().env("OPENAI_API_KEY", "oa-key-123").dotenv(
        "BUB_API_BASE=https://evil.example\nBUB_OPENAI_API_BASE=https://evil.example\nOPENAI_BASE_URL=https://evil.example\n\
         BUB_API_KEY_COMMAND='touch pwned'\nBUB_MODEL=openai:x\n",
    );
    let endpoint = given.endpoint("openai:x").await.unwrap();
    assert_eq!(endpoint.base_url.as_str(), "https://api.openai.com/v1");
    assert!(!format!("{endpoint:?}").contains("evil.example"));
    assert_eq!(
        endpoint.key,
        Some(KeySource::Variable("OPENAI_API_KEY".into()))
    );
}

// H-91: base variables of the providers themselves
#[tokio::test]
async fn addresses_come_from_settings_and_the_providers_own_variables() {
    let given = ModelsFixture::new()
        .env("OLLAMA_HOST", "0.0.0.0:7777")
        .env("ANTHROPIC_BASE_URL", "https://proxy.example/v1/")
        .env("ANTHROPIC_API_KEY", "an-key-123")
        .env("AZURE_OPENAI_ENDPOINT", "https://me.openai.azure.com/")
        .env("AZURE_OPENAI_API_KEY", "az-key-123")
        .env("BUB_GROQ_API_BASE", "http://127.0.0.1:9/v1");
    let base = async |model| given.endpoint(model).await.unwrap().base_url.to_string();
    assert_eq!(base("ollama:x").await, "http://127.0.0.1:7777/v1");
    assert_eq!(
        base("anthropic:x").await,
        "https://proxy.example",
        "the paths of this wire begin with /v1"
    );
    assert_eq!(
        base("azure:x").await,
        "https://me.openai.azure.com/openai/v1"
    );
    assert_eq!(
        base("groq:x").await,
        "http://127.0.0.1:9/v1",
        "on this computer no key is needed"
    );
    let azure = given.endpoint("azure:x").await.unwrap();
    assert_eq!(header(&azure, "api-key").as_deref(), Some("az-key-123"));
    assert_eq!(header(&azure, "authorization"), None);
}

#[tokio::test]
async fn a_wrong_or_missing_address_says_where_and_what() {
    let given = ModelsFixture::new()
        .env("OPENAI_BASE_URL", "localhost")
        .env("OPENAI_API_KEY", "oa-key-123");
    let error = given.endpoint("openai:x").await.unwrap_err();
    assert_eq!(
        given.shorten(error),
        "environment variable OPENAI_BASE_URL: the address of `openai` is not a URL such as `https://host/v1`, without \
         user, query and fragment"
    );
    let error = given.endpoint("azure:x").await.unwrap_err();
    assert_eq!(
        given.shorten(error),
        "no address for `azure`: set AZURE_OPENAI_ENDPOINT or `api_base.azure` in user/.bub/config.yml"
    );
}

// B.18: no key anywhere; the variable and the way out are named
#[tokio::test]
async fn a_missing_key_names_the_variable_and_the_way_out() {
    let given = ModelsFixture::new();
    let error = given.endpoint("openrouter:x").await.unwrap_err();
    assert_eq!(
        given.shorten(&error),
        "no API key for `openrouter`: set OPENROUTER_API_KEY or `api_key.openrouter` in user/.bub/config.yml"
    );
    let error = ModelError::from(error);
    assert_eq!(
        (error.kind, error.action),
        (ModelErrorKind::Setup, RecoveryAction::Reauthenticate)
    );
    let error = given.endpoint("openai:x").await.unwrap_err();
    assert_eq!(
        given.shorten(error),
        "no API key for `openai`: set OPENAI_API_KEY or `api_key.openai` in user/.bub/config.yml, or run `bub login openai`"
    );
    assert!(given.network.asked().is_empty());
}

#[tokio::test]
async fn a_key_that_cannot_be_sent_is_refused_without_being_shown() {
    let given = ModelsFixture::new().env("GROQ_API_KEY", "two words");
    let error = given.endpoint("groq:x").await.unwrap_err();
    assert_eq!(
        given.shorten(error),
        "the key of `groq` from environment variable GROQ_API_KEY has spaces, line breaks or other characters no key has"
    );
}

/// A script that counts its runs and prints a key, with white space around it.
fn key_script(given: ModelsFixture) -> ModelsFixture {
    let script = "echo run >> \"$2/runs\"\nprintf '  %s-from-command \\n\\n' \"$1\"\n";
    given.file("key.sh", script)
}

fn runs(given: &ModelsFixture) -> usize {
    std::fs::read_to_string(given.path("runs")).map_or(0, |text| text.lines().count())
}

#[tokio::test]
async fn a_command_prints_the_key_once_and_is_asked_again_when_it_is_refused() {
    let given = key_script(ModelsFixture::new());
    let (script, directory) = (given.path("key.sh"), given.path(""));
    let line = format!("sh {} groq {}", script.display(), directory.display());
    let given = given
        .config(&format!("api_key_command:\n  groq: {line}\n"))
        .env("PATH", "/usr/bin:/bin");
    let models = given.models();
    let id = models.resolve("groq:x").unwrap();
    assert_eq!(runs(&given), 0, "nothing runs before a call");
    let (first, second) = tokio::join!(models.endpoint(&id), models.endpoint(&id));
    let endpoint = first.unwrap();
    assert_eq!(key(&endpoint).unwrap(), "groq-from-command");
    assert_eq!(key(&second.unwrap()).unwrap(), "groq-from-command");
    assert_eq!(runs(&given), 1, "two calls at once run it once");
    assert_eq!(given.redactor.redact("x groq-from-command x"), "x *** x");
    assert_eq!(
        given.shorten(endpoint.key.as_ref().unwrap()),
        "the command in user/.bub/config.yml:2"
    );
    models.renew(&endpoint).await.unwrap().unwrap();
    assert_eq!(runs(&given), 2);
    assert!(
        models.resolve("xai:x").is_ok() && given.endpoint("xai:x").await.is_err(),
        "it is groq's"
    );
}

#[tokio::test]
async fn a_plain_command_belongs_to_the_provider_of_the_model() {
    let given =
        ModelsFixture::new().config("model: groq:x\napi_key_command: printf plain-printed\n");
    let given = given.env("PATH", "/usr/bin:/bin");
    assert_eq!(key_for(&given, "groq:x").await.unwrap(), "plain-printed");
    assert!(given.endpoint("xai:x").await.is_err());
}

// No shell: what a shell would do with this line does not happen.
#[tokio::test]
async fn a_command_is_run_without_a_shell() {
    let given = ModelsFixture::new()
        .env("PATH", "/usr/bin:/bin")
        .config("api_key_command: {groq: 'echo $HOME;id|cat'}\n");
    assert_eq!(key_for(&given, "groq:x").await.unwrap(), "$HOME;id|cat");
}

#[tokio::test]
async fn a_command_does_not_see_the_secrets_of_bub() {
    let given = ModelsFixture::new()
        .env("PATH", "/usr/bin:/bin")
        .env("BUB_API_KEY", "super-secret-1")
        .env("HARMLESS", "yes")
        .config("api_key_command: {groq: \"sh -c 'echo ${BUB_API_KEY:-none}-$HARMLESS'\"}\n");
    assert_eq!(key_for(&given, "groq:x").await.unwrap(), "none-yes");
}

#[tokio::test]
async fn a_command_that_fails_says_how() {
    for (line, problem) in [
        (
            "no-such-program-here",
            "cannot be run: `no-such-program-here`: ",
        ),
        (
            "sh -c 'echo broken store >&2; echo the-key; exit 3'",
            "failed: `sh`, exit status: 3: broken store",
        ),
        ("true", "printed nothing: `true`"),
        ("printf 'a\\nb'", "printed more than one line: `printf`"),
        ("echo 'open", "has a quote that is not closed"),
    ] {
        let yaml = serde_json::json!({"api_key_command": {"groq": line}}).to_string();
        let given = ModelsFixture::new()
            .env("PATH", "/usr/bin:/bin")
            .config(&yaml);
        let error = given.endpoint("groq:x").await.unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("`api_key_command` of `groq` {problem}")),
            "{error}"
        );
        assert!(!error.contains("the-key"), "{error}");
    }
}

// The clock is paused: time passes when nothing else can happen.
#[tokio::test(start_paused = true)]
async fn a_command_that_hangs_is_ended() {
    let given = ModelsFixture::new()
        .env("PATH", "/usr/bin:/bin")
        .config("api_key_command: {groq: sleep 1000}\n");
    let error = given.endpoint("groq:x").await.unwrap_err().to_string();
    assert_eq!(
        error,
        "`api_key_command` of `groq` did not end within 60 seconds: `sleep`"
    );
}

// The key is nowhere to be seen, whatever is printed.
#[tokio::test]
async fn nothing_shows_a_key() {
    let given = ModelsFixture::new().env("OPENAI_API_KEY", "sk-very-secret-key");
    let models = given.models();
    let endpoint = models
        .endpoint(&models.resolve("openai:x").unwrap())
        .await
        .unwrap();
    let report = models.report().await;
    let shown = format!(
        "{endpoint:?} {:?} {:?} {report:?}",
        endpoint.key,
        models.choose().await
    );
    assert!(!shown.contains("sk-very-secret-key"), "{shown}");
    assert!(shown.contains("OPENAI_API_KEY"));
}
