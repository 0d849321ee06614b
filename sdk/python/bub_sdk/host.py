"""Host methods for plugins. Await them in an async function; in a plain function they block."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Optional

from .peer import CALL, Peer
from .values import BubError, Fields

_peer: Optional[Peer] = None

#: Settings of the plugin, as declared in its manifest.
config: Dict[str, Any] = {}
#: Environment of the plugin: ``name`` and ``workspace``.
about: Dict[str, Any] = {}


def connect(peer: Optional[Peer]) -> None:
    global _peer
    _peer = peer


def on_initialize(params: dict) -> None:
    """Store the data of `initialize`."""
    config.clear()
    config.update(params.get("config") or {})
    about.update(name=params.get("name", ""), workspace=Path(params.get("workspace") or "."))


def peer() -> Peer:
    if _peer is None:
        raise BubError("no host is connected: this works only while the plugin is served", "config")
    return _peer


def request(method: str, params: dict) -> Any:
    """Send a request to the host and return its result. A request during a turn belongs to the turn."""
    work = CALL.get()
    given = {name: value for name, value in params.items() if value is not None}
    if work is not None:
        given["call"] = work.id
    return peer().wait(peer()._call(method, given))


def _ask(method: str, params: dict, field: str) -> Any:
    async def answer() -> Any:
        return (await request(method, params) or {}).get(field)

    return peer().wait(answer())


def log(message: str, level: str = "info") -> None:
    """Write to the host's log: debug, info, warning or error."""
    peer().notify("log", {"level": level, "message": str(message)})


def ask(
    question: str,
    default: Any = None,
    secret: bool = False,
    choices: Optional[list] = None,
    multiple: bool = False,
    raw: bool = False,
) -> Any:
    """Prompt the user for text, for one of ``choices``, or with ``multiple`` for any number of them.
    With ``raw``, return the next line of stdin, and ``None`` at its end."""
    params = {"question": question, "default": default, "choices": choices}
    flags = {"secret": secret or None, "multiple": multiple or None, "raw": raw or None}
    return _ask("ui/ask", {**params, **flags}, "answer")


def send(message: dict) -> Any:
    """Send a message to its channel. Return whether it was delivered."""
    return _ask("message/send", {"message": message}, "delivered")


def run_turn(message: dict) -> Any:
    """Run a message in its session. Return ``session_id`` and ``model_output`` after the turn."""
    return request("turn/run", {"message": message})


def steer(session_id: str, message: dict, reason: Optional[str] = None) -> Any:
    """Add a message to the running turn of a session. Return whether it was accepted."""
    return _ask("session/steer", {"session_id": session_id, "message": message, "reason": reason}, "accepted")


def quit_session(session_id: str) -> Any:
    """Stop the turns of a session and drop its queued messages."""
    return request("session/quit", {"session_id": session_id})


def inbound(channel: str, message: dict, sender: Optional[dict] = None) -> Any:
    """Pass a message from a channel of the plugin to the host. Return once it is stored on disk."""
    return _ask("channel/inbound", {"channel": channel, "message": message, "sender": sender}, "accepted")


def sender() -> Fields:
    """Return the authenticated sender of the current call: id, name, role, channel, chat_id."""
    work = CALL.get()
    params = work.params if work is not None else {}
    return Fields(params.get("sender") or params.get("_meta", {}).get("sender") or {})


class tape:
    """The tape of a session; the default is the session of the current turn."""

    @staticmethod
    def query(
        text: Optional[str] = None,
        kinds: Optional[list] = None,
        last_anchor: bool = False,
        newest_first: bool = False,
        limit: Optional[int] = None,
        session_id: Optional[str] = None,
    ) -> Any:
        """Return entries, oldest first."""
        params = {"text": text, "kinds": kinds, "limit": limit, "session_id": session_id}
        params.update(last_anchor=last_anchor or None, newest_first=newest_first or None)
        return _ask("tape/query", params, "entries")

    @staticmethod
    def append(name: str, data: Any = None, session_id: Optional[str] = None, fork: Optional[str] = None) -> Any:
        """Append an event and return its id."""
        return _ask("tape/append", {"name": name, "data": data, "session_id": session_id, "fork": fork}, "id")

    @staticmethod
    def search(text: str, limit: Optional[int] = None, session_id: Optional[str] = None) -> Any:
        """Return entries with similar words."""
        return _ask("tape/search", {"text": text, "limit": limit, "session_id": session_id}, "entries")

    @staticmethod
    def info(session_id: Optional[str] = None) -> Any:
        """Return figures about the tape."""
        return request("tape/info", {"session_id": session_id})

    @staticmethod
    def anchors(limit: Optional[int] = None, session_id: Optional[str] = None) -> Any:
        """Return the latest anchors with their state."""
        return _ask("tape/anchors", {"limit": limit, "session_id": session_id}, "anchors")

    @staticmethod
    def handoff(name: str, state: Optional[dict] = None, session_id: Optional[str] = None) -> Any:
        """Write an anchor and return its id. Later views start there."""
        return _ask("tape/handoff", {"name": name, "state": state, "session_id": session_id}, "id")

    @staticmethod
    def fork(session_id: Optional[str] = None) -> Any:
        """Start a fork and return its id, for ``append`` and ``merge``."""
        return _ask("tape/fork", {"session_id": session_id}, "fork")

    @staticmethod
    def merge(fork: str, keep: bool = True) -> Any:
        """End a fork: add its entries to the tape, or discard them."""
        return request("tape/merge" if keep else "tape/discard", {"fork": fork})

    @staticmethod
    def reset(archive: bool = False, session_id: Optional[str] = None) -> Any:
        """Clear the tape."""
        return _ask("tape/reset", {"archive": archive, "session_id": session_id}, "message")
