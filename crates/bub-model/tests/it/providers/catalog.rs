//! Tests of the provider catalog and of the setting `providers`.

use std::collections::HashSet;

use bub_model::{BaseUrl, Catalog, EffortForm, Quirks, WireFormat};
use serde_json::json;

use super::fixture::{ModelsFixture, header, models_fixture};

// H-91, P-18: the providers of the Python version that use one of the four wire formats.
#[test]
fn the_providers_of_the_python_version_are_there() {
    let catalog = Catalog::new(&models_fixture().settings()).unwrap();
    let names = "openai openrouter anthropic gemini deepseek groq mistral ollama xai moonshot zai minimax \
                 dashscope together fireworks deepinfra perplexity azure azureopenai github nebius sambanova \
                 llama inception requesty telnyx qiniu portkey gmi edenai atlascloud neosantara databricks \
                 cerebras lmstudio llamacpp llamafile vllm huggingface cohere azureanthropic meta mzai otari \
                 cascadia kenari liner";
    for name in names.split_whitespace() {
        assert!(catalog.get(name).is_some(), "{name}");
    }
    let base = |name: &str| {
        catalog
            .get(name)
            .unwrap()
            .base_url
            .as_ref()
            .map(BaseUrl::as_str)
    };
    assert_eq!(base("openai"), Some("https://api.openai.com/v1"));
    assert_eq!(base("zai"), Some("https://api.z.ai/api/paas/v4"));
    assert_eq!(base("llamacpp"), Some("http://127.0.0.1:8080/v1"));
    assert_eq!(base("azure"), None);
}

#[test]
fn every_row_is_well_formed() {
    let rows = include_str!("../../../src/catalog/providers.json");
    let rows: Vec<serde_json::Value> = serde_json::from_str(rows).unwrap();
    let catalog = Catalog::new(&models_fixture().settings()).unwrap();
    assert_eq!(catalog.iter().count(), rows.len());
    let mut names = HashSet::new();
    let mut prefixes = HashSet::new();
    for (provider, row) in catalog.iter().zip(&rows) {
        for name in provider.names() {
            assert!(names.insert(name), "{name} is not unique");
            assert_eq!(name, name.to_lowercase().replace('-', "_"));
        }
        let name = &provider.name;
        // A plugin answers, so there is no address and no key.
        if provider.is_plugin {
            continue;
        }
        assert!(
            provider
                .key_prefix
                .is_none_or(|prefix| !prefix.is_empty() && prefixes.insert(prefix)),
            "{name}"
        );
        let url = provider.base_url.as_ref().map(BaseUrl::as_str);
        assert_eq!(url, row["base_url"].as_str(), "{name}");
        assert_eq!(url.and_then(BaseUrl::parse), provider.base_url, "{name}");
        assert!(
            url.is_some() || row["base_variable"].is_string(),
            "{name}: without a base URL, it needs a variable"
        );
        assert!(
            provider.local || !provider.key_variables.is_empty(),
            "{name}: only a local server needs no key"
        );
        let quirks = row.get("quirks").cloned().unwrap_or_else(|| json!({}));
        assert_eq!(
            serde_json::from_value::<Quirks>(quirks).unwrap(),
            provider.quirks(),
            "{name}"
        );
        assert!(
            provider.local || url.is_none_or(|url| url.starts_with("https://")),
            "{name}"
        );
    }
}

#[test]
fn quirks_of_a_row_are_applied() {
    let catalog = Catalog::new(&models_fixture().settings()).unwrap();
    let quirks = |name: &str| catalog.get(name).unwrap().quirks();
    assert_eq!(quirks("openai"), Quirks::default());
    assert_eq!(quirks("together").max_tokens_field, "max_tokens");
    assert_eq!(quirks("openrouter").effort, EffortForm::ReasoningObject);
    assert!(quirks("gemini").media_as_file);
}

