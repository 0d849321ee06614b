"""Base classes of channels."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable
from typing import ClassVar

from bub.channels.admission import AdmitDecision, TurnSnapshot
from bub.channels.message import ChannelMessage
from bub.envelope import Envelope
from bub.streaming import StreamEvent


class Channel(ABC):
    """An adapter for one chat platform."""

    name: ClassVar[str] = "base"

    @abstractmethod
    async def start(self, stop_event: asyncio.Event) -> None:
        """Start receiving messages."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop receiving messages."""

    @property
    def needs_debounce(self) -> bool:
        """Whether messages that arrive close together are collected into one turn."""
        return False

    @property
    def enabled(self) -> bool:
        """Whether the channel is used."""
        return True

    async def send(self, message: ChannelMessage) -> None:
        """Deliver a message."""

    def stream_events(self, message: ChannelMessage, stream: AsyncIterable[StreamEvent]) -> AsyncIterable[StreamEvent]:
        """Read the events of an answer while the model writes it."""
        return stream

    async def admit_message(self, session_id: str, message: Envelope, turn: TurnSnapshot) -> AdmitDecision | None:
        """Decide about a message of this channel."""
        return None


class Interface(Channel):
    """A channel that users see."""


class Lifecycle(Channel):
    """Work in the background that starts and stops with the channels."""
