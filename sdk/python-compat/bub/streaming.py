"""Events of a model's answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from bub.errors import BubError


@dataclass
class StreamState:
    """What is known when a stream has ended."""

    error: BubError | None = None
    usage: dict[str, Any] | None = None


@dataclass(frozen=True)
class StreamEvent:
    """One event of an answer."""

    kind: Literal["text", "reasoning", "tool_call", "tool_result", "usage", "error", "final"]
    data: dict[str, Any]


class AsyncStreamEvents:
    """A stream of events that is closed exactly once, also when it is not read."""

    def __init__(
        self,
        iterator: AsyncIterator[StreamEvent],
        *,
        state: StreamState | None = None,
        on_close: Callable[[], Awaitable[None]] | None = None,
        span: Any = None,
    ) -> None:
        self._events, self._on_close = iterator, on_close
        self._state = StreamState() if state is None else state
        self._is_open = True

    def __aiter__(self) -> AsyncIterator[StreamEvent]:
        return self

    async def __anext__(self) -> StreamEvent:
        if not self._is_open:
            raise StopAsyncIteration
        try:
            return await self._events.__anext__()
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        """Close the source of the stream."""
        if not self._is_open:
            return
        self._is_open = False
        try:
            close = getattr(self._events, "aclose", None)
            if close is not None:
                await close()
        finally:
            if self._on_close is not None:
                await self._on_close()

    @property
    def error(self) -> BubError | None:
        return self._state.error

    @property
    def usage(self) -> dict[str, Any] | None:
        return self._state.usage
