"""Old names of types."""

from bub.channels.contracts import MessageHandler
from bub.envelope import Envelope
from bub.turn import TurnState as State

__all__ = ["Envelope", "MessageHandler", "State"]
