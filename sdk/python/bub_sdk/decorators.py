"""Decorators for plugins (``@hookimpl``, ``@tool``, ``@command``) and the base class of channels."""

from __future__ import annotations

import inspect
from typing import Any, Awaitable, Callable, Dict, List, Optional

from . import host, schema
from .values import Envelope, Fields, StreamEvent

_MARK = "_bub_hook"

#: Declared tools and commands by name. Importing a module declares them.
TOOLS: "Dict[str, Tool]" = {}
COMMANDS: "Dict[str, Command]" = {}


class ToolContext:
    """Context of a tool call."""

    def __init__(self, meta: dict) -> None:
        self.run_id: str = meta.get("run_id") or ""
        self.session_id: Optional[str] = meta.get("session_id")
        self.state = Fields(meta.get("state") or {})
        self.sender = Fields(meta.get("sender") or {})
        self.tape = host.tape


def hookimpl(
    function: Any = None,
    *,
    specname: Optional[str] = None,
    observe_only: bool = False,
    order: Optional[str] = None,
    timeout_seconds: Optional[float] = None,
) -> Any:
    """Mark a function or method as the hook of its name. It declares only the arguments it needs.

    ``order``: ``first`` or ``last`` of all plugins. ``timeout_seconds``: for a hook that needs longer than the default.
    """
    options = {"observe_only": observe_only, "order": order, "timeout_seconds": timeout_seconds}

    def mark(function: Any) -> Any:
        setattr(function, _MARK, {"name": specname or function.__name__, **options})
        return function

    return mark if function is None else mark(function)


EXPOSURES = ("auto", "direct", "code", "command")


class Tool:
    """A function that the model can call."""

    def __init__(self, function: Callable[..., Any], name: str, options: dict) -> None:
        self.function, self.name = function, name
        parameters = list(inspect.signature(function).parameters)
        takes_context = options["context"] or parameters[:1] == ["context"]
        self.context = ("context" if "context" in parameters else parameters[-1]) if takes_context else None
        self.model = options["model"]
        text, self.schema = schema.of_function(function, self.context)
        if self.model is not None:
            self.schema = self.model.model_json_schema()
        self.description = options["description"] or text
        exposure = "command" if options["command_only"] else options["exposure"]
        if exposure not in EXPOSURES:
            raise ValueError(f"unknown exposure '{exposure}' of tool '{name}'; available: {', '.join(EXPOSURES)}")
        self._annotations = {"readOnlyHint": options["read_only"], "commandOnly": exposure == "command"}
        self._annotations.update(exposure=exposure, deferred=options["deferred"])
        self._output_schema = options["output_schema"]

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self.function(*args, **named)

    def describe(self) -> dict:
        described = {"name": self.name, "description": self.description, "inputSchema": self.schema}
        if self._output_schema:
            described["outputSchema"] = self._output_schema
        return {**described, "annotations": self._annotations}

    def bind(self, arguments: dict, context: ToolContext) -> "tuple[list, dict]":
        """Return the arguments of a call. Raise ValueError if they are invalid."""
        named = {self.context: context} if self.context else {}
        if self.model is not None:
            return [self.model(**arguments)], named
        values, problems = schema.read(self.name, self.schema, arguments)
        if problems:
            raise ValueError(f"Tool '{self.name}' argument validation failed. {'; '.join(problems)}")
        return [], {**values, **named}


def tool(
    function: Any = None,
    *,
    name: Optional[str] = None,
    description: Optional[str] = None,
    context: bool = False,
    read_only: bool = False,
    command_only: bool = False,
    exposure: str = "auto",
    deferred: bool = False,
    model: Any = None,
    output_schema: Optional[dict] = None,
) -> Any:
    """Make a tool from a function. The model reads its docstring; its signature defines the arguments.

    An argument ``context`` is not shown to the model: it gets the ToolContext. ``read_only``: the tool changes nothing,
    so several calls may run in parallel. ``command_only``: for users, not for the model. ``exposure``: ``auto``,
    ``direct`` (the model, never code), ``code`` (only code in code mode) or ``command``. ``deferred``: the model sees only
    the name until it needs the tool. ``output_schema``: JSON Schema of a result that is no text.
    """
    options = dict(description=description, context=context, model=model)
    options.update(read_only=read_only, command_only=command_only, exposure=exposure, deferred=deferred)
    options.update(output_schema=output_schema)

    def make(function: Callable[..., Any]) -> Tool:
        made = Tool(function, name or function.__name__, options)
        TOOLS[made.name] = made
        return made

    return make if function is None else make(function)


