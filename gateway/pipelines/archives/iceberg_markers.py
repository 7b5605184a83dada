"""Files beside an Iceberg table from which all jobs compute the age of a run.

The store's own clock gives a file its time, so the clocks of jobs do not matter.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DIRECTORY = "metadata/archive-runs"
_LISTING = "org.apache.iceberg.io.SupportsPrefixOperations"


class RunMarkers:
    """The files `metadata/archive-runs/NAME` of a table, one for each branch of a run."""

    def __init__(self, spark: SparkSession, table: Any) -> None:
        self._spark = spark
        self._io: Any = table.io()
        self._directory = f"{table.location()}/{_DIRECTORY}"

    @property
    def supported(self) -> bool:
        """Whether the table's store lists files with their times."""
        from py4j.java_gateway import is_instance_of

        gateway: Any = self._spark.sparkContext._gateway  # pyright: ignore[reportPrivateUsage]
        return is_instance_of(gateway, self._io, _LISTING)

    def put(self, name: str) -> None:
        out = self._io.newOutputFile(f"{self._directory}/{name}").createOrOverwrite()
        try:
            out.write(0)
        finally:
            out.close()

    def times_ms(self) -> dict[str, int]:
        """Return the time of each marker by its name."""
        found = self._io.listPrefix(f"{self._directory}/").iterator()
        times: dict[str, int] = {}
        while found.hasNext():
            each = found.next()
            times[each.location().rpartition("/")[2]] = int(each.createdAtMillis())
        return times

    def remove(self, name: str) -> None:
        """Remove a marker. One that stays is removed a day later."""
        from py4j.protocol import Py4JJavaError

        with suppress(Py4JJavaError):
            self._io.deleteFile(f"{self._directory}/{name}")
