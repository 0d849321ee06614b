//! Test program with a chat that panics when the user leaves.
#![allow(clippy::panic, clippy::expect_used, reason = "that is what it is for")]

use std::sync::Arc;

use bub::kernel::{CancellationToken, Error, async_trait};
use bub_settings::Redactor;
use bub_terminal::{
    ChatHost, ColorMode,
    channel::ChatEventSender,
    chat::{self, ChatOptions},
    editor::CompletionItems,
    turn_view::StatusLine,
};

struct PanickingChatHost;

#[async_trait]
impl ChatHost for PanickingChatHost {
    async fn submit_line(&self, _line: u64, _text: String) {}

    async fn read_clipboard_image(&self, _: u64) {}

    async fn cancel_turn(&self) {}

    fn withdraw_line(&self) {}

    fn report_failure(&self, _error: Error) {}

    async fn cancel_all(&self) {
        panic!("on purpose")
    }
}

#[tokio::main]
async fn main() {
    let (_event_sender, chat_events) = ChatEventSender::new();
    let setup = ChatOptions {
        first_line: None,
        host: Arc::new(PanickingChatHost),
        chat_events,
        stop: CancellationToken::new(),
        home: std::env::temp_dir().join("no such home"),
        workspace: "/somewhere/workspace".to_owned(),
        welcome: Vec::new(),
        last_exchange: None,
        words: CompletionItems::default(),
        status: StatusLine::default(),
        redactor: Redactor::new(),
        color_mode: ColorMode::Colors,
        reflows: false,
    };
    chat::run_chat(setup).await.expect("it does not end");
}
