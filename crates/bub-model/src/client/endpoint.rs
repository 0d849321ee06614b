//! Endpoints by hand, for callers without a catalogue.

use bub_settings::Secret;

use crate::{BaseUrl, Endpoint, ModelId, Quirks, WireFormat};

impl Endpoint {
    /// A model at an address, called without a key.
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

    /// The same, with a key in the header that the wire format uses.
    #[must_use]
    pub fn with_key(mut self, key: &Secret) -> Self {
        let (name, value) = self.wire.credentials(key);
        self.headers.push((name.to_owned(), value));
        self
    }
}
