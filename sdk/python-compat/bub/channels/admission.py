"""What happens to a message that arrives while a turn runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from bub.envelope import Envelope
from bub.turn import TurnState

type TurnAdmissionAction = Literal["process", "drop", "follow_up", "steer"]


@dataclass(frozen=True)
class AdmitDecision:
    """The decision about a message."""

    action: TurnAdmissionAction
    reason: str | None = None


@dataclass(frozen=True)
class TurnSnapshot:
    """What runs and waits in a session."""

    session_id: str
    is_running: bool
    running_count: int
    pending_count: int
    steering_count: int = 0


class SteeringInbox(Protocol):
    """An inbox for messages that steer a running turn."""

    async def enqueue_message(self, message: Envelope, state: TurnState) -> None: ...
    async def drain_messages(self, state: TurnState) -> list[Envelope]: ...
    def message_count(self, state: TurnState) -> int: ...
