"""Plugins for bub, in Python. See docs/first-plugin-python.md and docs/plugin-protocol.md."""

from .host import about, ask, config, log, run_turn, send, sender, tape
from .decorators import Channel, ToolContext, command, hookimpl, tool
from .serve import PluginContext, serve
from .values import (
    BubError,
    Envelope,
    Fields,
    LlmCallDecision,
    StreamEvent,
    ToolCallDecision,
    content_of,
    field_of,
    text_of,
)

__version__ = "0.1.0"
__all__ = [
    "BubError",
    "Channel",
    "Envelope",
    "Fields",
    "LlmCallDecision",
    "PluginContext",
    "StreamEvent",
    "ToolCallDecision",
    "ToolContext",
    "about",
    "ask",
    "command",
    "config",
    "content_of",
    "field_of",
    "hookimpl",
    "log",
    "run_turn",
    "send",
    "sender",
    "serve",
    "tape",
    "text_of",
    "tool",
]
