"""A plugin for the Python version of bub that implements every hook and writes a line for each call."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import bub
from bub import hookimpl, tool
from bub.channels import Channel
from bub.channels.admission import AdmitDecision, TurnSnapshot
from bub.envelope import content_of, field_of
from bub.hooks.interception import LlmCallRequest, LlmCallResult, ToolCall, ToolCallDecision, ToolCallResult
from bub.model_selection import ModelChoice, ModelOptions
from bub.tape import TapeContext
from bub.tools import ToolContext
from pydantic_settings import SettingsConfigDict


@bub.config(name="every-hook")
class EveryHookSettings(bub.Settings):
    model_config = SettingsConfigDict(env_prefix="BUB_EVERY_HOOK_", extra="ignore")

    greeting: str = "hello"
    password: str = ""


class Handle:
    """An object in the state, which is no JSON."""

    def __init__(self) -> None:
        self.calls = 0


@tool(name="every.count", context=True, renderer=lambda value: f"count is {value['count']}")
def count(step: int = 1, *, context: ToolContext) -> dict[str, int]:
    """Count calls."""
    handle = context.state["handle"]
    handle.calls += step
    return {"count": handle.calls}


class Notes:
    """A sidecar."""

    name = "notes"


class QuietChannel(Channel):
    name = "quiet"

    async def start(self, stop_event: asyncio.Event) -> None:
        pass

    async def stop(self) -> None:
        pass


class EveryHook:
    def __init__(self, framework: Any) -> None:
        self.settings = bub.ensure_config(EveryHookSettings)
        self.framework = framework

    def trace(self, hook: str, **facts: Any) -> None:
        line = json.dumps({"hook": hook, **facts}, sort_keys=True, default=str)
        with Path(self.framework.workspace, "trace.jsonl").open("a") as file:
            file.write(line + "\n")

    @hookimpl
    def provide_lifespan(self) -> Any:
        async def lifespan() -> Any:
            self.trace("provide_lifespan", at="enter")
            yield
            self.trace("provide_lifespan", at="exit")

        return lifespan()

    @hookimpl
    def provide_tape_store(self) -> None:
        self.trace("provide_tape_store")

    @hookimpl
    def provide_steering_inbox(self) -> None:
        self.trace("provide_steering_inbox")

    @hookimpl
    def resolve_session(self, message: Any) -> None:
        self.trace("resolve_session", content=content_of(message))

    @hookimpl
    async def load_state(self, message: Any, session_id: str) -> dict[str, Any]:
        self.trace("load_state", session_id=session_id, channel=field_of(message, "channel"))
        return {"handle": Handle(), "greeting": self.settings.greeting}

    @hookimpl(tryfirst=True)
    async def build_prompt(self, message: Any, session_id: str, state: dict[str, Any]) -> str:
        self.trace("build_prompt", greeting=state["greeting"], has_object=isinstance(state["handle"], Handle))
        return f"{state['greeting']}: {content_of(message)}"

    @hookimpl
    def system_prompt(self, prompt: str, state: dict[str, Any]) -> str:
        self.trace("system_prompt", prompt=prompt)
        return "Every hook is here."

    @hookimpl
    async def run_model(self, prompt: str, session_id: str, state: dict[str, Any]) -> str:
        self.trace("run_model", prompt=prompt)
        agent = state["_runtime_agent"]
        events = await agent.run_stream(session_id=session_id, prompt=prompt, state=state)
        return "".join([event.data["delta"] async for event in events if event.kind == "text"])

    @hookimpl
    def before_llm_call(self, request: LlmCallRequest, state: dict[str, Any]) -> LlmCallRequest:
        self.trace("before_llm_call", last=request.messages[-1]["role"])
        return dataclasses.replace(request, max_tokens=1000)

    @hookimpl
    def after_llm_call(self, request: LlmCallRequest, result: LlmCallResult, state: dict[str, Any]) -> None:
        self.trace("after_llm_call", has_error=result.error is not None, tools=len(result.tool_calls))

    @hookimpl
    def before_tool_call(self, call: ToolCall, state: dict[str, Any]) -> ToolCallDecision | None:
        self.trace("before_tool_call", tool=call.tool, arguments=call.arguments)
        return ToolCallDecision.proceed({"step": 2})

    @hookimpl
    def after_tool_call(self, call: ToolCall, result: ToolCallResult, state: dict[str, Any]) -> None:
        self.trace("after_tool_call", tool=result.tool, has_error=result.error is not None)

    @hookimpl
    def continue_prompt(self, prompt: Any, tape: Any, state: Any) -> str:
        self.trace("continue_prompt")
        return "go on"

    @hookimpl
    async def save_state(self, session_id: str, state: dict[str, Any], message: Any, model_output: str) -> None:
        self.trace("save_state", calls=state["handle"].calls, output=model_output)

    @hookimpl
    def render_outbound(self, message: Any, session_id: str, state: dict[str, Any], model_output: str) -> list[Any]:
        self.trace("render_outbound", output=model_output)
        return []

    @hookimpl
    async def dispatch_outbound(self, message: Any) -> bool:
        self.trace("dispatch_outbound", content=content_of(message))
        return False

    @hookimpl
    def on_error(self, stage: str, error: Exception, message: Any) -> None:
        self.trace("on_error", stage=stage)

    @hookimpl
    def build_tape_context(self) -> TapeContext | None:
        return None

    @hookimpl
    def admit_message(self, session_id: str, message: Any, turn: TurnSnapshot) -> AdmitDecision | None:
        return None

    @hookimpl
    def provide_model_options(self, session_id: str, workspace: Path | None) -> ModelOptions:
        return ModelOptions([ModelChoice("lab:one", "One")], None)

    @hookimpl
    def provide_environment(self, session_id: str, workspace: Path) -> None:
        return None

    @hookimpl
    def provide_tape_sidecar(self) -> Any:
        return Notes()

    @hookimpl
    def provide_channels(self, message_handler: Any) -> list[Channel]:
        return [QuietChannel()]

    @hookimpl
    def onboard_config(self, current_config: dict[str, Any]) -> None:
        return None

    @hookimpl
    def register_cli_commands(self, app: Any) -> None:
        import typer

        group = typer.Typer()

        @group.command()
        def shout(words: list[str], loud: bool = typer.Option(False, "--loud")) -> None:
            """Print words."""
            text = " ".join(words)
            typer.echo(text.upper() if loud else text)

        @group.command()
        def fail() -> None:
            """Fail."""
            raise typer.Exit(code=3)

        app.add_typer(group, name="every", help="Commands of the test plugin")
