"""format("ledger") as a stream. Offsets are encoded as by Spark's Kafka source, plus topic ids.

A checkpoint belongs to a topic id, not to a name. After a topic is deleted and recreated, the
stored offsets would select other records. A query that continues from such a checkpoint gets an
error, even if the new topic is longer than the old one.

From PySpark 4.2 on, Spark tells a reader where a trigger begins, and of Trigger.AvailableNow.
Earlier versions call `latestOffset` without arguments, and have no class to say so.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from gateway.pipelines.direct.checkpoint import OffsetsJson, from_json, to_json
from gateway.pipelines.direct.offsets import PartitionSources
from gateway.pipelines.direct.options import Options
from gateway.pipelines.direct.storage_connection import BlockingStorageConnection
from gateway.pipelines.direct.tasks import SlicePartition, read_task
from gateway.pipelines.direct.triggers import Triggers

if TYPE_CHECKING:
    import pyarrow as pa

_LIMITS = "pyspark.sql.streaming.datasource"
LIMITS: Any = importlib.import_module(_LIMITS) if importlib.util.find_spec(_LIMITS) else None
"""PySpark's read limits and Trigger.AvailableNow for Python sources, None before PySpark 4.2."""

_AvailableNow: Any = object if LIMITS is None else LIMITS.SupportsTriggerAvailableNow


class LedgerStreamReader(DataSourceStreamReader, _AvailableNow):
    """The reader of a streaming query. The driver keeps one; `read` runs on any worker."""

    def __init__(self, options: Options) -> None:
        self._options = options
        # The connection to storage, its partitions and the query's triggers: opened by the first
        # call on the driver, closed by `stop`. None in workers.
        self._connection: BlockingStorageConnection | None = None
        self._sources: PartitionSources | None = None
        self._triggers: Triggers | None = None

    def initialOffset(self) -> OffsetsJson:
        """Return the offsets at which a query without a checkpoint begins.

        Spark may call `latestOffset` first.
        """
        triggers = self._opened()
        return to_json(self._connected().run(triggers.initial()))

    def latestOffset(self, start: Any = None, limit: Any = None) -> OffsetsJson:
        """Return the end of the next trigger. Earlier versions of Spark pass no arguments."""
        triggers = self._opened()
        stored = from_json(start) if start else None
        return to_json(self._connected().run(triggers.latest(stored, self._limit_of(limit))))

    def _limit_of(self, limit: Any) -> int | None:
        """Return the number of offsets that Spark wants at most, None without a limit.

        Trigger.Once asks for all offsets, whatever the default limit is.
        """
        if limit is None:
            return self._options.offsets_per_trigger_max
        return getattr(limit, "max_rows", None)

    def partitions(self, start: OffsetsJson, end: OffsetsJson) -> list[InputPartition]:
        """Plan a batch. Spark passes `end` twice when a query continues from its checkpoint."""
        work = self._opened().tasks(from_json(start), from_json(end))
        return [SlicePartition(task) for task in self._connected().run(work)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, SlicePartition):
            yield from read_task(partition.task, self._options)

    # Called by PySpark 4.2 and later.

    def getDefaultReadLimit(self) -> Any:
        most = self._options.offsets_per_trigger_max
        return LIMITS.ReadAllAvailable() if most is None else LIMITS.ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        triggers = self._opened()
        self._connected().run(triggers.end_now())

    def reportLatestOffset(self) -> OffsetsJson | None:
        """Return the ends as of the last look, for the query's progress: no look of its own."""
        seen = None if self._triggers is None else self._triggers.seen()
        return None if seen is None else to_json(seen)

    # Called by every version.

    def commit(self, end: OffsetsJson) -> None:
        """Do nothing: Spark's checkpoint holds all state."""

    def stop(self) -> None:
        sources, self._sources, self._triggers = self._sources, None, None
        connection, self._connection = self._connection, None
        if sources is not None:
            sources.close()
        if connection is not None:
            connection.close()

    def _connected(self) -> BlockingStorageConnection:
        if self._connection is None:
            self._connection = BlockingStorageConnection(self._options.storage)
        return self._connection

    def _opened(self) -> Triggers:
        if self._triggers is None:
            self._sources = PartitionSources(self._connected().storage, self._options)
            self._triggers = Triggers(self._sources, self._options)
        return self._triggers
