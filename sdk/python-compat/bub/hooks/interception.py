"""Model calls and tool calls as hooks see them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class LlmCallRequest:
    """A request to a model. Return a changed copy to change it."""

    run_id: str
    model: str
    messages: list[dict[str, Any]]
    tool_names: tuple[str, ...] = ()
    max_tokens: int | None = None


@dataclass(frozen=True)
class LlmCallResult:
    """The outcome of a model call."""

    run_id: str
    text: str | None = None
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    usage: dict[str, Any] | None = None
    error: Exception | None = None
    duration_ms: int = 0


@dataclass(frozen=True)
class LlmCallDecision:
    """An answer in place of a model call."""

    action: Literal["finish"] = "finish"
    text: str = ""

    @classmethod
    def finish(cls, text: str) -> LlmCallDecision:
        return cls(text=text)


@dataclass(frozen=True)
class ToolCall:
    """A tool call that is about to run."""

    run_id: str
    tool: str
    arguments: dict[str, Any]
    context: Any = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class ToolCallDecision:
    """Whether and how a tool call runs."""

    action: Literal["proceed", "replace", "deny"] = "proceed"
    arguments: dict[str, Any] | None = None
    result: Any = None
    message: str | None = None

    @classmethod
    def proceed(cls, arguments: dict[str, Any] | None = None) -> ToolCallDecision:
        return cls("proceed", arguments=arguments)

    @classmethod
    def replace(cls, result: Any) -> ToolCallDecision:
        return cls("replace", result=result)

    @classmethod
    def deny(cls, message: str) -> ToolCallDecision:
        return cls("deny", message=message)


@dataclass
class ToolCallResult:
    """The outcome of a tool call. Assign to ``result`` to replace what the model sees."""

    run_id: str
    tool: str
    arguments: dict[str, Any]
    result: Any = None
    error: Exception | None = None
    duration_ms: int = 0
