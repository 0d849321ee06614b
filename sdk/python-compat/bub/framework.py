"""The framework as plugins see it. The host runs the turns; this object asks it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bub import configure
from bub.envelope import Envelope
from bub.hooks.specs import BUB_HOOK_NAMESPACE, BubHookSpecs
from bub.turn import TurnResult, TurnState

DEFAULT_HOME = Path.home() / ".bub"
DEFAULT_CONFIG_FILE = DEFAULT_HOME / "config.yml"


@dataclass(frozen=True)
class PluginStatus:
    """Whether a plugin was loaded."""

    is_success: bool
    detail: str | None = None


class BubFramework:
    """The framework that a plugin's constructor gets."""

    def __init__(self, config_file: Path = DEFAULT_CONFIG_FILE) -> None:
        from bub._serve.plugins import PluginManager

        self.workspace = Path.cwd()
        self.config_file = Path(config_file)
        self._plugin_manager = PluginManager(BUB_HOOK_NAMESPACE)
        self._plugin_manager.add_hookspecs(BubHookSpecs)
        self._plugin_status: dict[str, PluginStatus] = {}

    @property
    def plugin_manager(self) -> Any:
        return self._plugin_manager

    def get_plugin_agent(self) -> Any:
        return self._plugin_manager.get_plugin("builtin")._get_agent()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """The host keeps its resources open, so this does nothing."""
        yield

    async def process_inbound(self, inbound: Envelope, stream_output: bool = False) -> TurnResult:
        """Run a message and return the result of its turn."""
        from bub._serve import convert
        from bub_sdk import host

        message, lifespan = await convert.outgoing(inbound)
        async with lifespan or contextlib.nullcontext():
            result = await host.request("turn/run", {"message": message, "stream_output": stream_output}) or {}
        outbounds = [convert.message(outbound) for outbound in result.get("outbounds") or []]
        return TurnResult(
            session_id=result.get("session_id") or "",
            prompt=result.get("prompt") or "",
            model_output=result.get("model_output") or "",
            outbounds=outbounds,
            state=result.get("state") or {},
        )

    async def dispatch_via_channel_router(self, message: Envelope) -> bool:
        """Deliver a message to its channel."""
        from bub._serve import convert
        from bub_sdk import host

        fields, _ = await convert.outgoing(message)
        return bool(await host.send(fields))

    async def quit_via_channel_router(self, session_id: str) -> None:
        """End what runs and waits in a session."""
        from bub_sdk import host

        await host.request("session/quit", {"session_id": session_id})

    async def steer_message(
        self, *, message: Envelope, session_id: str, state: TurnState, reason: str | None = None
    ) -> bool:
        """Add a message to the running turn of a session."""
        from bub._serve import convert
        from bub_sdk import host

        fields, _ = await convert.outgoing(message)
        params = {"session_id": session_id, "message": fields, "reason": reason}
        return bool((await host.request("session/steer", params) or {}).get("accepted"))

    async def get_model_options(self, *, session_id: str, workspace: str | Path | None = None) -> Any:
        """Return the models that users can choose from."""
        from bub.model_selection import ModelChoice, ModelOptions
        from bub_sdk import host

        options = await host.request("models/list", {"session_id": session_id}) or {}
        choices = [ModelChoice(choice["id"], choice.get("label")) for choice in options.get("choices") or []]
        return ModelOptions(choices, options.get("current"))

    def get_tape_store(self) -> Any:
        """Return the tape store of the host."""
        from bub.tape import Tape

        return Tape().store

    def get_steering_inbox(self) -> None:
        """The host keeps the inbox; use ``steer_message``."""

    def bind_channel_router(self, router: Any) -> None:
        """The host delivers messages, so this does nothing."""

    def get_config(self) -> dict[str, Any]:
        return configure.get_config_data()

    def hook_report(self) -> dict[str, list[str]]:
        """Return the hooks of this process with their plugins."""
        return self._plugin_manager.hook_report()
