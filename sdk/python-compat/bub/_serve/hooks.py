"""Calls the hooks of the plugin and merges the results of several functions."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bub_sdk.peer import ServedRequest
from bub_sdk.values import BubError as HostError
from bub_sdk.values import encode
from loguru import logger

from bub._serve import convert
from bub._serve.plugins import hook_implementations
from bub.environment import ENVIRONMENT_STATE_KEY
from bub.channels.admission import AdmitDecision, TurnSnapshot
from bub.hooks.interception import (
    LlmCallDecision,
    LlmCallRequest,
    LlmCallResult,
    ToolCall,
    ToolCallDecision,
    ToolCallResult,
)
from bub.hooks.specs import FIRST_RESULT
from bub.model_selection import ModelOptions
from bub.streaming import StreamState
from bub.tape import LAST_ANCHOR, Tape, TapeContext
from bub.tools import ToolContext

#: Sessions whose objects are kept.
MAX_SESSIONS = 1000
#: Hooks whose failures are isolated, as in the Python version.
ISOLATED = {"before_llm_call", "after_llm_call", "before_tool_call", "after_tool_call", "on_error"}


class SessionObjects:
    """Values of the state that are no JSON, and message objects, per session.

    Only JSON crosses the process. Other values stay here and are put back into the state of later calls.
    """

    def __init__(self) -> None:
        self._sessions: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._messages: OrderedDict[str, tuple[dict[str, Any], Any]] = OrderedDict()

    def of(self, session_id: str) -> dict[str, Any]:
        objects = self._sessions.setdefault(session_id, {})
        self._sessions.move_to_end(session_id)
        if len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)
        return objects

    def message(self, fields: dict[str, Any]) -> Any:
        """Return the same object for the same message, so that changes of a hook stay visible to later ones."""
        session_id = str(fields.get("session_id") or "")
        known = self._messages.get(session_id)
        if known is not None and known[0] == fields:
            return known[1]
        made = convert.message(fields)
        self._messages[session_id] = (fields, made)
        if len(self._messages) > MAX_SESSIONS:
            self._messages.popitem(last=False)
        return made


class StateView:
    """The state of a turn as a dict for the plugin, and its changes for the host."""

    def __init__(self, sent: dict[str, Any], objects: dict[str, Any], runtime: dict[str, Any]) -> None:
        # What a value was, without copying it: a change in place changes its JSON.
        self._before = {name: encode(value) for name, value in sent.items() if isinstance(value, (dict, list))}
        self._sent, self._objects, self._runtime = dict(sent), objects, runtime
        self.values = {**runtime, **sent, **objects}

    def patch(self) -> dict[str, Any]:
        changed = {}
        for name, value in self.values.items():
            if name in self._runtime and value is self._runtime[name]:
                continue
            if name in self._sent and self._sent[name] is value and name not in self._before:
                continue
            try:
                encoded = encode(value)
            except HostError:
                self._objects[name] = value
                continue
            self._objects.pop(name, None)
            before = self._before.get(name)
            if before is None or before != encoded:
                changed[name] = value
        removed = [name for name in self._sent if name not in self.values]
        for name in [name for name in self._objects if name not in self.values]:
            del self._objects[name]
        return {"state": {"set": changed, "remove": removed}} if changed or removed else {}


class Hooks:
    """The hooks of the plugin."""

    def __init__(self, framework: Any) -> None:
        self._framework = framework
        self.objects = SessionObjects()
        #: Environments that the plugin has provided, by session.
        self.environments: dict[str, Any] = {}
        self._lifespans = contextlib.AsyncExitStack()
        self._select: Any = None

    def implementations(self, name: str) -> list[Any]:
        return hook_implementations(self._framework.plugin_manager, name)

    def is_synchronous(self, name: str) -> bool:
        return all(not inspect.iscoroutinefunction(impl.function) for impl in self.implementations(name))

    def describe(self, name: str, allowed: list[str]) -> dict[str, Any]:
        """Describe a hook for the host."""
        impls = self.implementations(name)
        wanted = {arg for impl in impls for arg in impl.argnames}
        if name == "after_tool_call":
            wanted |= {"call", "result"}
        described: dict[str, Any] = {"name": name, "args": [arg for arg in allowed if arg in wanted]}
        if name == "before_tool_call":
            # As in the Python version, a failure does not deny the call; a denial does.
            described["observe_only"] = True
        if name == "onboard_config":
            # It waits for the user.
            described["timeout_seconds"] = 3600
        for order in ("tryfirst", "trylast"):
            if impls and all(getattr(impl, order) for impl in impls):
                described["order"] = order.removeprefix("try")
        return described

    # Arguments

    def state_view(self, sent: dict[str, Any], session_id: str | None = None) -> StateView:
        session_id = session_id or str(sent.get("session_id") or "")
        manager = self._framework.plugin_manager
        runtime = {
            "_runtime_agent": manager.get_plugin("builtin")._get_agent(),
            "_runtime_workspace": str(self._framework.workspace),
            "_runtime_steering_inbox": None,
        }
        if session_id in self.environments:
            runtime[ENVIRONMENT_STATE_KEY] = self.environments[session_id]
        return StateView(sent, self.objects.of(session_id), runtime)

    def arguments(self, name: str, work: ServedRequest) -> tuple[dict[str, Any], StateView | None]:
        sent = work.params.get("args") or {}
        given: dict[str, Any] = {}
        view = None
        session_id = sent.get("session_id")
        if "state" in sent:
            view = self.state_view(sent["state"] or {}, session_id)
            is_stream = name == "continue_prompt"
            given["state"] = StreamState(usage=sent["state"].get("usage")) if is_stream else view.values
        for arg, value in sent.items():
            if arg == "message" and isinstance(value, dict):
                value = self.objects.message(value)
            elif arg == "request":
                value = LlmCallRequest(**{**value, "tool_names": tuple(value.get("tool_names") or ())})
            elif arg == "result" and name == "after_llm_call":
                fields = {field.name for field in dataclasses.fields(LlmCallResult)}
                value = {key: item for key, item in value.items() if key in fields and item is not None}
                value = LlmCallResult(**{**value, "error": convert.error(value.get("error"))})
            elif arg == "call":
                value = self._tool_call(value, view)
            elif arg == "turn":
                value = TurnSnapshot(**value)
            elif arg == "error":
                value = convert.error(value)
            elif arg == "workspace":
                value = Path(value)
            elif arg == "tape":
                value = Tape(session_id, (value or {}).get("name") or "")
            elif arg == "state":
                continue
            given[arg] = value
        if name == "after_tool_call":
            result, call = sent["result"], given["call"]
            given["result"] = ToolCallResult(
                call.run_id,
                call.tool,
                call.arguments,
                result.get("result"),
                convert.error(result.get("error")),
                result.get("duration_ms") or 0,
            )
        return given, view

    @staticmethod
    def _tool_call(call: dict[str, Any], view: StateView | None) -> ToolCall:
        state = view.values if view else {}
        context = ToolContext(Tape(), call.get("run_id"), state, bool(call.get("code_mode")))
        # Hooks of the Python version see the name that the model uses.
        name = call["tool"].replace(".", "_")
        return ToolCall(call.get("run_id") or "", name, call.get("arguments") or {}, context)

    # Calls

    def steps(self, name: str, given: dict[str, Any]) -> Any:
        """Call the functions of a hook. A generator: it yields awaitables, gets their values, and returns the result."""
        isolated = name in ISOLATED
        collected: list[Any] = []
        for impl in self.implementations(name):
            kwargs = {arg: given[arg] for arg in impl.argnames if arg in given}
            try:
                value = impl.function(**kwargs)
                if inspect.isawaitable(value):
                    value = yield value
            except Exception:
                if not isolated:
                    raise
                logger.opt(exception=True).warning("hook.agent_hook_failed hook={} adapter={}", name, impl.plugin_name)
                continue
            if value is None:
                continue
            if name in FIRST_RESULT:
                return value
            if name == "before_llm_call":
                if isinstance(value, LlmCallDecision):
                    return value
                if isinstance(value, LlmCallRequest):
                    given["request"] = value
                    collected = [value]
                    continue
                logger.warning("hook.agent_hook_bad_return hook={} got={}", name, type(value).__name__)
                continue
            if name == "before_tool_call":
                if not isinstance(value, ToolCallDecision):
                    logger.warning("hook.agent_hook_bad_return hook={} got={}", name, type(value).__name__)
                elif value.action != "proceed":
                    return value
                elif value.arguments is not None:
                    given["call"] = dataclasses.replace(given["call"], arguments=dict(value.arguments))
                    collected = [value]
                continue
            collected.append(value)
        return merge(name, collected)

    async def call(self, name: str, given: dict[str, Any]) -> Any:
        is_done, value = self.call_now(name, given)
        return value if is_done else await value

    def call_now(self, name: str, given: dict[str, Any]) -> tuple[bool, Any]:
        """Call a hook without a task. Returns whether that was enough, and the result or the rest."""
        steps = self.steps(name, given)
        try:
            waiting = next(steps)
        except StopIteration as end:
            return True, end.value
        return False, self._rest(steps, waiting)

    @staticmethod
    async def _rest(steps: Any, waiting: Awaitable[Any]) -> Any:
        try:
            while True:
                try:
                    value = await waiting
                except BaseException as error:  # noqa: BLE001
                    waiting = steps.throw(error)
                else:
                    waiting = steps.send(value)
        except StopIteration as end:
            return end.value

    # Results

    def result(self, name: str, value: Any, given: dict[str, Any], work: ServedRequest) -> dict[str, Any]:
        """Return the response of a hook, without the changes of the state."""
        if name == "after_tool_call":
            before = ((work.params.get("args") or {}).get("result") or {}).get("result")
            now = given["result"].result
            return {} if now is before or now == before else {"value": convert.to_json(now)}
        if value is None:
            return {}
        encode_value: Callable[[Any], Any] | None = _RESULTS.get(name)
        return {"value": value if encode_value is None else encode_value(value)}

    def tape_context(self, context: TapeContext) -> dict[str, Any]:
        self._select = context
        anchor: Any = "last" if context.anchor is LAST_ANCHOR else context.anchor
        anchor = {"name": anchor} if isinstance(anchor, str) and anchor != "last" else anchor
        return {"anchor": anchor, "select": context.select is not None}

    async def select(self, work: ServedRequest) -> dict[str, Any]:
        """Handle ``tape/select``: the selector of the tape context."""
        from bub._serve.host_store import entry_of
        from bub.tape import build_messages

        entries = [entry_of(entry) for entry in work.params.get("entries") or []]
        messages = build_messages(entries, self._select or TapeContext())
        return {"messages": await messages if inspect.isawaitable(messages) else messages}

    async def open_lifespans(self) -> None:
        """Enter the resources of ``provide_lifespan``."""
        from bub.utils import maybe_context_manager

        for impl in self.implementations("provide_lifespan"):
            await maybe_context_manager(impl.function(), self._lifespans)

    async def close_lifespans(self) -> None:
        await self._lifespans.aclose()


def merge(name: str, values: list[Any]) -> Any:
    """Merge the results of several functions. The first one has the highest priority."""
    if not values:
        return None
    if name in ("load_state", "onboard_config"):
        merged: dict[str, Any] = {}
        for value in reversed(values):
            if isinstance(value, dict):
                merged.update(value)
        return merged
    if name == "system_prompt":
        return "\n\n".join(str(value) for value in reversed(values) if value) or None
    if name == "render_outbound":
        return [item for value in values for item in (value if isinstance(value, (list, tuple)) else [value])]
    if name == "provide_model_options":
        current = next((value.current_model for value in values if value.current_model), None)
        return ModelOptions([choice for value in values for choice in value.models], current)
    if name == "before_tool_call":
        return values[-1]
    return values[0]


def _admission(decision: Any) -> dict[str, Any]:
    if not isinstance(decision, AdmitDecision):
        raise TypeError("hook.admit_message must return AdmitDecision or None")
    return {"decision": decision.action, "reason": decision.reason}


def _llm(value: Any) -> dict[str, Any]:
    if isinstance(value, LlmCallDecision):
        return {"finish": value.text}
    return {"proceed": {**dataclasses.asdict(value), "tool_names": list(value.tool_names)}}


def _tool(decision: ToolCallDecision) -> dict[str, Any]:
    if decision.action == "proceed":
        return {"proceed": decision.arguments}
    return {"replace": convert.to_json(decision.result)} if decision.action == "replace" else {"deny": decision.message}


def _options(options: ModelOptions) -> dict[str, Any]:
    choices = [{"id": choice.id, "label": choice.name or choice.id} for choice in options.models]
    return {"choices": choices, "current": options.current_model}


def _text(value: Any) -> Any:
    return value if isinstance(value, str) else str(value)


_RESULTS: dict[str, Callable[[Any], Any]] = {
    "resolve_session": _text,
    "system_prompt": _text,
    "run_model": _text,
    "admit_message": _admission,
    "before_llm_call": _llm,
    "before_tool_call": _tool,
    "provide_model_options": _options,
    "render_outbound": lambda values: [convert.envelope_now(value) for value in values],
    "dispatch_outbound": bool,
    "save_state": lambda value: None,
    "on_error": lambda value: None,
    "after_llm_call": lambda value: None,
}
