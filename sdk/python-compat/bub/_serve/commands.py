"""Commands that plugins add with ``register_cli_commands``."""

from __future__ import annotations

import asyncio
import contextvars
import sys
from typing import Any

import typer
from bub_sdk import host
from bub_sdk.peer import ServedRequest
from bub_sdk.serve import PRINTED, use_terminal

from bub._serve.hooks import Hooks


class Commands:
    """The Typer application of the plugin."""

    def __init__(self, hooks: Hooks, framework: Any) -> None:
        app = typer.Typer(name="bub", add_completion=False)

        @app.callback(invoke_without_command=True)
        def main(context: typer.Context) -> None:
            context.obj = framework

        for impl in hooks.implementations("register_cli_commands"):
            impl.function(app)
        self._command = typer.main.get_command(app)
        # The terminal belongs to the host, which also turns its echo off.
        sys.modules[typer.prompt.__module__].hidden_prompt_func = _read_secret  # type: ignore[attr-defined]

    def describe(self) -> list[dict[str, Any]]:
        """Describe the commands. The host passes on everything after the name."""
        commands = getattr(self._command, "commands", {})
        return [
            {"name": name, "about": (command.help or command.get_short_help_str() or "").split("\n")[0], "raw": True}
            for name, command in commands.items()
        ]

    async def run(self, work: ServedRequest) -> dict[str, Any]:
        printed: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        PRINTED.set(lambda event: loop.call_soon_threadsafe(printed.put_nowait, event))

        async def pump() -> None:
            while (event := await printed.get()) is not None:
                await work.event(event)

        use_terminal(work.params)
        pumping = asyncio.ensure_future(pump())
        arguments = [work.params["command"], *(work.params.get("argv") or [])]
        context = contextvars.copy_context()
        try:
            code = await loop.run_in_executor(None, context.run, self._invoke, arguments)
        finally:
            loop.call_soon(printed.put_nowait, None)
            await pumping
        return {"code": code}

    def _invoke(self, arguments: list[str]) -> int:
        try:
            self._command.main(args=arguments, prog_name="bub", standalone_mode=True)
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else int(end.code is not None)
        return 0


def _read_secret(prompt: str = "") -> str:
    print(prompt, end="", flush=True)
    line = host.ask("", secret=True, raw=True)
    if line is None:
        raise EOFError
    return str(line).rstrip("\n")
