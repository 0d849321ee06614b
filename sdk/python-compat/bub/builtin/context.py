"""The default tape context."""

from bub.tape import TapeContext


def default_tape_context(state: dict | None = None) -> TapeContext:
    """Return the default context: the entries after the last anchor."""
    return TapeContext(state=state or {})
