"""Plugins for bub, in Python. See docs/first-plugin-python.md and docs/plugin-protocol.md."""

from .host import about, ask, config, log, quit_session, run_turn, send, sender, steer, tape
from .decorators import Channel, ToolContext, command, hookimpl, tool
from .serve import PluginContext, serve, tools_changed
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
    "quit_session",
    "run_turn",
    "send",
    "sender",
    "serve",
    "steer",
    "tape",
    "text_of",
    "tool",
    "tools_changed",
]
