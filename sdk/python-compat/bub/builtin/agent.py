"""The agent as plugins see it. The host runs it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from typing import TYPE_CHECKING, Any

from bub.streaming import AsyncStreamEvents, StreamEvent, StreamState
from bub.tape import Tape

if TYPE_CHECKING:
    from bub.framework import BubFramework


class Agent:
    """The agent of the host. ``tools`` are those of the plugins in this process."""

    def __init__(self, framework: BubFramework, *, tools: Any = None, **_: Any) -> None:
        from bub._serve.plugins import ToolMap

        self.framework = framework
        self.tools = ToolMap() if tools is None else {tool.name: tool for tool in tools}
        self.tape = Tape()

    async def run_stream(
        self,
        *,
        session_id: str,
        prompt: str | list[dict[str, Any]],
        state: dict[str, Any] | None = None,
        model: str | None = None,
        allowed_skills: Collection[str] | None = None,
        allowed_tools: Collection[str] | None = None,
        reasoning_effort: str | None = None,
    ) -> AsyncStreamEvents:
        """Answer a prompt with the model of the host.

        In ``run_model`` and ``run_model_stream``, this calls the next plugins. Elsewhere, it runs a turn.
        """
        from bub_sdk.peer import CALL, Below, CREDITS

        work = CALL.get()
        if work is not None and work.method in ("hook/run_model", "hook/run_model_stream"):
            params: dict[str, Any] = {"call": work.id, "args": {"prompt": prompt}}
            if work.method.endswith("stream"):
                below = Below(work.peer, {**params, "credits": CREDITS})
                return AsyncStreamEvents(_convert(below), state=StreamState())
            answer = await work.peer._call("next/call", params) or {}
            return AsyncStreamEvents(_text(answer.get("value") or ""), state=StreamState())
        from bub.channels.message import ChannelMessage

        channel, _, chat_id = session_id.partition(":")
        text = prompt if isinstance(prompt, str) else "\n".join(part.get("text", "") for part in prompt)
        message = ChannelMessage(session_id, channel, text, chat_id or "default", output_channel="null")
        result = await self.framework.process_inbound(message)
        return AsyncStreamEvents(_text(result.model_output), state=StreamState())

    async def run(self, **given: Any) -> str:
        """Answer a prompt and return the text."""
        parts = [event.data.get("delta", "") async for event in await self.run_stream(**given) if event.kind == "text"]
        return "".join(parts)


async def _convert(events: Any) -> AsyncIterator[StreamEvent]:
    async for event in events:
        yield StreamEvent(event["kind"], event.get("data") or {})


async def _text(text: str) -> AsyncIterator[StreamEvent]:
    yield StreamEvent("text", {"delta": text})
    yield StreamEvent("final", {"ok": True, "text": text})
