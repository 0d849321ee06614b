"""Access to messages, which are mappings or objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

type Envelope = Any


def field_of(message: Envelope, key: str, default: Any = None) -> Any:
    """Return a field of a message."""
    return message.get(key, default) if isinstance(message, Mapping) else getattr(message, key, default)


def content_of(message: Envelope) -> str:
    """Return the text of a message."""
    return str(field_of(message, "content", ""))


def normalize_envelope(message: Envelope) -> dict[str, Any]:
    """Return the fields of a message in a new mapping."""
    fields = message if isinstance(message, Mapping) else getattr(message, "__dict__", None)
    return {"content": str(message)} if fields is None else dict(fields)


def unpack_batch(batch: Any) -> list[Envelope]:
    """Return the messages that a hook returned: none, one, or several."""
    if batch is None:
        return []
    return list(batch) if isinstance(batch, (list, tuple)) else [batch]
