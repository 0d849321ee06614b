"""Models that users can choose from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ModelChoice:
    """One model."""

    id: str
    name: str | None = None
    description: str | None = None
    meta: dict[str, Any] | None = None


@dataclass(frozen=True)
class ModelOptions:
    """The models of a session and the selected one."""

    models: list[ModelChoice] = field(default_factory=list)
    current_model: str | None = None
