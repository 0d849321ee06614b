"""Old name of ``bub.hooks``."""

from bub.hooks import BUB_HOOK_NAMESPACE, BubHookSpecs, hookimpl, hookspec

__all__ = ["BUB_HOOK_NAMESPACE", "BubHookSpecs", "hookimpl", "hookspec"]
