"""A plugin in the style of the Python version that uses all features."""

import asyncio
import os
import subprocess
import sys
from typing import Dict, List, Optional

from bub_sdk import (
    BubError,
    Channel,
    ToolContext,
    ask,
    command,
    config,
    content_of,
    hookimpl,
    log,
    send,
    sender,
    tape,
    tool,
)

print("printed while it is imported")


@tool
def shout(text: str, times: int = 1, marks: Optional[List[str]] = None) -> str:
    """Makes a text loud.

    Args:
        text: What is
            made loud.
        times: How often.

    Returns:
        The loud text.
    """
    return text.upper() * times + "".join(marks or ["!"])


@tool(name="about.turn", description="What a tool knows.", command_only=True)
async def about_turn(context: ToolContext) -> Dict[str, str]:
    return {"run": context.run_id, "mood": context.state["mood"], "role": context.sender.role}


@tool(read_only=True)
def broken() -> str:
    """Fails."""
    raise KeyError("where")


@command(about="Greets users")
def greet(name: str, loud: bool = False, how_often: int = 1):
    for _ in range(how_often):
        print(f"Hello, {name.upper() if loud else name}!")
    print("done", file=sys.stderr)
    return 3


@command(name="leave")
async def leave_now():
    """Leaves.

    At once."""
    sys.exit("gone")


class Lab(Channel):
    name = "lab"
    needs_debounce = True

    async def start(self, stop_event):
        await self.receive({"content": "started", "chat_id": "1"}, {"id": "7", "role": "member"})
        self.stop_event = stop_event

    async def stop(self):
        log(f"stopped: {self.stop_event.is_set()}")

    async def send(self, message):
        if message.content == "later":
            raise BubError("not now", "temporary")
        log(f"sent {message.content}")

    async def on_event(self, event, message):
        log(f"{event.text} for {message.content}")


class Sample:
    def __init__(self, framework):
        self.framework = framework

    @hookimpl
    def provide_channels(self, message_handler):
        return [Lab(message_handler)]

    @hookimpl
    def system_prompt(self, prompt, state):
        print("printed")
        os.write(1, b"written\n")
        subprocess.run(["echo", "by a child"], check=True)
        return f"{self.framework.workspace} {config.get('word')}"

    @hookimpl
    def build_prompt(self, message, session_id, state, next, unwanted=None):
        """A plain function may block: it waits for its answer in a thread."""
        return f"{ask('Who?', default='me')} {sender().role} {next(session_id='other')}"

    @hookimpl
    async def load_state(self, message):
        entries = await tape.query(text="x", limit=3)
        event = await tape.append("seen", {"n": len(entries)})
        return {"event": event, "sent": await send({"content": "hi"})}

    @hookimpl
    async def save_state(self, state, error):
        state["new"], state["same"] = True, state["same"]
        state["list"].append(2)
        state["flag"] = True
        del state["old"]
        if isinstance(error, Exception):
            state["error"] = f"{error.kind}: {error}"

    @hookimpl
    async def run_model(self, prompt):
        if prompt == "exit":
            sys.exit(3)
        if prompt == "nan":
            return float("nan")
        if prompt == "wait":
            try:
                await asyncio.Event().wait()
            finally:
                log("cancelled")
        raise ValueError("what a prompt")

    @hookimpl
    async def run_model_stream(self, prompt, state, next):
        if prompt == "first below":
            async for event in next(prompt="below"):
                yield event
                break
            state["read"] = "one"
        elif prompt == "all below":
            async for event in next():
                yield event
        else:
            for word in content_of({"content": prompt}).split():
                yield word

    @hookimpl(observe_only=True)
    def before_tool_call(self, **everything):
        return None if everything["call"].tool == "a" else {"deny": sorted(everything)[0]}

    @hookimpl
    async def before_llm_call(self, request, state):
        state["thing"] = object()
