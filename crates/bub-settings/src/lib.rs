//! bub-settings
