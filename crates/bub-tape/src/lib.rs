//! bub-tape
