//! The built program with its own home, measured from outside for budgets and benchmarks. Linux
//! only, because it reads `/proc`.

use std::{
    fs::{self, File},
    io::{Error, ErrorKind, Read, Result, Seek, SeekFrom, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    os::unix::net::UnixDatagram,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

use bub_tape::{Durability, Entry, EntryId, FileStore, TapeName, codec};
use rustix::process::{Pid, Signal, kill_process};
use wait4::Wait4;

use crate::{
    gateway::{TOKEN, request_head},
    model::{ModelServer, Pace, Reply},
    pty::Pty,
    sandbox::Sandbox,
};

/// Timeout that is long enough for a busy machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// A program, its home, and the model server that it is configured for.
pub struct Program {
    path: PathBuf,
    sandbox: Sandbox,
    model: ModelServer,
    timeout: Duration,
}

/// Resource usage of a finished process.
#[derive(Clone, Copy, Debug)]
pub struct ProcessUsage {
    /// Time from start to exit.
    pub wall: Duration,
    /// CPU time in user and kernel mode.
    pub cpu: Duration,
    /// Peak memory in bytes. At least the memory of the parent process at the start.
    pub peak: u64,
}

impl Program {
    /// Creates a program with an empty home. Its model answers every request with one sentence.
    pub fn new(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        // Commands run in another directory.
        let path = path
            .canonicalize()
            .map_err(|error| Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        let model = ModelServer::start();
        model
            .forget_requests()
            .otherwise(Reply::text("All is well."));
        Ok(Self {
            path,
            sandbox: Sandbox::new()?,
            model,
            timeout: TEST_TIMEOUT,
        })
    }

    /// Sets the timeout for the end of a command, a prompt, and the start of a gateway.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Returns the home and the workspace.
    pub fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }

    /// Returns a command of the program with a minimal environment.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = self.sandbox.command(&self.path);
        command
            .args(args)
            .env("TERM", "xterm")
            .env("BUB_MODEL", "llamacpp:test")
            .env("BUB_LLAMACPP_API_BASE", format!("{}/v1", self.model.url()));
        command
    }

    /// Runs a command, which must succeed.
    pub fn run(&self, args: &[&str]) -> Result<ProcessUsage> {
        let (mut command, mut stderr) = (self.command(args), tempfile::tempfile()?);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr.try_clone()?);
        let started = Instant::now();
        let mut child = command.spawn()?;
        let (ended, end) = channel::<()>();
        let (id, timeout) = (
            i32::try_from(child.id()).ok().and_then(Pid::from_raw),
            self.timeout,
        );
        let watch = thread::spawn(move || {
            let is_late = end.recv_timeout(timeout) == Err(RecvTimeoutError::Timeout);
            if let (true, Some(id)) = (is_late, id) {
                let _ = kill_process(id, Signal::KILL);
            }
            is_late
        });
        let end = child.wait4()?;
        let wall = started.elapsed();
        drop(ended);
        let is_late = watch.join().unwrap_or(false);
        let command_line = args.join(" ");
        match (is_late, end.status.success()) {
            (true, _) => Err(Error::other(format!(
                "`{command_line}` did not end within {timeout:?}{}",
                output_tail(&mut stderr)
            ))),
            (_, false) => Err(Error::other(format!(
                "`{command_line}`: {}{}",
                end.status,
                output_tail(&mut stderr)
            ))),
            _ => Ok(ProcessUsage {
                wall,
                cpu: end.rusage.utime + end.rusage.stime,
                peak: end.rusage.maxrss,
            }),
        }
    }

    /// Returns the time from the start of `bub chat` to its prompt in a terminal.
    pub fn measure_first_prompt(&self) -> Result<Duration> {
        let started = Instant::now();
        let mut chat = Pty::try_spawn(self.command(&["chat"]), 24, 100)?;
        let shown = chat.try_expect(" > ", self.timeout);
        let elapsed = started.elapsed();
        shown.map_err(|error| Error::other(format!("`chat` showed no prompt: {error}")))?;
        chat.try_send("\x04")?;
        chat.try_end(self.timeout)
            .map_err(|error| Error::other(format!("`chat` and Ctrl-D: {error}")))?;
        Ok(elapsed)
    }

    /// Returns the median time from the model's first token to its appearance in the output of `bub run`, on a terminal
    /// or in a pipe.
    pub fn measure_first_token(&self, on_terminal: bool, runs: usize) -> Result<Duration> {
        let model = ModelServer::start();
        let mut times = Vec::with_capacity(runs);
        for run in 1..=runs {
            let pace = Pace::stopped();
            model.script(Reply::deltas(["token0 ", "token1 ", "token2"]).paced(&pace));
            let mut command = self.command(&["run", "hello", "--ephemeral"]);
            command.env("BUB_LLAMACPP_API_BASE", format!("{}/v1", model.url()));
            let send_token = || {
                let deadline = Instant::now() + self.timeout;
                while model.requests().len() < run && Instant::now() < deadline {
                    thread::sleep(Duration::from_millis(1));
                }
                let sent = Instant::now();
                pace.release();
                sent
            };
            let ended = if on_terminal {
                let mut pty = Pty::try_spawn(command, 24, 80)?;
                let sent = send_token();
                let shown = pty.try_expect("token0", self.timeout);
                times.push(sent.elapsed());
                shown.and_then(|_| pty.try_end(self.timeout))
            } else {
                let command = command.stdin(Stdio::null()).stdout(Stdio::piped());
                let mut child = command.stderr(Stdio::null()).spawn()?;
                let sent = send_token();
                if let Some(mut stdout) = child.stdout.take() {
                    stdout.read_exact(&mut [0])?;
                }
                times.push(sent.elapsed());
                Ok(child.wait()?.code())
            };
            ended
                .map_err(|error: String| Error::other(format!("`run` showed no token: {error}")))?;
        }
        times.sort();
        let median = times.get(runs / 2);
        median.copied().ok_or_else(|| Error::other("no run"))
    }

    /// Returns the minimum of each figure over several runs. Other processes, and additional pages
    /// of the file that the kernel maps, only add to it.
    pub fn best_of(&self, args: &[&str], runs: u32) -> Result<ProcessUsage> {
        let mut best = self.run(args)?;
        for _ in 1..runs {
            let used = self.run(args)?;
            best.wall = best.wall.min(used.wall);
            best.cpu = best.cpu.min(used.cpu);
            best.peak = best.peak.min(used.peak);
        }
        Ok(best)
    }

    /// Adds a number of tapes with `entries` messages to the home, as the Python version writes
    /// them: without an index.
    pub fn add_tapes(&self, tapes: usize, entries: i64) -> Result<()> {
        let root = self.sandbox.home().join("tapes");
        fs::create_dir_all(&root)?;
        let store = FileStore::new(&root, Durability::Os);
        let mut lines = String::new();
        for id in 1..=entries {
            let mut entry = match id {
                1 => Entry::anchor("session/start", None),
                _ => Entry::message("user", "a message of some forty characters, as it were"),
            };
            entry.id = EntryId::new(id);
            lines += &codec::encode(&entry);
        }
        for number in 0..tapes {
            fs::write(
                store.path(&TapeName::for_session(
                    "/srv/demo",
                    &format!("lab:{number}"),
                )),
                &lines,
            )?;
        }
        Ok(())
    }

    /// Starts a gateway with a webhook and waits until it is ready and accepts connections.
    pub fn start_gateway(&self) -> Result<RunningGateway> {
        let notified = self.sandbox.workspace().join("notify.sock");
        let _ = fs::remove_file(&notified);
        let socket = UnixDatagram::bind(&notified)?;
        socket.set_read_timeout(Some(Duration::from_millis(50)))?;
        let (mut command, mut stderr) = (self.command(&["gateway"]), tempfile::tempfile()?);
        command
            .env("NOTIFY_SOCKET", &notified)
            .env("BUB_WEBHOOK_TOKEN", TOKEN)
            // The gateway chooses a free port. Logging it would change the memory that is measured.
            .env("BUB_WEBHOOK_LISTEN", "127.0.0.1:0")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr.try_clone()?);
        let started = Instant::now();
        let mut gateway = RunningGateway {
            child: command.spawn()?,
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            ready: Duration::ZERO,
        };
        let ready = gateway.wait_until_ready(&socket, started, self.timeout);
        ready.map_err(|error| {
            Error::other(format!("`gateway` {error}{}", output_tail(&mut stderr)))
        })?;
        gateway.ready = started.elapsed();
        Ok(gateway)
    }
}

