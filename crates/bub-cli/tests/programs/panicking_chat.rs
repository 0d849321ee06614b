//! A program for the tests: a chat that panics when it is left.
#![allow(clippy::panic, clippy::expect_used, reason = "that is what it is for")]

use std::sync::Arc;

use bub::kernel::{BoxFuture, CancellationToken};
use bub_settings::Redactor;
use bub_terminal::{
    Host, Ink,
    channel::Teller,
    chat::{self, Setup},
    editor::Words,
    view::Status,
};

struct Panicking;

impl Host for Panicking {
    fn submit(&self, _line: u64, _text: String) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    fn cancel_submission(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    fn cancel(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    fn withdraw(&self) {}

    fn quit(&self) -> BoxFuture<'_, ()> {
        panic!("on purpose")
    }
}

#[tokio::main]
async fn main() {
    let (_teller, happenings) = Teller::new();
    let setup = Setup {
        host: Arc::new(Panicking),
        happenings,
        stop: CancellationToken::new(),
        home: std::env::temp_dir().join("no such home"),
        workspace: "/somewhere/workspace".to_owned(),
        welcome: Vec::new(),
        words: Words::default(),
        status: Status::default(),
        redactor: Redactor::new(),
        ink: Ink::Colours,
        reflows: false,
    };
    chat::run(setup).await.expect("it does not end");
}
