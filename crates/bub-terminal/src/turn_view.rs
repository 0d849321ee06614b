//! Renders turns as lines: finished lines, and a preview of lines that can still change.

mod calls;
mod changes;
mod status;
mod tool_output;
mod verbatim;

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use bub_kernel::{CallProgress, StreamEvent, command_line};
use bub_settings::Redactor;
use serde_json::Value;

pub use self::status::StatusLine;
use self::tool_output::{HiddenOutput, LiveOutput};
use self::verbatim::{VerbatimText, sanitized_lines};
pub(crate) use self::{
    calls::{call_arguments, call_name, call_summary, failure_lines},
    changes::{change_lines, is_change_argument},
    status::status_line,
    verbatim::wrap_line,
};
use crate::{
    ColorMode, Line, Style, columns,
    highlight::diff_line,
    markdown::{Markdown, MarkdownStyle},
    sanitize::sanitize_line,
    split_at_width,
};

/// Maximum bytes of reasoning kept for `,thinking`.
const MAX_REASONING_BYTES: usize = 256 * 1024;
/// Maximum bytes of the answer kept for `,copy`.
const MAX_ANSWER_BYTES: usize = 1024 * 1024;
/// Width to which a title line is filled with dashes. It is small, so that the line still fits if the window becomes
/// narrower.
const MAX_RULE_WIDTH: usize = 40;

/// Lines of the output of a tool call that are shown.
const MAX_OUTPUT_LINES: usize = 6;
/// Lines of a diff that are shown.
const MAX_CHANGE_LINES: usize = 40;

/// The kind of a section. A section is a group of lines under one title.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FrameKind {
    /// An answer of the model.
    Assistant,
    /// The output of a command.
    Command,
    /// An error.
    Error,
}

/// Renders turns as lines.
///
/// ```
/// use bub_kernel::{StreamEvent, command_line};
/// use bub_settings::Redactor;
/// use bub_terminal::{ColorMode, turn_view::TurnView};
///
/// let mut view = TurnView::new(80, ColorMode::None, Redactor::default());
/// view.begin_turn(None);
/// view.handle_event(&StreamEvent::Text("Hello".to_owned()));
/// view.end_turn(false);
/// let lines: Vec<String> = view.take_lines().iter().map(|line| line.text()).collect();
/// assert_eq!(lines, ["Assistant:", "Hello", ""]);
/// ```
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a separate choice of the display"
)]
#[derive(Debug)]
pub struct TurnView {
    width: usize,
    markdown_style: MarkdownStyle,
    redactor: Redactor,
    /// The texts of the files that the next calls replace.
    replaced_files: Vec<Option<String>>,
    is_thinking_shown: bool,
    /// Whether a title line precedes each section.
    has_titles: bool,
    /// Whether a call is shown when it starts, because no live area shows it.
    shows_starts: bool,
    /// Finished lines that `take_lines` has not returned yet.
    lines: Vec<Line>,
    /// The kind of the turn's sections, and the text beside their title: the comma command, or an empty text.
    turn: (FrameKind, String),
    /// The text of the current section, or `None` if no section is open.
    text: Option<AnswerText>,
    /// Whitespace before the first word, which is held back until the word arrives.
    held: String,
    reasoning: ReasoningText,
    /// The latest answer as the model wrote it, at most about `MAX_ANSWER_BYTES`.
    answer: String,
    calls: StepCalls,
    hidden: HiddenOutput,
    /// How the user can show hidden output. Empty if that is not possible.
    expand_hint: String,
    /// Whether hidden output must be shown when the open section ends.
    is_expanding: bool,
    /// How long the turn has waited for approvals, and since when it waits for the current one.
    approval_wait: (Duration, Option<Instant>),
}

/// The text of a section.
#[derive(Debug)]
enum AnswerText {
    Markdown(Box<Markdown>),
    Verbatim(VerbatimText),
}

/// The reasoning of a model.
#[derive(Debug, Default)]
struct ReasoningText {
    is_open: bool,
    chars: usize,
    /// The text that `,thinking` shows, at most about `MAX_REASONING_BYTES`.
    text: String,
    streamed: VerbatimText,
}

/// The tool calls of the current step.
#[derive(Debug, Default)]
struct StepCalls {
    requested: Vec<Value>,
    /// The texts of the files that the calls replace, by the index of the call.
    replaced: Vec<Option<String>>,
    started: Option<Instant>,
    /// The output of running calls, by their index.
    live: HashMap<usize, LiveOutput>,
    results: Option<(Vec<Value>, Duration)>,
    /// How far the calls are, if the turn is interrupted.
    progress: Vec<CallProgress>,
}

