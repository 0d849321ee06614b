//! Integration tests of providers, keys, the choice of the model and the login. They use loopback connections only.

mod api_keys;
mod calls;
mod catalog;
mod docs;
mod fixture;
mod identifiers;
mod login;
mod model_choice;
mod models_report;
