"""Settings of the agent. Keys are withheld from plugins."""

from __future__ import annotations

from typing import Any

from bub.configure import Settings, config, ensure_config


@config()
class AgentSettings(Settings):
    """The settings of the agent that a plugin can see."""

    model_config = {"env_prefix": "BUB_", "extra": "ignore"}

    model: str = ""
    fallback_models: list[str] | None = None
    command_prefix: str = ","
    max_steps: int | None = None
    max_tokens: int = 16384
    model_timeout_seconds: int | None = None
    api_key: Any = None
    api_base: Any = None


def load_settings() -> AgentSettings:
    """Return the settings of the agent."""
    return ensure_config(AgentSettings)