impl TurnView {
    /// Creates a view for a screen with `width` columns.
    pub fn new(width: usize, color_mode: ColorMode, redactor: Redactor) -> Self {
        Self {
            width,
            markdown_style: match color_mode {
                ColorMode::None => MarkdownStyle::Plain,
                ColorMode::Attributes | ColorMode::Colors => MarkdownStyle::Styled,
            },
            redactor,
            replaced_files: Vec::new(),
            is_thinking_shown: false,
            has_titles: true,
            shows_starts: false,
            lines: Vec::new(),
            turn: (FrameKind::Assistant, String::new()),
            text: None,
            held: String::new(),
            reasoning: ReasoningText::default(),
            answer: String::new(),
            calls: StepCalls::default(),
            hidden: HiddenOutput::default(),
            expand_hint: String::new(),
            is_expanding: false,
            approval_wait: (Duration::ZERO, None),
        }
    }

    /// Sets the text that says how to show hidden output, such as `Ctrl-O shows all`.
    #[must_use]
    pub fn with_expand_hint(mut self, hint: String) -> Self {
        self.expand_hint = hint;
        self
    }

    /// Omits the title lines of sections.
    #[must_use]
    pub fn without_titles(mut self) -> Self {
        self.has_titles = false;
        self
    }

    /// Shows tool calls when they start, for a terminal without a live area.
    #[must_use]
    pub fn with_call_starts(mut self) -> Self {
        self.shows_starts = true;
        self
    }

    /// Returns the finished lines. Each line is returned once.
    pub fn take_lines(&mut self) -> Vec<Line> {
        std::mem::take(&mut self.lines)
    }

    /// Sets the width in columns.
    pub fn set_width(&mut self, width: usize) {
        self.width = width;
        if let Some(AnswerText::Markdown(markdown)) = &mut self.text {
            markdown.set_width(width);
        }
    }

    /// Returns whether reasoning is shown.
    pub fn is_thinking_shown(&self) -> bool {
        self.is_thinking_shown
    }

    /// Switches the display of reasoning. When it is switched on, the latest reasoning is shown.
    pub fn toggle_thinking(&mut self) {
        self.is_thinking_shown = !self.is_thinking_shown;
        if self.reasoning.is_open {
            self.close_reasoning();
        } else if self.text.is_some() {
            // Print nothing in the middle of an answer; the status line shows the change.
        } else if !self.is_thinking_shown || self.reasoning.text.is_empty() {
            let state = if self.is_thinking_shown {
                "shown"
            } else {
                "hidden"
            };
            let text = format!("reasoning is now {state}");
            self.lines.push(Line::new(text, Style::DIM));
        } else {
            self.lines.push(Line::new("[-] Thinking", Style::DIM));
            let text = self.reasoning.text.trim();
            self.lines.extend(sanitized_lines(text, Style::DIM));
        }
    }

    /// Starts a turn. `command` is the comma command that the turn runs, or `None` if the model answers.
    pub fn begin_turn(&mut self, command: Option<&str>) {
        self.end_turn(false);
        self.approval_wait = (Duration::ZERO, None);
        self.turn = if let Some(line) = command {
            (FrameKind::Command, sanitize_line(line))
        } else {
            self.answer.clear();
            (FrameKind::Assistant, String::new())
        };
    }

    /// Handles a stream event of the turn.
    pub fn handle_event(&mut self, event: &StreamEvent) {
        match event {
            StreamEvent::Text(delta) => self.push_text(delta),
            StreamEvent::Reasoning(delta) => self.push_reasoning(delta),
            StreamEvent::ToolCall(calls) => {
                self.close_section();
                self.finish_calls(None);
                self.calls = StepCalls {
                    requested: calls.clone(),
                    replaced: std::mem::take(&mut self.replaced_files),
                    started: Some(Instant::now()),
                    ..StepCalls::default()
                };
                if self.shows_starts {
                    for call in calls {
                        self.add_call_lines(call);
                    }
                }
            }
            StreamEvent::ToolOutput { index, text } if *index < self.calls.requested.len() => {
                self.calls.live.entry(*index).or_default().push(text);
            }
            StreamEvent::ToolResult(results) => {
                let started = self.calls.started;
                let duration = started.map_or(Duration::ZERO, |started| started.elapsed());
                self.calls.results = Some((results.clone(), duration));
            }
            StreamEvent::Final(data) => {
                self.finish_calls(Some(data));
                self.close_section();
            }
            StreamEvent::Error(error) => self.show_error(error.message()),
            // Usage and events of unknown kinds are not shown.
            _ => {}
        }
    }

