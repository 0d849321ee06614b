"""Tracing, which the host does: spans of plugins have no effect."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Span:
    """A span without effect."""

    @contextmanager
    def activate(self) -> Iterator[Span]:
        yield self

    def set(self, **attributes: Any) -> None:
        """Ignore attributes."""

    def fail(self, error: BaseException) -> None:
        """Ignore an error."""

    def end(self) -> None:
        """End the span."""
