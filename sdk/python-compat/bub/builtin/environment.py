"""An environment on this machine."""

from __future__ import annotations

import asyncio
import os
import signal as signals
from pathlib import Path

from bub.environment import Environment, Process


class LocalProcess(Process):
    """A process on this machine."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @property
    def stdout(self) -> asyncio.StreamReader:
        return self._process.stdout  # type: ignore[return-value]

    @property
    def stderr(self) -> asyncio.StreamReader:
        return self._process.stderr  # type: ignore[return-value]

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    async def wait(self) -> int:
        return await self._process.wait()

    async def write_stdin(self, data: bytes) -> None:
        if self._process.stdin is not None:
            self._process.stdin.write(data)
            await self._process.stdin.drain()

    def close_stdin(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()

    def is_running(self) -> bool:
        if self._process.returncode is None:
            return True
        # The group exists while a descendant is in it.
        try:
            os.killpg(self._process.pid, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def signal(self, *, kill: bool) -> None:
        try:
            os.killpg(self._process.pid, signals.SIGKILL if kill else signals.SIGTERM)
        except (ProcessLookupError, PermissionError):
            pass


class LocalEnvironment(Environment):
    """Runs processes on this machine, with the rights of the plugin."""

    def __init__(self, workspace: str | Path | None = None) -> None:
        self.workspace = None if workspace is None else str(workspace)

    async def spawn(
        self, command: str | list[str], *, cwd: str | None = None, env: dict[str, str] | None = None
    ) -> Process:
        pipe = asyncio.subprocess.PIPE
        arguments = ["/bin/sh", "-c", command] if isinstance(command, str) else command
        process = await asyncio.create_subprocess_exec(
            *arguments,
            cwd=cwd or self.workspace,
            env={**os.environ, **(env or {})},
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,
        )
        return LocalProcess(process)

    async def read_text(self, path: str) -> str:
        return Path(self.resolve_path(path)).read_text("utf-8")

    async def write_text(self, path: str, content: str) -> None:
        file = Path(self.resolve_path(path))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, "utf-8")
