//! Tests the program as users run it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_methods,
    missing_docs,
    reason = "tests stop at the first surprise"
)]

mod agent_bench;
mod agent_kill;
mod answers;
mod approvals;
mod architecture;
mod bad_input;
mod chat;
mod clock;
mod commands;
mod config;
mod config_edit;
mod configuration;
mod confined_commands;
mod debug;
mod demo;
mod docs;
mod doctor;
mod drop_in;
mod environments;
mod eval;
mod evidence;
mod example_tests;
mod examples;
mod fault_matrix;
mod faults;
mod files;
mod first_release;
mod fuzz_seeds;
mod gateway;
mod gateway_client;
mod gateway_kill;
mod gateway_service;
mod gateways;
mod language;
mod logging;
mod login;
mod models;
mod mutations;
mod onboard;
mod permissions;
mod picture;
mod plugin;
mod plugin_lifecycle;
mod python_home;
mod python_plugins;
mod python_providers;
mod readable;
mod replay;
mod run;
mod run_screen;
mod rust_plugin;
mod sandbox;
mod secrets;
mod settings;
mod shells;
mod soak;
mod tape;
mod telegram;
mod telegram_kill;
mod trust;
mod turn_failures;
mod usage;
mod webhook;
