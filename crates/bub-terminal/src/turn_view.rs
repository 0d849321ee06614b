//! A turn as lines: what is finished, and what can still change.

mod calls;
mod status;
mod verbatim;

use std::time::{Duration, Instant};

use bub_kernel::StreamEvent;
use bub_settings::Redactor;
use serde_json::Value;

pub use self::status::StatusLine;
use self::verbatim::VerbatimText;
pub(crate) use self::{calls::failures, status::line as status_line};
use crate::{
    ColorMode, Line, Style, fit,
    markdown::{Markdown, MarkdownStyle},
    sanitize::line as one_line,
};

/// So much reasoning is kept to be shown later.
const MAX_REASONING_BYTES: usize = 256 * 1024;
/// A word that is longer is not held back any more.
const MAX_HELD_BYTES: usize = 4096;
/// A rule is no longer than this, so that it survives a narrower window.
const MAX_RULE_WIDTH: usize = 40;

/// What a frame holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// What a model says.
    Assistant,
    /// What a command printed.
    Command,
    /// What went wrong.
    Error,
}

/// The lines of turns.
#[derive(Debug)]
pub struct TurnView {
    width: usize,
    look: MarkdownStyle,
    redactor: Redactor,
    shows_thinking: bool,
    /// Finished, and not taken yet.
    lines: Vec<Line>,
    /// What the turn is, and what stands beside its title.
    turn: (FrameKind, String),
    /// Text of the segment that runs.
    text: Option<AnswerText>,
    held: String,
    thought: ReasoningText,
    calls: StepCalls,
}

#[derive(Debug)]
enum AnswerText {
    Markdown(Box<Markdown>),
    Verbatim(VerbatimText),
}

/// Reasoning.
#[derive(Debug, Default)]
struct ReasoningText {
    is_open: bool,
    chars: usize,
    /// What is kept of it.
    kept: String,
    streamed: VerbatimText,
}

/// The calls of a step that runs.
#[derive(Debug, Default)]
struct StepCalls {
    made: Vec<Value>,
    started: Option<Instant>,
    results: Option<(Vec<Value>, Duration)>,
}

impl TurnView {
    /// For a screen of so many columns.
    pub fn new(width: usize, color_mode: ColorMode, redactor: Redactor) -> Self {
        Self {
            width,
            look: if color_mode == ColorMode::None {
                MarkdownStyle::Plain
            } else {
                MarkdownStyle::Styled
            },
            redactor,
            shows_thinking: false,
            lines: Vec::new(),
            turn: (FrameKind::Assistant, String::new()),
            text: None,
            held: String::new(),
            thought: ReasoningText::default(),
            calls: StepCalls::default(),
        }
    }

    /// The finished lines; each is returned once.
    pub fn take_lines(&mut self) -> Vec<Line> {
        std::mem::take(&mut self.lines)
    }

    /// From now on so wide.
    pub fn set_width(&mut self, width: usize) {
        self.width = width;
        if let Some(AnswerText::Markdown(markdown)) = &mut self.text {
            markdown.set_width(width);
        }
    }

    /// Whether reasoning is shown.
    pub fn shows_thinking(&self) -> bool {
        self.shows_thinking
    }

    /// Shows reasoning from now on, beginning with the latest, or hides it.
    pub fn toggle_thinking(&mut self) {
        self.shows_thinking = !self.shows_thinking;
        if self.thought.is_open {
            self.close_thought();
        } else if self.text.is_some() {
            // In the middle of an answer it would be in the way; the status tells.
        } else if !self.shows_thinking || self.thought.kept.is_empty() {
            let now = if self.shows_thinking {
                "shown"
            } else {
                "hidden"
            };
            self.lines.push(Line::new(
                format!("reasoning is {now} from now on"),
                Style::DIM,
            ));
        } else {
            let kept = self.thought.kept.clone();
            self.lines.push(Line::new("[-] Thinking", Style::DIM));
            self.lines.extend(verbatim::lines(kept.trim(), Style::DIM));
        }
    }

    /// A turn begins. `command` is its line, when it is one.
    pub fn begin(&mut self, command: Option<&str>) {
        self.end(false);
        self.turn = match command {
            Some(line) => (FrameKind::Command, one_line(line)),
            None => (FrameKind::Assistant, String::new()),
        };
    }

    /// Something happened in the turn.
    pub fn event(&mut self, event: &StreamEvent) {
        match event {
            StreamEvent::Text(delta) => self.push_text(delta),
            StreamEvent::Reasoning(delta) => self.push_reasoning(delta),
            StreamEvent::ToolCall(calls) => {
                self.close();
                self.finish_calls(None);
                self.calls = StepCalls {
                    made: calls.clone(),
                    started: Some(Instant::now()),
                    results: None,
                };
            }
            StreamEvent::ToolResult(results) => {
                let took = self
                    .calls
                    .started
                    .map_or(Duration::ZERO, |started| started.elapsed());
                self.calls.results = Some((results.clone(), took));
            }
            StreamEvent::Final(data) => {
                self.finish_calls(Some(data));
                self.close();
            }
            StreamEvent::Error(error) => self.error(error.message()),
            // The log tells of tries that are made again.
            _ => {}
        }
    }

