"""Tapes: entries, queries, and the tape of a session, which the host keeps."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_STORES = {
    "AsyncTapeStore",
    "AsyncTapeStoreAdapter",
    "FileTapeStore",
    "InMemoryQueryMixin",
    "InMemoryTapeStore",
    "TapeQuery",
    "TapeStore",
    "UnavailableTapeStore",
    "is_async_tape_store",
}


def __getattr__(name: str) -> Any:
    if name in _STORES:
        from bub import store

        return getattr(store, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def utc_now() -> str:
    """Return the current time as text."""
    return datetime.now(UTC).isoformat()


@dataclass(frozen=True)
class TapeEntry:
    """One entry of a tape."""

    id: int
    kind: str
    payload: dict[str, Any]
    meta: dict[str, Any] = field(default_factory=dict)
    date: str = field(default_factory=utc_now)

    def copy(self) -> TapeEntry:
        return copy.deepcopy(self)

    @classmethod
    def message(cls, message: dict[str, Any], **meta: Any) -> TapeEntry:
        return cls(0, "message", dict(message), meta)

    @classmethod
    def system(cls, content: str, **meta: Any) -> TapeEntry:
        return cls(0, "system", {"content": content}, meta)

    @classmethod
    def anchor(cls, name: str, state: dict[str, Any] | None = None, **meta: Any) -> TapeEntry:
        return cls(0, "anchor", _with({"name": name}, state=state), meta)

    @classmethod
    def tool_call(cls, calls: list[dict[str, Any]], *, content: str | None = None, **meta: Any) -> TapeEntry:
        return cls(0, "tool_call", _with({"calls": calls}, content=content), meta)

    @classmethod
    def tool_result(cls, results: list[Any], **meta: Any) -> TapeEntry:
        return cls(0, "tool_result", {"results": results}, meta)

    @classmethod
    def error(cls, error: Any, **meta: Any) -> TapeEntry:
        return cls(0, "error", error.as_dict(), meta)

    @classmethod
    def event(cls, name: str, data: dict[str, Any] | None = None, **meta: Any) -> TapeEntry:
        return cls(0, "event", _with({"name": name}, data=data), meta)


def _with(payload: dict[str, Any], **optional: Any) -> dict[str, Any]:
    return payload | {name: value for name, value in optional.items() if value is not None}


class _LastAnchor:
    def __repr__(self) -> str:
        return "LAST_ANCHOR"


LAST_ANCHOR = _LastAnchor()


@dataclass(frozen=True)
class TapeContext:
    """Which entries become the messages of a model call."""

    anchor: str | None | _LastAnchor = LAST_ANCHOR
    select: Callable[[Iterable[TapeEntry], TapeContext], Any] | None = None
    state: dict[str, Any] = field(default_factory=dict)

    def build_query(self, query: Any) -> Any:
        if self.anchor is None:
            return query
        return query.last_anchor() if self.anchor is LAST_ANCHOR else query.after_anchor(self.anchor)


def build_messages(entries: Iterable[TapeEntry], context: TapeContext) -> Any:
    """Return the messages of a model call."""
    if context.select is not None:
        return context.select(entries, context)
    return [dict(entry.payload) for entry in entries if entry.kind == "message"]


@dataclass(frozen=True)
class TapeInfo:
    """Figures about a tape."""

    name: str
    entries: int
    anchors: int
    last_anchor: str | None
    entries_since_last_anchor: int
    last_token_usage: int | None
    last_token_cache_hit_rate: float | None


@dataclass(frozen=True)
class AnchorSummary:
    """An anchor with its state."""

    name: str
    state: dict[str, Any]


class Tape:
    """The tape of a session. The host keeps it; every method asks the host."""

    def __init__(self, session_id: str | None = None, name: str = "", context: TapeContext | None = None) -> None:
        self.session_id, self._name = session_id, name
        self.context = context or TapeContext()

    @property
    def name(self) -> str:
        return self._name

    @property
    def store(self) -> Any:
        from bub._serve.host_store import HostTapeStore

        return HostTapeStore(self)

    async def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        from bub_sdk import host

        return await host.request(f"tape/{method}", {"session_id": self.session_id, **params}) or {}

    def with_context(self, context: TapeContext) -> Tape:
        return Tape(self.session_id, self._name, context)

    def session_tape(self, session_id: str, workspace: Path | None = None, context: TapeContext | None = None) -> Tape:
        """Return the tape of another session."""
        return Tape(session_id, context=context)

    def query(self) -> Any:
        """Return a query, whose ``all()`` must be awaited."""
        from bub.store import TapeQuery

        return TapeQuery(self._name, self.store)

    async def search(self, query: Any) -> list[TapeEntry]:
        return list(await query.all())

    async def info(self) -> TapeInfo:
        return TapeInfo(**(await self._ask("info")))

    async def anchors(self, limit: int = 20) -> list[AnchorSummary]:
        found = (await self._ask("anchors", limit=limit))["anchors"]
        return [AnchorSummary(anchor["name"], anchor.get("state") or {}) for anchor in found]

    async def append_event(self, name: str, payload: dict[str, Any], **meta: Any) -> None:
        await self._ask("append", name=name, data=payload)

    async def handoff(self, name: str | None = None, *, state: dict[str, Any] | None = None, **meta: Any) -> list[TapeEntry]:
        made = await self._ask("handoff", name=name or "handoff", state=state)
        return [TapeEntry(made.get("id") or 0, "anchor", {"name": name or "handoff", "state": state or {}}, meta)]

    async def reset(self, *, archive: bool = False) -> str:
        return str((await self._ask("reset", archive=archive))["message"])

    async def read_messages(self) -> list[dict[str, Any]]:
        entries = await self.context.build_query(self.query()).all()
        messages = build_messages(entries, self.context)
        return await messages if hasattr(messages, "__await__") else messages

    @contextlib.asynccontextmanager
    async def fork_tape(self, merge_back: bool = True) -> AsyncIterator[Tape]:
        """Work on a fork. Its entries are merged at the end, unless ``merge_back`` is false."""
        fork = (await self._ask("fork"))["fork"]
        is_kept = False
        try:
            yield _Fork(self, fork)
            is_kept = merge_back
        finally:
            await self._ask("merge" if is_kept else "discard", fork=fork)


class _Fork(Tape):
    def __init__(self, tape: Tape, fork: str) -> None:
        super().__init__(tape.session_id, tape._name, tape.context)
        self._fork = fork

    async def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        return await super()._ask(method, fork=self._fork, **params)
