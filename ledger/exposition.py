"""Metrics in Prometheus' text format: declared families, and their samples as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import accumulate
from math import inf
from typing import Final, NamedTuple

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
AT_ONCE: Final = 100
"""Samples in one piece of text, after which other callbacks of the loop may run."""


class Kind(StrEnum):
    """The type of a family, as Prometheus names it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Declared(NamedTuple):
    """The meaning of a family. Its unit is the end of its name, before `_total`."""

    text: str
    labels: tuple[str, ...] = ()
    kind: Kind = Kind.GAUGE


class Buckets(NamedTuple):
    """The value of a histogram: counts by class, the last one above all bounds."""

    bounds: Sequence[float]
    counts: Sequence[int]
    total: float


Value = float | Buckets


class Family(NamedTuple):
    """One metric with all its samples. Each sample has a value and the values of the labels."""

    name: str
    text: str
    labels: tuple[str, ...]
    samples: list[tuple[tuple[str, ...], Value]]
    kind: Kind = Kind.GAUGE


class Families:
    """The families of one answer, from their declarations. Those without a sample are left out."""

    def __init__(self, declared: Mapping[str, Declared]) -> None:
        self._declared = declared
        self._found: dict[str, Family] = {}

    def add(self, name: str, value: Value, *labels: str) -> None:
        """Add one sample of a declared family."""
        family = self._found.get(name)
        if family is None:
            text, names, kind = self._declared[name]
            family = self._found[name] = Family(name, text, names, [], kind)
        assert len(labels) == len(family.labels)
        family.samples.append((labels, value))

    def all(self) -> list[Family]:
        """Return every family that has a sample, in the order of their first samples."""
        return list(self._found.values())


def family_text(family: Family) -> Iterator[bytes]:
    """Format a family in pieces. Only the first piece has the HELP and TYPE lines."""
    head = f"# HELP {family.name} {_escaped(family.text)}\n# TYPE {family.name} {family.kind}\n"
    for at in range(0, len(family.samples), AT_ONCE):
        lines = [head] if not at else []
        for labels, value in family.samples[at : at + AT_ONCE]:
            pairs = list(zip(family.labels, labels, strict=True))
            if isinstance(value, Buckets):
                lines += _bucket_lines(family.name, pairs, value)
            else:
                lines.append(_line(family.name, pairs, value))
        yield "".join(lines).encode()


def _bucket_lines(name: str, pairs: list[tuple[str, str]], value: Buckets) -> Iterator[str]:
    count = 0
    for bound, count in zip((*value.bounds, inf), accumulate(value.counts), strict=True):
        yield _line(f"{name}_bucket", [*pairs, ("le", _number(bound))], count)
    yield _line(f"{name}_sum", pairs, value.total)
    yield _line(f"{name}_count", pairs, count)


def _line(name: str, pairs: list[tuple[str, str]], value: float) -> str:
    if not pairs:
        return f"{name} {_number(value)}\n"
    labels = ",".join(f'{key}="{_escaped(text, quoted=True)}"' for key, text in pairs)
    return f"{name}{{{labels}}} {_number(value)}\n"


def _number(value: float) -> str:
    if value == inf:
        return "+Inf"
    return str(value) if isinstance(value, int) else repr(float(value))


def _escaped(text: str, *, quoted: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    # A lone surrogate of a broken name has no bytes.
    text = text.encode(errors="replace").decode()
    return text.replace('"', '\\"') if quoted else text
