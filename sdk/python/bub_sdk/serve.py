"""Serve a plugin over stdin and stdout."""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import importlib
import inspect
import io
import os
import sys
from typing import Any, Callable, Dict, List, Optional, Set

from . import host
from .decorators import COMMANDS, TOOLS, Hook, ToolContext, find_hooks
from . import provided
from .peer import CALL, Next, Peer, ServedRequest
from .values import BubError, Changes, Envelope, Fields, StreamEvent, encode

#: The highest version of the protocol. The host may have a lower one.
PROTOCOL = 2


class PluginContext:
    """Context of a plugin, passed to a plugin class that takes an argument."""

    def __init__(self) -> None:
        self.name, self.workspace, self.config = host.about["name"], host.about["workspace"], host.config


class Served:
    """A plugin and its request handlers."""

    def __init__(
        self, target: Any, version: Optional[str] = None, description: Optional[str] = None, skills: Any = ()
    ) -> None:
        self._target, self._version, self._description = target, version, description
        self._skills = [os.path.abspath(directory) for directory in skills]
        self._hooks: Dict[str, Hook] = {}
        self._channels: Dict[str, Any] = {}
        self._tasks: "Set[asyncio.Task[None]]" = set()
        self._stops: Dict[str, asyncio.Event] = {}
        self._provided = provided.Provided(_run)
        self._calls: Dict[str, Callable[[ServedRequest], Any]] = {
            "initialize": self._initialize,
            "tools/call": self._tool,
            "cli/run": self._command,
            "channel/start": self._channel_start,
            "channel/stop": self._channel_stop,
            "channel/send": self._channel_send,
            "channel/event": self._channel_event,
            **self._provided.methods(),
        }

    def answer(self, method: str, work: ServedRequest) -> None:
        """Handle a request. Runs on the event loop, so it only starts work."""
        hook = self._hooks.get(method)
        peer = work.peer
        if hook is not None and not hook.is_async:
            # It may block, and other requests must not wait for it.
            peer.pool.submit(contextvars.copy_context().run, self._in_thread, hook, work)
            return
        if method == "ping":
            return work.respond({})
        call = self._calls.get(method)
        if hook is not None:
            doing = self._hook(hook, work)
        elif call is not None:
            doing = self._do(call, work)
        else:
            return work.fail(BubError(f"unknown method `{method}`", "not_found"))
        context = contextvars.copy_context()
        # Requests of a channel belong to no turn.
        context.run(CALL.set, None if method.startswith("channel/") else work)
        work.task = task = context.run(peer.loop.create_task, doing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _do(self, call: Callable[[ServedRequest], Any], work: ServedRequest) -> None:
        try:
            work.respond(await call(work))
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - sys.exit() in a plugin is only a failed call
            work.fail(error)

    # Starting

    async def _initialize(self, work: ServedRequest) -> dict:
        host.on_initialize(work.params)
        for plugin in load(self._target):
            for hook in find_hooks(plugin):
                if hook.name == "provide_channels":
                    await self._provide_channels(hook)
                elif f"hook/{hook.name}" in self._hooks:
                    raise BubError(f"two functions implement the hook {hook.name}", "config")
                else:
                    self._hooks[f"hook/{hook.name}"] = hook
        described = {
            "protocol": max(1, min(PROTOCOL, work.params.get("max_protocol") or 1)),
            "hooks": [hook.describe() for hook in self._hooks.values()],
            "tools": [tool.describe() for tool in TOOLS.values()],
            "channels": [_describe_channel(channel) for channel in self._channels.values()],
            "commands": [command.describe() for command in COMMANDS.values()],
            "skills": list(self._skills),
        }
        about = {"version": self._version, "description": self._description}
        return {**described, **{name: text for name, text in about.items() if text}}

    async def _provide_channels(self, hook: Hook) -> None:
        async def handler(message: Any) -> Any:
            fields = message if isinstance(message, dict) else vars(message)
            return await host.inbound(fields.get("channel", ""), fields)

        given = {"message_handler": handler} if "message_handler" in hook.wants else {}
        for channel in hook.function(**given) or ():
            self._channels[channel.name] = channel

    # Hooks

    def _arguments(self, hook: Hook, work: ServedRequest) -> dict:
        args = work.params.get("args") or {}
        given: Dict[str, Any] = {}
        for name, value in args.items():
            if name == "error" and isinstance(value, dict):
                value = BubError.from_value(value)
            elif name == "message" and isinstance(value, dict):
                value = _envelope(value, work.params.get("sender"))
            elif name not in ("state", "current_config") and isinstance(value, dict):
                value = Fields(value)
                if isinstance(value.get("error"), dict):
                    value["error"] = BubError.from_value(value["error"])
            given[name] = value
        if hook.takes_next:
            given["next"] = Next(work, hook.name == "run_model_stream")
        return given

    def _in_thread(self, hook: Hook, work: ServedRequest) -> None:
        CALL.set(work)
        try:
            given = self._arguments(hook, work)
            changes = Changes(given["state"]) if "state" in given else None
            value = hook.function(**given)
            if inspect.isawaitable(value) or _is_stream(value) or hook.name in provided.HOOKS:
                work.peer.wait(self._finish(hook, work, given, changes, value))
            else:
                self._respond(hook, work, given, changes, value)
        except BaseException as error:  # noqa: BLE001
            work.fail(error)

    async def _hook(self, hook: Hook, work: ServedRequest) -> None:
        try:
            given = self._arguments(hook, work)
            changes = Changes(given["state"]) if "state" in given else None
            await self._finish(hook, work, given, changes, hook.function(**given))
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001
            work.fail(error)

    async def _finish(self, hook: Hook, work: ServedRequest, given: dict, changes: Optional[Changes], value: Any) -> None:
        work.task = asyncio.current_task()
        if inspect.isawaitable(value):
            value = await value
        if hook.name in provided.HOOKS:
            value = await self._provided.add(hook.name, value, work)
            return self._respond(hook, work, given, changes, value)
        if not _is_stream(value):
            return self._respond(hook, work, given, changes, value)
        if hook.name == "run_model_stream":
            async for event in _asynchronous(work.peer, value):
                await work.event({"kind": "text", "data": {"delta": event}} if isinstance(event, str) else event)
            return work.respond({"stream": True, **(changes.patch() if changes else {})})
        raise BubError(f"{hook.name} cannot return a stream", "invalid_input")

    def _respond(self, hook: Hook, work: ServedRequest, given: dict, changes: Optional[Changes], value: Any) -> None:
        answer = {} if value is None else {"value": _value(hook.name, value)}
        if hook.name == "after_tool_call" and value is None:
            # The Python version changes a result by assigning to it.
            result, before = given.get("result", {}), (work.params.get("args") or {}).get("result") or {}
            if result.get("error") is None and result.get("result") != before.get("result"):
                answer = {"value": result.get("result")}
        if changes is not None:
            answer.update(changes.patch())
        work.respond(answer)

    # Tools, commands, channels

    async def _tool(self, work: ServedRequest) -> dict:
        name = work.params.get("name")
        tool = TOOLS.get(name or "")
        if tool is None:
            raise BubError(f"unknown tool `{name}`", "not_found")
        try:
            args, named = tool.bind(
                work.params.get("arguments") or {}, ToolContext(work.params.get("_meta") or {})
            )
            value = await _run(work.peer, tool.function, *args, **named)
            if isinstance(value, str):
                return {"content": [{"type": "text", "text": value}]}
            text = encode(value).decode()
            return {"content": [{"type": "text", "text": text}], "structuredContent": value}
        except Exception as error:  # noqa: BLE001 - the error goes to the model
            text = str(error) if isinstance(error, (BubError, ValueError)) else BubError.of(error).message
            return {"content": [{"type": "text", "text": text}], "isError": True}

    async def _command(self, work: ServedRequest) -> dict:
        name = work.params.get("command")
        command = COMMANDS.get(name or "")
        if command is None:
            raise BubError(f"unknown command `{name}`", "not_found")
        printed: "asyncio.Queue[Optional[dict]]" = asyncio.Queue()
        put = printed.put_nowait
        PRINTED.set(lambda event: work.peer.loop.call_soon_threadsafe(put, event))
        use_terminal(work.params)

        async def pump() -> None:
            while (event := await printed.get()) is not None:
                await work.event(event)

        pumping = asyncio.ensure_future(pump())
        try:
            if command.is_raw:
                code = await _run(work.peer, command.function, work.params.get("argv") or [])
            else:
                code = await _run(work.peer, command.function, **command.bind(work.params.get("args") or {}))
        except (SystemExit, ValueError) as error:
            code = getattr(error, "code", 2)
            if not isinstance(code, (int, type(None))) or isinstance(error, ValueError):
                put({"stderr": f"{error}\n"})
                code = code if isinstance(code, int) else 1
        work.peer.loop.call_soon(put, None)
        await pumping
        return {"code": code if isinstance(code, int) and not isinstance(code, bool) else 0}

    def _channel(self, work: ServedRequest) -> Any:
        name = work.params.get("channel")
        if name not in self._channels:
            raise BubError(f"unknown channel `{name}`", "not_found")
        return self._channels[name]

    async def _channel_start(self, work: ServedRequest) -> None:
        channel = self._channel(work)
        self._stops[channel.name] = stop = asyncio.Event()
        wants_stop = bool(inspect.signature(channel.start).parameters)
        await _run(work.peer, channel.start, *([stop] if wants_stop else []))

    async def _channel_stop(self, work: ServedRequest) -> None:
        channel = self._channel(work)
        if channel.name in self._stops:
            self._stops.pop(channel.name).set()
        await _run(work.peer, channel.stop)

    async def _channel_send(self, work: ServedRequest) -> None:
        await _run(work.peer, self._channel(work).send, _envelope(work.params.get("message") or {}))

    async def _channel_event(self, work: ServedRequest) -> None:
        event, message = StreamEvent(work.params["event"]), _envelope(work.params.get("message") or {})
        await _run(work.peer, self._channel(work).on_event, event, message)


def _describe_channel(channel: Any) -> dict:
    described = {"name": channel.name, "debounce": bool(getattr(channel, "needs_debounce", False))}
    return {**described, "events": getattr(channel, "on_event", None) is not None}


def _envelope(fields: dict, sender: Optional[dict] = None) -> Envelope:
    envelope = Envelope(fields)
    object.__setattr__(envelope, "sender", Fields(sender or {}))
    return envelope


def _value(hook: str, value: Any) -> Any:
    """Convert result forms of the Python version that the protocol does not have."""
    if hook == "before_llm_call" and isinstance(value, dict) and "messages" in value:
        return {"proceed": value}
    return value


def _is_stream(value: Any) -> bool:
    return hasattr(value, "__aiter__") or hasattr(value, "__next__")


async def _asynchronous(peer: Peer, events: Any) -> Any:
    if hasattr(events, "__aiter__"):
        async for event in events:
            yield event
        return
    over = object()
    while (event := await peer.loop.run_in_executor(peer.pool, next, events, over)) is not over:
        yield event


async def _run(peer: Peer, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Run a function of the plugin; a plain function runs in a thread."""
    if inspect.iscoroutinefunction(function):
        return await function(*args, **named)
    context = contextvars.copy_context()
    call = lambda: context.run(function, *args, **named)  # noqa: E731
    value = await peer.loop.run_in_executor(peer.pool, call)
    return await value if inspect.isawaitable(value) else value


def load(target: Any) -> List[Any]:
    """Return the plugins of a target: a module, an object, a class, or ``"module:name"``."""
    if isinstance(target, str):
        module, _, name = target.partition(":")
        sys.path.insert(0, os.getcwd())
        target = importlib.import_module(module)
        for part in name.split(".") if name else ():
            target = getattr(target, part)
    if isinstance(target, (list, tuple)):
        return [plugin for one in target for plugin in load(one)]
    if inspect.isclass(target):
        make: Any = target
        takes = [p for p in inspect.signature(target).parameters.values() if p.default is p.empty]
        return [make(PluginContext()) if takes else make()]
    return [target]


#: Target of printed output: the caller of the current command, else the log.
PRINTED: "contextvars.ContextVar[Optional[Callable[[dict], Any]]]" = contextvars.ContextVar("printed", default=None)


#: Standard streams of the caller of the current command that are terminals.
TERMINALS: "contextvars.ContextVar[frozenset]" = contextvars.ContextVar("terminals", default=frozenset())


def use_terminal(params: dict) -> None:
    """Give the current command the terminal of its caller."""
    TERMINALS.set(frozenset(name for name, is_one in (params.get("terminal") or {}).items() if is_one))


class _Input(io.TextIOBase):
    """The stdin of the plugin's code: that of the caller of the current command, else empty."""

    def readable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return "stdin" in TERMINALS.get()

    def readline(self, size: Optional[int] = -1) -> str:  # type: ignore[override]
        return "" if PRINTED.get() is None else host.ask("", raw=True) or ""

    def read(self, size: Optional[int] = -1) -> str:
        return "".join(iter(self.readline, ""))


class _Output(io.TextIOBase):
    """The stdout or stderr of the plugin's code."""

    def __init__(self, name: str, log: Any) -> None:
        self._name, self._log = name, log

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return int(self._log.fileno())

    def isatty(self) -> bool:
        return PRINTED.get() is not None and "stdout" in TERMINALS.get()

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            # Libraries find out in this way whether a stream is binary.
            raise TypeError(f"expected text, got {type(text).__name__}")
        tell = PRINTED.get()
        if tell is None:
            return int(self._log.write(text))
        tell({self._name: text})
        return len(text)

    def flush(self) -> None:
        self._log.flush()


def serve(
    target: Any = None, *, version: Optional[str] = None, description: Optional[str] = None, skills: Any = ()
) -> None:
    """Serve a module, an object or a class until the host ends it. The default is the main module.

    ``skills`` are directories, each with a ``SKILL.md``.
    """
    target = target if target is not None else sys.modules["__main__"]
    run_peer(Served(target, version, description, skills).answer)


def tools_changed() -> None:
    """Report the tools as they are now. Call it after ``@tool`` has added some, or after some were removed from ``TOOLS``."""
    host.peer().notify("tools/changed", {"tools": [tool.describe() for tool in TOOLS.values()]})


def run_peer(
    answer: Callable[[str, ServedRequest], None], closing: Optional[Callable[[], Any]] = None
) -> None:
    """Answer the requests of the host over stdin and stdout. Then run the coroutine function ``closing`` and exit."""
    reader, writer = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    # Redirect all output, including that of child processes, to the log: stdout carries the protocol.
    os.dup2(2, 1)
    sys.stdout.flush()
    log = sys.stderr
    sys.stdout, sys.stderr = _Output("stdout", log), _Output("stderr", log)  # type: ignore[assignment]
    sys.stdin = _Input()  # type: ignore[assignment]
    peer = Peer(reader, writer, answer)
    host.connect(peer)
    peer.run(closing)
    # A blocked thread would keep the process alive.
    atexit._run_exitfuncs()
    log.flush()
    os._exit(0)