    /// Sets the texts of the files that the calls of the next event replace, by the index of the call.
    pub fn set_replaced_files(&mut self, texts: Vec<Option<String>>) {
        let redact = |text: String| self.redactor.redact(&text).into_owned();
        let texts = texts.into_iter().map(|text| text.map(redact));
        self.replaced_files = texts.collect();
    }

    /// Ends the turn: closes the open text, reasoning and tool calls.
    pub fn end_turn(&mut self, was_cancelled: bool) {
        self.close_section();
        self.finish_calls(None);
        if was_cancelled {
            self.lines.push(Line::new("(cancelled)", Style::YELLOW));
        }
    }

    /// Shows an error with its complete text.
    pub fn show_error(&mut self, text: &str) {
        self.close_section();
        self.push_title(FrameKind::Error, "");
        self.show_notice(text, Style::RED);
        self.lines.push(Line::default());
    }

    /// Shows a message that is not part of a stream. Secrets are redacted.
    pub fn show_message(&mut self, text: &str, is_command: bool) {
        self.close_section();
        let frame = if is_command {
            FrameKind::Command
        } else {
            FrameKind::Assistant
        };
        let turn = std::mem::replace(&mut self.turn, (frame, String::new()));
        let text = self.redactor.redact(text).into_owned();
        self.push_text(&text);
        self.close_section();
        self.turn = turn;
    }

    /// Sets how far the calls of the current step are, because the turn is interrupted.
    pub fn set_call_progress(&mut self, progress: Vec<CallProgress>) {
        self.calls.progress = progress;
    }

    /// Notes that a call of the current step waits for the approval of the user.
    pub fn begin_approval(&mut self) {
        self.approval_wait.1.get_or_insert_with(Instant::now);
    }

    /// Notes that the wait for an approval is over.
    pub fn end_approval(&mut self) {
        let since = self.approval_wait.1.take();
        self.approval_wait.0 += since.map_or(Duration::ZERO, |since| since.elapsed());
    }

    /// Returns how long the turn has waited for approvals.
    pub(crate) fn approval_wait(&self) -> Duration {
        let (total, since) = self.approval_wait;
        total + since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Shows a notice. Secrets are redacted.
    pub fn show_notice(&mut self, text: &str, style: Style) {
        let text = self.redactor.redact(text);
        self.add_wrapped(text.trim_end(), style);
    }

    /// Shows the lines at the start of a chat.
    pub fn show_welcome(&mut self, lines: &[String]) {
        for line in lines {
            self.add_wrapped(line, Style::DIM);
        }
    }

    /// Adds the lines of a text, wrapped between words.
    fn add_wrapped(&mut self, text: &str, style: Style) {
        let room = self.row_width();
        let lines = sanitized_lines(text, style);
        let rows = lines.iter().flat_map(|line| wrap_line(line, room));
        self.lines.extend(rows);
    }

    /// Returns the text of the latest answer, as the model wrote it.
    pub fn answer(&self) -> &str {
        &self.answer
    }

    /// Adds a finished line unchanged.
    pub fn push_line(&mut self, line: Line) {
        self.lines.push(line);
    }

    /// Returns the end of the unfinished output: reasoning, text and tool calls. There are at most `max_rows` rows,
    /// none wider than the screen.
    pub fn unfinished_tail(&self, max_rows: usize) -> Vec<Line> {
        let room = self.row_width();
        let mut rows = Vec::new();
        if self.reasoning.is_open {
            let partial = self.reasoning.streamed.unfinished_tail(room);
            let row = if self.is_thinking_shown {
                partial
            } else {
                Some(self.collapsed_reasoning())
            };
            rows.extend(row.map(|row| truncate_line(&row, room)));
        }
        match &self.text {
            Some(AnswerText::Markdown(markdown)) => rows.extend(markdown.unfinished_tail(max_rows)),
            Some(AnswerText::Verbatim(verbatim)) => rows.extend(verbatim.unfinished_tail(room)),
            None => {}
        }
        for (index, call) in self.calls.requested.iter().enumerate() {
            let lines = calls::call_lines(call, self.width, self.markdown_style);
            rows.extend(lines.iter().take(3).map(|row| truncate_line(row, room)));
            let live = self.calls.live.get(&index).map(LiveOutput::tail);
            let live = live.iter().flatten();
            rows.extend(live.map(|row| truncate_line(row, room)));
        }
        let skipped = rows.len().saturating_sub(max_rows);
        rows.drain(..skipped);
        rows
    }

    /// Returns the width of a row. The last column stays free, so that the terminal does not wrap.
    fn row_width(&self) -> usize {
        self.width.saturating_sub(1).max(1)
    }

    /// Returns one word that describes the current activity of the turn.
    pub fn activity_word(&self) -> &'static str {
        match self.turn.0 {
            _ if !self.calls.requested.is_empty() => "Working",
            _ if self.reasoning.is_open => "Thinking",
            FrameKind::Command => "Running",
            _ => "Generating",
        }
    }

