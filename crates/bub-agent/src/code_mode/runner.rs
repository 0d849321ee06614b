//! Runs code in a Python process, and answers the tool calls that it makes.
//!
//! The process gets the message `run` and answers with `call` and `output`, then `done` or `failed`. Each `call` is
//! answered with `result` or `error`. A message is a JSON object on one line; any other line is output.

use std::{collections::VecDeque, future::Future, io, time::Duration};

use bub_kernel::{CancellationToken, Error, ErrorKind, Result};
use bub_sandbox::{PipedProcess, ProcessGuard};
use bub_settings::Redactor;
use futures_util::{StreamExt as _, stream::FuturesUnordered};
use serde_json::{Map, Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf, pipe::Receiver},
    },
    time::{Instant, sleep_until, timeout},
};

use crate::shell::OutputBuffer;

/// The program that runs code.
pub(super) const RUNNER_SOURCE: &str = include_str!("runner.py");
/// Maximum number of tool calls that run at the same time. Further calls are queued.
const MAX_PARALLEL_CALLS: usize = 8;
/// Maximum number of tool calls of one run.
const MAX_CALLS: usize = 500;
/// Maximum size of a message from the runner.
const MAX_MESSAGE_BYTES: u64 = 8 << 20;
/// Maximum bytes of stderr in an error.
const MAX_STDERR_BYTES: usize = 16 << 10;
/// How long to wait for stderr and the exit code of a runner that ended early.
const EXIT_TIMEOUT: Duration = Duration::from_secs(3);

/// Code to run.
pub(crate) struct CodeRequest<'a> {
    pub(crate) code: &'a str,
    /// The names of the functions that the code can call.
    pub(crate) names: Vec<String>,
    pub(crate) timeout_seconds: u64,
    pub(crate) cancel: &'a CancellationToken,
    pub(crate) redactor: &'a Redactor,
}

/// How the run of code ended.
enum RunEnd {
    Done,
    Failed { error: String, traceback: String },
    Exited,
    TimedOut,
    Cancelled,
}

/// Runs code and returns what it printed. `call_tool` runs the tool calls of the code.
pub(crate) async fn run_code<F: Future<Output = Result<Value>>>(
    process: PipedProcess,
    request: CodeRequest<'_>,
    call_tool: impl Fn(String, Map<String, Value>) -> F,
) -> Result<String> {
    let io_error = |error: io::Error| tool_error(format!("cannot run the code: {error}"));
    let PipedProcess {
        stream,
        errors,
        process_guard,
    } = process;
    stream.set_nonblocking(true).map_err(io_error)?;
    let (reader, writer) = UnixStream::from_std(stream).map_err(io_error)?.into_split();
    let mut session = CodeSession {
        reader: BufReader::new(reader),
        line: Vec::new(),
        writer,
        output: OutputBuffer::new(request.redactor.stream(), None),
        call_count: 0,
    };
    let stderr = tokio::spawn(read_stderr(errors));
    let end = session.run(&request, call_tool).await;
    let end = end.map_err(io_error)?;
    let output = session.output.full_text();
    let exit_code = end_process(process_guard, matches!(end, RunEnd::Exited)).await;
    let error = match end {
        RunEnd::Done => return Ok(output),
        RunEnd::Failed { error, traceback } => {
            let traceback = request.redactor.redact(&traceback).into_owned();
            tool_error(format!("Code raised {error}")).with_detail("traceback", traceback)
        }
        RunEnd::TimedOut => tool_error(format!(
            "Code timed out after {} seconds",
            request.timeout_seconds
        )),
        RunEnd::Cancelled => Error::new(ErrorKind::Cancelled, "the code was cancelled"),
        RunEnd::Exited => {
            let code = exit_code.map_or_else(|| "unknown".to_owned(), |code| code.to_string());
            let stderr = timeout(EXIT_TIMEOUT, stderr).await;
            let stderr = stderr.ok().and_then(Result::ok).unwrap_or_default();
            tool_error(format!("Code runner exited unexpectedly with code {code}"))
                .with_detail("stderr", request.redactor.redact(&stderr).into_owned())
        }
    };
    Err(error.with_detail("output", output))
}

/// Ends all processes of a run, also those that the code started. If the runner exited itself, returns its exit code.
/// This waits for the processes, so another thread does it.
async fn end_process(mut process_guard: ProcessGuard, has_exited: bool) -> Option<i32> {
    let ending = tokio::task::spawn_blocking(move || {
        if has_exited {
            return process_guard.wait_exit_code(EXIT_TIMEOUT);
        }
        process_guard.kill();
        None
    });
    ending.await.ok().flatten()
}

