"""Arguments and results of hooks: JSON objects whose fields are also attributes."""

from __future__ import annotations

import json
from typing import Any, Optional


class Fields(dict):
    """A JSON object: ``call["tool"]`` is also ``call.tool``."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"unknown field {name!r}; available fields: {', '.join(self)}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def replace(self, **changes: Any) -> "Fields":
        """Return a copy with some fields changed."""
        return type(self)({**self, **changes})


class Envelope(Fields):
    """A message. ``sender`` is the authenticated sender; message fields cannot set it."""

    sender = Fields()


class StreamEvent(Fields):
    """One event of a model's answer: its kind (``text``, ``reasoning``, ``usage``, ``final``, …) and its data."""

    def __init__(self, kind: Any, data: Optional[dict] = None) -> None:
        super().__init__(kind if isinstance(kind, dict) else {"kind": kind, "data": data or {}})

    @property
    def text(self) -> str:
        """Return the text of the event; empty for other kinds."""
        return self["data"].get("delta", "") if self["kind"] == "text" else ""

    @classmethod
    def delta(cls, text: str) -> "StreamEvent":
        """Create a text event."""
        return cls("text", {"delta": text})


class BubError(Exception):
    """An error with a kind: invalid_input, config, provider, tool, temporary, not_found, cancelled or unknown."""

    def __init__(self, message: str, kind: str = "unknown", details: Optional[dict] = None) -> None:
        super().__init__(message)
        self.message, self.kind, self.details = message, kind, details

    def to_value(self) -> dict:
        value = {"kind": self.kind, "message": self.message}
        return {**value, "details": self.details} if self.details else value

    @classmethod
    def of(cls, error: BaseException) -> "BubError":
        """Convert any exception to a BubError."""
        if isinstance(error, BubError):
            return error
        text = str(error)
        return cls(f"{type(error).__name__}: {text}" if text else type(error).__name__)

    @classmethod
    def from_value(cls, value: Any) -> "BubError":
        value = value if isinstance(value, dict) else {}
        return cls(value.get("message") or "it failed", value.get("kind") or "unknown", value.get("details"))


class ToolCallDecision(Fields):
    """Decision of ``before_tool_call``."""

    @classmethod
    def proceed(cls, arguments: Optional[dict] = None) -> "Optional[ToolCallDecision]":
        """Continue, optionally with other arguments. Without arguments, the next guard decides."""
        return None if arguments is None else cls(proceed=arguments)

    @classmethod
    def replace(cls, result: Any) -> "ToolCallDecision":  # type: ignore[override]
        return cls(replace=result)

    @classmethod
    def deny(cls, reason: Optional[str] = None) -> "ToolCallDecision":
        return cls(deny=reason)


class LlmCallDecision(Fields):
    """Decision of ``before_llm_call``."""

    @classmethod
    def proceed(cls, request: dict) -> "LlmCallDecision":
        return cls(proceed=request)

    @classmethod
    def finish(cls, text: str) -> "LlmCallDecision":
        return cls(finish=text)


def field_of(message: Any, name: str, default: Any = None) -> Any:
    """Return a field of a message."""
    return message.get(name, default) if isinstance(message, dict) else getattr(message, name, default)


def content_of(message: Any) -> str:
    """Return the text of a message."""
    content = field_of(message, "content")
    return "" if content is None else str(content)


def text_of(prompt: Any) -> str:
    """Return the text of a prompt, which is a string or a list of content parts."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(part["text"] for part in prompt or [] if part.get("type") == "text")


def encode(value: Any) -> bytes:
    """Convert a value to JSON. Raise BubError if that is impossible."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise BubError(f"cannot send the value as JSON: {error}", "invalid_input") from None
    # An unpaired surrogate is not valid text elsewhere.
    return text.encode("utf-8", "replace")


class Changes:
    """Snapshot of the state, to send only the changes of a hook."""

    def __init__(self, state: dict) -> None:
        self._state = state
        self._before = {name: encode(value) for name, value in state.items()}

    def patch(self) -> dict:
        changed = {}
        for name, value in self._state.items():
            try:
                if encode(value) != self._before.get(name):
                    changed[name] = value
            except BubError as error:
                kind = type(value).__name__
                raise BubError(
                    f"state[{name!r}] is a {kind}, which cannot leave the plugin: {error}", "invalid_input"
                ) from None
        removed = [name for name in self._before if name not in self._state]
        return {"state": {"set": changed, "remove": removed}} if changed or removed else {}
