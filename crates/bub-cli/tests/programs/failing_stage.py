"""The plugin of failing_stage.rs as an external plugin. A panic ends the process."""

import asyncio
import os

from bub_sdk import BubError, about, hookimpl, serve


async def enter(stage):
    workspace = about["workspace"]
    try:
        wanted, failure = (workspace / "fault").read_text().split()
    except FileNotFoundError:
        return
    if wanted != stage:
        return
    (workspace / "fault").rename(workspace / "reached")
    if failure == "error":
        raise RuntimeError("failed on purpose")
    if failure == "config":
        raise BubError("failed on purpose", "config")
    if failure == "panic":
        os._exit(1)
    while not (workspace / "release").exists():
        await asyncio.sleep(0.01)


@hookimpl
async def resolve_session():
    await enter("resolve_session")


@hookimpl
async def load_state():
    await enter("load_state")


@hookimpl
async def build_prompt():
    await enter("build_prompt")


@hookimpl
async def run_model():
    await enter("run_model")


@hookimpl
async def save_state():
    with open(about["workspace"] / "saves", "a") as saves:
        print("saved", file=saves)
    await enter("save_state")


@hookimpl
async def render_outbound():
    await enter("render_outbound")


@hookimpl
async def dispatch_outbound():
    await enter("dispatch_outbound")


serve()
