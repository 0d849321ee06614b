"""Converts arguments and results of hooks between JSON and the classes of the Python version."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from bub_sdk.values import BubError as HostError

from bub.channels.message import ChannelMessage, MediaItem
from bub.envelope import normalize_envelope
from bub.errors import BubError

_FIELDS = {field.name for field in dataclasses.fields(ChannelMessage)}
_MEDIA_FIELDS = {field.name for field in dataclasses.fields(MediaItem)}


def message(fields: dict[str, Any]) -> ChannelMessage:
    """Return a message from its JSON. Fields that the class does not have become attributes."""
    known = {name: value for name, value in fields.items() if name in _FIELDS and value is not None}
    known["media"] = [_media(item) for item in known.get("media") or []]
    known["context"] = dict(known.get("context") or {})
    for name in ("session_id", "channel", "content"):
        known.setdefault(name, "")
    made = ChannelMessage(**known)
    for name in fields.keys() - _FIELDS:
        setattr(made, name, fields[name])
    return made


def _media(item: dict[str, Any]) -> MediaItem:
    known = {name: value for name, value in item.items() if name in _MEDIA_FIELDS}
    return MediaItem(**{"type": "document", "mime_type": "application/octet-stream", **known})


async def outgoing(envelope: Any) -> tuple[dict[str, Any], Any]:
    """Return a message as JSON, and its lifespan. Files are fetched."""
    fields = normalize_envelope(envelope)
    lifespan = fields.pop("lifespan", None)
    fields = {name: value for name, value in fields.items() if not name.startswith("_runtime_")}
    media = []
    for item in fields.get("media") or []:
        if isinstance(item, MediaItem):
            url = await item.get_url()
            if url is None:
                continue
            entry = {"type": item.type, "mime_type": item.mime_type, "filename": item.filename, "url": url}
            item = {name: value for name, value in entry.items() if value is not None}
        media.append(item)
    if "media" in fields:
        fields["media"] = media
    return fields, lifespan


def envelope_now(envelope: Any) -> dict[str, Any]:
    """Return a message as JSON without fetching files."""
    fields = normalize_envelope(envelope)
    fields.pop("lifespan", None)
    items = (item for item in fields.get("media") or [])
    fields["media"] = [_media_fields(item) for item in items]
    if not fields["media"]:
        del fields["media"]
    return fields


def _media_fields(item: Any) -> Any:
    if not isinstance(item, MediaItem):
        return item
    entry = {"type": item.type, "mime_type": item.mime_type, "filename": item.filename, "url": item.url}
    return {name: value for name, value in entry.items() if value is not None}


def error(value: Any) -> BubError | None:
    """Return an error from its JSON."""
    if not isinstance(value, dict):
        return None
    return BubError(value.get("kind") or "unknown", value.get("message") or "", value.get("details"))


def host_error(failure: BaseException) -> HostError:
    """Return an exception of the plugin as an error for the host."""
    if isinstance(failure, BubError):
        return HostError(failure.message, failure.kind.value, _json_or_none(failure.details))
    return HostError.of(failure)


def _json_or_none(value: Any) -> Any:
    return to_json(value) if value else None


def to_json(value: Any) -> Any:
    """Return a value as JSON data. What JSON does not have becomes text."""
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, Mapping):
        return {str(name): to_json(item) for name, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_json(item) for item in value]
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return str(value)
