"""What a plugin declares besides its hooks: settings, variables, files and skills."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

from bub.configure import CONFIG_MAP

#: Words in the name of a setting whose value is a secret.
SECRET_WORDS = ("token", "secret", "password", "api_key", "encrypt_key", "auth_value", "credential")
#: Code that reads an environment variable.
_READS = re.compile(r"""(?:environ(?:\.get\(|\[)|getenv\()\s*["']([A-Z][A-Z0-9_]*)["']""")
#: Variables that every process has, and bub's own.
_COMMON = {"BUB_HOME", "HOME", "LANG", "PATH", "PWD", "SHELL", "TERM", "TMPDIR", "USER"}
_TYPES = {"integer": "integer", "number": "number", "boolean": "boolean", "array": "list", "object": "map"}


def settings(section: str) -> list[dict[str, Any]]:
    """Return the settings of the plugin's section."""
    found = {}
    for cls in CONFIG_MAP.get(section, ()):
        try:
            properties = cls.model_json_schema().get("properties", {})
        except Exception:
            properties = {}
        for name, field in cls.model_fields.items():
            schema = properties.get(name, {})
            found[name] = {
                "name": name,
                "type": _type(schema),
                "help": field.description or "",
                "secret": _is_secret(name, field.annotation),
            }
    return list(found.values())


def _type(schema: dict[str, Any]) -> str:
    options = [option for option in schema.get("anyOf", [schema]) if option.get("type") != "null"]
    return _TYPES.get(options[0].get("type", ""), "string") if len(options) == 1 else "string"


def _is_secret(name: str, annotation: Any) -> bool:
    return "Secret" in str(annotation) or any(word in name.lower() for word in SECRET_WORDS)


def variables() -> list[str]:
    """Return the environment variables that the settings of the plugin read."""
    found = []
    for section, classes in CONFIG_MAP.items():
        for cls in classes:
            if cls.__module__.startswith("bub."):
                continue
            prefix = cls.model_config.get("env_prefix") or ""
            found += [f"{prefix}{name}".upper() for name in cls.model_fields]
    return sorted(set(found))


def read_variables(distribution: Any) -> set[str]:
    """Return the names of environment variables that the code of the distribution reads itself."""
    found: set[str] = set()
    for file in (distribution.files if distribution else None) or ():
        # Scripts of skills run with the rights of the agent.
        if file.suffix == ".py" and file.parts[:1] != ("skills",):
            with contextlib.suppress(OSError, UnicodeDecodeError):
                found.update(_READS.findall(Path(distribution.locate_file(file)).read_text("utf-8")))
    return found - _COMMON


def home_files() -> list[str]:
    """Return the names of files in bub's home that the plugin uses."""
    import bub

    return sorted(bub._Home.used)


def skill_directories(distribution: Any) -> list[str]:
    """Return the directories with skills that the distribution has installed."""
    roots = set()
    for file in (distribution.files if distribution else None) or ():
        if file.parts[:1] == ("skills",) and file.name == "SKILL.md" and len(file.parts) == 3:
            roots.add(str(Path(distribution.locate_file(file)).parent))
    return sorted(roots)
