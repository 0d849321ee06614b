//! Runs the tests in the example programs.
#![allow(dead_code, unused_imports, reason = "the tests do not call `main`")]

#[path = "../../examples/guard.rs"]
mod guard;
#[path = "../../examples/line_channel.rs"]
mod line_channel;
#[path = "../../examples/routes_and_services.rs"]
mod routes_and_services;
#[path = "../../examples/tape_store.rs"]
mod tape_store;
#[path = "../../examples/tools_with_client.rs"]
mod tools_with_client;
