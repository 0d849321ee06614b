"""Tools: functions that the model can call."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args, get_type_hints

from bub.tape import Tape

ToolExposure = Literal["auto", "direct", "code", "command"]


@dataclass(frozen=True)
class ToolContext:
    """The context of a tool call."""

    tape: Tape
    run_id: str | None = None
    state: dict[str, Any] = field(default_factory=dict)
    code_mode: bool = False


def render_result(result: Any) -> str:
    """Return the text of a result: text unchanged, other values as JSON."""
    from pydantic import BaseModel

    if isinstance(result, str):
        return result
    if isinstance(result, BaseModel):
        return result.model_dump_json()
    try:
        return json.dumps(result, ensure_ascii=False)
    except TypeError:
        return str(result)


@dataclass(frozen=True)
class Tool:
    """A function that the model can call."""

    name: str
    handler: Callable[..., Any]
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    context: bool = False
    exposure: ToolExposure = "auto"
    renderer: Callable[[Any], str] | None = None
    output_schema: dict[str, Any] | None = None
    deferred: bool = False

    def __post_init__(self) -> None:
        if self.exposure not in get_args(ToolExposure):
            raise ValueError(f"Tool '{self.name}' has unknown exposure {self.exposure!r}.")

    def run(self, *args: Any, **kwargs: Any) -> Any:
        return self.handler(*args, **kwargs)

    def render(self, result: Any) -> str:
        return (self.renderer or render_result)(result)

    def to_schema(self) -> dict[str, Any]:
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}

    @classmethod
    def from_callable(
        cls,
        func: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        context: bool = False,
        exposure: ToolExposure = "auto",
        renderer: Callable[[Any], str] | None = None,
        deferred: bool = False,
    ) -> Tool:
        """Make a tool from a function. Its signature describes the arguments, which are checked at each call."""
        _check_context(func, context)
        return cls(
            name=name or _snake_case(getattr(func, "__name__", "") or type(func).__name__),
            handler=_checked(func, context),
            description=(inspect.getdoc(func) or "") if description is None else description,
            parameters=_parameters(func, context),
            context=context,
            exposure=exposure,
            renderer=renderer,
            output_schema=_output_schema(func),
            deferred=deferred,
        )


#: All tools that were made with the decorator, by name.
REGISTRY: dict[str, Tool] = {}


def tool(
    func: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    model: Any = None,
    description: str | None = None,
    context: bool = False,
    exposure: ToolExposure = "auto",
    renderer: Callable[[Any], str] | None = None,
    deferred: bool = False,
    agent_use: bool | None = None,
) -> Any:
    """Make a tool from a function and register it. ``agent_use`` is the old form of ``exposure="command"``."""
    exposure = "command" if agent_use is False else exposure

    def make(func: Callable[..., Any]) -> Tool:
        if model is None:
            made = Tool.from_callable(
                func,
                name=name,
                description=description,
                context=context,
                exposure=exposure,
                renderer=renderer,
                deferred=deferred,
            )
        else:
            _check_context(func, context)

            def handler(*args: Any, **kwargs: Any) -> Any:
                given = {"context": kwargs.pop("context", None)} if context else {}
                return func(model(*args, **kwargs), **given)

            text = inspect.getdoc(func) or model.__doc__ or ""
            made = Tool(
                name=name or _snake_case(model.__name__),
                handler=handler,
                description=text if description is None else description,
                parameters=model.model_json_schema(),
                context=context,
                exposure=exposure,
                renderer=renderer,
                output_schema=_output_schema(func),
                deferred=deferred,
            )
        REGISTRY[made.name] = made
        return made

    return make if func is None else make(func)


def model_tools(tools: Iterable[Tool]) -> list[Tool]:
    """Return the tools for models and code, under the names that models see."""
    return [replace(one, name=one.name.replace(".", "_")) for one in tools if one.exposure != "command"]


def _check_context(func: Callable[..., Any], context: bool) -> None:
    if context and "context" not in inspect.signature(func).parameters:
        raise TypeError(f"the tool {getattr(func, '__name__', func)!r} has context=True, but no argument `context`")


def _snake_case(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


def _schema(annotation: Any) -> dict[str, Any]:
    from pydantic import TypeAdapter

    try:
        return TypeAdapter(Any if annotation is inspect.Parameter.empty else annotation).json_schema()
    except Exception as error:
        raise ValueError(f"no JSON Schema exists for the type {annotation!r}") from error


def _parameters(func: Callable[..., Any], context: bool) -> dict[str, Any]:
    signature = inspect.signature(func)
    try:
        hints = get_type_hints(func, include_extras=True)
    except Exception:
        hints = {}
    properties: dict[str, Any] = {}
    required = []
    for parameter in signature.parameters.values():
        is_variable = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if is_variable or (context and parameter.name == "context"):
            continue
        schema = _schema(hints.get(parameter.name, parameter.annotation))
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        elif _is_json(parameter.default):
            schema = {**schema, "default": parameter.default}
        properties[parameter.name] = schema
    described: dict[str, Any] = {"type": "object", "properties": properties}
    return {**described, "required": required} if required else described


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def _output_schema(func: Callable[..., Any]) -> dict[str, Any] | None:
    try:
        hints = get_type_hints(func)
        return _schema(hints["return"]) if "return" in hints else None
    except Exception:
        return None


def _checked(func: Callable[..., Any], context: bool) -> Callable[..., Any]:
    """Return a function that checks and converts its arguments before each call."""
    from pydantic import ConfigDict, validate_call

    if not context:
        return validate_call(config=ConfigDict(arbitrary_types_allowed=True))(func)

    def collect(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return args, kwargs

    signature = inspect.signature(func)
    kept = [parameter for parameter in signature.parameters.values() if parameter.name != "context"]
    try:
        hints = get_type_hints(func, include_extras=True)
    except Exception:
        hints = dict(getattr(func, "__annotations__", {}))
    kept = [parameter.replace(annotation=hints.get(parameter.name, parameter.annotation)) for parameter in kept]
    collect.__signature__ = inspect.Signature(kept)  # type: ignore[attr-defined]
    collect.__annotations__ = {parameter.name: parameter.annotation for parameter in kept if parameter.annotation is not parameter.empty}
    collect.__name__ = collect.__qualname__ = getattr(func, "__name__", "tool")
    check = validate_call(config=ConfigDict(arbitrary_types_allowed=True))(collect)

    def call(*args: Any, **kwargs: Any) -> Any:
        given = kwargs.pop("context", None)
        checked, named = check(*args, **kwargs)
        return func(*checked, context=given, **named)

    return call
