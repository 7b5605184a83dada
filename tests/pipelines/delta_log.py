"""The rows of a Delta table, read from its log and files, without Spark and Delta's library.

It supports what the tests write: commits as JSON, and Parquet files without deletion vectors.
Anything else is an error.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow
import pyarrow.parquet

_KNOWN = {"add", "remove", "metaData", "protocol", "commitInfo", "txn"}


def _actions(table: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return the actions of all commits in order."""
    commits = sorted((table / "_delta_log").glob("*.json"))
    assert [int(each.stem) for each in commits] == list(range(len(commits)))
    lines = [json.loads(line) for each in commits for line in each.read_text().splitlines()]
    found = [(kind, fields) for line in lines for kind, fields in line.items()]
    assert {kind for kind, _ in found} <= _KNOWN
    return found


def read_rows(table: Path) -> list[dict[str, Any]]:
    """Return the rows of the newest version."""
    live: set[str] = set()
    for kind, fields in _actions(table):
        if kind == "add":
            assert not fields.get("deletionVector"), fields
            live.add(unquote(fields["path"]))
        elif kind == "remove":
            live.remove(unquote(fields["path"]))
    files: list[Any] = [pyarrow.parquet.read_table(table / each) for each in sorted(live)]
    return [row for each in files for row in each.to_pylist()]


def transactions(table: Path) -> list[tuple[str, int]]:
    """Return the application ids and versions that were committed with data, in order."""
    found = [fields for kind, fields in _actions(table) if kind == "txn"]
    return [(each["appId"], each["version"]) for each in found]
