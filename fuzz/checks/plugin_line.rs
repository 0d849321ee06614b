//! A plugin that writes any bytes: its host goes on, and says why the conversation ended.

use bub_plugin::{Descriptor, read_for_fuzzing};

pub(crate) fn check(bytes: &[u8]) {
    assert!(!read_for_fuzzing(bytes).is_empty());
    // What it says about itself.
    let _ = serde_json::from_slice::<Descriptor>(bytes);
}
