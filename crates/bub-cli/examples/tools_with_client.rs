//! Tools that share a client.
//!
//! Each method in the `#[tools]` block is a tool. With `plugin`, the type is a plugin without hooks. The methods use the fields of their plugin: here, the address of a
//! dictionary server that answers each word with one line.
//!
//! ```console
//! $ BUB_DICTIONARY_SERVER=127.0.0.1:2628 cargo run --example tools_with_client -- run "What does 'tape' mean?"
//! ```

use std::process::ExitCode;

use bub::prelude::*;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
};

/// Settings under `dictionary:` in config.yml and `BUB_DICTIONARY_*` in the environment.
#[derive(Settings)]
#[settings(section = "dictionary")]
struct DictionarySettings {
    /// Address of the dictionary server.
    #[setting(default = "127.0.0.1:2628")]
    server: String,
}

struct Dictionary {
    server: String,
}

impl Dictionary {
    fn new(settings: DictionarySettings) -> Self {
        Self {
            server: settings.server,
        }
    }

    async fn request(&self, line: &str) -> Result<String> {
        let mut stream = TcpStream::connect(&self.server).await?;
        stream.write_all(format!("{line}\n").as_bytes()).await?;
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).await?;
        Ok(answer.trim_end().to_owned())
    }
}

#[tools(plugin)]
impl Dictionary {
    /// Look up the meaning of a word.
    #[tool(name = "dictionary.define", read_only)]
    async fn define(
        &self,
        /// The word.
        word: String,
    ) -> Result<String> {
        self.request(&format!("define {word}")).await
    }

    /// List words that start with some letters.
    #[tool(name = "dictionary.complete", read_only)]
    async fn complete(
        &self,
        /// The first letters of the words.
        prefix: String,
        /// The maximum number of words.
        #[default(5)]
        limit: usize,
    ) -> Result<Vec<String>> {
        let words = self.request(&format!("complete {prefix}")).await?;
        Ok(words
            .split_whitespace()
            .take(limit)
            .map(str::to_owned)
            .collect())
    }
}

fn main() -> ExitCode {
    bub_cli::app().plugin("dictionary", Dictionary::new).main()
}

#[cfg(test)]
mod tests {
    use bub::testing;
    use serde_json::json;
    use tokio::net::TcpListener;

    use super::*;

    /// Starts a server that knows one word, and returns its address.
    async fn serve() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let mut stream = BufReader::new(stream);
                let mut line = String::new();
                stream.read_line(&mut line).await.unwrap();
                let answer = match line.trim_end() {
                    "define tape" => "a strip that records",
                    "complete ta" => "table tape task",
                    _ => "unknown word",
                };
                stream
                    .write_all(format!("{answer}\n").as_bytes())
                    .await
                    .unwrap();
            }
        });
        address
    }

    #[tokio::test]
    async fn the_tools_ask_the_configured_server() {
        let turn = testing::turn("What does 'tape' mean?")
            .setting("dictionary.server", serve().await)
            .plugin("dictionary", Dictionary::new)
            .model_calls("dictionary.define", json!({"word": "tape"}))
            .model_calls("dictionary.complete", json!({"prefix": "ta", "limit": 2}))
            .model_says("A strip that records.")
            .run()
            .await
            .unwrap();
        let results = turn.tool_results();
        assert_eq!(results, ["a strip that records", r#"["table","tape"]"#]);
        assert!(
            turn.requests()[0]
                .tools
                .contains(&"dictionary_define".to_owned())
        );
    }
}
