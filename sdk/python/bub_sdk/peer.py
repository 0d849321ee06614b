"""A JSON-RPC 2.0 peer with one message per line. See docs/plugin-protocol.md."""

from __future__ import annotations

import asyncio
import contextvars
import json
import os
import sys
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import Any, AsyncIterator, Awaitable, Callable, Dict, Iterator, List, Optional

from .values import BubError, StreamEvent, encode

#: Maximum length of a message in bytes.
MAX_LINE_BYTES = 16 * 1024 * 1024
#: Maximum number of unread stream events. After half of them are read, as many more are allowed.
CREDITS = 64

#: The host request that is being served.
CALL: "contextvars.ContextVar[Optional[ServedRequest]]" = contextvars.ContextVar("bub_call", default=None)


class ServedRequest:
    """A host request that is being served."""

    def __init__(self, peer: "Peer", id: Any, params: dict, method: str = "") -> None:
        self.peer, self.id, self.params, self.method = peer, id, params, method
        self.is_cancelled = False
        self.task: "Optional[asyncio.Task[None]]" = None
        self._credits: int = params.get("credits") or 0
        self._more: Optional[asyncio.Event] = None

    async def event(self, event: Any) -> None:
        """Send an event of the response stream as soon as the host accepts it."""
        while self._credits <= 0:
            self._more = asyncio.Event()
            await self._more.wait()
        self._credits -= 1
        self.peer.send({"method": "stream/event", "params": {"id": self.id, "event": event}})

    def grant(self, credits: int) -> None:
        self._credits += credits
        if self._more is not None:
            self._more.set()

    def cancel(self) -> None:
        self.is_cancelled = True
        if self.task is not None:
            self.task.cancel()

    def respond(self, result: Any) -> None:
        self.peer.respond(self, {"result": result})

    def fail(self, error: BaseException) -> None:
        if not self.is_cancelled and not isinstance(error, BubError):
            traceback.print_exception(type(error), error, error.__traceback__, file=sys.stderr)
        known = BubError.of(error)
        self.peer.respond(
            self, {"error": {"code": -32000, "message": known.message, "data": known.to_value()}}
        )


class OutgoingRequest:
    """A request to the host."""

    def __init__(self, peer: "Peer", id: int) -> None:
        self._peer, self._id = peer, id
        self._arrived: "asyncio.Queue[dict]" = asyncio.Queue()
        self._read = 0
        self.put = self._arrived.put_nowait

    async def next(self) -> dict:
        """Return the next message: ``{"event": …}``, or the response."""
        if "event" in (arrival := await self._arrived.get()):
            self._read += 1
            if self._read == CREDITS // 2:
                self._peer.notify("stream/credit", {"id": self._id, "credits": self._read})
                self._read = 0
            return arrival
        self._peer.asked.pop(self._id, None)
        if arrival.get("error"):
            error = arrival["error"]
            raise BubError.from_value(error.get("data") or error)
        return arrival

    def close(self) -> None:
        """Cancel the request; its response is no longer needed."""
        if self._peer.asked.pop(self._id, None) is not None:
            self._peer.notify("$/cancelRequest", {"id": self._id})


