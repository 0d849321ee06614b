//! The host of a plugin that writes any bytes continues and reports why the connection ended.

use bub_plugin::{Descriptor, testing::read_for_fuzzing};

pub(crate) fn check(bytes: &[u8]) {
    assert!(!read_for_fuzzing(bytes).is_empty());
    // The plugin's descriptor.
    let _ = serde_json::from_slice::<Descriptor>(bytes);
}
