//! The webhook channel.
