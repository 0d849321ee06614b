//! `provider:model`.

use bub_model::ModelId;

use crate::fixture::ModelsFixture;

fn parts(text: &str) -> Option<(String, String, bool)> {
    let id: ModelId = text.parse().ok()?;
    Some((
        id.provider().to_owned(),
        id.model().to_owned(),
        id.is_deprecated(),
    ))
}

// H-80: the first `:`, or `/` if it comes first; then it is the old form
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
fn what_is_no_identifier_is_told_how_to_write_one() {
    let error = "gpt-5".parse::<ModelId>().unwrap_err().to_string();
    assert_eq!(
        error,
        "`gpt-5` is no model: write `provider:model`, for example `openrouter:openrouter/free`"
    );
}

// H-80, W-56: an unknown provider is an error that helps
#[test]
fn an_unknown_provider_is_an_error_with_a_suggestion_and_a_way_to_add_it() {
    let given = ModelsFixture::new();
    let error = |model: &str| given.shorten(given.models().resolve(model).unwrap_err());
    assert_eq!(
        error("opnai:gpt-5"),
        "there is no provider `opnai`, did you mean `openai`?; `bub models` lists them, and \
         `providers.opnai.base_url` in user/.bub/config.yml adds one"
    );
    assert_eq!(
        error("lab:x"),
        "there is no provider `lab`; `bub models` lists them, and `providers.lab.base_url` in \
         user/.bub/config.yml adds one"
    );
}

#[test]
fn aliases_case_and_the_old_form_lead_to_the_proper_name() {
    let models = ModelsFixture::new().models();
    for text in ["google:gemini-x", "GEMINI:gemini-x", "gemini/gemini-x"] {
        assert_eq!(models.resolve(text).unwrap().to_string(), "gemini:gemini-x");
    }
    assert_eq!(
        models.resolve("azure-openai:x").unwrap().to_string(),
        "azure:x"
    );
}
