"""Objects of the plugin that the host uses: tape stores, sidecars and steering inboxes."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

from bub_sdk.peer import ServedRequest

from bub._serve import convert
from bub._serve.hooks import Hooks
from bub._serve.host_store import entry_of
from bub.store import AsyncTapeStoreAdapter, TapeQuery, is_async_tape_store


class Providers:
    """Keeps the provided objects and answers the requests of the host about them."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._store: Any = None
        self._inbox: Any = None
        self._stack: Any = None

    def hook(self, name: str) -> Callable[[ServedRequest], Any] | None:
        return {
            "provide_tape_store": self._provide_store,
            "provide_steering_inbox": self._provide_inbox,
            "provide_tape_sidecar": self._provide_sidecars,
        }.get(name)

    def methods(self) -> dict[str, Callable[[ServedRequest], Any]]:
        return {
            "store/list": self._list,
            "store/read": self._read,
            "store/append": self._append,
            "store/reset": self._reset,
            "store/close": self._close_store,
            "steering/enqueue": self._enqueue,
            "steering/drain": self._drain,
        }

    async def _provide(self, name: str, **given: Any) -> Any:
        value = await self._hooks.call(name, given)
        return await value if inspect.isawaitable(value) else value

    # Tape stores

    async def _provide_store(self, work: ServedRequest) -> dict[str, Any]:
        from bub.utils import maybe_context_manager

        self._stack = contextlib.AsyncExitStack()
        store = await maybe_context_manager(await self._provide("provide_tape_store"), self._stack)
        if store is None:
            return {}
        self._store = store if is_async_tape_store(store) else AsyncTapeStoreAdapter(store)
        return {"value": {"provided": True}}

    async def _close_store(self, work: ServedRequest) -> None:
        if self._stack is not None:
            await self._stack.aclose()

    async def _list(self, work: ServedRequest) -> dict[str, Any]:
        return {"tapes": list(await self._store.list_tapes())}

    async def _read(self, work: ServedRequest) -> dict[str, Any]:
        entries = list(await self._store.fetch_all(TapeQuery(work.params["tape"], self._store)))
        after = work.params.get("after") or 0
        return {"entries": [convert.to_json(entry) for entry in entries if entry.id > after]}

    async def _append(self, work: ServedRequest) -> None:
        for entry in work.params["entries"]:
            await self._store.append(work.params["tape"], entry_of({"id": 0, **entry}))

    async def _reset(self, work: ServedRequest) -> None:
        await self._store.reset(work.params["tape"])

    # Sidecars and steering

    async def _provide_sidecars(self, work: ServedRequest) -> dict[str, Any]:
        sidecar = await self._provide("provide_tape_sidecar")
        return {} if sidecar is None else {"value": {"name": sidecar.name}}

    async def _provide_inbox(self, work: ServedRequest) -> dict[str, Any]:
        self._inbox = await self._provide("provide_steering_inbox")
        return {} if self._inbox is None else {"value": {"provided": True}}

    async def _enqueue(self, work: ServedRequest) -> dict[str, Any]:
        state = {"session_id": work.params["session_id"]}
        await self._inbox.enqueue_message(convert.message(work.params["message"]), state)
        return {"accepted": True, "count": self._inbox.message_count(state)}

    async def _drain(self, work: ServedRequest) -> dict[str, Any]:
        messages = await self._inbox.drain_messages({"session_id": work.params["session_id"]})
        return {"messages": [(await convert.outgoing(message))[0] for message in messages]}
