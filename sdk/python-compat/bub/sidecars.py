"""Sidecars: tapes that belong to a session tape."""

from __future__ import annotations

from typing import Protocol

SIDECAR_TAPE_MARKER = "__sidecar__"


class TapeSidecar(Protocol):
    """A named sidecar."""

    @property
    def name(self) -> str: ...


def sidecar_tape_name(owner: str, sidecar: str) -> str:
    """Return the name of a sidecar's tape."""
    return f"{owner}{SIDECAR_TAPE_MARKER}{sidecar}"