/// Reads stderr to its end, so that the code never waits for it. Returns the beginning.
async fn read_stderr(errors: io::PipeReader) -> String {
    let mut text = Vec::new();
    if let Ok(mut pipe) = Receiver::from_owned_fd(errors.into()) {
        let mut block = vec![0; 4096];
        while let Ok(length @ 1..) = pipe.read(&mut block).await {
            let kept = length.min(MAX_STDERR_BYTES.saturating_sub(text.len()));
            text.extend_from_slice(block.get(..kept).unwrap_or_default());
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// The connection to the process that runs code.
struct CodeSession {
    reader: BufReader<OwnedReadHalf>,
    /// The part of the current line that was read.
    line: Vec<u8>,
    writer: OwnedWriteHalf,
    output: OutputBuffer,
    call_count: usize,
}

impl CodeSession {
    async fn run<F: Future<Output = Result<Value>>>(
        &mut self,
        request: &CodeRequest<'_>,
        call_tool: impl Fn(String, Map<String, Value>) -> F,
    ) -> io::Result<RunEnd> {
        let deadline = Instant::now() + Duration::from_secs(request.timeout_seconds);
        // The name is part of tracebacks, which a replay must repeat.
        let bits = crate::content_bits(request.code) & 0xffff_ffff;
        let filename = format!("<run_code-{bits:08x}>");
        let message = json!({
            "type": "run", "code": request.code, "filename": filename, "tools": request.names,
        });
        self.send(&message).await?;
        let mut queued: VecDeque<(Value, String, Map<String, Value>)> = VecDeque::new();
        let mut running = FuturesUnordered::new();
        loop {
            while running.len() < MAX_PARALLEL_CALLS
                && let Some((id, name, arguments)) = queued.pop_front()
            {
                let call = call_tool(name, arguments);
                running.push(async move { (id, call.await) });
            }
            let message = tokio::select! {
                biased;
                () = request.cancel.cancelled() => return Ok(RunEnd::Cancelled),
                () = sleep_until(deadline) => return Ok(RunEnd::TimedOut),
                Some((id, result)) = running.next(), if !running.is_empty() => {
                    self.send(&answer(&id, result)).await?;
                    continue;
                }
                message = self.receive() => message?,
            };
            let Some(message) = message else {
                return Ok(RunEnd::Exited);
            };
            let text = |name: &str| {
                message
                    .get(name)
                    .and_then(Value::as_str)
                    .unwrap_or_default()
            };
            match text("type") {
                "done" => return Ok(RunEnd::Done),
                "failed" => {
                    return Ok(RunEnd::Failed {
                        error: text("error").to_owned(),
                        traceback: text("traceback").to_owned(),
                    });
                }
                "output" => self.output.push(text("data").as_bytes()),
                "call" => {
                    let id = message.get("id").cloned().unwrap_or_default();
                    match self.check_call(&message) {
                        Ok((name, arguments)) => queued.push_back((id, name, arguments)),
                        Err(error) => self.send(&answer(&id, Err(error))).await?,
                    }
                }
                _ => {}
            }
        }
    }

    fn check_call(&mut self, message: &Map<String, Value>) -> Result<(String, Map<String, Value>)> {
        self.call_count += 1;
        let name = message.get("name").and_then(Value::as_str);
        let arguments = message.get("arguments").and_then(Value::as_object);
        match (name, arguments) {
            _ if self.call_count > MAX_CALLS => Err(tool_error(format!(
                "too many tool calls: the maximum is {MAX_CALLS} per run; split the work"
            ))),
            (Some(name), Some(arguments)) => Ok((name.to_owned(), arguments.clone())),
            _ => Err(Error::invalid_input(
                "malformed tool call: expected a name and arguments",
            )),
        }
    }

    async fn send(&mut self, message: &Value) -> io::Result<()> {
        let line = format!("{message}\n");
        match self.writer.write_all(line.as_bytes()).await {
            // The process has ended; reading reports how.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            sent => sent,
        }
    }

    /// Returns the next message, or `None` at the end. Lines that are no messages are added to the output. If the future
    /// is dropped, nothing is lost.
    async fn receive(&mut self) -> io::Result<Option<Map<String, Value>>> {
        loop {
            let limit = MAX_MESSAGE_BYTES.saturating_sub(self.line.len() as u64);
            let mut reader = (&mut self.reader).take(limit);
            let read = match reader.read_until(b'\n', &mut self.line).await {
                // The process was killed.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => 0,
                read => read?,
            };
            let is_complete = self.line.ends_with(b"\n");
            if read == 0 && self.line.is_empty() {
                return Ok(None);
            }
            let line = std::mem::take(&mut self.line);
            let message = serde_json::from_slice(&line).ok().filter(|_| is_complete);
            let is_message =
                |message: &Map<String, Value>| message.get("type").is_some_and(Value::is_string);
            if let Some(message) = message.filter(is_message) {
                return Ok(Some(message));
            }
            self.output.push(&line);
            if !is_complete {
                self.output.push(b"\n");
            }
        }
    }
}

fn answer(id: &Value, result: Result<Value>) -> Value {
    match result {
        Ok(value) => json!({"type": "result", "id": id, "value": value}),
        Err(error) => json!({"type": "error", "id": id, "message": error.to_string()}),
    }
}

fn tool_error(text: String) -> Error {
    Error::new(ErrorKind::Tool, text)
}
