"""Names of the Python version of bub, for plugins that were written for it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from bub.configure import Settings, config, ensure_config
from bub.framework import BubFramework
from bub.hooks import hookimpl
from bub.tools import tool

__version__ = "0.5.1"
__all__ = ["BubFramework", "Settings", "config", "ensure_config", "home", "hookimpl", "tool"]


class _Home(Path):
    """The directory for data. It collects the names of files that a plugin uses there."""

    used: set[str] = set()

    def __truediv__(self, key: Any) -> Path:
        name = str(key)
        if name and "/" not in name and not name.startswith("."):
            _Home.used.add(name)
        return Path(super().__truediv__(key))


def __getattr__(name: str) -> Any:
    if name == "home":
        return _Home(os.environ.get("BUB_HOME") or Path.home() / ".bub").expanduser()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
