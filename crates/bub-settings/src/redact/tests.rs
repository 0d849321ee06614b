//! Laws of redaction.
