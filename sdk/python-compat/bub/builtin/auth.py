"""The commands of ``bub login``. The host has its own; commands that plugins add here are not shown."""

import typer

app = typer.Typer(name="login", help="Log in")