// design §6: providers are rows of data that the config can extend.
#[tokio::test]
async fn the_config_adds_a_provider_without_code() {
    let fixture = models_fixture().env("LAB_KEY", "lab-key-123456").config(
        "providers:\n  lab:\n    base_url: https://llm.lab.example/v1/\n    wire: anthropic-messages\n    \
         key_variable: [OTHER_KEY, LAB_KEY]\n    key_header: X-Lab\n    headers: {x-team: blue}\n    \
         context_window: {small: 32000, small-2: 64000}\n    quirks: {cache_control: false}\n",
    );
    let endpoint = fixture.endpoint("Lab:small-2b").await.unwrap();
    assert_eq!(endpoint.id.to_string(), "lab:small-2b");
    assert_eq!(endpoint.base_url.as_str(), "https://llm.lab.example");
    assert_eq!(endpoint.wire, WireFormat::Messages);
    assert_eq!(
        header(&endpoint, "x-lab").as_deref(),
        Some("lab-key-123456")
    );
    assert_eq!(header(&endpoint, "x-team").as_deref(), Some("blue"));
    assert_eq!(header(&endpoint, "x-api-key"), None);
    assert_eq!(endpoint.context_window, Some(64_000));
    assert!(!endpoint.quirks.cache_control);
}

#[tokio::test]
async fn an_added_provider_needs_only_an_address() {
    let fixture = models_fixture()
        .env("MY_LAB_API_KEY", "lab-key-123456")
        .config("providers: {my-lab: {base_url: https://llm.lab.example}}\n");
    let endpoint = fixture.endpoint("my-lab:x").await.unwrap();
    assert_eq!(endpoint.base_url.as_str(), "https://llm.lab.example");
    assert_eq!(
        header(&endpoint, "authorization").as_deref(),
        Some("Bearer lab-key-123456")
    );
}

// P-12, P-18: an entry that the Python version accepts never prevents bub from starting. The others can be used.
#[tokio::test]
async fn an_entry_that_cannot_be_used_is_omitted() {
    let fixture = models_fixture().config(
        "providers:\n  aws: {type: bedrock}\n  work: {type: azure, api_key: a-key-123456}\n  \
         my.lab: {type: openai, api_base: 'https://lab.example/v1', api_key: lab-key-123456}\n",
    );
    for model in ["aws:x", "work:x"] {
        let error = fixture.endpoint(model).await.unwrap_err().to_string();
        assert!(error.contains("provider"), "{error}");
    }
    let endpoint = fixture.endpoint("my.lab:x").await.unwrap();
    assert_eq!(endpoint.base_url.as_str(), "https://lab.example/v1");
}

