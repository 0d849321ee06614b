"""Objects that hooks provide to the host. Their methods may be plain or ``async``.

- ``provide_tape_store``: ``list()``, ``read(tape)``, ``append(tape, entries)``, ``reset(tape)`` and optionally ``close()``.
- ``provide_steering_inbox``: ``enqueue(session_id, message)`` and ``drain(session_id)``.
- ``provide_environment``: ``workspace``, ``run(command, cwd, output)``, ``read_text(path)``, ``write_text(path, content)`` and
  optionally ``close()``. ``run`` calls ``output(text)`` and returns the exit code.
- ``build_tape_context``: a dict with ``anchor``, and with ``select``, a function of the entries that returns messages.
- ``provide_lifespan``: a context manager, plain or asynchronous.
"""

from __future__ import annotations

import asyncio
from typing import Any, Awaitable, Callable, Dict

from .peer import ServedRequest
from .values import BubError

#: Hooks whose result stays in this process.
HOOKS = {
    "build_tape_context",
    "provide_environment",
    "provide_lifespan",
    "provide_steering_inbox",
    "provide_tape_store",
}


class Provided:
    """The provided objects, and the requests of the host about them. ``run`` calls a plain or async function."""

    def __init__(self, run: "Callable[..., Awaitable[Any]]") -> None:
        self._run = run
        self._objects: Dict[str, Any] = {}
        self._environments: Dict[str, Any] = {}

    def methods(self) -> "Dict[str, Callable[[ServedRequest], Any]]":
        return {
            "store/list": self._on("provide_tape_store", "list", result="tapes"),
            "store/read": self._on("provide_tape_store", "read", "tape", result="entries"),
            "store/append": self._on("provide_tape_store", "append", "tape", "entries"),
            "store/reset": self._on("provide_tape_store", "reset", "tape"),
            "store/close": self._on("provide_tape_store", "close"),
            "steering/enqueue": self._on("provide_steering_inbox", "enqueue", "session_id", "message", result="accepted"),
            "steering/drain": self._on("provide_steering_inbox", "drain", "session_id", result="messages"),
            "tape/select": self._on("build_tape_context", "select", "entries", result="messages"),
            "lifespan/close": self._close_lifespan,
            "environment/run": self._run_command,
            "environment/read": self._on("", "read_text", "path", result="content"),
            "environment/write": self._on("", "write_text", "path", "content"),
            "environment/close": self._on("", "close"),
        }

    async def add(self, hook: str, value: Any, work: ServedRequest) -> Any:
        """Keep the result of a hook and return what the host gets."""
        if value is None:
            return None
        self._objects[hook] = value
        if hook == "provide_lifespan":
            enter = getattr(value, "__aenter__", None) or value.__enter__
            await self._run(work.peer, enter)
            return None
        if hook == "build_tape_context":
            return {**value, "select": True} if value.get("select") else value
        if hook == "provide_environment":
            id = str((work.params.get("args") or {}).get("session_id") or len(self._environments))
            self._environments[id] = value
            return {"id": id, "workspace": value.workspace}
        return {"provided": True}

    def _on(self, hook: str, name: str, *arguments: str, result: str = "") -> "Callable[[ServedRequest], Any]":
        """Return the handler of a request that calls one method of a provided object."""

        async def handle(work: ServedRequest) -> Any:
            target = self._objects.get(hook) if hook else self._environment(work)
            function = target.get(name) if isinstance(target, dict) else getattr(target, name, None)
            if function is None:
                if name == "close":
                    return None
                raise BubError(f"the result of {hook or 'provide_environment'} has no `{name}`", "not_found")
            value = await self._run(work.peer, function, *(work.params.get(argument) for argument in arguments))
            if name == "enqueue":
                value = value is not False
            return {result: value} if result else None

        return handle

    def _environment(self, work: ServedRequest) -> Any:
        environment = self._environments.get(work.params.get("environment") or "")
        if environment is None:
            raise BubError(f"unknown environment `{work.params.get('environment')}`", "not_found")
        return environment

    async def _run_command(self, work: ServedRequest) -> dict:
        environment, loop = self._environment(work), work.peer.loop
        printed: "asyncio.Queue[Any]" = asyncio.Queue()

        async def pump() -> None:
            while (text := await printed.get()) is not None:
                await work.event({"output": text})

        pumping = asyncio.ensure_future(pump())

        def output(text: str) -> None:
            loop.call_soon_threadsafe(printed.put_nowait, text)

        try:
            code = await self._run(work.peer, environment.run, work.params["command"], work.params.get("cwd"), output)
            loop.call_soon_threadsafe(printed.put_nowait, None)
            await pumping
            return {"code": code}
        finally:
            pumping.cancel()

    async def _close_lifespan(self, work: ServedRequest) -> None:
        value = self._objects.pop("provide_lifespan", None)
        if value is not None:
            leave = getattr(value, "__aexit__", None) or value.__exit__
            await self._run(work.peer, leave, None, None, None)
