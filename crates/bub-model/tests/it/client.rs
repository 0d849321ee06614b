//! Tests of the client with a scripted server: requests, retries, timeouts and errors.

mod basics;
mod client_args;
mod damage;
mod encoding;
mod fallback;
mod messages;
mod recordings;
mod retry;
mod secrets;
mod support;
mod time;
mod tls;
