//! JSON read only as far as needed.
