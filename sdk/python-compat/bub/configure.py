"""Settings of plugins: classes that read the environment first, then the section of the config file."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

ROOT = ""
MISSING = object()

#: Classes by the name of their section.
CONFIG_MAP: dict[str, list[type[BaseSettings]]] = {}

_data: dict[str, Any] = {}
_instances: dict[type[BaseSettings], BaseSettings] = {}


class Settings(BaseSettings):
    """Settings whose environment variables override the config file."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return env_settings, dotenv_settings, init_settings, file_secret_settings


def config[C: type[BaseSettings]](name: str = ROOT) -> Callable[[C], C]:
    """Register a class as the settings of a section."""

    def register(cls: C) -> C:
        cls.__config_name__ = name  # type: ignore[attr-defined]
        CONFIG_MAP.setdefault(name, []).append(cls)
        return cls

    return register


def set_data(data: dict[str, Any]) -> None:
    """Replace the loaded configuration. The host passes only what the plugin may see."""
    _data.clear()
    _data.update(data)
    _instances.clear()


def load(config_file: Path) -> dict[str, Any]:
    """Load the configuration from a file."""
    import yaml

    set_data(yaml.safe_load(config_file.read_text()) or {} if config_file.exists() else {})
    return _data


def get_config_data() -> dict[str, Any]:
    """Return a copy of the loaded configuration."""
    return copy.deepcopy(_data)


def merge(base: dict[str, Any], *updates: dict[str, Any]) -> dict[str, Any]:
    """Merge maps into the first one. Later values win."""
    for update in updates:
        for name, value in update.items():
            before = base.get(name)
            if isinstance(before, dict) and isinstance(value, dict):
                merge(before, value)
            else:
                base[name] = copy.deepcopy(value)
    return base


def validate(config_data: dict[str, Any]) -> dict[str, Any]:
    """Check a configuration with all registered classes."""
    for section, classes in CONFIG_MAP.items():
        values = config_data if section == ROOT else config_data.get(section) or {}
        for cls in classes:
            cls.model_validate(values)
    return config_data


def save(config_file: Path, config_data: dict[str, Any]) -> None:
    """Check a configuration and write it to a file."""
    import yaml

    text = yaml.safe_dump(validate(config_data), sort_keys=False)
    config_file.parent.mkdir(parents=True, exist_ok=True)
    config_file.write_text(text, encoding="utf-8")


def ensure_config[C: BaseSettings](config_cls: type[C]) -> C:
    """Return the settings of a registered class. They are read once."""
    section = getattr(config_cls, "__config_name__", ROOT)
    if section not in CONFIG_MAP:
        raise ValueError(f"No config registered for section '{section}'")
    for known, instance in _instances.items():
        if issubclass(known, config_cls):
            return instance  # type: ignore[return-value]
    values = _data if section == ROOT else _data.get(section) or {}
    made = _instances[config_cls] = config_cls.model_validate(values)
    return made


def get_value(path: str, default: Any = MISSING) -> Any:
    """Return the value at a dotted path, such as ``telegram.token``."""
    parts = [part for part in path.split(".") if part]
    if not parts:
        raise ValueError("config path must not be empty")
    section, names = (parts[0], parts[1:]) if parts[0] in CONFIG_MAP else (ROOT, parts)
    sources: list[Any] = [ensure_config(cls) for cls in CONFIG_MAP.get(section, [])] if names else []
    for source, rest in [*((source, names) for source in sources), (_data, parts)]:
        found = _walk(source, rest)
        if found is not MISSING:
            return found
    if default is MISSING:
        raise KeyError(path)
    return default


def _walk(value: Any, names: list[str]) -> Any:
    for name in names:
        if isinstance(value, dict):
            value = value.get(name, MISSING)
        else:
            value = getattr(value, name, MISSING)
        if value is MISSING:
            return MISSING
    return value
