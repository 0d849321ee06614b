"""Channels: adapters for chat platforms."""

from bub.channels.base import Channel, Interface, Lifecycle
from bub.channels.message import ChannelMessage

__all__ = ["Channel", "ChannelMessage", "Interface", "Lifecycle"]
