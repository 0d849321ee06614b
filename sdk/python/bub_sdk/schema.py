"""Arguments of tools: JSON Schema from a signature, and conversion of values as in Rust tools."""

from __future__ import annotations

import enum
import inspect
import json
import re
import typing
from typing import Any, Callable, Dict, List, Optional, Tuple

_SIMPLE = {str: "string", int: "integer", float: "number", bool: "boolean", dict: "object", list: "array"}
_WANTED = {
    "string": "a string",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "object": "an object",
    "array": "a list",
}
_TRUE = ("true", "t", "yes", "y", "on", "1", "1.0")
_FALSE = ("false", "f", "no", "n", "off", "0", "0.0")


def _of_type(kind: Any) -> dict:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if hasattr(kind, "__metadata__"):  # Annotated[type, "what it is"]
        schema = _of_type(kind.__origin__)
        texts = [note for note in kind.__metadata__ if isinstance(note, str)]
        return {**schema, "description": texts[0]} if texts else schema
    if origin is typing.Literal:
        return {"type": _SIMPLE.get(type(inner[0]), "string"), "enum": list(inner)}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return {"type": "string", "enum": [item.value for item in kind]}
    if type(None) in inner:
        some = [_of_type(one) for one in inner if one is not type(None)]
        return {"anyOf": [*some, {"type": "null"}]}
    if origin is typing.Union or type(kind).__name__ == "UnionType":
        return {"anyOf": [_of_type(one) for one in inner]}
    if kind is list or origin in (list, tuple, set):
        return {"type": "array", "items": _of_type(inner[0]) if inner else {}}
    if kind is dict or origin is dict:
        return {"type": "object"}
    return {"type": _SIMPLE[kind]} if kind in _SIMPLE else {}


def _documented(function: Callable) -> Tuple[str, Dict[str, str]]:
    """Return the text of a docstring and its descriptions of the parameters."""
    doc = inspect.getdoc(function) or ""
    head, *rest = re.split(r"^(?:Args|Arguments|Parameters):\s*$", doc, maxsplit=1, flags=re.M)
    said = dict(re.findall(r":param (?:\w+ )?(\w+):\s*(.+)", doc))
    if rest:
        block = re.split(r"^\S", rest[0], maxsplit=1, flags=re.M)[0]
        for name, text in re.findall(r"^\s+(\w+)(?:\s*\([^)]*\))?:\s*(.+(?:\n\s{8,}.+)*)", block, flags=re.M):
            said[name] = " ".join(text.split())
    head = re.split(r"^(?:Returns|Raises|Yields|Examples?):|^:\w", head, maxsplit=1, flags=re.M)[0]
    return head.strip(), said


def hints(function: Callable) -> Dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception:  # noqa: BLE001 - ignore type hints that cannot be evaluated here
        return {}


def of_function(function: Callable, leave_out: Optional[str]) -> Tuple[str, dict]:
    """Return the description of a function and the schema of its arguments."""
    text, said = _documented(function)
    known = hints(function)
    properties: Dict[str, dict] = {}
    required: List[str] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name in (leave_out, "self") or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        schema = _of_type(known.get(name, Any))
        if name in said:
            schema["description"] = said[name]
        is_optional = {"type": "null"} in schema.get("anyOf", ())
        if parameter.default is parameter.empty and not is_optional:
            required.append(name)
        elif isinstance(parameter.default, (str, bool, int, float, list, dict)):
            schema["default"] = parameter.default
        properties[name] = schema
    schema = {"type": "object", "properties": properties}
    return text, {**schema, "required": required} if required else schema


def read(tool: str, schema: dict, given: Dict[str, Any]) -> Tuple[Dict[str, Any], List[str]]:
    """Return the arguments of a call and all problems, worded for the model."""
    values: Dict[str, Any] = {}
    problems: List[str] = []
    left = dict(given)
    properties, required = schema.get("properties", {}), schema.get("required", ())
    for name, wanted in properties.items():
        value = left.pop(name, None)
        if value is None and name not in required:
            # Models that must provide every argument use null for unused ones.
            if {"type": "null"} in wanted.get("anyOf", ()):
                values[name] = None
            continue
        if value is None and name not in given:
            problems.append(f"argument '{name}' is missing")
            continue
        try:
            values[name] = _read(wanted, value)
        except ValueError as error:
            problems.append(f"argument '{name}': {error}")
    known = ", ".join(properties) or "no arguments"
    problems += [f"unknown argument '{name}' of {tool}; it takes {known}" for name in left]
    return values, problems


def _wrong(wanted: str, value: Any) -> ValueError:
    shown = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return ValueError(f"expected {wanted}, got {shown[:80]}{'…' if len(shown) > 80 else ''}")


def _read(schema: dict, value: Any) -> Any:
    """Convert a value; every type accepts unambiguous forms."""
    kind = schema.get("type")
    if "anyOf" in schema:
        return _read_any(schema["anyOf"], value)
    if "enum" in schema and value not in schema["enum"]:
        raise _wrong("one of " + ", ".join(map(str, schema["enum"])), value)
    if kind == "array":
        return _read_list(schema, value)
    if kind == "boolean" and not isinstance(value, (dict, list, type(None))):
        word = str(value).strip().lower()
        if word in _TRUE or word in _FALSE:
            return word in _TRUE
    elif kind == "string" and not isinstance(value, (dict, list, type(None))):
        return value if isinstance(value, str) else json.dumps(value)
    elif kind in ("integer", "number") and isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            return _number(kind, value)
        except (ValueError, OverflowError):
            pass
    elif kind == "object":
        value_read = _parsed(value) if isinstance(value, str) else value
        if isinstance(value_read, dict):
            return value_read
    elif kind == "null" and value is None or kind not in _WANTED and kind != "null":
        return value
    raise _wrong(_WANTED.get(kind, "null"), value)


def _number(kind: str, value: Any) -> Any:
    number = value
    if isinstance(value, str):
        try:
            return int(value.strip())
        except ValueError:
            number = float(value.strip())
    if isinstance(number, float) and number.is_integer() and kind == "integer":
        return int(number)
    if kind == "integer" and not isinstance(number, int) or number in (float("inf"), float("-inf")) or number != number:
        raise ValueError
    return number


def _read_any(schemas: List[dict], value: Any) -> Any:
    problem = _wrong("something else", value)
    for schema in schemas:
        try:
            return _read(schema, value)
        except ValueError as error:
            problem = error if schema.get("type") != "null" else problem
    raise problem


def _read_list(schema: dict, value: Any) -> list:
    """Convert a list; a single value becomes a list, and a list may be JSON text."""
    if isinstance(value, str):
        parsed = _parsed(value)
        value = parsed if isinstance(parsed, list) else [value]
    elif value is None or isinstance(value, dict):
        raise _wrong("a list", value)
    elif not isinstance(value, list):
        value = [value]
    items = []
    for at, item in enumerate(value):
        try:
            items.append(_read(schema.get("items", {}), item))
        except ValueError as error:
            raise ValueError(f"item {at}: {error}") from None
    return items


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