class Peer:
    """Read on the event loop and write from any thread."""

    def __init__(self, reader: int, writer: int, answer: "Callable[[str, ServedRequest], None]") -> None:
        self._reader, self._writer, self._answer = reader, writer, answer
        self.loop = asyncio.new_event_loop()
        self.pool = ThreadPoolExecutor(max_workers=32, thread_name_prefix="bub-hook")
        self.asked: Dict[int, OutgoingRequest] = {}
        self.working: Dict[Any, ServedRequest] = {}
        self._parts: List[bytes] = []
        self._next_id = 0
        self._lock = threading.Lock()
        self._over = self.loop.create_future()
        self._thread = 0

    def run(self, closing: "Optional[Callable[[], Any]]" = None) -> None:
        """Serve until the host closes the connection. Then run the coroutine function ``closing``."""
        asyncio.set_event_loop(self.loop)
        self._thread = threading.get_ident()
        try:
            self.loop.add_reader(self._reader, self._readable)
        except PermissionError:  # A file, which is always readable.
            threading.Thread(target=self._read_file, daemon=True).start()
        self.loop.run_until_complete(self._over)
        if closing is not None:
            self.loop.run_until_complete(asyncio.wait([self.loop.create_task(closing())], timeout=0.3))
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.wait(tasks, timeout=0.3))

    def end(self) -> None:
        if not self._over.done():
            self._over.set_result(None)

    # Writing

    def send(self, message: dict) -> None:
        message["jsonrpc"] = "2.0"
        line = encode(message) + b"\n"
        if len(line) > MAX_LINE_BYTES:
            raise BubError(f"a message of {len(line)} bytes is too long", "invalid_input")
        with self._lock:
            try:
                sent = os.write(self._writer, line)
                while sent < len(line):
                    sent += os.write(self._writer, line[sent : sent + 65536])
            except OSError:
                self.loop.call_soon_threadsafe(self.end)

    def notify(self, method: str, params: dict) -> None:
        self.send({"method": method, "params": params})

    def respond(self, work: ServedRequest, outcome: dict) -> None:
        self.working.pop(work.id, None)
        if work.is_cancelled or work.id is None:
            return
        try:
            self.send({"id": work.id, **outcome})
        except BubError as error:
            self.send({"id": work.id, "error": {"code": -32000, "message": str(error), "data": error.to_value()}})

    def ask(self, method: str, params: dict) -> OutgoingRequest:
        """Send a request to the host. Call it only on the event loop."""
        self._next_id += 1
        asked = self.asked[self._next_id] = OutgoingRequest(self, self._next_id)
        try:
            self.send({"id": self._next_id, "method": method, "params": params})
        except BubError:
            self.asked.pop(self._next_id)
            raise
        return asked

    def call(self, method: str, params: dict) -> Any:
        """Send a request to the host and wait. Await it in an async function; in a plain function it blocks."""
        return self.wait(self._call(method, params))

    async def _call(self, method: str, params: dict) -> Any:
        asked = self.ask(method, params)
        try:
            while "event" in (arrival := await asked.next()):
                pass
            return arrival.get("result")
        finally:
            asked.close()

    def is_here(self) -> bool:
        """Return whether this is the thread of the event loop, which must not block."""
        return threading.get_ident() == self._thread

    def wait(self, work: "Awaitable[Any]") -> Any:
        if self.is_here():
            return work
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()  # type: ignore[arg-type]

    # Reading

    def _readable(self) -> None:
        try:
            data = os.read(self._reader, 65536)
        except OSError:
            data = b""
        self._take_bytes(data)

    def _read_file(self) -> None:
        data = b"-"
        while data:
            data = os.read(self._reader, 65536)
            self.loop.call_soon_threadsafe(self._take_bytes, data)

    def _take_bytes(self, data: bytes) -> None:
        if not data:
            self.loop.remove_reader(self._reader)
            return self.end()
        if b"\n" not in data:
            return self._parts.append(data)
        self._parts.append(data)
        *lines, rest = b"".join(self._parts).split(b"\n")
        self._parts = [rest] if rest else []
        for line in lines:
            if line.strip():
                self._take_line(line)

    def _take_line(self, line: bytes) -> None:
        try:
            message = json.loads(line)
            id, method = message.get("id"), message.get("method")
            params = message.get("params") or {}
        except (ValueError, AttributeError) as error:
            return print(f"the host sent no message: {error}", file=sys.stderr)
        if method is None:
            asked = self.asked.get(id)
            return asked.put(message) if asked else None
        if id is not None:
            work = self.working[id] = ServedRequest(self, id, params, method)
            return self._answer(method, work)
        if method == "shutdown":
            return self.end()
        about: Any = params.get("id")
        if method == "stream/event":
            asked = self.asked.get(about)
            return asked.put({"event": params.get("event")}) if asked else None
        known = self.working.get(about)
        if method == "stream/credit" and known:
            known.grant(params.get("credits") or 0)
        elif method == "$/cancelRequest" and known:
            self.working.pop(about, None)
            known.cancel()
        elif method == "channel/event":
            self._answer(method, ServedRequest(self, None, params, method))
        return None


class Next:
    """The argument ``next`` of a hook: calls the next plugins. ``await next()``, ``await next(prompt=…)``, and for a stream
    ``async for event in next()``. In a plain function it returns their result."""

    def __init__(self, work: ServedRequest, streams: bool) -> None:
        self._work, self._streams = work, streams

    def __call__(self, **replaced: Any) -> Any:
        peer, params = self._work.peer, {"call": self._work.id, "args": replaced}
        if not self._streams:
            return peer.wait(self._value(params))
        below = Below(peer, {**params, "credits": CREDITS})
        return below if peer.is_here() else below.blocking()

    async def _value(self, params: dict) -> Any:
        answer = await self._work.peer._call("next/call", params)
        return (answer or {}).get("value")


class Below:
    """The stream of the next plugins. Awaiting it returns the stream, or ``None`` if no plugin has one."""

    def __init__(self, peer: Peer, params: dict) -> None:
        self._peer, self._params = peer, params

    def __await__(self) -> Any:
        return self._start().__await__()

    async def __aiter__(self) -> "AsyncIterator[StreamEvent]":
        events = await self._start()
        if events is not None:
            async for event in events:
                yield event

    def blocking(self) -> "Optional[Iterator[StreamEvent]]":
        """Return the stream for a plain function."""
        events = self._peer.wait(self._start())
        return None if events is None else steps(self._peer, events)

    async def _start(self) -> "Optional[AsyncIterator[StreamEvent]]":
        asked = self._peer.ask("next/call", self._params)
        try:
            first = await asked.next()
        except BaseException:
            asked.close()
            raise
        result = first.get("result") or {}
        if "event" not in first and "value" not in result and not result.get("stream"):
            return None
        return self._events(asked, first)

    async def _events(self, asked: OutgoingRequest, arrival: dict) -> "AsyncIterator[StreamEvent]":
        try:
            while "event" in arrival:
                yield StreamEvent(arrival["event"])
                arrival = await asked.next()
            if "value" in (arrival.get("result") or {}):
                yield StreamEvent.delta(arrival["result"]["value"])
        finally:
            asked.close()


def steps(peer: Peer, events: "AsyncIterator[Any]") -> "Iterator[Any]":
    """Read an asynchronous stream from a thread."""
    over = object()

    async def step() -> Any:
        async for event in events:
            return event
        return over

    while (event := peer.wait(step())) is not over:
        yield event
