//! A plugin that writes any bytes: its host goes on, and says why the conversation ended.

use bub_plugin::{Descriptor, hear};

pub(crate) fn check(bytes: &[u8]) {
    assert!(!hear(bytes).is_empty());
    // What it says about itself.
    let _ = serde_json::from_slice::<Descriptor>(bytes);
}
