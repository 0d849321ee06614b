"""Messages of channels."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

type MessageKind = Literal["error", "normal", "command"]
type MediaType = Literal["image", "audio", "video", "document"]

#: Audio formats with the types that name them; the first type is the usual one.
_AUDIO_TYPES = {
    "aiff": ("audio/aiff", "audio/x-aiff"),
    "flac": ("audio/flac", "audio/x-flac"),
    "m4a": ("audio/mp4", "audio/x-m4a"),
    "mp3": ("audio/mpeg",),
    "ogg": ("audio/ogg",),
    "wav": ("audio/wav", "audio/x-wav"),
    "webm": ("audio/webm",),
}


def audio_format_from_mime_type(mime_type: str) -> str:
    """Return the format of an audio type, such as ``mp3``."""
    plain = mime_type.split(";")[0].strip().lower()
    known = (name for name, types in _AUDIO_TYPES.items() if plain in types)
    return next(known, None) or plain.removeprefix("audio/") or "unknown"


def audio_mime_type_from_format(audio_format: str) -> str:
    """Return the type of an audio format."""
    return _AUDIO_TYPES.get(audio_format, (f"audio/{audio_format}",))[0]


@dataclass
class MediaItem:
    """A file that belongs to a message."""

    type: MediaType
    mime_type: str
    filename: str | None = None
    url: str | None = None
    data_fetcher: Callable[[], Awaitable[bytes | None]] | None = None

    async def get_url(self) -> str | None:
        """Return the address of the file, or its content as a data URL."""
        if self.url or self.data_fetcher is None:
            return self.url or None
        data = await self.data_fetcher()
        return None if data is None else f"data:{self.mime_type};base64,{base64.b64encode(data).decode()}"


@dataclass
class ChannelMessage:
    """A message from or to a channel."""

    session_id: str
    channel: str
    content: str
    chat_id: str = "default"
    is_active: bool = False
    kind: MessageKind = "normal"
    context: dict[str, Any] = field(default_factory=dict)
    media: list[MediaItem] = field(default_factory=list)
    lifespan: AbstractAsyncContextManager[Any] | None = None
    output_channel: str = ""

    def __post_init__(self) -> None:
        self.context["channel"], self.context["chat_id"] = f"${self.channel}", self.chat_id
        self.output_channel = self.output_channel or self.channel

    @property
    def context_str(self) -> str:
        """The context as the model sees it. Names that start with ``_`` are internal."""
        return "|".join(f"{name}={value}" for name, value in self.context.items() if name[:1] != "_")

    @classmethod
    def from_batch(cls, batch: list[ChannelMessage]) -> ChannelMessage:
        """Merge messages into one. Contents are joined by newlines; the rest comes from the last one."""
        if not batch:
            raise ValueError("Batch cannot be empty")
        media = [item for message in batch for item in message.media]
        return replace(batch[-1], content="\n".join(message.content for message in batch), media=media)