    /// The turn is over; whatever is open ends here.
    pub fn end(&mut self, was_cancelled: bool) {
        self.close();
        self.finish_calls(None);
        if was_cancelled {
            self.lines.push(Line::new("(cancelled)", Style::YELLOW));
        }
    }

    /// Something went wrong: said in full.
    pub fn error(&mut self, text: &str) {
        self.close();
        self.rule(FrameKind::Error, "");
        let text = self.redactor.redact(text).into_owned();
        self.lines
            .extend(verbatim::lines(text.trim_end(), Style::RED));
        self.lines.push(Line::default());
    }

    /// Something that is said outside of a stream.
    pub fn message(&mut self, text: &str, is_command: bool) {
        self.close();
        let before = self.turn.clone();
        self.turn = (
            if is_command {
                FrameKind::Command
            } else {
                FrameKind::Assistant
            },
            String::new(),
        );
        self.push_text(text);
        self.close();
        self.turn = before;
    }

    /// A remark.
    pub fn notice(&mut self, text: &str, style: Style) {
        let text = self.redactor.redact(text).into_owned();
        self.lines.extend(verbatim::lines(text.trim_end(), style));
    }

    /// A line as it is.
    pub fn line(&mut self, line: Line) {
        self.lines.push(line);
    }

    /// What is not finished, in at most so many rows, none wider than the screen.
    pub fn preview(&self, most: usize) -> Vec<Line> {
        let room = self.width.saturating_sub(1).max(1);
        let mut rows = Vec::new();
        if self.thought.is_open {
            let partial = self.thought.streamed.preview(room);
            let row = if self.shows_thinking {
                partial
            } else {
                Some(self.collapsed())
            };
            rows.extend(row.map(|row| cut(&row, room)));
        }
        match &self.text {
            Some(AnswerText::Markdown(markdown)) => rows.extend(markdown.preview(most)),
            Some(AnswerText::Verbatim(verbatim)) => rows.extend(verbatim.preview(room)),
            None => {}
        }
        for call in &self.calls.made {
            rows.extend(
                calls::call(call, self.width, self.look)
                    .iter()
                    .take(3)
                    .map(|row| cut(row, room)),
            );
        }
        let skipped = rows.len().saturating_sub(most);
        rows.drain(..skipped);
        rows
    }

