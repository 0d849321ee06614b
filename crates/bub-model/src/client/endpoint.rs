//! Constructors of endpoints for callers without a catalog.

use bub_settings::Secret;

use crate::{BaseUrl, Endpoint, ModelId, Quirks, WireFormat};

impl Endpoint {
    /// Creates the endpoint of a model that is called without a key.
    ///
    /// ```
    /// use bub_model::{BaseUrl, Endpoint, ModelId, WireFormat};
    ///
    /// let base_url = BaseUrl::parse("http://127.0.0.1:8080/v1").unwrap();
    /// let id = ModelId::new("llamacpp", "default");
    /// let endpoint = Endpoint::new(id, WireFormat::ChatCompletions, base_url);
    /// ```
    pub fn new(id: ModelId, wire: WireFormat, base_url: BaseUrl) -> Self {
        let (quirks, headers) = (Quirks::default(), Vec::new());
        Self {
            id,
            wire,
            quirks,
            base_url,
            headers,
            key: None,
            context_window: None,
        }
    }

    /// Adds a key in the header that the wire format uses.
    #[must_use]
    pub fn with_key(mut self, key: &Secret) -> Self {
        let (name, value) = self.wire.key_header(key);
        self.headers.push((name.to_owned(), value));
        self
    }
}
