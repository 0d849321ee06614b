//! Tests of model identifiers.

use bub_model::ModelId;

use super::fixture::models_fixture;

fn parts(text: &str) -> Option<(String, String, bool)> {
    let id: ModelId = text.parse().ok()?;
    Some((
        id.provider().to_owned(),
        id.model().to_owned(),
        id.is_deprecated(),
    ))
}

// H-80: splits at the first `:`, or at `/` if it comes first, which is the deprecated form.
#[test]
fn an_identifier_is_split_at_the_first_separator() {
    for (text, provider, model, old) in [
        ("openai:gpt-5", "openai", "gpt-5", false),
        (
            "openrouter:openrouter/free",
            "openrouter",
            "openrouter/free",
            false,
        ),
        (
            "openrouter:meta/llama:free",
            "openrouter",
            "meta/llama:free",
            false,
        ),
        (
            "openrouter/meta/llama:free",
            "openrouter",
            "meta/llama:free",
            true,
        ),
        (" Ollama : qwen3:8b ", "ollama", "qwen3:8b", false),
    ] {
        assert_eq!(
            parts(text),
            Some((provider.into(), model.into(), old)),
            "{text}"
        );
    }
    for text in ["", "gpt-5", ":gpt-5", "openai:", "openai/", " : "] {
        assert_eq!(parts(text), None, "{text}");
    }
}

#[test]
fn the_error_for_an_invalid_identifier_says_how_to_write_one() {
    let error = "gpt-5".parse::<ModelId>().unwrap_err().to_string();
    assert_eq!(
        error,
        "invalid model `gpt-5`: expected `provider:model`, for example `openrouter:openrouter/free`"
    );
}

// H-80, W-56: the error for an unknown provider says what to do.
#[test]
fn an_unknown_provider_is_an_error_with_a_suggestion_and_a_way_to_add_it() {
    let fixture = models_fixture();
    let error = |model: &str| fixture.shorten(fixture.models().resolve_model(model).unwrap_err());
    assert_eq!(
        error("opnai:gpt-5"),
        "unknown provider `opnai`, did you mean `openai`?; run `bub models` to list providers, or add it with \
         `providers.opnai.base_url` in user/.bub/config.yml"
    );
    assert_eq!(
        error("lab:x"),
        "unknown provider `lab`; run `bub models` to list providers, or add it with `providers.lab.base_url` in \
         user/.bub/config.yml"
    );
}

#[test]
fn aliases_case_and_the_old_form_lead_to_the_proper_name() {
    let models = models_fixture().models();
    for text in ["google:gemini-x", "GEMINI:gemini-x", "gemini/gemini-x"] {
        assert_eq!(
            models.resolve_model(text).unwrap().to_string(),
            "gemini:gemini-x"
        );
    }
    assert_eq!(
        models.resolve_model("azure-openai:x").unwrap().to_string(),
        "azure:x"
    );
}
