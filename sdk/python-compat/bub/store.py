"""Tape stores and queries."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any, Protocol, Self
from urllib.parse import quote, unquote

from bub.errors import BubError, ErrorKind
from bub.tape import TapeEntry


class TapeStore(Protocol):
    """A store whose methods return at once."""

    def list_tapes(self) -> list[str]: ...
    def reset(self, tape: str) -> None: ...
    def fetch_all(self, query: TapeQuery) -> Iterable[TapeEntry]: ...
    def append(self, tape: str, entry: TapeEntry) -> None: ...


class AsyncTapeStore(Protocol):
    """A store whose methods are awaited."""

    async def list_tapes(self) -> list[str]: ...
    async def reset(self, tape: str) -> None: ...
    async def fetch_all(self, query: TapeQuery) -> Iterable[TapeEntry]: ...
    async def append(self, tape: str, entry: TapeEntry) -> None: ...


def is_async_tape_store(store: Any) -> bool:
    """Return whether the methods of a store are awaited."""
    return inspect.iscoroutinefunction(store.append)


@dataclass(frozen=True)
class TapeQuery:
    """Selects entries of a tape."""

    tape: str
    store: Any
    _query: str | None = None
    _after_anchor: str | None = None
    _after_last: bool = False
    _between_anchors: tuple[str, str] | None = None
    _between_dates: tuple[str, str] | None = None
    _kinds: tuple[str, ...] = ()
    _limit: int | None = None

    def __class_getitem__(cls, item: Any) -> type[TapeQuery]:
        return cls

    def query(self, value: str) -> Self:
        return replace(self, _query=value)

    def after_anchor(self, name: str) -> Self:
        return replace(self, _after_anchor=name or None, _after_last=False)

    def last_anchor(self) -> Self:
        return replace(self, _after_anchor=None, _after_last=True)

    def between_anchors(self, start: str, end: str) -> Self:
        return replace(self, _between_anchors=(start, end))

    def between_dates(self, start: str | date, end: str | date) -> Self:
        return replace(self, _between_dates=tuple(str(day) if isinstance(day, str) else day.isoformat() for day in (start, end)))

    def kinds(self, *kinds: str) -> Self:
        return replace(self, _kinds=kinds)

    def limit(self, value: int) -> Self:
        return replace(self, _limit=value)

    def all(self) -> Any:
        return self.store.fetch_all(self)


def _moment(text: str, *, is_end: bool) -> datetime:
    try:
        if len(text) <= len("2026-01-01"):
            return datetime.combine(date.fromisoformat(text), time.max if is_end else time.min, UTC)
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise BubError(ErrorKind.INVALID_INPUT, f"Invalid date '{text}'.") from error
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def select_entries(entries: list[TapeEntry], query: TapeQuery) -> list[TapeEntry]:
    """Return the entries that a query selects."""
    marks = [index for index, entry in enumerate(entries) if entry.kind == "anchor"]

    def find(name: str | None, found: Iterable[int]) -> int:
        for index in found:
            if name is None or entries[index].payload.get("name") == name:
                return index
        text = "No anchors found in tape." if name is None else f"Anchor '{name}' was not found."
        raise BubError(ErrorKind.NOT_FOUND, text)

    if query._between_anchors is not None:
        first, last = query._between_anchors
        begin = find(first, reversed(marks))
        entries = entries[begin + 1 : find(last, (index for index in marks if index > begin))]
    elif query._after_last or query._after_anchor is not None:
        entries = entries[find(query._after_anchor, reversed(marks)) + 1 :]
    if query._between_dates is not None:
        begin_at, end_at = (_moment(day, is_end=bool(place)) for place, day in enumerate(query._between_dates))
        if begin_at > end_at:
            raise BubError(ErrorKind.INVALID_INPUT, "Start date must be earlier than or equal to end date.")
        entries = [entry for entry in entries if begin_at <= _moment(entry.date, is_end=False) <= end_at]
    if query._query:
        wanted = query._query.casefold()
        entries = [entry for entry in entries if wanted in _text(entry)]
    if query._kinds:
        entries = [entry for entry in entries if entry.kind in query._kinds]
    return entries[: query._limit]


def _text(entry: TapeEntry) -> str:
    fields = {"kind": entry.kind, "date": entry.date, "payload": entry.payload, "meta": entry.meta}
    return json.dumps(fields, sort_keys=True, default=str).casefold()


class InMemoryQueryMixin:
    """Queries for a store that can read a complete tape."""

    def read(self, tape: str) -> list[TapeEntry] | None:
        raise NotImplementedError("a store with InMemoryQueryMixin must implement read()")

    def fetch_all(self, query: TapeQuery) -> Iterable[TapeEntry]:
        return select_entries(list(self.read(query.tape) or []), query)


class InMemoryTapeStore(InMemoryQueryMixin):
    """A store in memory."""

    def __init__(self) -> None:
        self._tapes: dict[str, list[TapeEntry]] = {}

    def list_tapes(self) -> list[str]:
        return sorted(self._tapes)

    def reset(self, tape: str) -> None:
        self._tapes.pop(tape, None)

    def read(self, tape: str) -> list[TapeEntry] | None:
        entries = self._tapes.get(tape)
        return None if entries is None else [entry.copy() for entry in entries]

    def append(self, tape: str, entry: TapeEntry) -> None:
        entries = self._tapes.setdefault(tape, [])
        last = entries[-1].id if entries else 0
        entries.append(replace(entry.copy(), id=last + 1))


class FileTapeStore(InMemoryQueryMixin):
    """A store with its own directory, one file of JSON lines per tape. It has no locks: do not share the directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = Path(directory)
        self._directory.mkdir(parents=True, exist_ok=True)
        #: The size of each file after the last append, and the id of its last entry.
        self._last: dict[str, tuple[int, int]] = {}

    def _file(self, tape: str) -> Path:
        return self._directory / f"{quote(tape, safe='')}.jsonl"

    def list_tapes(self) -> list[str]:
        return sorted(unquote(file.stem) for file in self._directory.glob("*.jsonl"))

    def reset(self, tape: str) -> None:
        self._file(tape).unlink(missing_ok=True)

    def read(self, tape: str) -> list[TapeEntry] | None:
        file = self._file(tape)
        if not file.exists():
            return None
        return [TapeEntry(**json.loads(line)) for line in file.read_text("utf-8").splitlines() if line.strip()]

    def append(self, tape: str, entry: TapeEntry) -> None:
        with self._file(tape).open("a", encoding="utf-8") as file:
            size, last = self._last.get(tape, (0, 0))
            if file.tell() != size:
                entries = self.read(tape)
                last = entries[-1].id if entries else 0
            made = replace(entry, id=last + 1)
            file.write(json.dumps(asdict(made), ensure_ascii=False) + "\n")
            self._last[tape] = (file.tell(), made.id)


class AsyncTapeStoreAdapter:
    """A store whose methods are awaited, made from one whose methods return at once."""

    def __init__(self, store: TapeStore) -> None:
        self._store = store

    async def list_tapes(self) -> list[str]:
        return self._store.list_tapes()

    async def reset(self, tape: str) -> None:
        self._store.reset(tape)

    async def fetch_all(self, query: TapeQuery) -> Iterable[TapeEntry]:
        return self._store.fetch_all(query)

    async def append(self, tape: str, entry: TapeEntry) -> None:
        self._store.append(tape, entry)


class UnavailableTapeStore:
    """A store that fails."""

    def __init__(self, message: str) -> None:
        self._message = message

    def _fail(self, *_: Any) -> Any:
        raise RuntimeError(self._message)

    list_tapes = reset = fetch_all = append = _fail
