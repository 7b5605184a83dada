"""The commands `gateway feature ...`, modelled on kafka-features.sh."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gateway.admin import feature_shapes
from gateway.admin.confirm import confirm_protected, yes_on_option
from gateway.admin.requests import ask, bootstrap_option
from gateway.core.feature_levels import UpgradeType
from ledger.command_line.output import Output, output_option, usage
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
@output_option(feature_shapes.DESCRIBED)
def _describe(bootstrap: str, output: Output) -> None:
    """Show the levels that a gateway supports, and the finalized ones."""
    from gateway.admin.features import level_text, list_features

    rows = ask(bootstrap, output, list_features)
    if output.is_table:  # with the names of levels
        for row in rows:
            for key in ("supported_min", "supported_max", "finalized"):
                row[key] = level_text(row["feature"], row[key])
    output.show(rows)


@feature.command("upgrade")
@_levels_argument("New levels; none: the newest of all features.", required=False)
@_dry_run_option
@yes_on_option
@bootstrap_option
@output_option(feature_shapes.UPGRADED, feature_shapes.WOULD_BE_UPGRADED)
def _upgrade(levels: Sequence[str], dry_run: bool, bootstrap: str, output: Output) -> None:
    """Raise the levels of features, when all gateways are of one release.

    From then on, gateways write data that earlier releases cannot read, and these refuse to start.
    """
    wanted = _pairs(levels, output)
    if dry_run:
        output = output.of(feature_shapes.WOULD_BE_UPGRADED)
    _change("upgraded", wanted, UpgradeType.UPGRADE, dry_run, bootstrap, output)


@feature.command("downgrade")
@_levels_argument("New levels; 0 disables a feature.", required=True)
@option("--unsafe", is_flag=True, help="Request a downgrade that may lose metadata.")
@_dry_run_option
@yes_on_option
@bootstrap_option
@output_option(feature_shapes.DOWNGRADED, feature_shapes.WOULD_BE_DOWNGRADED)
def _downgrade(
    levels: Sequence[str], unsafe: bool, dry_run: bool, bootstrap: str, output: Output
) -> None:
    """Lower the levels of features. Refused if data of the higher level may exist."""
    wanted = _pairs(levels, output)
    kind = UpgradeType.UNSAFE_DOWNGRADE if unsafe else UpgradeType.SAFE_DOWNGRADE
    if dry_run:
        output = output.of(feature_shapes.WOULD_BE_DOWNGRADED)
    _change("downgraded", wanted, kind, dry_run, bootstrap, output)


def _pairs(words: Sequence[str], output: Output) -> dict[str, int]:
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
    output: Output,
) -> None:
    """Change the levels; `output` has the shape of what `done` names."""
    if not dry_run:
        text = "of the cluster, and earlier releases may refuse to start"
        confirm_protected(f"changes levels of features {text}", output)

    from gateway.admin.features import list_features, newest_levels, update_features

    async def work(client: AdminClient) -> dict[str, int]:
        wanted = levels or newest_levels(await list_features(client))
        if wanted:
            await update_features(client, wanted, kind, validate_only=dry_run)
        return wanted

    changed = ask(bootstrap, output, work)
    verb = "can be" if dry_run else "was"
    lines = [f"{name} {verb} {done} to {level}." for name, level in changed.items()]
    output.done(
        {output.shape.rows: [{"feature": name, "level": level} for name, level in changed.items()]},
        "\n".join(lines) or "All features have their newest levels.",
    )