fn early_exit_text(expectation: &str, status: ExitStatus) -> String {
    format!("ended ({status}) and did not {expectation}")
}

/// Returns the port on which a process listens for TCP connections over IPv4.
fn listening_port(process: u32) -> Option<u16> {
    let files = fs::read_dir(format!("/proc/{process}/fd")).ok()?.flatten();
    let links = files.filter_map(|file| fs::read_link(file.path()).ok());
    let sockets: Vec<_> = links
        .filter_map(|link| {
            Some(
                link.to_str()?
                    .strip_prefix("socket:[")?
                    .strip_suffix(']')?
                    .to_owned(),
            )
        })
        .collect();
    let table = fs::read_to_string("/proc/net/tcp").ok()?;
    table.lines().skip(1).find_map(|line| {
        // The local address, the state (`0A`: listening) and the number of the socket.
        let fields: Vec<_> = line.split_whitespace().collect();
        let (address, state, socket) = (fields.get(1)?, fields.get(3)?, fields.get(9)?);
        let is_match = *state == "0A" && sockets.iter().any(|other| other == socket);
        let port = address.rsplit_once(':').filter(|_| is_match)?.1;
        u16::from_str_radix(port, 16).ok()
    })
}

/// Returns the last lines of a program's output.
fn output_tail(stderr: &mut File) -> String {
    let mut bytes = Vec::new();
    let length = stderr.metadata().map_or(0, |metadata| metadata.len());
    let _ = stderr.seek(SeekFrom::Start(length.saturating_sub(2000)));
    let _ = stderr.read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.trim().lines().collect();
    match lines.get(lines.len().saturating_sub(8)..) {
        Some(last @ [_, ..]) => format!("; last output:\n    {}", last.join("\n    ")),
        _ => "; no output".to_owned(),
    }
}

