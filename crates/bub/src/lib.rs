//! bub