    /// Adds text to the open section. Starts a section with a title if none is open.
    fn push_text(&mut self, mut delta: &str) {
        if self.text.is_none() {
            // Hold whitespace back until a word arrives, so that the lines do not depend on how the stream was split.
            if delta.trim().is_empty() {
                self.held.push_str(delta);
                return;
            }
            self.close_reasoning();
            self.finish_calls(None);
            let (frame, title) = self.turn.clone();
            if frame == FrameKind::Assistant {
                // Drop blank lines before the first word, but keep its indentation.
                let indent = delta.len() - delta.trim_start().len();
                self.held.push_str(delta.get(..indent).unwrap_or_default());
                delta = delta.get(indent..).unwrap_or_default();
                let blank = self.held.rfind(['\n', '\r']).map_or(0, |end| end + 1);
                self.held.drain(..blank);
            }
            self.push_title(frame, &title);
            self.text = Some(match frame {
                FrameKind::Assistant => {
                    AnswerText::Markdown(Box::new(Markdown::new(self.width, self.markdown_style)))
                }
                FrameKind::Command | FrameKind::Error => {
                    AnswerText::Verbatim(VerbatimText::new(Style::NONE))
                }
            });
        }
        self.held.push_str(delta);
        let text = std::mem::take(&mut self.held);
        if self.turn.0 == FrameKind::Assistant && self.answer.len() < MAX_ANSWER_BYTES {
            self.answer.push_str(&text);
        }
        let lines = match &mut self.text {
            Some(AnswerText::Markdown(markdown)) => markdown.push(&text),
            Some(AnswerText::Verbatim(verbatim)) => verbatim.push(&text),
            None => Vec::new(),
        };
        self.add_lines(lines);
    }

    /// Adds finished lines of the turn. Wraps them between words if they are the output of `,help`, and colors them if
    /// they are the output of `,diff`.
    fn add_lines(&mut self, lines: Vec<Line>) {
        let command = command_line(&self.turn.1).and_then(|line| line.split_whitespace().next());
        match command {
            Some("help") => {
                let room = self.row_width();
                let rows = lines.iter().flat_map(|line| wrap_line(line, room));
                self.lines.extend(rows);
            }
            Some("diff") => {
                let colored = lines.iter().map(|line| diff_line(&line.text()));
                self.lines.extend(colored);
            }
            _ => self.lines.extend(lines),
        }
    }

    fn push_reasoning(&mut self, delta: &str) {
        if !self.reasoning.is_open {
            if delta.trim().is_empty() {
                return;
            }
            self.close_section();
            self.reasoning = ReasoningText {
                is_open: true,
                streamed: VerbatimText::new(Style::DIM),
                ..ReasoningText::default()
            };
            if self.is_thinking_shown {
                self.lines.push(Line::new("[-] Thinking", Style::DIM));
            }
        }
        self.reasoning.chars += delta.chars().count();
        if self.reasoning.text.len() < MAX_REASONING_BYTES {
            self.reasoning.text.push_str(delta);
        }
        if self.is_thinking_shown {
            self.lines.extend(self.reasoning.streamed.push(delta));
        }
    }

    fn collapsed_reasoning(&self) -> Line {
        let text = format!("[+] Thinking ({} chars hidden)", self.reasoning.chars);
        Line::new(text, Style::DIM)
    }

    /// Ends the open reasoning.
    fn close_reasoning(&mut self) {
        if !std::mem::take(&mut self.reasoning.is_open) {
            return;
        }
        if self.is_thinking_shown {
            self.lines.extend(self.reasoning.streamed.finish());
        } else {
            self.lines.push(self.collapsed_reasoning());
        }
    }

    /// Ends the open text and reasoning.
    fn close_section(&mut self) {
        self.close_reasoning();
        self.held.clear();
        if self.text.is_none() {
            return;
        }
        let lines = match &mut self.text {
            Some(AnswerText::Markdown(markdown)) => markdown.finish(),
            Some(AnswerText::Verbatim(verbatim)) => verbatim.finish(),
            None => Vec::new(),
        };
        self.add_lines(lines);
        self.text = None;
        self.lines.push(Line::default());
        if std::mem::take(&mut self.is_expanding) {
            self.show_hidden_output();
        }
    }