/// A gateway that runs until it is dropped. Unlike [`GatewayProcess`](crate::gateway::GatewayProcess), it logs nothing
/// during messages, because its time and memory are measured.
pub struct RunningGateway {
    child: Child,
    address: SocketAddr,
    /// Time from the start of the process to its ready message and its first connection.
    pub ready: Duration,
}

impl RunningGateway {
    /// Waits for the ready message and for the port, because channels start concurrently.
    fn wait_until_ready(
        &mut self,
        socket: &UnixDatagram,
        started: Instant,
        timeout: Duration,
    ) -> std::result::Result<(), String> {
        let mut datagram = [0; 64];
        let process = self.child.id();
        let mut check_running = |expectation: &str| match self.child.try_wait() {
            Ok(Some(status)) => Err(early_exit_text(expectation, status)),
            _ if started.elapsed() > timeout => {
                Err(format!("did not {expectation} within {timeout:?}"))
            }
            _ => Ok(()),
        };
        loop {
            match socket.recv(&mut datagram) {
                Ok(count) if datagram.get(..count) == Some(b"READY=1") => break,
                Ok(_) => {
                    return Err("sent something other than READY=1 to NOTIFY_SOCKET".to_owned());
                }
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => return Err(format!("could not be observed: {error}")),
            }
            check_running("send READY=1 to NOTIFY_SOCKET")?;
        }
        loop {
            let address = listening_port(process).map(|port| (Ipv4Addr::LOCALHOST, port).into());
            if let Some(address) = address
                && TcpStream::connect::<SocketAddr>(address).is_ok()
            {
                self.address = address;
                return Ok(());
            }
            check_running("accept connections")?;
            thread::sleep(Duration::from_micros(200));
        }
    }

    /// Sends a message and waits for the answer.
    pub fn send_message(&self, chat: &str, content: &str) -> Result<()> {
        let body = serde_json::json!({"content": content, "chat_id": chat}).to_string();
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(TEST_TIMEOUT))?;
        write!(stream, "{}{body}", request_head(&body))?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        if answer.starts_with("HTTP/1.1 200") {
            Ok(())
        } else {
            Err(Error::other(answer))
        }
    }

    /// Sends the messages with these numbers from several clients; `chat` returns the chat of each.
    pub fn send_messages(
        &self,
        numbers: std::ops::Range<usize>,
        chat: impl Fn(usize) -> String + Sync,
    ) -> Result<()> {
        const CLIENT_COUNT: usize = 4;
        thread::scope(|scope| {
            let spawn_client = |client| {
                let (mut client_numbers, chat) =
                    (numbers.clone().skip(client).step_by(CLIENT_COUNT), &chat);
                scope.spawn(move || {
                    client_numbers
                        .try_for_each(|number| self.send_message(&chat(number), "How is it?"))
                })
            };
            let clients: Vec<_> = (0..CLIENT_COUNT).map(spawn_client).collect();
            clients
                .into_iter()
                .try_for_each(|client| match client.join() {
                    Ok(outcome) => outcome,
                    Err(panic) => std::panic::resume_unwind(panic),
                })
        })
    }

    /// Returns the current memory of the process in bytes.
    pub fn memory(&self) -> Result<u64> {
        process_memory(&self.child.id().to_string())
    }

    /// Returns the CPU time of the process.
    pub fn cpu_time(&self) -> Result<Duration> {
        process_cpu_time(&self.child.id().to_string())
    }
}

impl Drop for RunningGateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the resident memory of a process (`self` is this process) in bytes.
pub fn process_memory(process: &str) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kilobytes
        .map(|kilobytes| kilobytes * 1024)
        .ok_or_else(|| Error::other("no VmRSS"))
}

/// Returns the CPU time of all threads of a process, including finished ones, in steps of 10 ms.
pub fn process_cpu_time(process: &str) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    let fields = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace();
    let ticks = fields
        .skip(11)
        .take(2)
        .filter_map(|ticks| ticks.parse::<u64>().ok())
        .sum::<u64>();
    Ok(Duration::from_millis(ticks * 10))
}
