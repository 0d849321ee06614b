//! Markdown as Telegram HTML, in parts that fit into one message.
