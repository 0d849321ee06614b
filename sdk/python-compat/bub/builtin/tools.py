"""Classes of the built-in tools."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, Field

from bub.tools import REGISTRY


class SubAgentInput(BaseModel):
    """Arguments of the tool ``subagent``."""

    prompt: str | list[dict[str, Any]] = Field(..., description="The prompt of the subagent.")
    model: str | None = Field(None, description="The model of the subagent.")
    session: str = Field("temp", description="`inherit`, `temp`, or the id of a session.")
    allowed_tools: list[str] | None = Field(None, description="Names of the tools that it can use.")
    allowed_skills: list[str] | None = Field(None, description="Names of the skills that it can use.")


class SubAgentResult(BaseModel):
    """Result of the tool ``subagent``."""

    session_id: str
    output: str
    errors: list[str] = Field(default_factory=list)


def resolve_tool_names(names: Iterable[str] | None, exclude: Iterable[str] = ()) -> set[str]:
    """Return the runtime names of tools. Without names, all but the excluded ones."""
    known = {name.replace(".", "_"): name for name in REGISTRY}
    wanted = REGISTRY if not names else (known.get(name.replace(".", "_"), name) for name in names)
    return set(wanted) - set(exclude)
