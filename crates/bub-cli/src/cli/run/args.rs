//! The options of `bub run`.

use std::path::PathBuf;

use bub::{CommandContext, SettingFlag};
use bub_agent::settings::{
    AgentSettings, POLICY_RUN_ALLOW, POLICY_RUN_ASK, POLICY_RUN_DENY, UsageSettings,
};
use bub_agent::{policy::Policy, tools::REASONING_EFFORTS};
use bub_kernel::{
    ChannelMessage, Error, Framework, Inbound, Result, Sender, ToolSpec, command_line,
    command_prefix, settings::TAPE_STORAGE,
};
use bub_settings::{SettingKey, SettingSource, Settings};
use bub_terminal::{channel::CHANNEL_NAME, chat::resolve_slash};
use clap::{ArgMatches, ValueEnum};

use super::{input, mentions::Mentions};
use crate::cli::{
    chat::{
        completion_items,
        session::{new_session_id, terminal_sessions},
    },
    output, parse_non_blank,
};

/// Whether replies are printed below a headline with their channel and chat.
pub(crate) static RUN_HEADER: SettingKey<bool> = SettingKey::new(
    "run.header",
    false,
    "Print the line `[channel:chat]` before each reply of `bub run`, as the Python version does.",
);

/// Send one message and print the answer; short: bub "MESSAGE"
#[derive(clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "options of the command line")]
#[command(
    after_help = "If stdin is a file or a pipe, its text is added to the message: `git diff | bub run \"review this\"`.\n\n\
                  Exit codes: 0 success, 1 failure, 2 invalid arguments or configuration, or no model, 124 timeout, \
                  130 interrupted, 143 terminated"
)]
pub(crate) struct RunArgs {
    /// Message to send, or a command such as /status; `-` reads the message from stdin
    #[arg(value_parser = parse_non_blank)]
    message: String,
    #[command(flatten)]
    pub(super) model: ModelArgs,
    /// Session to use [default: CHANNEL:CHAT-ID]
    #[arg(long, value_name = "ID", alias = "session", value_parser = parse_non_blank)]
    session_id: Option<String>,
    /// Start a new session
    #[arg(long, conflicts_with_all = ["session_id", "continue_latest"])]
    new: bool,
    /// Continue the most recent session of this workspace
    #[arg(long = "continue", short = 'c', conflicts_with = "session_id")]
    continue_latest: bool,
    /// Keep nothing: use an empty session in memory
    #[arg(long, conflicts_with_all = ["session_id", "continue_latest", "new"])]
    pub(super) ephemeral: bool,
    /// File to attach; can be repeated
    #[arg(long, short = 'f', value_name = "PATH")]
    file: Vec<PathBuf>,
    /// Image to attach; can be repeated
    #[arg(long, short = 'i', value_name = "PATH")]
    image: Vec<PathBuf>,
    /// Format of the output
    #[arg(long, value_name = "FORMAT", value_enum, default_value = "text")]
    pub(super) output: OutputFormat,
    /// Print nothing but the answer
    #[arg(long, short = 'q')]
    pub(super) quiet: bool,
    /// Keep control sequences and invisible characters, if stdout is not a terminal
    #[arg(long)]
    pub(super) raw: bool,
    /// Do not read stdin
    #[arg(long)]
    no_stdin: bool,
    /// Maximum model calls [setting: `max_steps`]
    #[arg(long, value_name = "N")]
    max_steps: Option<u64>,
    /// Seconds after which the turn is cancelled
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = parse_seconds)]
    pub(super) timeout: Option<u64>,
    /// US dollars after which no further model call is made
    #[arg(long, value_name = "USD", allow_negative_numbers = true, value_parser = parse_price)]
    max_price: Option<f64>,
    /// Tool to allow without a question, such as `bash` or `fs.*`; can be repeated
    #[arg(long, value_name = "TOOL", value_delimiter = ',', value_parser = parse_non_blank)]
    allow: Vec<String>,
    /// Tool to ask about; can be repeated
    #[arg(long, value_name = "TOOL", value_delimiter = ',', value_parser = parse_non_blank)]
    ask: Vec<String>,
    /// Tool to deny; can be repeated
    #[arg(long, value_name = "TOOL", value_delimiter = ',', value_parser = parse_non_blank)]
    deny: Vec<String>,
    /// Channel of the message
    #[arg(long, value_name = "NAME", default_value = CHANNEL_NAME)]
    channel: String,
    /// Chat within the channel
    #[arg(long, value_name = "ID", default_value = "local")]
    chat_id: String,
    /// Sender of the message
    #[arg(long, value_name = "ID", default_value = "human")]
    sender_id: String,
}

/// The options of `bub run` and `bub chat` that select the model.
#[derive(clap::Args, Clone, Default)]
pub(crate) struct ModelArgs {
    /// Model to use instead of that of the session, as provider:model
    #[arg(long, short = 'm', value_name = "MODEL", value_parser = parse_non_blank)]
    pub(crate) model: Option<String>,
    /// Reasoning effort to use
    #[arg(long, value_name = "EFFORT", value_parser = REASONING_EFFORTS)]
    pub(crate) reasoning_effort: Option<String>,
}

impl ModelArgs {
    /// Forgets the option that a comma command such as `,model NAME` replaces.
    pub(crate) fn yield_to_command(&mut self, command: &str) {
        match command.split_whitespace().collect::<Vec<_>>()[..] {
            ["model", _, ..] => self.model = None,
            ["reasoning_effort", _, ..] => self.reasoning_effort = None,
            _ => {}
        }
    }

