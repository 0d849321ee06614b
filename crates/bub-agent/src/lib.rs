//! bub-agent