class Command:
    """A command of the command line. Its output is shown to the user."""

    def __init__(self, function: Callable[..., Any], name: str, about: Optional[str], raw: bool = False) -> None:
        self.function, self.name, self.is_raw = function, name, raw
        text, described = schema.of_function(function, None)
        self.about = about or (text.splitlines() or [""])[0]
        self.schema, self._parameters = described, inspect.signature(function).parameters

    def describe(self) -> dict:
        args = [self._describe(*item) for item in self.schema["properties"].items()]
        if self.is_raw:
            return {"name": self.name, "about": self.about, "raw": True}
        return {"name": self.name, "about": self.about, "args": args}

    def _describe(self, name: str, kind: dict) -> dict:
        default = self._parameters[name].default
        is_required = name in self.schema.get("required", ())
        entry = {"name": self._shown(name), "help": kind.get("description", ""), "required": is_required}
        entry.update(positional=is_required, flag=kind.get("type") == "boolean", many=kind.get("type") == "array")
        if entry["flag"]:
            entry.update(required=False, positional=False)
        elif isinstance(default, (str, int, float)):
            entry["default"] = str(default)
        return entry

    @staticmethod
    def _shown(name: str) -> str:
        return name.replace("_", "-")

    def bind(self, given: dict) -> dict:
        names = {self._shown(name): name for name in self.schema["properties"]}
        given = {names.get(name, name): value for name, value in given.items() if value is not None}
        values, problems = schema.read(self.name, self.schema, given)
        if problems:
            raise ValueError("; ".join(problems))
        return values


def command(
    function: Any = None, *, name: Optional[str] = None, about: Optional[str] = None, raw: bool = False
) -> Any:
    """Make a command from a function: arguments without a default are positional, the others are options.

    With ``raw``, the function gets one list with everything after the name.
    """

    def make(function: Callable[..., Any]) -> Any:
        made = Command(function, name or function.__name__.replace("_", "-"), about, raw)
        COMMANDS[made.name] = made
        return function

    return make if function is None else make(function)


class Channel:
    """An adapter for one chat platform. Return instances from the hook ``provide_channels``."""

    name = ""
    #: Whether messages that arrive close together are collected into one turn.
    needs_debounce = False

    def __init__(self, message_handler: "Optional[Callable[[dict], Awaitable[Any]]]" = None) -> None:
        pass

    async def start(self) -> None:
        """Start receiving messages and return. The argument ``stop_event`` is optional; it is set when the channel stops."""

    async def stop(self) -> None:
        """Stop receiving messages."""

    async def send(self, message: Envelope) -> None:
        """Deliver a message. A BubError of the kind ``temporary`` is retried."""

    # Optional: `async def on_event(self, event, message)` gets each event of a streamed answer.
    on_event: "Optional[Callable[[StreamEvent, Envelope], Awaitable[None]]]" = None

    def receive(self, message: dict, sender: Optional[dict] = None) -> Any:
        """Pass a user's message to the host. Return once it is stored on disk."""
        return host.inbound(self.name, message, sender)


class Hook:
    """A function with the decorator ``@hookimpl``."""

    def __init__(self, function: Callable[..., Any], mark: dict) -> None:
        self.function, self.name = function, mark["name"]
        self._options = {name: value for name, value in mark.items() if name != "name" and value}
        parameters = inspect.signature(function).parameters.values()
        self.takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        self.takes_next = any(parameter.name == "next" for parameter in named)
        # As in the Python version, an argument with a default keeps it.
        self.wants = [p.name for p in named if p.default is p.empty and p.name != "next"]
        self.is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)

    def describe(self) -> dict:
        entry: Dict[str, Any] = {"name": self.name}
        if not self.takes_all:
            entry["args"] = self.wants
        return {**entry, **self._options}


def find_hooks(plugin: Any) -> List[Hook]:
    """Return the decorated functions of a module, or methods of an object."""
    names = vars(plugin) if inspect.ismodule(plugin) else dir(plugin)
    found = []
    for name in names:
        mark = getattr(inspect.getattr_static(plugin, name, None), _MARK, None)
        if mark is not None:
            found.append(Hook(getattr(plugin, name), mark))
    return found
