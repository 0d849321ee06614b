"""Environments of the plugin. The host runs commands and uses files in them."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import inspect
from collections.abc import Callable
from typing import Any

from bub_sdk.peer import ServedRequest
from bub_sdk.values import BubError as HostError
from loguru import logger

from bub._serve.hooks import Hooks
from bub.environment import Environment, Process

#: Seconds that a process has to end before it is killed.
TERMINATE_SECONDS = 3.0
#: Seconds to wait for the output of a process that has ended.
DRAIN_SECONDS = 1.0
#: Maximum length of one event with output.
MAX_OUTPUT_BYTES = 65536


class Environments:
    """Keeps the provided environments and answers the requests of the host about them."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks

    def methods(self) -> dict[str, Callable[[ServedRequest], Any]]:
        return {
            "environment/run": self._run,
            "environment/read": self._read,
            "environment/write": self._write,
            "environment/close": self._close,
        }

    async def provide(self, work: ServedRequest) -> dict[str, Any]:
        given, _ = self._hooks.arguments("provide_environment", work)
        environment = await self._hooks.call("provide_environment", given)
        environment = await environment if inspect.isawaitable(environment) else environment
        if environment is None:
            return {}
        if not isinstance(environment, Environment):
            raise TypeError("hook.provide_environment must return Environment or None")
        session_id = str(work.params["args"]["session_id"])
        self._hooks.environments[session_id] = environment
        return {"value": {"id": session_id, "workspace": environment.workspace}}

    def _find(self, work: ServedRequest) -> Environment:
        environment = self._hooks.environments.get(work.params["environment"])
        if environment is None:
            raise HostError(f"unknown environment `{work.params['environment']}`", "not_found")
        return environment  # type: ignore[no-any-return]

    async def _read(self, work: ServedRequest) -> dict[str, Any]:
        return {"content": await self._find(work).read_text(work.params["path"])}

    async def _write(self, work: ServedRequest) -> None:
        await self._find(work).write_text(work.params["path"], work.params["content"])

    async def _close(self, work: ServedRequest) -> None:
        environment = self._find(work)
        del self._hooks.environments[work.params["environment"]]
        await environment.close()

    async def close(self) -> None:
        """Close what the host did not close."""
        environments = list(self._hooks.environments.values())
        self._hooks.environments.clear()
        await asyncio.gather(*(environment.close() for environment in environments), return_exceptions=True)

    async def _run(self, work: ServedRequest) -> dict[str, Any]:
        environment = self._find(work)
        process = await environment.spawn(work.params["command"], cwd=work.params.get("cwd"))
        process.close_stdin()
        readers = [asyncio.ensure_future(_forward(pipe, work)) for pipe in (process.stdout, process.stderr)]
        try:
            code = await process.wait()
            # As in the Python version, processes that the command left behind end with it, unless they hold its output.
            await asyncio.gather(*readers)
            await _terminate(process)
            return {"code": code}
        except asyncio.CancelledError:
            ending = asyncio.ensure_future(_terminate(process))
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(ending)
            raise
        finally:
            for reader in readers:
                reader.cancel()


async def _forward(pipe: asyncio.StreamReader, work: ServedRequest) -> None:
    """Send the output of a process to the host as it arrives."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while data := await pipe.read(MAX_OUTPUT_BYTES):
        if text := decoder.decode(data):
            await work.event({"output": text})
    if text := decoder.decode(b"", final=True):
        await work.event({"output": text})


async def _terminate(process: Process) -> None:
    """End a process and its descendants."""
    for kill in (False, True):
        if not process.is_running():
            return
        process.signal(kill=kill)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (DRAIN_SECONDS if kill else TERMINATE_SECONDS)
        while process.is_running() and loop.time() < deadline:
            await asyncio.sleep(0.02)
    if process.is_running():
        logger.warning("environment.process_not_ended")
