//! The table of built-in providers.
//!
//! Quirks are JSON with the fields of `providers.<name>.quirks`, so that a row and a config file use one notation.

use crate::WireFormat;

/// A built-in provider. An empty string means that the field is not set.
#[derive(Debug, Clone, Copy)]
pub struct ProviderRow {
    /// The name in `provider:model`.
    pub name: &'static str,
    /// Alternative names.
    pub aliases: &'static [&'static str],
    /// Default base URL; empty if each customer has a separate one.
    pub base_url: &'static str,
    /// Path appended to a configured base URL that has none.
    pub base_path: &'static str,
    /// The provider's own environment variables for its key; error messages suggest the first one.
    pub key_variables: &'static [&'static str],
    /// The provider's own environment variable for its base URL, if it is not `<NAME>_API_BASE`.
    pub base_variable: &'static str,
    /// The wire format.
    pub wire: WireFormat,
    /// The wire format at the default base URL, if compatible servers do not support it.
    pub native_wire: Option<WireFormat>,
    /// Whether the provider runs on the user's machine and requires no key.
    pub local: bool,
    /// Header that carries the key, if it is not the wire format's usual header.
    pub key_header: &'static str,
    /// Prefix that identifies the provider's keys, if they have one.
    pub key_prefix: &'static str,
    /// The model to use if a key is set but no model is configured. Without it, the provider is never chosen
    /// automatically. Providers retire models within months, so prefer a name that the provider keeps current.
    pub default_model: &'static str,
    /// Deviations from the wire format, as JSON.
    pub quirks: &'static str,
    /// Login that replaces a key.
    pub login: Option<LoginMethod>,
}

/// A login that replaces a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoginMethod {
    /// The OAuth login shared with the Codex CLI.
    Codex,
}

/// A row without any properties, as the base of other rows.
pub(super) const EMPTY_ROW: ProviderRow = ProviderRow {
    name: "",
    aliases: &[],
    base_url: "",
    base_path: "",
    key_variables: &[],
    base_variable: "",
    wire: WireFormat::ChatCompletions,
    native_wire: None,
    local: false,
    key_header: "",
    key_prefix: "",
    default_model: "",
    quirks: "",
    login: None,
};

/// Most servers support only the older name of the output limit.
const MAX_TOKENS_QUIRK: &str = r#"{"max_tokens_field": "max_tokens"}"#;

const fn row(
    name: &'static str,
    base_url: &'static str,
    key_variables: &'static [&'static str],
) -> ProviderRow {
    ProviderRow {
        name,
        base_url,
        key_variables,
        quirks: MAX_TOKENS_QUIRK,
        ..EMPTY_ROW
    }
}

const fn local_row(name: &'static str, base_url: &'static str) -> ProviderRow {
    ProviderRow {
        base_path: "/v1",
        local: true,
        ..row(name, base_url, &[])
    }
}

