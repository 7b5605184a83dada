"""The commands `gateway feature ...`, modelled on kafka-features.sh."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gateway.admin.requests import ask, bootstrap_option
from gateway.core.feature_levels import UpgradeType
from ledger.command_line.output import (
    Format,
    as_json,
    as_table,
    emit,
    headings,
    output_option,
    usage,
)
from ledger.command_line.program import CommandGroup, option

if TYPE_CHECKING:
    from gateway.admin.client import AdminClient

_LEVEL = re.compile(r"\d+", re.ASCII)
_LEVEL_MAX = 2**15 - 1

F = TypeVar("F", bound=Callable[..., Any])

feature = CommandGroup("feature", "Show, upgrade and downgrade the features of a cluster.")


def _levels_argument(text: str, *, required: bool) -> Callable[[F], F]:
    metavar = "FEATURE=LEVEL..." if required else "[FEATURE=LEVEL]..."
    return click.argument("levels", nargs=-1, required=required, metavar=metavar, help=text)


_dry_run_option = option("--dry-run", is_flag=True, help="Only check the change; make none.")


@feature.command("describe")
@bootstrap_option
@output_option
def _describe(bootstrap: str, output: Format) -> None:
    """Show the levels that a gateway supports, and the finalized ones."""
    from gateway.admin.features import level_text, list_features

    rows = ask(bootstrap, output, list_features)
    if output is Format.json:
        emit(as_json(rows))
        return
    shown = [
        {
            name: level_text(row["feature"], value) if name not in ("feature", "epoch") else value
            for name, value in row.items()
        }
        for row in rows
    ]
    columns = headings("feature", "supported_min", "supported_max", "finalized", "epoch")
    emit(as_table(columns, shown))


@feature.command("upgrade")
@_levels_argument("New levels; none: the newest of all features.", required=False)
@_dry_run_option
@bootstrap_option
@output_option
def _upgrade(levels: Sequence[str], dry_run: bool, bootstrap: str, output: Format) -> None:
    """Raise the levels of features, when all gateways are of one release.

    From then on, gateways write data that earlier releases cannot read, and these refuse to start.
    """
    wanted = _pairs(levels, output)
    _change("upgraded", wanted, UpgradeType.UPGRADE, dry_run, bootstrap, output)


@feature.command("downgrade")
@_levels_argument("New levels; 0 disables a feature.", required=True)
@option("--unsafe", is_flag=True, help="Request a downgrade that may lose metadata.")
@_dry_run_option
@bootstrap_option
@output_option
def _downgrade(
    levels: Sequence[str], unsafe: bool, dry_run: bool, bootstrap: str, output: Format
) -> None:
    """Lower the levels of features. Refused if data of the higher level may exist."""
    wanted = _pairs(levels, output)
    kind = UpgradeType.UNSAFE_DOWNGRADE if unsafe else UpgradeType.SAFE_DOWNGRADE
    _change("downgraded", wanted, kind, dry_run, bootstrap, output)


def _pairs(words: Sequence[str], output: Format) -> dict[str, int]:
    """Parse FEATURE=LEVEL. Ends the command if a word is none, or names a feature again."""
    pairs: dict[str, int] = {}
    for word in words:
        name, equals, level = word.rpartition("=")
        if not equals or not name or not _LEVEL.fullmatch(level) or int(level) > _LEVEL_MAX:
            usage(f"{word!r} is not feature=level, for example transaction.version=2", output)
        if name in pairs:
            usage(f"feature {name} is named twice", output)
        pairs[name] = int(level)
    return pairs


def _change(
    done: str,
    levels: dict[str, int],
    kind: UpgradeType,
    dry_run: bool,
    bootstrap: str,
    output: Format,
) -> None:
    from gateway.admin.features import list_features, newest_levels, update_features

    async def work(client: AdminClient) -> dict[str, int]:
        wanted = levels or newest_levels(await list_features(client))
        if wanted:
            await update_features(client, wanted, kind, validate_only=dry_run)
        return wanted

    changed = ask(bootstrap, output, work)
    if output is Format.json:
        rows = [{"feature": name, "level": level} for name, level in changed.items()]
        emit(as_json({f"would_be_{done}" if dry_run else done: rows}))
        return
    verb = "can be" if dry_run else "was"
    for name, level in changed.items():
        emit(f"{name} {verb} {done} to {level}.")
    if not changed:
        emit("All features have their newest levels.")
