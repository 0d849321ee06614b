//! Model identifiers: `provider:model`.

use std::fmt;
use std::str::FromStr;

/// A provider and one of its models.
///
/// ```
/// use bub_model::ModelId;
///
/// let id: ModelId = "OpenRouter:anthropic/claude:beta".parse()?;
/// assert_eq!((id.provider(), id.model()), ("openrouter", "anthropic/claude:beta"));
/// assert_eq!(id.to_string(), "openrouter:anthropic/claude:beta");
/// # Ok::<(), bub_model::ParseModelIdError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModelId {
    provider: String,
    model: String,
    deprecated: bool,
}

/// Error for text that is not a model identifier.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid model `{text}`: expected `provider:model`, for example `{example}`", example = crate::catalog::EXAMPLE_MODEL)]
pub struct ParseModelIdError {
    /// The rejected text, trimmed.
    pub text: String,
}

impl ModelId {
    /// Creates an identifier from its two parts. The provider's name is converted to lower case.
    pub fn new(provider: impl AsRef<str>, model: impl Into<String>) -> Self {
        let provider = provider.as_ref().to_ascii_lowercase();
        Self {
            provider,
            model: model.into(),
            deprecated: false,
        }
    }

    /// Returns the provider's name or alias, in lower case.
    pub fn provider(&self) -> &str {
        &self.provider
    }

    /// Returns the model's name at the provider, such as `anthropic/claude:beta`.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// Returns whether the identifier was parsed from the deprecated form `provider/model`.
    pub fn is_deprecated(&self) -> bool {
        self.deprecated
    }
}

impl FromStr for ModelId {
    type Err = ParseModelIdError;

    /// Splits the text at the first `:` or `/`, whichever comes first.
    fn from_str(text: &str) -> Result<Self, ParseModelIdError> {
        let text = text.trim();
        let at = text.find([':', '/']).unwrap_or(text.len());
        let (provider, rest) = text.split_at_checked(at).unwrap_or_default();
        let model = rest.get(1..).unwrap_or_default().trim();
        let provider = provider.trim();
        if provider.is_empty() || model.is_empty() {
            let text = text.to_owned();
            return Err(ParseModelIdError { text });
        }
        Ok(Self {
            deprecated: rest.starts_with('/'),
            ..Self::new(provider, model)
        })
    }
}

impl fmt::Display for ModelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.provider, self.model)
    }
}
