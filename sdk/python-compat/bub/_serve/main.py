"""The command line of the package, which the host uses."""

from __future__ import annotations

import json
import sys
from typing import Any


def main() -> None:
    """Run ``serve NAME`` or ``list``."""
    match sys.argv[1:]:
        case ["serve", name]:
            serve(name)
        case ["list"]:
            print(json.dumps(entry_points()))
        case _:
            sys.exit("usage: python -m bub serve NAME | list")


def entry_points() -> list[dict[str, Any]]:
    """Return the plugins of this environment with their distributions. Imports none of them."""
    import importlib.metadata

    return [
        {
            "name": entry.name,
            "target": entry.value,
            "distribution": entry.dist.name if entry.dist else "",
            "version": entry.dist.version if entry.dist else "",
            "url": _source(entry.dist),
        }
        for entry in importlib.metadata.entry_points(group="bub")
    ]


def _source(distribution: Any) -> str | None:
    """Return the address that a distribution was installed from, if it was not its name."""
    text = distribution.read_text("direct_url.json") if distribution else None
    return json.loads(text).get("url") if text else None


def serve(name: str) -> None:
    """Serve a plugin over stdin and stdout until the host ends it."""
    from bub_sdk.serve import run_peer

    from bub._serve.server import Server

    server = Server(name)
    run_peer(server.answer, server.close)