    /// Returns the message with the model and the reasoning effort of its turn.
    pub(crate) fn apply(&self, mut message: ChannelMessage) -> ChannelMessage {
        let choices = [
            ("_model", &self.model),
            ("_reasoning_effort", &self.reasoning_effort),
        ];
        for (key, value) in choices {
            if let Some(value) = value {
                message = message.context(key, value.clone());
            }
        }
        message
    }
}

/// Parses the seconds of a time limit.
fn parse_seconds(text: &str) -> Result<u64, &'static str> {
    let seconds = text.parse().ok().filter(|seconds| *seconds > 0);
    seconds.ok_or("expected whole seconds, at least 1")
}

/// Parses an amount of money, such as `0.5` or `$0.5`.
fn parse_price(text: &str) -> Result<f64, &'static str> {
    let price = text.trim_start_matches('$').parse::<f64>();
    let price = price.ok().filter(|price| price.is_finite() && *price > 0.0);
    price.ok_or("expected a positive amount in US dollars, such as 0.50")
}

/// The format of the output.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum OutputFormat {
    /// The answer
    Text,
    /// One JSON object at the end
    Json,
    /// One JSON object per event, and one at the end
    StreamJson,
}

/// Returns the settings that the options set for this run.
pub(crate) fn setting_flags(matches: &ArgMatches) -> Vec<SettingFlag> {
    let mut flags = Vec::new();
    if let Some(steps) = matches.get_one::<u64>("max_steps") {
        let steps = steps.to_string();
        flags.push(SettingFlag::new(
            AgentSettings::MAX_STEPS,
            "--max-steps",
            steps,
        ));
    }
    if let Some(price) = matches.get_one::<f64>("max_price") {
        let price = price.to_string();
        flags.push(SettingFlag::new(
            UsageSettings::PROCESS_COST,
            "--max-price",
            price,
        ));
    }
    if matches.get_flag("ephemeral") {
        flags.push(SettingFlag::new(&TAPE_STORAGE, "--ephemeral", "memory"));
    }
    for (id, flag, key) in [
        ("allow", "--allow", &POLICY_RUN_ALLOW),
        ("ask", "--ask", &POLICY_RUN_ASK),
        ("deny", "--deny", &POLICY_RUN_DENY),
    ] {
        let tools = matches.get_many::<String>(id).into_iter().flatten();
        let tools: Vec<&str> = tools.map(|tool| tool.trim()).collect();
        if !tools.is_empty() {
            let list = serde_json::json!(tools).to_string();
            flags.push(SettingFlag::new(key, flag, list));
        }
    }
    flags
}

/// Fails if an option names a tool that does not exist: a misspelled name would allow or deny nothing.
pub(super) fn check_tools(framework: &Framework, settings: &Settings) -> Result<()> {
    let policy = Policy::new(settings);
    let tools: Vec<&ToolSpec> = framework.tools().iter().map(|tool| tool.spec()).collect();
    for rule in policy.rules() {
        let SettingSource::Flag(flag) = &rule.origin else {
            continue;
        };
        if let Some(reason) = rule.unmatchable_reason(&tools) {
            let prefix = command_prefix();
            let text = format!("{reason} in `{flag}`; run `bub run {prefix}help` to list tools");
            return Err(Error::invalid_input(text));
        }
    }
    Ok(())
}

impl RunArgs {
    /// Returns the text of the message: the argument, and what stdin contains. `/name` is the command `,name`.
    pub(super) async fn read_message(&self, context: &CommandContext) -> Result<String> {
        let message = match self.message.as_str() {
            message if message.starts_with('/') => {
                let commands = completion_items(&context.framework, &context.settings).commands;
                &resolve_slash(message, &commands).map_err(|problem| {
                    let text = format!("{problem}; to send it as text, put a space before it");
                    Error::invalid_input(text)
                })?
            }
            message => message,
        };
        match message {
            "-" => input::read_message().await,
            // A command has its own arguments.
            message if self.no_stdin || command_line(message).is_some() => Ok(message.to_owned()),
            message => Ok(match input::read_piped_text(self.quiet).await? {
                Some(text) => format!("{message}\n\n{text}"),
                None => message.to_owned(),
            }),
        }
    }

    /// Builds the message with its session and attachments.
    pub(super) async fn into_inbound(self, framework: &Framework, text: String) -> Result<Inbound> {
        let default = format!("{}:{}", self.channel, self.chat_id);
        let session = if self.new {
            new_session_id(&default)
        } else if self.continue_latest {
            let latest = terminal_sessions(framework).await?.into_iter().next();
            latest.ok_or_else(|| {
                Error::invalid_input(
                    "no session to continue: this workspace has none; omit `--continue`",
                )
            })?
        } else {
            self.session_id.unwrap_or(default)
        };
        // Text from stdin, which another program may have written, attaches nothing.
        let mentions = match self.message.as_str() {
            message if command_line(&text).is_some() || message == "-" => Mentions::default(),
            message => Mentions::read(framework, message)?,
        };
        for text in mentions.notices.iter().filter(|_| !self.quiet) {
            notice!("{}", output::sanitize_line(text));
        }
        let mut message = ChannelMessage::new(session, self.channel, text)
            .chat_id(self.chat_id)
            .context("sender_id", self.sender_id);
        message = self.model.apply(message);
        let files = self.file.iter().map(|path| (path, false));
        for (path, is_image) in files.chain(self.image.iter().map(|path| (path, true))) {
            message = message.media(input::attach_file(framework, path, is_image)?);
        }
        for file in mentions.files {
            message = message.media(file);
        }
        // The command line can name any channel and sender id, so the authenticated sender is always the user of this
        // terminal.
        Ok(Inbound::from(message).with_sender(Sender::terminal()))
    }
}
