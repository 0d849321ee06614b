//! A model that follows its prompt.

use std::sync::{Arc, Mutex};

use bub_kernel::{
    Envelope, Error, ErrorKind, ModelStream, Prompt, Result, Sender, StatePatch, StreamEvent, Turn,
    hooks,
};
use futures_util::stream;
use serde_json::Value;
use tokio::sync::{Semaphore, watch};

/// A model that answers `echo: …`, unless the message has another wish: `wait …` or `… wait` waits for a permit, `fail …`
/// fails, `say …` answers with the rest, `spell …` with one delta for each letter, `long N` with N letters, and `grow …`
/// word by word, one per permit, and fails at the word `break`. The plugin also delivers the replies.
#[derive(Clone)]
pub struct FakeModel {
    /// Permits for prompts that wait.
    pub permits: Arc<Semaphore>,
    /// The prompts, in order.
    pub prompts: watch::Sender<Vec<String>>,
    /// The sender of each turn.
    pub senders: Arc<Mutex<Vec<Sender>>>,
    /// Whether `echo: ` and the text are two deltas.
    pub in_deltas: bool,
}

impl Default for FakeModel {
    fn default() -> Self {
        Self {
            permits: Arc::new(Semaphore::new(0)),
            prompts: watch::Sender::default(),
            senders: Arc::default(),
            in_deltas: false,
        }
    }
}

impl FakeModel {
    /// Waits until the model got this number of prompts, and returns all.
    pub async fn wait_prompts(&self, count: usize) -> Vec<String> {
        let mut prompts = self.prompts.subscribe();
        let enough = prompts.wait_for(|prompts| prompts.len() >= count);
        enough.await.unwrap().clone()
    }

    /// Records a prompt, waits or fails if it asks for that, and returns the message in it.
    pub async fn ask(&self, prompt: &str) -> Result<String> {
        let message = written_message(prompt);
        self.prompts
            .send_modify(|prompts| prompts.push(prompt.to_owned()));
        let mut words = message.split([' ', ',', '\n']);
        let (first, last) = (words.next(), words.next_back());
        if first == Some("wait") || last == Some("wait") {
            self.take_permit().await;
        }
        if first == Some("fail") {
            return Err(gone_error());
        }
        Ok(message)
    }

    async fn take_permit(&self) {
        self.permits.acquire().await.unwrap().forget();
    }

    /// Answers word by word.
    fn grow(&self, text: &str) -> ModelStream {
        let words: Vec<String> = text.split(' ').map(|word| format!("{word} ")).collect();
        let state = (self.clone(), words.into_iter());
        ModelStream::new(stream::unfold(state, async |(model, mut words)| {
            let word = words.next()?;
            model.take_permit().await;
            let event = match word.as_str() {
                "break " => Err(gone_error()),
                _ => Ok(StreamEvent::Text(word)),
            };
            Some((event, (model, words)))
        }))
    }
}

#[hooks(crate = bub_kernel)]
impl FakeModel {
    async fn load_state(&self, turn: &Turn) -> Result<StatePatch> {
        if let Some(lifespan) = &turn.inbound().lifespan {
            lifespan.enter().await?;
        }
        self.senders.lock().unwrap().push(turn.sender().clone());
        Ok(StatePatch::new())
    }

    async fn run_model_stream(&self, prompt: &Prompt) -> Result<ModelStream> {
        let text = self.ask(&prompt.text()).await?;
        let (word, rest) = text.split_once(' ').unwrap_or((&text, ""));
        Ok(match word {
            "say" => ModelStream::from_text(rest),
            "long" => {
                let count = rest.parse().unwrap();
                let letters = "abcdefgh ".chars().cycle().take(count);
                ModelStream::from_text(letters.collect::<String>())
            }
            "grow" => self.grow(rest),
            "spell" => {
                let letters: Vec<_> = rest.chars().map(String::from).collect();
                ModelStream::from_events(letters.into_iter().map(StreamEvent::Text))
            }
            _ if self.in_deltas => ModelStream::from_events([
                StreamEvent::Text("echo: ".to_owned()),
                StreamEvent::Text(text),
            ]),
            _ => ModelStream::from_text(format!("echo: {text}")),
        })
    }

    async fn dispatch_outbound(&self, message: &Envelope, turn: Option<&Turn>) -> Result<bool> {
        turn.unwrap().deliver(message.clone()).await
    }
}

fn gone_error() -> Error {
    Error::new(ErrorKind::Provider, "the model is gone")
}

/// Returns the text that a user wrote from a prompt that may describe its message as JSON in the last line.
pub fn written_message(prompt: &str) -> String {
    let line = prompt.lines().last().unwrap_or_default();
    let described = serde_json::from_str::<Value>(line).ok();
    let message = described.and_then(|value| value.get("message")?.as_str().map(str::to_owned));
    message.unwrap_or_else(|| prompt.to_owned())
}
