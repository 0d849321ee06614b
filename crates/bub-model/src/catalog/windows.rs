//! Public context windows of models.
//!
//! The table is small and matches prefixes, because models change faster than releases. If a value is wrong, a call
//! fails and is repeated with a smaller context. If a value is missing, bub cannot shrink the context in advance.
//! Values in the config take precedence.

/// Returns the built-in context window of a model in tokens, if it is known.
pub(crate) fn built_in_window(model: &str) -> Option<u64> {
    // Routers prefix the vendor: `anthropic/claude-…`. Some providers write `5.5`, others `5-5`.
    let name = model
        .rsplit('/')
        .next()
        .unwrap_or(model)
        .to_ascii_lowercase()
        .replace('.', "-");
    let matching = CONTEXT_WINDOWS
        .iter()
        .filter(|(prefix, _)| name.starts_with(prefix));
    matching
        .max_by_key(|(prefix, _)| prefix.len())
        .map(|(_, window)| *window)
}

/// Prefix of a model's name and its context window in tokens. The longest matching prefix decides. Names are written
/// with `-` instead of `.`.
static CONTEXT_WINDOWS: &[(&str, u64)] = &[
    ("claude", 200_000),
    ("claude-fable-5", 1_000_000),
    ("claude-haiku-5", 1_000_000),
    ("claude-mythos", 1_000_000),
    ("claude-opus-4-6", 1_000_000),
    ("claude-opus-4-7", 1_000_000),
    ("claude-opus-4-8", 1_000_000),
    ("claude-opus-5", 1_000_000),
    ("claude-sonnet-4-6", 1_000_000),
    ("claude-sonnet-5", 1_000_000),
    ("codestral", 128_000),
    ("command-a", 256_000),
    ("command-a-plus", 128_000),
    ("command-r", 128_000),
    ("deepseek", 128_000),
    ("deepseek-flash", 1_000_000),
    ("deepseek-v4", 1_000_000),
    ("devstral", 128_000),
    ("gemini", 1_048_576),
    ("gemma-3", 128_000),
    ("gemma-4", 262_144),
    ("glm-4-5", 128_000),
    ("glm-4-6", 200_000),
    ("glm-4-7", 200_000),
    ("glm-5", 200_000),
    ("glm-5-2", 1_000_000),
    ("glm-5-3", 1_000_000),
    ("gpt-3-5-turbo", 16_385),
    ("gpt-4", 8_192),
    ("gpt-4-1", 1_047_576),
    ("gpt-4-1106", 128_000),
    ("gpt-4-turbo", 128_000),
    ("gpt-4o", 128_000),
    ("gpt-5", 400_000),
    ("gpt-5-1-chat", 128_000),
    ("gpt-5-2-chat", 128_000),
    ("gpt-5-3-chat", 128_000),
    ("gpt-5-4", 1_050_000),
    ("gpt-5-4-mini", 400_000),
    ("gpt-5-4-nano", 400_000),
    ("gpt-5-5", 1_050_000),
    ("gpt-5-6", 1_050_000),
    ("gpt-5-chat", 128_000),
    ("gpt-6", 1_050_000),
    ("gpt-oss", 131_072),
    ("grok-3", 131_072),
    ("grok-4", 256_000),
    ("grok-4-20", 1_000_000),
    ("grok-4-3", 1_000_000),
    ("grok-4-5", 500_000),
    ("grok-4-6", 500_000),
    ("grok-4-7", 500_000),
    ("grok-build", 256_000),
    ("grok-code", 256_000),
    ("kimi-k2", 256_000),
    ("kimi-k3", 1_048_576),
    ("llama-3-1", 131_072),
    ("llama-3-3", 131_072),
    ("magistral", 128_000),
    ("minimax-m2", 204_800),
    ("minimax-m3", 500_000),
    ("ministral", 128_000),
    ("mistral-large", 262_144),
    ("mistral-large-4", 1_048_576),
    ("mistral-medium", 262_144),
    ("mistral-small", 128_000),
    ("mistral-small-latest", 262_144),
    ("o1", 200_000),
    ("o3", 200_000),
    ("o4-mini", 200_000),
    ("qwen-flash", 1_000_000),
    ("qwen-plus", 131_072),
    ("qwen-plus-latest", 1_000_000),
    ("qwen3-5-plus", 991_808),
    ("qwen3-7", 991_808),
    ("qwen3-8-flash", 991_808),
    ("qwen3-8-max", 991_808),
    ("qwen3-coder", 262_144),
    ("qwen3-coder-flash", 1_000_000),
    ("qwen3-coder-plus", 1_000_000),
    ("qwen3-max", 262_144),
    ("sonar", 128_000),
    ("sonar-pro", 200_000),
];
