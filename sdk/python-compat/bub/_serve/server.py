"""Answers the requests of the host."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import importlib.metadata
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bub_sdk import host
from bub_sdk.peer import CALL, ServedRequest
from bub_sdk.values import BubError as HostError
from bub_sdk.values import encode
from loguru import logger

from bub import configure
from bub._serve import convert
from bub._serve.channels import Channels
from bub._serve.environments import Environments
from bub._serve.hooks import Hooks
from bub._serve.plugins import ToolMap
from bub._serve.providers import Providers
from bub.framework import BubFramework
from bub.hooks.specs import BROADCAST, FIRST_RESULT
from bub.tape import Tape
from bub.tools import REGISTRY, Tool, ToolContext

PROTOCOL = 2
#: Hooks that the host does not call by this name: the description covers them.
DESCRIBED = {"provide_channels", "register_cli_commands"}
#: Hooks that may block, because they ask the user.
IN_THREAD = {"onboard_config"}


class Server:
    """Serves one entry point of the group ``bub``."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.framework = BubFramework()
        self.framework.plugin_manager.get_plugin("builtin").framework = self.framework
        self._hooks = Hooks(self.framework)
        self._channels = Channels(self._hooks)
        self._providers = Providers(self._hooks)
        self._environments = Environments(self._hooks)
        self._names: dict[str, str] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._cli: Any = None
        self._reported: bytes = b""
        self._methods: dict[str, Callable[[ServedRequest], Any]] = {
            "initialize": self._initialize,
            "tools/call": self._tool,
            "cli/run": self._command,
            "tape/select": self._hooks.select,
            "lifespan/close": self._close_lifespans,
            **self._channels.methods(),
            **self._providers.methods(),
            **self._environments.methods(),
        }

    def answer(self, method: str, work: ServedRequest) -> None:
        """Handle a request. Runs on the event loop."""
        if method == "ping":
            return work.respond({})
        name = self._names.get(method)
        if name is not None and name not in IN_THREAD:
            context = contextvars.copy_context()
            context.run(CALL.set, work)
            return context.run(self._call_hook, name, work)
        handler = self._methods.get(method)
        if name is not None:
            handler = self._hook_in_thread
        if handler is None:
            return work.fail(HostError(f"unknown method `{method}`", "not_found"))
        self._spawn(work, self._do(handler, work), None if method.startswith("channel/") else work)

    def _spawn(self, work: ServedRequest, doing: Any, call: ServedRequest | None) -> None:
        context = contextvars.copy_context()
        context.run(CALL.set, call)
        work.task = task = context.run(work.peer.loop.create_task, doing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _do(self, handler: Callable[[ServedRequest], Any], work: ServedRequest) -> None:
        try:
            work.respond(await handler(work))
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - sys.exit() in a plugin is only a failed call
            work.fail(convert.host_error(error))

    # Starting

    async def _initialize(self, work: ServedRequest) -> dict[str, Any]:
        params = work.params
        host.on_initialize(params)
        if params.get("data"):
            os.environ["BUB_HOME"] = params["data"]
        self.framework.workspace = Path(params.get("workspace") or ".")
        configure.set_data({self._name: params.get("config") or {}})
        entry = find_entry_point(self._name)
        with _outside_loop():
            plugin = self._load(entry)
        self.framework.plugin_manager.register(plugin, name=self._name)
        self._channels.provide(self._name)
        ToolMap.changed = staticmethod(self._tools_changed)
        return self._describe(entry, bool(params.get("describe")))

    def _load(self, entry: Any) -> Any:
        try:
            plugin = entry.load()
        except Exception as error:
            raise HostError(f"Failed to load plugin '{self._name}': {error}", "config") from error
        if not callable(plugin):
            return plugin
        try:
            return plugin(self.framework)
        except Exception as error:
            raise HostError(f"Failed to initialize plugin '{self._name}': {error}", "config") from error

    def _describe(self, entry: Any, is_complete: bool) -> dict[str, Any]:
        allowed = {**FIRST_RESULT, **BROADCAST}
        hooks = []
        for name, arguments in allowed.items():
            has_channel_admission = name == "admit_message" and self._channels.can_admit()
            if name in DESCRIBED or not (self._hooks.implementations(name) or has_channel_admission):
                continue
            described = self._hooks.describe(name, arguments.split())
            if has_channel_admission:
                described["args"] = arguments.split()
            hooks.append(described)
            self._names[f"hook/{name}"] = name
        tools = [describe_tool(tool) for tool in REGISTRY.values()]
        self._reported = encode(tools)
        described = {"protocol": PROTOCOL, "hooks": hooks, "tools": tools, "channels": self._channels.describe()}
        if not is_complete:
            # The host knows the rest since the plugin was installed.
            return described
        from bub._serve import inspection

        distribution = entry.dist
        return {
            **described,
            "version": distribution.version if distribution else "",
            "description": (distribution.metadata.get("Summary") or "") if distribution else "",
            "commands": self._commands().describe() if self._hooks.implementations("register_cli_commands") else [],
            "skills": inspection.skill_directories(distribution),
            "settings": inspection.settings(self._name),
            "env": sorted({*inspection.variables(), *inspection.read_variables(distribution)}),
            "homeFiles": inspection.home_files(),
        }

    def _tools_changed(self) -> None:
        tools = [describe_tool(tool) for tool in REGISTRY.values()]
        encoded = encode(tools)
        if encoded != self._reported:
            self._reported = encoded
            host.peer().notify("tools/changed", {"tools": tools})

    # Hooks

    def _call_hook(self, name: str, work: ServedRequest) -> None:
        try:
            special = self._providers.hook(name) or self._special(name)
            if special is not None:
                return self._spawn(work, self._do(special, work), work)
            given, view = self._hooks.arguments(name, work)
            is_done, value = self._hooks.call_now(name, given)
            if is_done and not hasattr(value, "__aiter__"):
                return self._respond(name, work, given, view, value)
        except Exception as error:  # noqa: BLE001
            return work.fail(convert.host_error(error))
        self._spawn(work, self._finish(name, work, given, view, is_done, value), work)

    def _special(self, name: str) -> Callable[[ServedRequest], Any] | None:
        if name == "admit_message":
            return self._admit
        if name == "provide_environment":
            return self._environments.provide
        return self._open_lifespans if name == "provide_lifespan" else None

    async def _finish(self, name: str, work: ServedRequest, given: Any, view: Any, is_done: bool, value: Any) -> None:
        try:
            value = value if is_done else await value
            if name == "run_model_stream" and value is not None:
                await self._stream(work, value)
                return work.respond({"stream": True, **(view.patch() if view else {})})
            self._respond(name, work, given, view, value)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001
            work.fail(convert.host_error(error))

    @staticmethod
    async def _stream(work: ServedRequest, events: Any) -> None:
        if not hasattr(events, "__aiter__"):
            raise TypeError("hook.run_model_stream must return AsyncStreamEvents or None")
        try:
            async for event in events:
                await work.event({"kind": event.kind, "data": convert.to_json(event.data)})
        finally:
            if hasattr(events, "aclose"):
                await events.aclose()

    def _respond(self, name: str, work: ServedRequest, given: Any, view: Any, value: Any) -> None:
        if name == "load_state" and isinstance(value, dict):
            value = self._keep_objects(value, given, work)
        if name == "build_tape_context" and value is not None:
            return work.respond({"value": self._hooks.tape_context(value)})
        answer = self._hooks.result(name, value, given, work)
        if view is not None:
            answer.update(view.patch())
        work.respond(answer)

    def _keep_objects(self, values: dict[str, Any], given: Any, work: ServedRequest) -> dict[str, Any]:
        """Keep what is no JSON in this process."""
        session_id = (work.params.get("args") or {}).get("session_id") or ""
        objects = self._hooks.objects.of(str(session_id))
        objects.clear()
        kept = {}
        for name, value in values.items():
            try:
                encode(value)
                kept[name] = value
            except HostError:
                objects[name] = value
        return kept

    async def _hook_in_thread(self, work: ServedRequest) -> dict[str, Any]:
        name = self._names[work.method]
        given, view = self._hooks.arguments(name, work)

        def run() -> Any:
            is_done, value = self._hooks.call_now(name, given)
            return value if is_done else asyncio.run(value)

        value = await asyncio.to_thread(run)
        return {**self._hooks.result(name, value, given, work), **(view.patch() if view else {})}

    async def _admit(self, work: ServedRequest) -> dict[str, Any]:
        given, _ = self._hooks.arguments("admit_message", work)
        decision = await self._hooks.call("admit_message", given)
        if decision is None:
            decision = await self._channels.admit(given)
        return self._hooks.result("admit_message", decision, given, work)

    async def _open_lifespans(self, work: ServedRequest) -> dict[str, Any]:
        await self._hooks.open_lifespans()
        return {}

    async def _close_lifespans(self, work: ServedRequest) -> dict[str, Any]:
        await self._hooks.close_lifespans()
        return {}

    # Tools and commands

    async def _tool(self, work: ServedRequest) -> dict[str, Any]:
        name = work.params.get("name") or ""
        tool = REGISTRY.get(name)
        if tool is None:
            raise HostError(f"unknown tool `{name}`", "not_found")
        meta = work.params.get("_meta") or {}
        view = self._hooks.state_view(meta.get("state") or {}, meta.get("session_id"))
        arguments = dict(work.params.get("arguments") or {})
        if tool.context:
            tape = Tape(meta.get("session_id"), meta.get("tape") or "")
            arguments["context"] = ToolContext(tape, meta.get("run_id"), view.values, bool(meta.get("code_mode")))
        try:
            value = tool.run(**arguments)
            value = await value if inspect.isawaitable(value) else value
            answer: dict[str, Any] = {"content": [{"type": "text", "text": tool.render(value)}]}
            if not isinstance(value, str):
                answer["structuredContent"] = convert.to_json(value)
        except Exception as error:  # noqa: BLE001 - the error goes to the model
            logger.opt(exception=True).debug("tool.call.error name={}", name)
            return {"content": [{"type": "text", "text": tool_error(name, error)}], "isError": True}
        return {**answer, "_meta": view.patch()} if view.patch() else answer

    def _commands(self) -> Any:
        from bub._serve.commands import Commands

        if self._cli is None:
            self._cli = Commands(self._hooks, self.framework)
        return self._cli

    async def _command(self, work: ServedRequest) -> dict[str, Any]:
        return await self._commands().run(work)

    async def close(self) -> None:
        """End what the plugin still has open."""
        with contextlib.suppress(Exception):
            await self._channels.close()
        with contextlib.suppress(Exception):
            await self._environments.close()
        with contextlib.suppress(Exception):
            await self._hooks.close_lifespans()


@contextlib.contextmanager
def _outside_loop() -> Iterator[None]:
    """Run code as if no event loop runs in this thread.

    The Python version loads plugins before it starts its loop. A library that keeps the loop of its import then gets one
    that never runs, and can run it in a thread.
    """
    running = asyncio.get_running_loop()
    asyncio._set_running_loop(None)
    asyncio.set_event_loop(asyncio.new_event_loop())
    try:
        yield
    finally:
        asyncio.set_event_loop(running)
        asyncio._set_running_loop(running)


def find_entry_point(name: str) -> Any:
    """Return the entry point of a plugin."""
    for entry in importlib.metadata.entry_points(group="bub"):
        if entry.name == name:
            return entry
    raise HostError(f"the environment of {sys.prefix} has no plugin {name!r}; install it again", "config")


def describe_tool(tool: Tool) -> dict[str, Any]:
    """Describe a tool for the host."""
    described: dict[str, Any] = {
        "name": tool.name,
        "description": tool.description,
        "inputSchema": tool.parameters or {"type": "object", "properties": {}},
        "annotations": {"exposure": tool.exposure, "deferred": tool.deferred},
    }
    return {**described, "outputSchema": tool.output_schema} if tool.output_schema else described


def tool_error(name: str, error: Exception) -> str:
    """Return the text of a failed call for the model."""
    from pydantic import ValidationError

    from bub.errors import BubError

    model_name = name.replace(".", "_")
    if isinstance(error, ValidationError):
        problems = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        return f"Tool '{model_name}' argument validation failed. {problems}"
    return str(error) if isinstance(error, BubError) else f"Tool '{model_name}' execution failed. {error!r}"