/// The built-in providers.
///
/// If no model is configured, the first provider with a key decides the model. Hence the order: the default provider
/// of the Python version, then by how common a key for the provider is.
pub static PROVIDER_ROWS: &[ProviderRow] = &[
    ProviderRow {
        key_prefix: "sk-or-",
        default_model: "openrouter/free",
        quirks: r#"{"max_tokens_field": "max_tokens", "effort": "reasoning_object"}"#,
        ..row(
            "openrouter",
            "https://openrouter.ai/api/v1",
            &["OPENROUTER_API_KEY"],
        )
    },
    ProviderRow {
        aliases: &["claude"],
        base_variable: "ANTHROPIC_BASE_URL",
        wire: WireFormat::Messages,
        key_prefix: "sk-ant-",
        default_model: "claude-sonnet-5-5",
        quirks: "",
        ..row(
            "anthropic",
            "https://api.anthropic.com",
            &["ANTHROPIC_API_KEY"],
        )
    },
    ProviderRow {
        base_variable: "OPENAI_BASE_URL",
        // Newer models reject tools in chat completions.
        native_wire: Some(WireFormat::Responses),
        key_prefix: "sk-proj-",
        default_model: "gpt-6-luna",
        quirks: "",
        login: Some(LoginMethod::Codex),
        ..row("openai", "https://api.openai.com/v1", &["OPENAI_API_KEY"])
    },
    ProviderRow {
        aliases: &["google"],
        base_path: "/v1beta",
        base_variable: "GOOGLE_GEMINI_BASE_URL",
        wire: WireFormat::GenerateContent,
        key_prefix: "AIza",
        default_model: "gemini-flash-latest",
        quirks: r#"{"media_as_file": true}"#,
        ..row(
            "gemini",
            "https://generativelanguage.googleapis.com/v1beta",
            &["GEMINI_API_KEY", "GOOGLE_API_KEY"],
        )
    },
    ProviderRow {
        default_model: "deepseek-flash",
        quirks: r#"{"max_tokens_field": "max_tokens", "replay_reasoning": true}"#,
        ..row(
            "deepseek",
            "https://api.deepseek.com",
            &["DEEPSEEK_API_KEY"],
        )
    },
    ProviderRow {
        aliases: &["grok"],
        key_prefix: "xai-",
        default_model: "grok-4.7",
        ..row("xai", "https://api.x.ai/v1", &["XAI_API_KEY"])
    },
    ProviderRow {
        default_model: "mistral-medium-latest",
        quirks: r#"{"max_tokens_field": "max_tokens", "stream_options": false, "effort": "omit"}"#,
        ..row("mistral", "https://api.mistral.ai/v1", &["MISTRAL_API_KEY"])
    },
    ProviderRow {
        base_path: "/openai/v1",
        base_variable: "GROQ_BASE_URL",
        key_prefix: "gsk_",
        default_model: "openai/gpt-oss-120b",
        quirks: "",
        ..row("groq", "https://api.groq.com/openai/v1", &["GROQ_API_KEY"])
    },
    ProviderRow {
        default_model: "kimi-k2.6",
        quirks: r#"{"max_tokens_field": "max_tokens", "effort": "omit", "replay_reasoning": true}"#,
        ..row(
            "moonshot",
            "https://api.moonshot.ai/v1",
            &["MOONSHOT_API_KEY"],
        )
    },
    ProviderRow {
        aliases: &["z_ai", "glm"],
        base_variable: "ZAI_BASE_URL",
        default_model: "glm-5.3",
        quirks: r#"{"max_tokens_field": "max_tokens", "effort": "thinking_switch"}"#,
        ..row("zai", "https://api.z.ai/api/paas/v4", &["ZAI_API_KEY"])
    },
    ProviderRow {
        aliases: &["qwen"],
        default_model: "qwen-plus",
        ..row(
            "dashscope",
            "https://dashscope.aliyuncs.com/compatible-mode/v1",
            &["DASHSCOPE_API_KEY"],
        )
    },
    ProviderRow {
        default_model: "MiniMax-M3",
        ..row("minimax", "https://api.minimax.io/v1", &["MINIMAX_API_KEY"])
    },
    ProviderRow {
        key_prefix: "csk-",
        default_model: "gpt-oss-120b",
        quirks: "",
        ..row(
            "cerebras",
            "https://api.cerebras.ai/v1",
            &["CEREBRAS_API_KEY"],
        )
    },
    ProviderRow {
        aliases: &["togetherai"],
        ..row(
            "together",
            "https://api.together.xyz/v1",
            &["TOGETHER_API_KEY"],
        )
    },
    ProviderRow {
        key_prefix: "fw_",
        ..row(
            "fireworks",
            "https://api.fireworks.ai/inference/v1",
            &["FIREWORKS_API_KEY"],
        )
    },
    row(
        "deepinfra",
        "https://api.deepinfra.com/v1/openai",
        &["DEEPINFRA_API_KEY"],
    ),
    ProviderRow {
        base_variable: "PERPLEXITY_BASE_URL",
        key_prefix: "pplx-",
        ..row(
            "perplexity",
            "https://api.perplexity.ai",
            &["PERPLEXITY_API_KEY"],
        )
    },
    ProviderRow {
        aliases: &["azureopenai", "azure_openai"],
        base_path: "/openai/v1",
        base_variable: "AZURE_OPENAI_ENDPOINT",
        key_header: "api-key",
        quirks: "",
        ..row("azure", "", &["AZURE_OPENAI_API_KEY", "AZURE_API_KEY"])
    },
    // Users set GITHUB_TOKEN for other purposes, so this provider has no default model and is never chosen
    // automatically.
    ProviderRow {
        base_variable: "GITHUB_MODELS_API_BASE",
        ..row(
            "github",
            "https://models.github.ai/inference",
            &["GITHUB_TOKEN"],
        )
    },
    row(
        "huggingface",
        "https://router.huggingface.co/v1",
        &["HF_TOKEN"],
    ),
    row(
        "nebius",
        "https://api.studio.nebius.ai/v1",
        &["NEBIUS_API_KEY"],
    ),
    row(
        "sambanova",
        "https://api.sambanova.ai/v1",
        &["SAMBANOVA_API_KEY"],
    ),
    ProviderRow {
        base_path: "/compatibility/v1",
        base_variable: "COHERE_BASE_URL",
        ..row(
            "cohere",
            "https://api.cohere.ai/compatibility/v1",
            &["COHERE_API_KEY", "CO_API_KEY"],
        )
    },
    row(
        "llama",
        "https://api.llama.com/compat/v1",
        &["LLAMA_API_KEY"],
    ),
    row(
        "inception",
        "https://api.inceptionlabs.ai/v1",
        &["INCEPTION_API_KEY"],
    ),
    row(
        "requesty",
        "https://router.requesty.ai/v1",
        &["REQUESTY_API_KEY"],
    ),
    row(
        "telnyx",
        "https://api.telnyx.com/v2/ai",
        &["TELNYX_API_KEY"],
    ),
    row("qiniu", "https://api.qnaigc.com/v1", &["QINIU_API_KEY"]),
    ProviderRow {
        key_header: "x-portkey-api-key",
        ..row("portkey", "https://api.portkey.ai/v1", &["PORTKEY_API_KEY"])
    },
    row("gmi", "https://api.gmi-serving.com/v1", &["GMI_API_KEY"]),
    row("edenai", "https://api.edenai.run/v3", &["EDENAI_API_KEY"]),
    row(
        "atlascloud",
        "https://api.atlascloud.ai/v1",
        &["ATLASCLOUD_API_KEY"],
    ),
    row(
        "neosantara",
        "https://api.neosantara.xyz/v1",
        &["NEOSANTARA_API_KEY"],
    ),
    ProviderRow {
        base_path: "/serving-endpoints",
        base_variable: "DATABRICKS_HOST",
        ..row("databricks", "", &["DATABRICKS_TOKEN"])
    },
    ProviderRow {
        base_variable: "OLLAMA_HOST",
        ..local_row("ollama", "http://127.0.0.1:11434/v1")
    },
    ProviderRow {
        aliases: &["lm_studio"],
        base_variable: "LM_STUDIO_API_BASE",
        key_variables: &["LM_STUDIO_API_KEY"],
        ..local_row("lmstudio", "http://127.0.0.1:1234/v1")
    },
    local_row("llamacpp", "http://127.0.0.1:8080/v1"),
    ProviderRow {
        quirks: r#"{"max_tokens_field": "max_tokens", "streaming": false, "stream_options": false}"#,
        ..local_row("llamafile", "http://127.0.0.1:8080/v1")
    },
    ProviderRow {
        key_variables: &["VLLM_API_KEY"],
        ..local_row("vllm", "http://127.0.0.1:8000/v1")
    },
];
