"""The tape store of the host."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from bub.store import TapeQuery
from bub.tape import TapeEntry

if TYPE_CHECKING:
    from bub.tape import Tape

#: Entries per request.
PAGE = 1000


class HostTapeStore:
    """Reads the tape of a session from the host, and appends events and anchors."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    async def list_tapes(self) -> list[str]:
        return list((await self._tape._ask("list"))["tapes"])

    async def reset(self, tape: str) -> None:
        await self._tape.reset()

    async def append(self, tape: str, entry: TapeEntry) -> None:
        if entry.kind == "anchor":
            await self._tape.handoff(entry.payload["name"], state=entry.payload.get("state"))
        elif entry.kind == "event":
            await self._tape.append_event(entry.payload["name"], entry.payload.get("data") or {})
        else:
            raise ValueError(f"a plugin can append events and anchors, not entries of the kind {entry.kind!r}")

    async def fetch_all(self, query: TapeQuery) -> Iterable[TapeEntry]:
        since, until = query._between_dates or (None, None)
        params = {
            "text": query._query,
            "after_anchor": query._after_anchor,
            "last_anchor": query._after_last or None,
            "between_anchors": query._between_anchors and list(query._between_anchors),
            "since": since,
            "until": until,
            "kinds": list(query._kinds) or None,
        }
        entries: list[TapeEntry] = []
        while True:
            limit = PAGE if query._limit is None else min(PAGE, query._limit - len(entries))
            if limit <= 0:
                return entries
            page = (await self._tape._ask("query", **params, offset=len(entries), limit=limit))["entries"]
            entries += map(entry_of, page)
            if len(page) < limit:
                return entries


def entry_of(fields: dict[str, Any]) -> TapeEntry:
    """Return an entry from its JSON."""
    payload, meta = fields.get("payload") or {}, fields.get("meta") or {}
    return TapeEntry(fields["id"], fields["kind"], payload, meta, fields.get("date") or "")
