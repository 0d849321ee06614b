"""A plugin that provides objects to the host."""

import sys

from bub_sdk import command, hookimpl, tool, tools_changed


class Store:
    def __init__(self):
        self.tapes = {}

    def list(self):
        return sorted(self.tapes)

    async def read(self, tape):
        return self.tapes.get(tape, [])

    def append(self, tape, entries):
        self.tapes.setdefault(tape, []).extend(entries)

    def reset(self, tape):
        self.tapes.pop(tape, None)


class Inbox:
    def __init__(self):
        self.messages = []

    def enqueue(self, session_id, message):
        self.messages.append(message)

    def drain(self, session_id):
        drained, self.messages = self.messages, []
        return drained


class Box:
    workspace = "/box"

    async def run(self, command, cwd, output):
        output(f"{command} in {cwd}")
        return 3

    def read_text(self, path):
        return f"the text of {path}"

    def write_text(self, path, content):
        pass


class Resource:
    state = "closed"

    def __enter__(self):
        Resource.state = "open"

    def __exit__(self, *_):
        Resource.state = "closed again"


class Keeper:
    @hookimpl(order="first")
    def provide_tape_store(self):
        return Store()

    @hookimpl(timeout_seconds=60)
    async def provide_steering_inbox(self):
        return Inbox()

    @hookimpl
    def provide_environment(self, session_id):
        return Box() if session_id == "boxed" else None

    @hookimpl
    def provide_lifespan(self):
        return Resource()

    @hookimpl
    def build_tape_context(self):
        return {"anchor": "last", "select": lambda entries: [{"role": "user", "content": str(len(entries))}]}


@tool(exposure="direct", output_schema={"type": "object"})
def resource():
    """Tell the state of the resource."""

    @tool
    def later():
        """Appear later."""

    tools_changed()
    return {"state": Resource.state}


@command(raw=True)
def echo(words):
    """Print the arguments and the lines of stdin."""
    print(words, input("name: "), sys.stdin.isatty())
