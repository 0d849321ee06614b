//! A picture of a real session, for the README.
//!
//! [`render_session`] runs `bub chat` in a pseudo-terminal, types a few messages, and renders the screen as an SVG image. The
//! model is a [`ModelServer`] with a script; everything else is the real program. The image is the same on every
//! machine. The banner with the version and the path is above the first row. The window is too narrow for the clock. The
//! time of a tool call is replaced by a fixed one.
//!
//! `cargo xtask picture` writes the image, and a test of `bub-cli` compares it with a new run.

use std::{
    fs,
    io::{Error, Result},
    path::Path,
    time::Duration,
};

use crate::{
    model::{ModelServer, Reply, ReplyUsage},
    pty::Pty,
    sandbox::Sandbox,
};

mod svg;

const ROWS: u16 = 60;
/// Too few columns for the clock in the status line.
const COLUMNS: u16 = 72;
/// The name of the workspace, which is also the prompt.
const WORKSPACE: &str = "notes";
const PROMPT: &str = "notes >";
/// Time of each tool call in the picture.
const CALL_TIME: &str = "completed in 2 ms";
/// How long one message may take.
const TURN_TIMEOUT: Duration = Duration::from_mins(1);

const TODO: &str = "\
# Release 2.0

- [x] Write the changelog
- [ ] Publish the docs
- [ ] Tag the release
";

const CONFIG: &str = "\
model: demo:scripted
providers:
  demo:
    base_url: BASE_URL
    prices: {input: 2, output: 8}
";

/// One message of the user, and the answers of the model, one per model call.
struct Exchange {
    message: &'static str,
    replies: Vec<Reply>,
    /// What the screen shows when the message is answered.
    end: String,
}

fn scripted_exchanges() -> Vec<Exchange> {
    // The status line shows the tokens of the last call, so they tell the turns apart.
    let usage = |output| ReplyUsage {
        input: 1800,
        output,
        ..ReplyUsage::default()
    };
    let end = |output| format!("{} tokens in context", 1800 + output);
    vec![
        Exchange {
            message: "Which tasks in todo.md are open?",
            replies: vec![
                Reply::new().call("call_1", "fs_read", r#"{"path":"todo.md"}"#),
                Reply::text(
                    "Two of three tasks are open:\n\n1. **Publish the docs**\n2. **Tag the release**\n",
                )
                .usage(usage(24)),
            ],
            end: end(24),
        },
        Exchange {
            message: "The docs are online. Check that one off.",
            replies: vec![
                Reply::new().call(
                    "call_2",
                    "fs_edit",
                    r#"{"path":"todo.md","old":"[ ] Publish","new":"[x] Publish"}"#,
                ),
                Reply::text("Done. Only `Tag the release` is left.").usage(usage(12)),
            ],
            end: end(12),
        },
        Exchange {
            message: ",grep -n '\\[ \\]' todo.md",
            replies: Vec::new(),
            end: "5:- [ ]".to_owned(),
        },
    ]
}

/// Runs a chat with the given `bub` and returns its screen as an SVG image.
pub fn render_session(bub: &Path) -> Result<String> {
    let bub = bub.canonicalize()?;
    let sandbox = Sandbox::new()?;
    let home = sandbox.home();
    let workspace = sandbox.workspace().with_file_name(WORKSPACE);
    let model = ModelServer::start();
    fs::create_dir(&home)?;
    fs::create_dir(&workspace)?;
    fs::write(workspace.join("todo.md"), TODO)?;
    let base_url = format!("{}/v1", model.url());
    fs::write(
        home.join("config.yml"),
        CONFIG.replace("BASE_URL", &base_url),
    )?;

    let mut command = sandbox.command(&bub);
    command
        .arg("chat")
        .current_dir(&workspace)
        .env("TERM", "xterm");
    let mut terminal = Terminal {
        pty: Pty::try_spawn(command, ROWS, COLUMNS)?,
        parser: vt100::Parser::new(ROWS, COLUMNS, 0),
        parsed_bytes: 0,
    };
    terminal.wait_for("")?;
    for exchange in scripted_exchanges() {
        for reply in exchange.replies {
            model.script(reply);
        }
        terminal.pty.try_send(exchange.message)?;
        terminal.pty.try_send("\r")?;
        terminal.wait_for(&exchange.end)?;
    }
    let image = terminal.render()?;
    terminal.pty.try_send("\x04")?;
    terminal.pty.try_end(TURN_TIMEOUT).map_err(Error::other)?;
    Ok(image)
}

/// The running program and the screen that its output makes.
struct Terminal {
    pty: Pty,
    parser: vt100::Parser,
    parsed_bytes: usize,
}

impl Terminal {
    /// Waits until the screen shows a text and the prompt is free.
    fn wait_for(&mut self, text: &str) -> Result<()> {
        let Self {
            pty,
            parser,
            parsed_bytes,
        } = self;
        pty.try_wait_until(TURN_TIMEOUT, |shown| {
            let new = shown.get(*parsed_bytes..).unwrap_or_default();
            parser.process(new.as_bytes());
            *parsed_bytes = shown.len();
            let screen = parser.screen().contents();
            let is_updating = shown.rfind("\x1b[?2026h") > shown.rfind("\x1b[?2026l");
            !is_updating && screen.contains(text) && is_idle(&screen)
        })
        .map_err(Error::other)
    }

    /// Renders everything from the first prompt on.
    fn render(&self) -> Result<String> {
        let mut rows = svg::read_rows(self.parser.screen());
        let first = rows
            .iter()
            .position(|row| row.text().starts_with(PROMPT))
            .ok_or_else(|| Error::other("the screen has no prompt"))?;
        rows.drain(..first);
        for row in &mut rows {
            row.replace_number("completed in ", " ms", CALL_TIME);
        }
        Ok(svg::render("bub chat", usize::from(COLUMNS), &rows))
    }
}

/// Whether the last prompt is empty and no turn runs.
fn is_idle(screen: &str) -> bool {
    let mut lines = screen.lines().rev().map(str::trim_end);
    let is_free = lines.any(|line| line == PROMPT);
    is_free && !lines.next().is_some_and(|line| line.contains("Ctrl-C"))
}