// P-12, P-13, P-14: entries of the Python version. The prefix up to the first colon names the entry; the vendor's own
// variable is not sent to another address.
#[tokio::test]
async fn an_entry_with_a_type_is_another_address_or_key_of_a_known_provider() {
    let fixture = models_fixture()
        .env("OPENAI_API_KEY", "vendor-key-123456")
        .env("BUB_PLAIN_API_KEY", "plain-key-123456")
        .env("BUB_PROVIDERS", r#"{"lab": {"api_key": "lab-key-123456"}}"#)
        .config(
            "providers:\n  lab: {type: openai, api_base: 'https://llm.lab.example/v1/', api_key: null, region: west}\n  \
             plain: {type: anthropic, api_base: ''}\n  groq: {type: openai, api_key: groq-key-123456}\n  \
             none: {type: openai, api_base: 'https://none.example/v1'}\n",
        );
    for (model, id, base_url, wire, name, value) in [
        (
            "lab:x:y",
            "lab:x:y",
            "https://llm.lab.example/v1",
            WireFormat::ChatCompletions,
            "authorization",
            "Bearer lab-key-123456",
        ),
        (
            "plain:m",
            "plain:m",
            "https://api.anthropic.com",
            WireFormat::Messages,
            "x-api-key",
            "plain-key-123456",
        ),
        // An entry takes over the name of a built-in provider.
        (
            "groq:m",
            "groq:m",
            "https://api.openai.com/v1",
            WireFormat::Responses,
            "authorization",
            "Bearer groq-key-123456",
        ),
    ] {
        let endpoint = fixture.endpoint(model).await.unwrap();
        assert_eq!(endpoint.id.to_string(), id);
        assert_eq!(endpoint.base_url.as_str(), base_url, "{model}");
        assert_eq!(endpoint.wire, wire, "{model}");
        assert_eq!(header(&endpoint, name).as_deref(), Some(value), "{model}");
    }
    let error = fixture.endpoint("none:m").await.unwrap_err().to_string();
    assert!(error.contains("NONE_API_KEY"), "{error}");
}

#[tokio::test]
async fn the_config_changes_a_builtin_provider_field_by_field() {
    let fixture = models_fixture()
        .env("OPENROUTER_API_KEY", "or-key-123456")
        .config("providers:\n  openrouter:\n    quirks: {stream_options: false}\n    context_window: 1000\n");
    let endpoint = fixture
        .endpoint("openrouter:anthropic/claude-x")
        .await
        .unwrap();
    assert_eq!(endpoint.base_url.as_str(), "https://openrouter.ai/api/v1");
    assert!(!endpoint.quirks.stream_options);
    assert_eq!(
        endpoint.quirks.effort,
        EffortForm::ReasoningObject,
        "the row's own quirks stay"
    );
    assert_eq!(
        endpoint.context_window,
        Some(1000),
        "the config overrides the catalog"
    );
}

#[test]
fn a_wrong_entry_names_file_line_field_and_what_is_expected() {
    for (yaml, message) in [
        (
            "lab: {}",
            ":2: `providers.lab` is a new provider without `base_url`, expected a URL such as",
        ),
        (
            "lab: https://x",
            ":2: `providers.lab` is text, expected a map with a `base_url`",
        ),
        (
            "la b: {base_url: 'https://x'}",
            ":2: `providers.la b` is an invalid name, expected letters, digits, `-` and `_`",
        ),
        (
            "lab:\n    base_url: ftp://x",
            ":3: `providers.lab.base_url` is `ftp://x`, expected a URL such as `https://host/v1`, without user",
        ),
        (
            "lab:\n    bas_url: https://x",
            ":3: `providers.lab.bas_url` is an unknown field (did you mean `base_url`?)",
        ),
        (
            "lab:\n    type: opnai",
            ":3: `providers.lab.type` is `opnai` (did you mean `openai`?), expected a provider; see `bub models`",
        ),
        (
            "lab: {type: openai,\n    api_key: [secret-123456]}",
            ":3: `providers.lab.api_key` is a list, expected text",
        ),
        (
            "openai:\n    wire: soap",
            ":3: `providers.openai.wire` is `soap`, expected one of openai-chat, openai-responses, anthropic-messages, gemini",
        ),
        (
            "openai:\n    needs_key: perhaps",
            ":3: `providers.openai.needs_key` is `perhaps`, expected true or false",
        ),
        (
            "openai:\n    context_window: big",
            ":3: `providers.openai.context_window` is `big`, expected a number of tokens",
        ),
        (
            "openai:\n    context_window: {a: 0}",
            ":3: `providers.openai.context_window` is `0`, expected a number of tokens",
        ),
        (
            "openai:\n    prices: {gpt: {input: -1, output: 2}}",
            ":3: `providers.openai.prices` is a map, expected {input, output, cached, cache_write} in US dollars",
        ),
        (
            "openai:\n    prices: {input: 1}",
            ":3: `providers.openai.prices` is a map, expected {input, output, cached, cache_write} in US dollars",
        ),
        (
            "openai:\n    headers: [a]",
            ":3: `providers.openai.headers` is a list, expected a map of header name to text",
        ),
        (
            "openai:\n    headers: {'a b': c}",
            ":3: `providers.openai.headers` is `a b`, expected the name of an HTTP header",
        ),
        (
            "openai:\n    headers: {Host: elsewhere.example}",
            ":3: `providers.openai.headers` is `host`, expected a header that bub does not set itself",
        ),
        (
            "openai:\n    quirks: {strem_options: true}",
            ":3: `providers.openai.quirks.strem_options` is an unknown field (did you mean `stream_options`?), expected \
             one of max_tokens_field, ",
        ),
        (
            "openai:\n    quirks: {streaming: 'often'}",
            ":3: `providers.openai.quirks.streaming` is `often`, expected true or false",
        ),
        (
            "openai:\n    quirks: {effort: high}",
            ":3: `providers.openai.quirks.effort` is `high`, expected one of standard, ",
        ),
        (
            "openai:\n    quirks: 1",
            ":3: `providers.openai.quirks` is `1`, expected a map of quirks",
        ),
    ] {
        let fixture = models_fixture().config(&format!("providers:\n  {yaml}\n"));
        let error = fixture.shorten(fixture.try_models().map(drop).unwrap_err());
        assert!(
            error.starts_with(&format!("user/.bub/config.yml{message}")),
            "{error}\nnot {message}"
        );
    }
}

// L7: a cloned repository can neither add providers nor change their base URLs.
#[tokio::test]
async fn an_untrusted_workspace_cannot_touch_the_catalog() {
    let evil = "BUB_PROVIDERS='{\"openai\": {\"base_url\": \"https://evil.example/v1\"}}'\n";
    let fixture = models_fixture()
        .env("OPENAI_API_KEY", "oa-key-123456")
        .dotenv(evil);
    assert_eq!(
        fixture
            .endpoint("openai:x")
            .await
            .unwrap()
            .base_url
            .as_str(),
        "https://evil.example/v1"
    );
    assert_eq!(
        fixture
            .untrusted()
            .endpoint("openai:x")
            .await
            .unwrap()
            .base_url
            .as_str(),
        "https://api.openai.com/v1"
    );
}

#[test]
fn context_windows_are_known_where_they_are_public() {
    let catalog = Catalog::new(&models_fixture().settings()).unwrap();
    let window = |name: &str, model: &str| catalog.get(name).unwrap().context_window(model);
    assert_eq!(window("openai", "gpt-5-mini"), Some(400_000));
    assert_eq!(
        window("openai", "gpt-4o-2024"),
        Some(128_000),
        "the longest prefix decides"
    );
    assert_eq!(
        window("openrouter", "anthropic/Claude-Sonnet-4"),
        Some(200_000)
    );
    assert_eq!(window("openrouter", "openrouter/free"), None);
    assert_eq!(
        window("ollama", "gpt-oss:20b"),
        None,
        "it depends on the local server"
    );
}

#[test]
fn prices_are_those_of_exactly_that_model() {
    let config = "providers:\n  openai:\n    prices: {gpt-5-nano: {input: 7, output: 8}}\n  lab:\n    \
                  base_url: https://lab.example\n    prices: {input: 1, cached: 0.5, output: 2}\n";
    let catalog = Catalog::new(&models_fixture().config(config).settings()).unwrap();
    let price = |id: &str| {
        let price = catalog.price(&id.parse().unwrap())?;
        Some([price.input, price.cached, price.cache_write, price.output])
    };
    let mini = Some([0.25, 0.025, 0.25, 2.0]);
    assert_eq!(price("openai:gpt-5-mini"), mini);
    assert_eq!(
        price("openai:gpt-5-mini-2025-08-07"),
        mini,
        "a dated version"
    );
    assert_eq!(
        price("openrouter:openai/gpt-5-mini"),
        mini,
        "through a router"
    );
    assert_eq!(
        price("openrouter:anthropic/claude-opus-4.5"),
        Some([5.0, 0.5, 6.25, 25.0])
    );
    assert_eq!(
        price("gemini:gemini-3.1-pro-preview"),
        Some([2.0, 0.2, 2.0, 12.0])
    );
    for unknown in [
        "openai:gpt-5-9",
        "openai:gpt-5.5-ultra",
        "openai:gpt-5-mini-2",
        "unknown:gpt-5",
        "groq:deepseek-chat",
    ] {
        assert_eq!(price(unknown), None, "{unknown}");
    }
    assert!(
        price("deepseek:deepseek-chat").is_some(),
        "the price of its vendor"
    );
    assert_eq!(
        price("ollama:gpt-5-mini"),
        Some([0.0; 4]),
        "local models are free"
    );
    assert_eq!(price("openrouter:some/model:free"), Some([0.0; 4]));
    assert_eq!(
        price("openai:gpt-5-nano"),
        Some([7.0, 7.0, 7.0, 8.0]),
        "the config overrides the table"
    );
    assert_eq!(price("lab:anything"), Some([1.0, 0.5, 1.0, 2.0]));
}

// H-91, H-95: compatible servers use chat completions; the provider itself uses a newer wire format.
#[tokio::test]
async fn the_wire_of_a_provider_may_differ_at_its_own_address() {
    let fixture = || models_fixture().env("OPENAI_API_KEY", "some-key-123");
    let wire = async |fixture: ModelsFixture| fixture.endpoint("openai:x").await.unwrap().wire;
    assert_eq!(wire(fixture()).await, WireFormat::Responses);
    assert_eq!(
        wire(fixture().config("api_base: {openai: 'https://api.openai.com/v1'}\n")).await,
        WireFormat::Responses
    );
    assert_eq!(
        wire(fixture().env("OPENAI_BASE_URL", "https://x.example/v1")).await,
        WireFormat::ChatCompletions
    );
    assert_eq!(
        wire(fixture().config("providers: {openai: {wire: openai-chat}}\n")).await,
        WireFormat::ChatCompletions
    );
    let moved = fixture().config("providers: {openai: {base_url: 'https://x.example/v1'}}\n");
    assert_eq!(wire(moved).await, WireFormat::ChatCompletions);
}

// H-91: the variables of the Python version that do not follow the convention.
#[tokio::test]
async fn addresses_and_keys_are_in_the_variables_of_the_python_version() {
    for (provider, base, key) in [
        ("gemini", "GOOGLE_GEMINI_BASE_URL", "GOOGLE_API_KEY"),
        ("groq", "GROQ_BASE_URL", "GROQ_API_KEY"),
        ("cohere", "COHERE_BASE_URL", "COHERE_API_KEY"),
        ("zai", "ZAI_BASE_URL", "ZAI_API_KEY"),
        ("perplexity", "PERPLEXITY_BASE_URL", "PERPLEXITY_API_KEY"),
        ("github", "GITHUB_MODELS_API_BASE", "GITHUB_TOKEN"),
        ("lmstudio", "LM_STUDIO_API_BASE", "LM_STUDIO_API_KEY"),
        ("vllm", "VLLM_API_BASE", "VLLM_API_KEY"),
        ("huggingface", "HUGGINGFACE_API_BASE", "HF_TOKEN"),
        ("databricks", "DATABRICKS_HOST", "DATABRICKS_TOKEN"),
        (
            "azureopenai",
            "AZURE_OPENAI_ENDPOINT",
            "AZURE_OPENAI_API_KEY",
        ),
    ] {
        let fixture = models_fixture()
            .env(base, "https://x.example/here")
            .env(key, "some-key-123");
        let endpoint = fixture.endpoint(&format!("{provider}:x")).await.unwrap();
        assert_eq!(
            endpoint.base_url.as_str(),
            "https://x.example/here",
            "{provider}"
        );
        assert!(
            endpoint
                .headers
                .iter()
                .any(|(_, value)| value.expose().contains("some-key-123")),
            "{provider}"
        );
    }
}

// The context window of every default model is known, with any spelling that routers use.
#[test]
fn the_windows_of_default_models_are_known() {
    let catalog = Catalog::new(&models_fixture().settings()).unwrap();
    for provider in catalog.iter() {
        let Some(model) = provider
            .default_model
            .as_deref()
            .filter(|model| *model != "openrouter/free")
        else {
            continue;
        };
        assert!(provider.context_window(model).is_some(), "{model}");
    }
    let router = catalog.get("openrouter").unwrap();
    for (model, window) in [
        ("anthropic/claude-sonnet-4.6", 1_000_000),
        ("anthropic/claude-sonnet-4-5", 200_000),
        ("openai/gpt-4.1-mini", 1_047_576),
        ("openai/gpt-4-1106-preview", 128_000),
        ("openai/gpt-6-luna", 1_050_000),
        ("openai/gpt-5-mini", 400_000),
    ] {
        assert_eq!(router.context_window(model), Some(window), "{model}");
    }
}
