"""The command `gateway group lag`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

import click

from gateway.admin.requests import ask, bootstrap_option, fail_incomplete
from ledger.command_line import units
from ledger.command_line.exit_codes import EXIT_FAILED
from ledger.command_line.output import Output, fail, output_option
from ledger.command_line.program import Command, Value, old_spelling, option
from ledger.command_line.shape import Column, Kind, Shape, text, whole

_YEAR_S: Final = 366 * 86_400.0
LAG: Final = Shape(
    (
        text("group", "Id of the group."),
        text("topic", "Name of the topic."),
        whole("partition", "Number of the partition."),
        whole("current_offset", "The committed offset."),
        whole(
            "log_end_offset",
            "Offset of the next record; null if the leader did not answer.",
            nullable=True,
        ),
        whole(
            "lag",
            "Records from the committed offset, or from the start of the log, to the end; null if "
            "unknown.",
            nullable=True,
        ),
        Column(
            "lag_s",
            Kind.number,
            "Age in seconds of the first record not yet read, by its timestamp; 0 if all are read; "
            "null if unknown.",
            nullable=True,
        ),
    )
)


@click.command("lag", cls=Command)
@click.argument("names", metavar="[GROUP]...", nargs=-1, help="Ids of groups; all without any.")
@option(
    "--max",
    "limit_s",
    type=Value("duration", units.duration(0.0, _YEAR_S)),
    shown="no limit",
    help="Exit with 1 if a group is further behind in time.",
)
@old_spelling("--max-s", of="limit_s", unit="s")
@bootstrap_option
@output_option(LAG)
def lag(names: Sequence[str], limit_s: float | None, bootstrap: str, output: Output) -> None:
    """Show how far groups are behind, in records and in seconds.

    The seconds are the age of the first record that is not yet read. Members of a group that did
    not commit yet are not shown.
    """
    from gateway.admin.group_lag import group_lag

    now_ms = time.time_ns() // 1_000_000
    found = ask(bootstrap, output, lambda client: group_lag(client, names, now_ms))
    output.show(found.rows)
    if limit_s is not None:
        _check(found.rows, limit_s, output)
    fail_incomplete("some groups are not shown", found.missing, output)


def _check(rows: Sequence[dict[str, Any]], max_s: float, output: Output) -> None:
    """End the command with 1 if a partition is further behind than `max_s`, or may be."""
    behind = [row for row in rows if row["lag_s"] is not None and row["lag_s"] > max_s]
    limit = units.show_time(max_s)
    if behind:
        worst = max(behind, key=lambda row: row["lag_s"])
        text = f"{len(behind)} of {len(rows)} partitions are more than {limit} behind; the worst: "
        text += f"group {worst['group']}, {worst['topic']}/{worst['partition']}, "
        fail(EXIT_FAILED, f"{text}{worst['lag_s']:.0f} s", "LAG", output)
    unknown = [row for row in rows if row["lag_s"] is None]
    if unknown:
        text = f"the lag of {len(unknown)} of {len(rows)} partitions is unknown"
        fail(EXIT_FAILED, f"{text}: a leader did not answer", "LAG_UNKNOWN", output)
