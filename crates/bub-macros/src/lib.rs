//! bub-macros
