//! A channel: users connect with a TCP client such as `nc`, and each line is a message.
//!
//! ```console
//! $ BUB_LINES_LISTEN=127.0.0.1:7070 cargo run --example line_channel -- gateway
//! $ nc 127.0.0.1 7070
//! ```

use std::{collections::HashMap, net::SocketAddr, process::ExitCode, sync::Arc};

use bub::{Role, Sender, prelude::*, settings::text_format};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, tcp::OwnedWriteHalf},
    sync::Mutex,
};

/// Settings under `lines:` in config.yml and `BUB_LINES_*` in the environment.
#[derive(Settings)]
#[settings(section = "lines")]
struct LineSettings {
    /// Address and port to listen on.
    #[setting(default = "127.0.0.1:7070", format = &text_format::LISTEN)]
    listen: String,
}

struct LineChannel {
    listen: String,
    handler: MessageHandler,
    /// The address that the channel listens on, once it is started.
    address: Mutex<Option<SocketAddr>>,
    /// The open connections. The key is the chat.
    clients: Arc<Mutex<HashMap<String, Arc<Mutex<OwnedWriteHalf>>>>>,
}

impl LineChannel {
    fn new(listen: String, handler: MessageHandler) -> Self {
        Self {
            listen,
            handler,
            address: Mutex::default(),
            clients: Arc::default(),
        }
    }
}

#[async_trait]
impl Channel for LineChannel {
    fn name(&self) -> &'static str {
        "lines"
    }

    async fn start(&self, stop: CancellationToken) -> Result<()> {
        let listener = TcpListener::bind(&self.listen).await?;
        *self.address.lock().await = Some(listener.local_addr()?);
        let (handler, clients) = (Arc::clone(&self.handler), Arc::clone(&self.clients));
        tokio::spawn(stop.clone().run_until_cancelled_owned(async move {
            while let Ok((stream, peer)) = listener.accept().await {
                let (reader, writer) = stream.into_split();
                let chat = peer.to_string();
                let writer = Arc::new(Mutex::new(writer));
                clients.lock().await.insert(chat.clone(), writer);
                let (handler, clients) = (Arc::clone(&handler), Arc::clone(&clients));
                tokio::spawn(stop.clone().run_until_cancelled_owned(async move {
                    let mut lines = BufReader::new(reader).lines();
                    while let Ok(Some(line)) = lines.next_line().await {
                        let message = ChannelMessage::new(format!("lines:{chat}"), "lines", line);
                        let message = Inbound::new(message.chat_id(&*chat));
                        // Only users of this machine can connect. Without a sender, they would be guests.
                        let sender = Sender {
                            role: Role::Member,
                            channel: "lines".to_owned(),
                            chat_id: chat.clone(),
                            id: chat.clone(),
                            ..Sender::default()
                        };
                        // The future resolves when the message is on disk, not when it is answered.
                        if let Err(error) = handler(message.with_sender(sender)).await {
                            tracing::warn!(%error, "lines.message_refused");
                        }
                    }
                    clients.lock().await.remove(&chat);
                }));
            }
        }));
        Ok(())
    }

    async fn send(&self, reply: &Outbound) -> Result<()> {
        let chat = reply.chat_id().unwrap_or_default();
        let client = self.clients.lock().await.get(&*chat).cloned();
        // The gateway does not retry after this kind of error: the client never comes back to this chat.
        let client = client.ok_or_else(|| Error::not_found("the client has left"))?;
        let text = format!("{}\n", reply.content());
        client.lock().await.write_all(text.as_bytes()).await?;
        Ok(())
    }
}

struct Lines {
    settings: LineSettings,
}

#[hooks]
impl Lines {
    fn provide_channels(&self, message_handler: &MessageHandler) -> Vec<Arc<dyn Channel>> {
        let (listen, handler) = (self.settings.listen.clone(), Arc::clone(message_handler));
        vec![Arc::new(LineChannel::new(listen, handler))]
    }
}

fn main() -> ExitCode {
    bub_cli::app()
        .plugin("lines", |settings: LineSettings| Lines { settings })
        .main()
}

#[cfg(test)]
mod tests {
    use bub::testing;
    use tokio::net::TcpStream;

    use super::*;

    // From the message of a user to the reply, through the gateway.
    #[tokio::test]
    async fn a_line_is_answered() {
        let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let listen = unused.local_addr().unwrap().to_string();
        drop(unused);
        let gateway = testing::gateway()
            .setting("lines.listen", listen.as_str())
            .plugin("lines", |settings: LineSettings| Lines { settings })
            .model_says("Hello.");
        let gateway = gateway.start().await.unwrap();
        let mut client = BufReader::new(TcpStream::connect(listen).await.unwrap());
        client.write_all(b"hi\n").await.unwrap();
        let mut reply = String::new();
        client.read_line(&mut reply).await.unwrap();
        assert_eq!(reply, "Hello.\n");
        let requests = gateway.stop().await.unwrap();
        assert!(requests[0].last_message().ends_with("hi"));
    }

    #[tokio::test]
    async fn the_channel_keeps_the_guarantees_of_channels() {
        let connections = Mutex::new(Vec::new());
        testing::check_channel(
            |handler| LineChannel::new("127.0.0.1:0".to_owned(), handler),
            async |channel: Arc<LineChannel>| {
                let address = channel.address.lock().await.unwrap();
                let mut client = TcpStream::connect(address).await?;
                client.write_all(b"hello\n").await?;
                connections.lock().await.push(client);
                Ok(())
            },
        )
        .await;
    }
}
