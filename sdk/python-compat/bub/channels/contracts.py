"""Functions that channels and the framework give to each other."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Coroutine
from typing import Any, Protocol

from bub.channels.admission import AdmitDecision, TurnSnapshot
from bub.envelope import Envelope
from bub.streaming import StreamEvent

type MessageHandler = Callable[[Envelope], Coroutine[Any, Any, None]]


class ChannelRouter(Protocol):
    """Delivers messages to channels."""

    async def dispatch_output(self, message: Envelope) -> bool: ...
    def wrap_stream(self, message: Envelope, stream: AsyncIterable[StreamEvent]) -> AsyncIterable[StreamEvent]: ...
    async def quit(self, session_id: str) -> None: ...
    async def admit_channel_message(
        self, session_id: str, message: Envelope, turn: TurnSnapshot
    ) -> AdmitDecision | None: ...