    /// Shows the complete text of the latest output that was shown only in part. Called again, shows the one before it.
    /// In the middle of an answer, waits for its end.
    pub fn show_hidden_output(&mut self) {
        if self.text.is_some() {
            self.is_expanding = true;
            return;
        }
        match self.hidden.take_latest() {
            Some((title, lines)) => {
                self.lines.push(Line::new(title, Style::BOLD));
                self.lines.extend(lines);
            }
            None => self.show_notice("no output is hidden", Style::DIM),
        }
    }

    /// Adds lines of a tool call. Long ones are cut, and only the first `max_lines` are shown.
    fn add_shortened(&mut self, call: &Value, lines: Vec<Line>, max_lines: usize) {
        let (title, size) = (calls::call_summary(call), (max_lines, self.row_width()));
        let shown = self.hidden.shorten(&title, lines, size, &self.expand_hint);
        self.lines.extend(shown);
    }

    /// Adds the lines of the current tool calls and their results. `end` is the data of the event
    /// [`StreamEvent::Final`], which ends the step.
    fn finish_calls(&mut self, end: Option<&Value>) {
        let calls = std::mem::take(&mut self.calls);
        let elapsed = end.and_then(|end| end.get("elapsed_ms")?.as_array());
        let (width, style) = (self.width, self.markdown_style);
        for (index, call) in calls.requested.iter().enumerate() {
            // With several calls, the line also says to which call the result belongs.
            if !self.shows_starts || calls.requested.len() > 1 {
                self.add_call_lines(call);
            }
            let replaced = calls.replaced.get(index).and_then(Option::as_deref);
            let changes = calls::call_changes(call, replaced, width);
            let has_changes = changes.is_some();
            if let Some(changes) = changes {
                self.add_shortened(call, changes, MAX_CHANGE_LINES);
            }
            let elapsed = elapsed.and_then(|list| list.get(index)?.as_u64());
            let results = calls.results.as_ref();
            let result = results.and_then(|(results, all)| {
                let duration = elapsed.map_or(*all, Duration::from_millis);
                Some((results.get(index)?, Some(duration)))
            });
            let progress = calls.progress.get(index);
            let result = result.or(match progress {
                Some(CallProgress::Done(result)) => Some((result, None)),
                _ => None,
            });
            if let Some((result, duration)) = result {
                let reason = calls::failure_reason(result, end, index);
                let lines = calls::result_lines(reason.as_deref(), duration, width, style);
                self.lines.extend(lines);
                if reason.is_none() && !has_changes {
                    let output = calls::output_lines(result, width);
                    self.add_shortened(call, output, MAX_OUTPUT_LINES);
                }
            } else {
                let prefix = calls::result_prefix(style);
                let state = if progress == Some(&CallProgress::NotRun) {
                    "not run"
                } else {
                    "interrupted, outcome unknown"
                };
                let text = format!("{prefix}{state}");
                self.lines.push(Line::new(text, Style::YELLOW));
                // What was visible while the call ran stays visible.
                let live = calls.live.get(&index).map(LiveOutput::tail);
                self.lines.extend(live.into_iter().flatten());
            }
        }
    }

    fn add_call_lines(&mut self, call: &Value) {
        let lines = calls::call_lines(call, self.width, self.markdown_style);
        self.lines.extend(lines);
    }

    /// Adds the title line of a section.
    fn push_title(&mut self, frame: FrameKind, subtitle: &str) {
        if !self.has_titles {
            return;
        }
        let (title, style) = match frame {
            FrameKind::Assistant => ("Assistant", Style::BLUE),
            FrameKind::Command => ("Command", Style::CYAN),
            FrameKind::Error => ("Error", Style::RED),
        };
        if self.markdown_style == MarkdownStyle::Plain {
            self.lines.push(Line::new(format!("{title}:"), style));
            return;
        }
        let gap = if subtitle.is_empty() { "" } else { " " };
        let title = format!("── {title} {subtitle}{gap}");
        let room = self.row_width();
        let title = split_at_width(&title, room).0;
        let rule_width = room.min(MAX_RULE_WIDTH).saturating_sub(columns(title));
        let text = title.to_owned() + &"─".repeat(rule_width);
        self.lines.push(Line::new(text, style));
    }
}

/// Returns the part of a line that fits into `width` columns.
fn truncate_line(line: &Line, width: usize) -> Line {
    let mut short = Line::default();
    let mut room = width;
    for span in &line.without_tabs().spans {
        let (text, rest) = split_at_width(&span.text, room);
        short.push(text, span.style);
        room -= columns(text);
        if !rest.is_empty() {
            break;
        }
    }
    short
}
