"""Questions to the user. The host asks them at its terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bub_sdk import host

type CheckboxValidator = Callable[[list[str]], bool | str]


def _ask(**question: Any) -> Any:
    import typer
    from bub_sdk.values import BubError

    try:
        return host.ask(**question)
    except BubError as error:
        if error.kind == "cancelled":
            raise typer.Abort() from error
        raise


def ask_text(message: str, default: str = "") -> str:
    """Ask for text."""
    return str(_ask(question=message, default=default) or "")


def ask_secret(message: str) -> str:
    """Ask for text that the terminal does not show."""
    return str(_ask(question=message, default="", secret=True) or "")


def ask_confirm(message: str, default: bool = False) -> bool:
    """Ask a yes or no question."""
    return _ask(question=message, default="yes" if default else "no", choices=["yes", "no"]) == "yes"


def ask_select(message: str, choices: list[str], default: str = "") -> str:
    """Ask for one of several choices."""
    return str(_ask(question=message, default=_offered(choices, default), choices=list(choices)))


def ask_fuzzy(message: str, choices: list[str], default: str | None = None) -> str:
    """Ask for one of many choices."""
    return ask_select(message, choices, default or "")


def ask_checkbox(
    message: str,
    choices: list[str],
    default: list[str] | None = None,
    enabled: list[str] | None = None,
    validate: CheckboxValidator | None = None,
    **_: Any,
) -> list[str]:
    """Ask for any number of choices, until they are valid."""
    selected = enabled if enabled is not None else default or []
    while True:
        answer = list(_ask(question=message, default=selected, choices=list(choices), multiple=True) or [])
        problem = True if validate is None else validate(answer)
        if problem is True:
            return answer
        message = problem if isinstance(problem, str) else message


def ask_prompt(question: Any) -> Any:
    """Run a prompt object at the terminal of this process."""
    return question.execute() if hasattr(question, "execute") else question


def _offered(choices: list[str], default: str) -> str | None:
    return default if default in choices else None
