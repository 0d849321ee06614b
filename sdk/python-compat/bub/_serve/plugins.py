"""The plugin manager and the tools of this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import pluggy
from bub_sdk.peer import CALL

from bub.tools import REGISTRY, Tool


class PluginManager(pluggy.PluginManager):
    """Knows the plugins of this process. ``builtin`` is in the host."""

    def __init__(self, project_name: str) -> None:
        super().__init__(project_name)
        self._builtin = Builtin()

    def get_plugin(self, name: str) -> Any:
        return self._builtin if name == "builtin" else super().get_plugin(name)

    def subset_hook_caller(self, name: str, remove_plugins: Any) -> Any:
        """Return a function that calls a hook without some plugins: the next plugins, ``builtin`` included."""
        removed = list(remove_plugins)
        local = [impl for impl in hook_implementations(self, name) if impl.plugin not in removed]

        async def call(**kwargs: Any) -> Any:
            for impl in local:
                value = impl.function(**{arg: kwargs[arg] for arg in impl.argnames if arg in kwargs})
                value = await value if hasattr(value, "__await__") else value
                if value is not None:
                    return value
            return await call_next(name, kwargs)

        return call

    def hook_report(self) -> dict[str, list[str]]:
        report = {}
        for caller in vars(self.hook).values():
            names = [impl.plugin_name for impl in caller.get_hookimpls()]
            if names:
                report[caller.name] = names
        return report


def hook_implementations(manager: pluggy.PluginManager, name: str) -> list[Any]:
    """Return the functions of a hook in the order of their calls: the last registered one first."""
    caller = getattr(manager.hook, name, None)
    return [] if caller is None else list(reversed(caller.get_hookimpls()))


async def call_next(name: str, kwargs: dict[str, Any]) -> Any:
    """Call the next plugins of the host from an implementation of the same hook."""
    from bub._serve import convert

    work = CALL.get()
    if work is None or work.method != f"hook/{name}":
        raise RuntimeError(f"the next plugins of {name} can be called only while {name} runs")
    replaced: dict[str, Any] = {}
    sent = work.params.get("args") or {}
    for arg in ("message", "prompt"):
        if arg in kwargs and arg in sent:
            value, _ = await convert.outgoing(kwargs[arg]) if arg == "message" else (kwargs[arg], None)
            if arg == "prompt" and value != sent[arg]:
                replaced[arg] = value
    answer = await work.peer._call("next/call", {"call": work.id, "args": replaced})
    return (answer or {}).get("value")


class Builtin:
    """The plugin ``builtin`` of the host, as plugins use it."""

    def __init__(self) -> None:
        self._agent: Any = None
        self.framework: Any = None

    def _get_agent(self) -> Any:
        from bub.builtin.agent import Agent

        if self._agent is None:
            self._agent = Agent(self.framework)
        return self._agent


class ToolMap(MutableMapping[str, Tool]):
    """The tools of this process. The host learns about changes."""

    #: Called after a change.
    changed: Callable[[], None] = staticmethod(lambda: None)

    def __getitem__(self, name: str) -> Tool:
        return REGISTRY[name]

    def __setitem__(self, name: str, tool: Tool) -> None:
        if REGISTRY.get(name) is not tool:
            REGISTRY[name] = tool
            ToolMap.changed()

    def __delitem__(self, name: str) -> None:
        del REGISTRY[name]
        ToolMap.changed()

    def __iter__(self) -> Iterator[str]:
        return iter(REGISTRY)

    def __len__(self) -> int:
        return len(REGISTRY)
