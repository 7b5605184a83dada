"""The command line. Only what a command needs is imported: starting fast is a feature."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from gateway.config import GatewayConfig

EXIT_CONFIG = 78  # sysexits.h: EX_CONFIG
_ADMIN = {"topic": "topic_app", "group": "group_app"}


class _Commands(TyperGroup):
    """`dev` is here; the admin commands are loaded when one is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *_ADMIN]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _ADMIN:
            return super().get_command(ctx, cmd_name)
        cli = import_module("gateway.admin.cli")
        command = typer.main.get_command(getattr(cli, _ADMIN[cmd_name]))
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
def _root() -> None:
    """Keeps `dev` a command of its own name even while it is the only one here."""


@app.command()
def dev(
    port: Annotated[int, typer.Option(help="Kafka port; 0 takes any free one.")] = 9092,
    data: Annotated[Path, typer.Option(help="Directory for all data; made if missing.")] = Path(
        "data"
    ),
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    bookies: Annotated[int, typer.Option(help="Embedded storage nodes: 1 or 3.")] = 1,
    journal_sync: Annotated[
        str, typer.Option(help="group: synced before each acknowledgement; never: not at all.")
    ] = "group",
    node_id: Annotated[int, typer.Option(help="Kafka broker id.")] = 0,
    partitions: Annotated[
        int, typer.Option(help="Partitions of a topic made without a count.")
    ] = 1,
    auto_create: Annotated[bool, typer.Option(help="Make topics that clients name.")] = True,
    group_initial_rebalance_delay_ms: Annotated[
        int, typer.Option(help="How long a new group waits for its first members.")
    ] = 3_000,
) -> None:
    """Run everything in one process: gateway, storage and metadata. Nothing else to install."""
    from dataclasses import replace

    from gateway.config import GatewayConfig, GroupLimits, TopicDefaults

    faults = _faults(port, data, bookies, journal_sync, node_id)
    _want(faults, partitions >= 1, f"partitions {partitions}: must be 1 or more")
    delay_ms = group_initial_rebalance_delay_ms
    _want(
        faults, delay_ms >= 0, f"group-initial-rebalance-delay-ms {delay_ms}: must not be negative"
    )
    if faults:
        _refuse(faults)
    config = GatewayConfig(
        data=data,
        host=host,
        port=port,
        node_id=node_id,
        bookies=bookies,
        journal_sync=journal_sync,
        groups=replace(GroupLimits(), initial_rebalance_delay_ms=delay_ms),
        topics=replace(TopicDefaults(), partitions=partitions, auto_create=auto_create),
    )
    _run(config)


def _run(config: GatewayConfig) -> None:
    from gateway.run import ConfigFault, run_embedded

    try:
        code = run_embedded(config)
    except ConfigFault as fault:
        _refuse(fault.faults)
    raise typer.Exit(code)


def _faults(port: int, data: Path, bookies: int, journal_sync: str, node_id: int) -> list[str]:
    """All that is wrong, not only the first."""
    faults: list[str] = []
    _want(faults, 0 <= port <= 65_535, f"port {port}: must be between 0 and 65535")
    _want(faults, bookies in (1, 3), f"bookies {bookies}: must be 1 or 3")
    known = journal_sync in ("group", "never")
    _want(faults, known, f"journal-sync {journal_sync!r}: must be group or never")
    _want(faults, 0 <= node_id < 2**31, f"node-id {node_id}: must be between 0 and 2147483647")
    faults += _data_faults(data)
    return faults


def _data_faults(data: Path) -> list[str]:
    if data.exists() and not data.is_dir():
        return [f"data {data}: is not a directory"]
    place = data
    while not place.exists():
        place = place.parent.absolute() if place.parent == place else place.parent
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        return [f"data {data}: {place} is not writable"]
    return []


def _want(faults: list[str], holds: bool, fault: str) -> None:
    if not holds:
        faults.append(fault)


def _refuse(faults: list[str]) -> NoReturn:
    """Says each fault on a line of stderr and ends with exit code 78."""
    for fault in faults:
        print(f"gateway: {fault}", file=sys.stderr)
    raise typer.Exit(EXIT_CONFIG)


def main() -> None:
    """The console script."""
    if not __debug__:
        _refuse_optimized()
    app()


def _refuse_optimized() -> None:
    print("gateway: python -O removes the assertions that guard the data", file=sys.stderr)
    sys.exit(EXIT_CONFIG)


if __name__ == "__main__":
    main()
