"""The tree of commands as typer shows it; the admin commands are loaded when one is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

_ADMIN = {
    "topic": ("gateway.admin.cli", "topic_app"),
    "group": ("gateway.admin.group_cli", "group_app"),
    "ledger": ("gateway.admin.storage_cli", "ledger_app"),
    "bookie": ("gateway.admin.storage_cli", "bookie_app"),
    "job": ("gateway.pipelines.commands", "job_app"),
}


class _Commands(TyperGroup):
    """`dev` is here, the admin commands in `gateway.admin`."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *_ADMIN]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _ADMIN:
            return super().get_command(ctx, cmd_name)
        module, name = _ADMIN[cmd_name]
        command = typer.main.get_command(getattr(import_module(module), name))
        command.name = cmd_name
        return command


app = typer.Typer(
    cls=_Commands,
    name="gateway",
    help="A Kafka-compatible streaming gateway over a replicated ledger store.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback()
def _root() -> None:  # pyright: ignore[reportUnusedFunction]
    """Keeps `dev` a command of its own name even while it is the only one here."""


@app.command(
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
def dev(ctx: typer.Context) -> None:
    """Run everything in one process: gateway, storage and metadata."""
    from gateway.process.dev import run

    raise typer.Exit(run(ctx.args))


@app.command(
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
def serve(ctx: typer.Context) -> None:
    """Run one gateway of a cluster: metadata in ZooKeeper, bookies over the network."""
    from gateway.process.serve import run

    raise typer.Exit(run(ctx.args))
