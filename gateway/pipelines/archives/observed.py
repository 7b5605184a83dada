"""Sums over the records of a round, which Spark computes while it writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation

_FIGURES = {
    "bytes": "coalesce(sum(coalesce(octet_length(key), 0) + coalesce(octet_length(value), 0)), 0)",
    "doubtful": "count_if(exists(headers, each -> contains(each.key, '\ufffd')))",
}
"""SQL by name."""


class Observed(NamedTuple):
    """The bytes of keys and values, and the number of records that Spark may have changed.

    Java replaces invalid bytes of a text by U+FFFD, so header keys without it have kept their
    bytes.
    """

    bytes: int
    doubtful: int


def observe(records: DataFrame) -> tuple[DataFrame, Observation]:
    """Return the frame whose next complete use fills the observation."""
    from pyspark.sql import Observation
    from pyspark.sql.functions import expr

    watch = Observation()
    return records.observe(watch, *(expr(sql).alias(name) for name, sql in _FIGURES.items())), watch


def observed(watch: Observation) -> Observed:
    """Return the figures. The frame must have been used completely."""
    return Observed(**watch.get)
