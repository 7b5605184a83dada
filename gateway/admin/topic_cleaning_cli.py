"""The command `gateway topic cleaning`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click

from gateway.admin.requests import ask, bootstrap_option, fail_incomplete
from gateway.admin.topic_loss_cli import topic
from ledger.command_line.output import (
    Format,
    as_json,
    as_table,
    emit,
    headings,
    output_option,
)

__all__ = ["topic"]

_NONE_CLEANS = (
    "No gateway reports on this topic yet. Gateways find a new topic after log.cleaner.backoff.ms "
    "(15 s)."
)


@topic.command("cleaning")
@click.argument("name", metavar="NAME", help="Name of the topic.")
@bootstrap_option
@output_option
def _cleaning(name: str, bootstrap: str, output: Format) -> None:
    """Show how far the log compaction of a topic is, and its last error."""
    from gateway.admin.cleaning import topic_cleaning

    found = ask(bootstrap, output, lambda client: topic_cleaning(client, name))
    if output is Format.json:
        emit(as_json(found.rows))
    elif found.rows:
        emit(_table(found.rows))
    elif not found.compacted:
        emit(f"The cleanup.policy of topic {name} is not compact.")
    elif not found.missing:
        emit(_NONE_CLEANS)
    fail_incomplete("some partitions are not shown", found.missing, output)


def _table(rows: Sequence[dict[str, Any]]) -> str:
    columns = headings(
        "partition",
        "state",
        "progress",
        "first_dirty_offset",
        "clean_bytes",
        "dirty_bytes",
        "oldest_dirty",
        "last_cleaned",
        "error",
    )
    return as_table(columns, [_shown(row) for row in rows])


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    progress, age, cleaned = (
        row[key] for key in ("progress", "oldest_dirty_age_ms", "last_cleaned_ms")
    )
    moment = None if cleaned is None else datetime.fromtimestamp(cleaned / 1000, UTC)
    return {
        **row,
        "progress": None if progress is None else f"{progress:.0%}",
        "oldest_dirty": None if age is None else f"{age / 1000:.0f} s",
        "last_cleaned": None if moment is None else f"{moment:%Y-%m-%dT%H:%M:%SZ}",
    }
