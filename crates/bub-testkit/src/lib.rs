//! bub-testkit