    /// What the turn is doing, in a word.
    pub fn activity(&self) -> &'static str {
        match (&self.calls.made.is_empty(), self.thought.is_open) {
            (false, _) => "Working",
            (true, true) => "Thinking",
            (true, false) if self.turn.0 == FrameKind::Command => "Running",
            (true, false) => "Generating",
        }
    }

    fn push_text(&mut self, mut delta: &str) {
        if self.text.is_none() {
            // Held back until a word comes, so that it does not matter how the stream was cut.
            if delta.trim().is_empty() {
                self.held.push_str(delta);
                return;
            }
            self.close_thought();
            self.finish_calls(None);
            let (frame, title) = self.turn.clone();
            if frame == FrameKind::Assistant {
                // Blank lines before the first word are nobody's; what indents it belongs to it.
                let indent = delta.len() - delta.trim_start().len();
                self.held.push_str(delta.get(..indent).unwrap_or_default());
                delta = delta.get(indent..).unwrap_or_default();
                let blank = self.held.rfind(['\n', '\r']).map_or(0, |end| end + 1);
                self.held.drain(..blank);
            }
            self.rule(frame, &title);
            self.text = Some(match frame {
                FrameKind::Assistant => {
                    AnswerText::Markdown(Box::new(Markdown::new(self.width, self.look)))
                }
                FrameKind::Command | FrameKind::Error => {
                    AnswerText::Verbatim(VerbatimText::new(Style::NONE))
                }
            });
        }
        self.held.push_str(delta);
        // A secret may arrive in pieces: only whole words are passed on. Commands say whole lines.
        let is_end = |letter: char| !letter.is_ascii_graphic();
        let end = if self.held.len() > MAX_HELD_BYTES
            || matches!(self.text, Some(AnswerText::Verbatim(_)))
        {
            self.held.len()
        } else {
            self.held
                .char_indices()
                .rfind(|(_, letter)| is_end(*letter))
                .map_or(0, |(at, letter)| at + letter.len_utf8())
        };
        let rest = self.held.split_off(end);
        let ready = std::mem::replace(&mut self.held, rest);
        self.emit_text(&ready);
    }

    fn emit_text(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        let text = self.redactor.redact(text);
        let lines = match &mut self.text {
            Some(AnswerText::Markdown(markdown)) => markdown.push(&text),
            Some(AnswerText::Verbatim(verbatim)) => verbatim.push(&text),
            None => Vec::new(),
        };
        self.add(lines);
    }

    /// Adds lines of the turn. Only those of the help are made to fit.
    fn add(&mut self, lines: Vec<Line>) {
        if self.turn.1.trim() == ",help" {
            let room = self.width.saturating_sub(1).max(1);
            self.lines.extend(
                lines
                    .iter()
                    .flat_map(|line| verbatim::wrapped(line, room, Style::NONE)),
            );
        } else {
            self.lines.extend(lines);
        }
    }

    fn push_reasoning(&mut self, delta: &str) {
        if !self.thought.is_open {
            if delta.trim().is_empty() {
                return;
            }
            self.close();
            self.thought = ReasoningText {
                is_open: true,
                streamed: VerbatimText::new(Style::DIM),
                ..ReasoningText::default()
            };
            if self.shows_thinking {
                self.lines.push(Line::new("[-] Thinking", Style::DIM));
            }
        }
        self.thought.chars += delta.chars().count();
        if self.thought.kept.len() < MAX_REASONING_BYTES {
            self.thought.kept.push_str(&self.redactor.redact(delta));
        }
        if self.shows_thinking {
            let delta = self.redactor.redact(delta).into_owned();
            self.lines.extend(self.thought.streamed.push(&delta));
        }
    }

    fn collapsed(&self) -> Line {
        Line::new(
            format!("[+] Thinking ({} chars hidden)", self.thought.chars),
            Style::DIM,
        )
    }

    fn close_thought(&mut self) {
        if !std::mem::take(&mut self.thought.is_open) {
            return;
        }
        if self.shows_thinking {
            let rest = self.thought.streamed.finish();
            self.lines.extend(rest);
        } else {
            let collapsed = self.collapsed();
            self.lines.push(collapsed);
        }
    }

    /// Ends the text and the reasoning that run.
    fn close(&mut self) {
        self.close_thought();
        let held = std::mem::take(&mut self.held);
        if self.text.is_none() {
            return;
        }
        self.emit_text(held.trim_end());
        let lines = match &mut self.text {
            Some(AnswerText::Markdown(markdown)) => markdown.finish(),
            Some(AnswerText::Verbatim(verbatim)) => verbatim.finish(),
            None => Vec::new(),
        };
        self.add(lines);
        self.text = None;
        self.lines.push(Line::default());
    }

    fn finish_calls(&mut self, end: Option<&Value>) {
        let calls = std::mem::take(&mut self.calls);
        let elapsed = end.and_then(|end| end.get("elapsed_ms")?.as_array());
        for (index, call) in calls.made.iter().enumerate() {
            self.lines.extend(calls::call(call, self.width, self.look));
            let took = elapsed
                .and_then(|list| list.get(index)?.as_u64())
                .map(Duration::from_millis);
            let result = calls
                .results
                .as_ref()
                .and_then(|(results, all)| Some((results.get(index)?, all)));
            let lines = if let Some((result, all)) = result {
                let reason = calls::failure(result, end, index);
                calls::result(
                    reason.as_deref(),
                    took.unwrap_or(*all),
                    self.width,
                    self.look,
                )
            } else {
                let text = format!(
                    "{}interrupted, may have taken effect",
                    calls::ending(self.look)
                );
                vec![Line::new(text, Style::YELLOW)]
            };
            self.lines.extend(lines);
        }
    }

    fn rule(&mut self, frame: FrameKind, beside: &str) {
        let (title, style) = match frame {
            FrameKind::Assistant => ("Assistant", Style::BLUE),
            FrameKind::Command => ("Command", Style::CYAN),
            FrameKind::Error => ("Error", Style::RED),
        };
        if self.look == MarkdownStyle::Plain {
            self.lines.push(Line::new(format!("{title}:"), style));
            return;
        }
        let title = if beside.is_empty() {
            format!("── {title} ")
        } else {
            format!("── {title} {beside} ")
        };
        let room = self.width.saturating_sub(1).max(1);
        let mut text = fit(&title, room).0.to_owned();
        while crate::columns(&text) < room.min(MAX_RULE_WIDTH) {
            text.push('─');
        }
        self.lines.push(Line::new(text, style));
    }
}

/// The beginning of a line, that fits.
fn cut(line: &Line, width: usize) -> Line {
    let mut short = Line::default();
    let mut room = width;
    for span in &line.without_tabs().spans {
        let (text, rest) = fit(&span.text, room);
        short.push(text, span.style);
        room -= crate::columns(text);
        if !rest.is_empty() {
            break;
        }
    }
    short
}
