"""A plugin for the Python version of bub that provides objects to the host. The setting `provides` says which."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import bub
from bub import hookimpl, inquirer, tool
from bub.builtin.environment import LocalEnvironment
from bub.channels import Channel
from bub.channels.admission import AdmitDecision, TurnSnapshot
from bub.channels.message import ChannelMessage
from bub.envelope import content_of
from bub.store import FileTapeStore
from bub.tape import TapeContext
from bub.tools import ToolContext
from pydantic_settings import SettingsConfigDict


@bub.config(name="keeper")
class KeeperSettings(bub.Settings):
    model_config = SettingsConfigDict(env_prefix="BUB_KEEPER_", extra="ignore")

    provides: str = ""


class Inbox:
    """A steering inbox that returns the newest message first."""

    def __init__(self, workspace: Path) -> None:
        self._workspace = workspace
        self._messages: dict[str, list[Any]] = defaultdict(list)

    async def enqueue_message(self, message: Any, state: dict[str, Any]) -> None:
        self._messages[state["session_id"]].insert(0, message)
        with (self._workspace / "steered").open("a") as file:
            file.write(f"{content_of(message)}\n")

    async def drain_messages(self, state: dict[str, Any]) -> list[Any]:
        return self._messages.pop(state["session_id"], [])

    def message_count(self, state: dict[str, Any]) -> int:
        return len(self._messages[state["session_id"]])


class Notes:
    """A sidecar."""

    name = "notes"


class BoxEnvironment(LocalEnvironment):
    """A directory in which commands see the variable BOX."""

    async def spawn(self, command: Any, *, cwd: str | None = None, env: dict[str, str] | None = None) -> Any:
        return await super().spawn(command, cwd=cwd, env={**(env or {}), "BOX": "in the box"})

    async def close(self) -> None:
        Path(self.workspace or "", "closed").touch()


class Room(Channel):
    """A channel whose messages come from the file `in.jsonl` of the workspace. Replies go to `out.jsonl`."""

    def __init__(self, name: str, handler: Any, workspace: Path) -> None:
        self.name = name
        self._handler, self._workspace = handler, workspace
        self._reading: Any = None

    async def start(self, stop_event: asyncio.Event) -> None:
        self._reading = asyncio.create_task(self._read(stop_event))

    async def _read(self, stop_event: asyncio.Event) -> None:
        file, seen = self._workspace / "in.jsonl", 0
        while not stop_event.is_set():
            lines = file.read_text().splitlines() if file.exists() else []
            for line in lines[seen:]:
                fields = json.loads(line)
                session_id = f"{self.name}:{fields['chat_id']}"
                await self._handler(ChannelMessage(session_id=session_id, channel=self.name, is_active=True, **fields))
            seen = len(lines)
            await asyncio.sleep(0.05)

    async def stop(self) -> None:
        self._reading.cancel()

    async def send(self, message: ChannelMessage) -> None:
        with (self._workspace / "out.jsonl").open("a") as file:
            file.write(json.dumps({"chat_id": message.chat_id, "content": message.content}) + "\n")


def select(entries: Any, context: TapeContext) -> list[dict[str, Any]]:
    """Select the user's messages and number them."""
    users = [entry for entry in entries if entry.kind == "message" and entry.payload["role"] == "user"]
    return [{"role": "user", "content": f"selected {number}: {entry.payload['content']}"} for number, entry in enumerate(users, 1)]


@tool(name="keeper.tape", context=True)
async def use_tape(*, context: ToolContext) -> dict[str, Any]:
    """Use every operation of the tape."""
    tape = context.tape
    await tape.append_event("keeper.first", {"number": 1})
    handed_off = await tape.handoff("keeper/phase", state={"summary": "the first phase"})
    async with tape.fork_tape() as fork:
        await fork.append_event("keeper.kept", {"number": 2})
    async with tape.fork_tape(merge_back=False) as fork:
        await fork.append_event("keeper.discarded", {"number": 3})
    events = await tape.query().kinds("event").all()
    found = await tape.search(tape.query().query("keeper.kept"))
    info = await tape.info()
    return {
        "anchor": handed_off[0].payload["name"],
        "anchors": [(anchor.name, anchor.state.get("summary")) for anchor in await tape.anchors()],
        "events": [event.payload["name"] for event in events if event.payload["name"].startswith("keeper.")],
        "found": [entry.payload["name"] for entry in found if entry.kind == "event"],
        "is_listed": tape.name in await tape.store.list_tapes(),
        "last_anchor": info.last_anchor,
    }


@tool(name="keeper.forget", context=True)
async def forget(*, context: ToolContext) -> str:
    """Reset the tape of another session."""
    return await context.tape.session_tape("cli:other").reset(archive=True)


class Keeper:
    def __init__(self, framework: Any) -> None:
        self.framework = framework
        self.provides = bub.ensure_config(KeeperSettings).provides.split()

    @hookimpl
    def provide_tape_store(self) -> Any:
        return FileTapeStore(bub.home / "kept") if "kept-store" in self.provides else None

    @hookimpl
    def provide_tape_sidecar(self) -> Any:
        return Notes() if "sidecar" in self.provides else None

    @hookimpl
    def provide_steering_inbox(self) -> Any:
        return Inbox(Path(self.framework.workspace)) if "an-inbox" in self.provides else None

    @hookimpl
    def build_tape_context(self) -> TapeContext | None:
        return TapeContext(select=select) if "selector" in self.provides else None

    @hookimpl
    async def provide_environment(self, session_id: str, workspace: Path) -> Any:
        if "a-box" not in self.provides:
            return None
        box = workspace / "box"
        box.mkdir(exist_ok=True)
        return BoxEnvironment(box)

    @hookimpl
    def admit_message(self, session_id: str, message: Any, turn: TurnSnapshot) -> AdmitDecision | None:
        if turn.is_running and content_of(message).startswith("also"):
            return AdmitDecision("steer", "asked to")
        return None

    @hookimpl
    def provide_channels(self, message_handler: Any) -> list[Channel]:
        workspace = Path(self.framework.workspace)
        return [Room(name, message_handler, workspace) for name in ("room", "telegram")]

    @hookimpl
    def register_cli_commands(self, app: Any) -> None:
        import typer

        group = typer.Typer()

        @group.command()
        def ask() -> None:
            """Ask the user in every way."""
            color = inquirer.ask_select("color", ["red", "green", "blue"], default="green")
            fruits = inquirer.ask_checkbox("fruits", ["apple", "pear", "plum"], enabled=["pear"])
            sure = inquirer.ask_confirm("sure", default=False)
            name = typer.prompt("name", default="Grace")
            secret = typer.prompt("secret", hide_input=True)
            typer.echo(json.dumps([color, fruits, sure, name, len(secret)]))

        @group.command()
        def count() -> None:
            """Count the lines of stdin."""
            import sys

            typer.echo(len(sys.stdin.read().splitlines()))

        app.add_typer(group, name="keeper", help="Commands of the test plugin")
