"""The channels of the plugin."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from bub_sdk import host
from bub_sdk.peer import ServedRequest
from bub_sdk.values import BubError as HostError
from loguru import logger

from bub._serve import convert
from bub._serve.hooks import Hooks
from bub.channels.base import Channel, Lifecycle
from bub.envelope import field_of
from bub.streaming import StreamEvent


class Channels:
    """Starts and stops channels, and passes messages in both directions."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._channels: dict[str, Channel] = {}
        self._stops: dict[str, asyncio.Event] = {}
        self._lifespans: dict[str, Any] = {}
        self._ids = itertools.count(1)
        self._streams: dict[str, asyncio.Queue[StreamEvent | None]] = {}
        self._readers: set[asyncio.Task[None]] = set()

    def methods(self) -> dict[str, Callable[[ServedRequest], Any]]:
        return {
            "channel/start": self._start,
            "channel/stop": self._stop,
            "channel/send": self._send,
            "channel/event": self._event,
            "lifespan/enter": self._enter,
            "lifespan/exit": self._exit,
        }

    def provide(self, plugin: str) -> None:
        """Ask the plugin for its channels."""
        for impl in self._hooks.implementations("provide_channels"):
            given = {"message_handler": self.receive} if "message_handler" in impl.argnames else {}
            for channel in impl.function(**given) or ():
                self._channels.setdefault(channel.name, channel)

    def describe(self) -> list[dict[str, Any]]:
        return [
            {
                "name": name,
                "debounce": bool(channel.needs_debounce),
                "events": type(channel).stream_events is not Channel.stream_events,
                "lifecycle": isinstance(channel, Lifecycle),
            }
            for name, channel in self._channels.items()
        ]

    def can_admit(self) -> bool:
        return any(type(channel).admit_message is not Channel.admit_message for channel in self._channels.values())

    async def admit(self, given: dict[str, Any]) -> Any:
        channel = self._channels.get(field_of(given["message"], "channel", ""))
        return None if channel is None else await channel.admit_message(**given)

    # Messages of users

    async def receive(self, message: Any) -> None:
        """Pass a message to the host. The argument ``message_handler`` of ``provide_channels``."""
        fields, lifespan = await convert.outgoing(message)
        params: dict[str, Any] = {"channel": fields.get("channel", ""), "message": fields, "sender": _sender(fields)}
        if lifespan is not None:
            params["lifespan"] = key = str(next(self._ids))
            self._lifespans[key] = lifespan
        try:
            await host.request("channel/inbound", params)
        except BaseException:
            self._lifespans.pop(params.get("lifespan", ""), None)
            raise

    async def _enter(self, work: ServedRequest) -> None:
        lifespan = self._lifespans.get(work.params["lifespan"])
        if lifespan is not None:
            await lifespan.__aenter__()

    async def _exit(self, work: ServedRequest) -> None:
        lifespan = self._lifespans.pop(work.params["lifespan"], None)
        if lifespan is not None:
            failure = convert.error(work.params.get("error"))
            await lifespan.__aexit__(type(failure) if failure else None, failure, None)

    # Requests of the host

    def _find(self, work: ServedRequest) -> Channel:
        channel = self._channels.get(work.params.get("channel") or "")
        if channel is None:
            raise HostError(f"unknown channel `{work.params.get('channel')}`", "not_found")
        return channel

    async def _start(self, work: ServedRequest) -> None:
        channel = self._find(work)
        if not channel.enabled:
            return logger.info("channel.disabled channel={}", channel.name)
        stop = self._stops[channel.name] = asyncio.Event()
        await channel.start(stop)

    async def _stop(self, work: ServedRequest) -> None:
        await self._stop_channel(self._find(work))

    async def _stop_channel(self, channel: Channel) -> None:
        stop = self._stops.pop(channel.name, None)
        if stop is not None:
            stop.set()
            await channel.stop()

    async def _send(self, work: ServedRequest) -> None:
        message = convert.message(work.params.get("message") or {})
        self._end_stream(message.session_id)
        await self._find(work).send(message)

    async def _event(self, work: ServedRequest) -> None:
        channel, event = self._find(work), work.params["event"]
        message = convert.message(work.params.get("message") or {})
        queue = self._streams.get(message.session_id)
        if queue is None:
            queue = self._streams[message.session_id] = asyncio.Queue()
            reader = asyncio.ensure_future(_read(channel, message, _events(queue)))
            self._readers.add(reader)
            reader.add_done_callback(self._readers.discard)
        queue.put_nowait(StreamEvent(event["kind"], event.get("data") or {}))
        if event["kind"] == "final" and "tool_calls" not in (event.get("data") or {}):
            self._end_stream(message.session_id)

    def _end_stream(self, session_id: str) -> None:
        queue = self._streams.pop(session_id, None)
        if queue is not None:
            queue.put_nowait(None)

    async def close(self) -> None:
        for channel in list(self._channels.values()):
            with contextlib.suppress(Exception):
                await self._stop_channel(channel)


async def _events(queue: asyncio.Queue[StreamEvent | None]) -> AsyncIterator[StreamEvent]:
    while (event := await queue.get()) is not None:
        yield event


async def _read(channel: Channel, message: Any, events: AsyncIterator[StreamEvent]) -> None:
    try:
        async for _ in channel.stream_events(message, events):
            pass
    except Exception:
        logger.opt(exception=True).warning("channel.stream_failed channel={}", channel.name)


def _sender(message: dict[str, Any]) -> dict[str, Any]:
    """Return who wrote a message. Channels put that into the context or into JSON content."""
    found: dict[str, Any] = dict(message.get("context") or {})
    with contextlib.suppress(ValueError, TypeError):
        content = json.loads(message.get("content") or "")
        if isinstance(content, dict):
            found = {**found, **content}

    def first(*names: str) -> str:
        return next((str(found[name]) for name in names if found.get(name)), "")

    # The channel has checked its own list of users. The host limits the role by its setting.
    return {
        "id": first("sender_id", "user_id") or str(message.get("chat_id") or ""),
        "name": first("sender_name", "full_name", "username"),
        "role": "member",
    }
