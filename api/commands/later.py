"""The contract's commands that later releases bring: known by name, so that nobody takes them for a typing error."""

from __future__ import annotations

from typing import NoReturn

import typer

from factorize.errors import UnsupportedProblem

COMMANDS = {
    "worker": "run a worker of a cluster",
}
GROUPS = {
    "jobs": {"ls": "list jobs", "show": "show a job", "watch": "follow a job", "cancel": "cancel a job"},
    "keys": {"create": "create an API key", "ls": "list API keys", "revoke": "revoke an API key"},
    "db": {"upgrade": "upgrade the database"},
}
_ANY_ARGUMENTS = {"allow_extra_args": True, "ignore_unknown_options": True}


def register(app: typer.Typer) -> None:
    """Add the later commands to the application."""
    for name, text in COMMANDS.items():
        _add(app, name, name, text)
    for group, commands in GROUPS.items():
        inner = typer.Typer(no_args_is_help=True, help=f"{group.capitalize()} (a later release).")
        for name, text in commands.items():
            _add(inner, name, f"{group} {name}", text)
        app.add_typer(inner, name=group, rich_help_panel="Later releases")


def _add(app: typer.Typer, name: str, full_name: str, text: str) -> None:
    def refuse() -> NoReturn:
        raise UnsupportedProblem(
            f"`factorize {full_name}` comes with a later release; `factorize --help` lists what this one has"
        )

    app.command(
        name,
        help=f"{text.capitalize()} (a later release).",
        context_settings=_ANY_ARGUMENTS,
        rich_help_panel="Later releases",
    )(refuse)
