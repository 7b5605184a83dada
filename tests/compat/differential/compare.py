"""Compares two normalised answers field by field."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

ABSENT = "<absent>"
_LABELS = (
    "name",
    "topic",
    "group_id",
    "key",
    "resource_name",
    "api_key",
    "partition_index",
    "index",
)


@dataclass(frozen=True, slots=True)
class FieldDifference:
    """One field that differs. Rows of arrays are named by their names, else by their numbers."""

    path: str
    kafka: Any
    ours: Any


def differences(kafka: Any, ours: Any, path: str = "") -> Iterator[FieldDifference]:
    """Yield every field whose values differ."""
    if isinstance(kafka, dict) and isinstance(ours, dict):
        for name in {**kafka, **ours}:
            below = f"{path}.{name}" if path else name
            yield from differences(kafka.get(name, ABSENT), ours.get(name, ABSENT), below)
    elif isinstance(kafka, list) and isinstance(ours, list):
        yield from _of_rows(kafka, ours, path)
    elif kafka != ours or type(kafka) is not type(ours):
        yield FieldDifference(path, kafka, ours)


def _of_rows(kafka: list[Any], ours: list[Any], path: str) -> Iterator[FieldDifference]:
    by_label, ours_by_label = _labelled(kafka), _labelled(ours)
    for label in {**by_label, **ours_by_label}:
        rows = by_label.get(label, ABSENT), ours_by_label.get(label, ABSENT)
        yield from differences(*rows, f"{path}[{label}]")
    if set(by_label) == set(ours_by_label) and list(by_label) != list(ours_by_label):
        yield FieldDifference(f"{path}.order", list(by_label), list(ours_by_label))


def _labelled(rows: list[Any]) -> dict[Any, Any]:
    """Return the rows by their names if they have different ones, else by their numbers."""
    labels = [_label(row) for row in rows]
    if None in labels or len(set(labels)) != len(labels):
        return dict(enumerate(rows))
    return dict(zip(labels, rows, strict=True))


def _label(row: Any) -> Any:
    if isinstance(row, dict):
        for name in _LABELS:
            if row.get(name) is not None:
                return row[name]
    return None
