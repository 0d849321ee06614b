"""Errors with a kind."""

from __future__ import annotations

from enum import StrEnum
from typing import Any


class ErrorKind(StrEnum):
    """What to do about an error."""

    INVALID_INPUT = "invalid_input"
    CONFIG = "config"
    PROVIDER = "provider"
    TOOL = "tool"
    TEMPORARY = "temporary"
    NOT_FOUND = "not_found"
    UNKNOWN = "unknown"

    @classmethod
    def _missing_(cls, value: object) -> ErrorKind:
        return cls.UNKNOWN


class BubError(Exception):
    """An error with a kind. The kind comes first, unlike in ``bub_sdk``."""

    def __init__(self, kind: ErrorKind | str, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(kind, message, details)
        self.kind, self.message, self.details = ErrorKind(kind), message, details

    def __str__(self) -> str:
        return f"[{self.kind.value}] {self.message}"

    def as_dict(self) -> dict[str, Any]:
        value = {"kind": self.kind.value, "message": self.message}
        return {**value, "details": self.details} if self.details else value
