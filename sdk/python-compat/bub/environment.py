"""Environments: where commands and file tools act."""

from __future__ import annotations

import abc
import asyncio
import posixpath
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

ENVIRONMENT_STATE_KEY = "_runtime_environment"

type CallTool = Callable[[str, dict[str, Any]], Awaitable[Any]]


class CodeFailed(Exception):
    """The code of ``run_code`` raised."""

    def __init__(self, error: str, traceback: str = "") -> None:
        super().__init__(error)
        self.error, self.traceback = error, traceback


class Process(abc.ABC):
    """A process of an environment."""

    @property
    @abc.abstractmethod
    def stdout(self) -> asyncio.StreamReader: ...

    @property
    @abc.abstractmethod
    def stderr(self) -> asyncio.StreamReader: ...

    @property
    @abc.abstractmethod
    def returncode(self) -> int | None: ...

    @abc.abstractmethod
    async def wait(self) -> int: ...

    @abc.abstractmethod
    async def write_stdin(self, data: bytes) -> None: ...

    @abc.abstractmethod
    def close_stdin(self) -> None: ...

    @abc.abstractmethod
    def signal(self, *, kill: bool) -> None:
        """End the process and its descendants, at once with ``kill``."""

    def is_running(self) -> bool:
        """Return whether the process or a descendant runs."""
        return self.returncode is None


class Environment(abc.ABC):
    """A place with processes and files."""

    workspace: str | None = None
    python: str = "python3"

    @abc.abstractmethod
    async def spawn(
        self, command: str | list[str], *, cwd: str | None = None, env: dict[str, str] | None = None
    ) -> Process:
        """Start a shell command (text) or a program with arguments (list)."""

    @abc.abstractmethod
    async def read_text(self, path: str) -> str:
        """Read a text file."""

    @abc.abstractmethod
    async def write_text(self, path: str, content: str) -> None:
        """Write a text file and create its directories."""

    def resolve_path(self, path: str) -> str:
        """Return an absolute path."""
        if posixpath.isabs(path):
            return path
        if self.workspace is None:
            raise ValueError(f"relative path '{path}' is not allowed without a workspace")
        return posixpath.normpath(posixpath.join(self.workspace, path))

    async def run_code(
        self, code: str, *, tools: Sequence[str], call_tool: CallTool, write: Callable[[str], None]
    ) -> None:
        """Run Python code. The host does this itself."""
        raise NotImplementedError("the host runs code")

    async def close(self) -> None:
        """Release the resources of the environment."""
