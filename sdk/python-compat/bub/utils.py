"""Small helpers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from typing import Any

from bub.turn import TurnState


def exclude_none(d: dict[str, Any]) -> dict[str, Any]:
    """Return the entries with a value."""
    return {name: value for name, value in d.items() if value is not None}


async def wait_until_stopped[T](coro: Coroutine[None, None, T], stop_event: asyncio.Event) -> T:
    """Return the result of a coroutine. Cancel it when the event is set."""
    work = asyncio.ensure_future(coro)
    stopped = asyncio.ensure_future(stop_event.wait())
    try:
        await asyncio.wait((work, stopped), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
    if not stop_event.is_set():
        return work.result()
    work.cancel()
    await work
    raise asyncio.CancelledError("stopped")


def workspace_from_state(state: TurnState) -> Path:
    """Return the workspace of a turn."""
    named = state.get("_runtime_workspace")
    is_named = isinstance(named, str) and named.strip()
    return (Path(named).expanduser() if is_named else Path.cwd()).resolve()


def get_entry_text(entry: Any) -> str:
    """Return the payload of an entry as YAML."""
    import yaml

    return yaml.safe_dump(entry.payload)


async def maybe_context_manager(obj: Any, stack: contextlib.AsyncExitStack) -> Any:
    """Enter a generator that yields once. Return other objects unchanged."""
    if isinstance(obj, AsyncIterator):
        return await stack.enter_async_context(contextlib.asynccontextmanager(lambda: obj)())
    if isinstance(obj, Iterator):
        return stack.enter_context(contextlib.contextmanager(lambda: obj)())
    return obj
