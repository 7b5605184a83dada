"""format("ledger") as a stream: offsets as the Kafka source writes them, {"topic":{"0":5}}."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from gateway.pipelines.direct.datasource import SlicePartition
from gateway.pipelines.direct.link import Link
from gateway.pipelines.direct.offsets import Source, Sources, not_lost, reached, starts, tell_lost
from gateway.pipelines.direct.options import Options
from gateway.pipelines.direct.plan import Wanted, limited
from gateway.pipelines.direct.tasks import Task, read_task, tasks_of
from gateway.pipelines.kafka_source import offsets_json
from gateway.pipelines.model import OffsetRange, Place

if TYPE_CHECKING:
    import pyarrow as pa

Offsets = dict[str, dict[str, int]]


class LedgerStreamReader(DataSourceStreamReader):
    """The driver's process keeps one for a query; `read` runs anywhere."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._link: Link | None = None
        self._sources: Sources | None = None
        self._position: dict[Place, int] | None = None  # where the next trigger begins

    def initialOffset(self) -> Offsets:
        """Of a query without a checkpoint."""
        sources = self._look()
        self._position = self._connected().run(starts(sources, self._options))
        return _json(self._position)

    def latestOffset(self, start: Any = None, limit: Any = None) -> Offsets:
        """The end of the next trigger. Later Sparks say where it starts, this one remembers."""
        sources = self._look()
        position = _places(start) if start else self._position
        if position is None:
            position = {place: s.scan.start_sequence_id for place, s in sources.items()}
        self._connected().run(reached(sources, position))
        begin = self._begin(position, sources)
        end = {place: source.scan.end_sequence_id for place, source in sources.items()}
        return _json(limited(self._options.offsets_per_trigger_max, begin, end))

    def _begin(
        self, position: Mapping[Place, int], sources: Mapping[Place, Source]
    ) -> dict[Place, int]:
        """Where each place goes on; one that came later begins at 0. Losses are told."""
        fail = self._options.fail_on_data_loss
        gone = [OffsetRange(*p, at, at + 1) for p, at in position.items() if p not in sources]
        if gone:
            tell_lost(gone, "the partitions are not there any more", fail)
        anew = self._sources.made_anew if self._sources is not None else None
        if anew:
            others = [OffsetRange(*p, position.get(p, 0), position.get(p, 0) + 1) for p in anew]
            tell_lost(others, "the topic was made anew, its offsets are other records'", fail)
            anew.clear()
        return not_lost({place: position.get(place, 0) for place in sources}, sources, fail)

    def partitions(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        """Also how a query that goes on says where it is: `start` and `end` are the same then."""
        self._position = _places(end)
        if start == end:
            return []
        link = self._connected()
        return [SlicePartition(task) for task in link.run(self._tasks(_places(start)))]

    async def _tasks(self, start: dict[Place, int]) -> list[Task]:
        sources = await self._known().look()
        assert self._position is not None
        await reached(sources, self._position)
        ended = {place: at for place, at in self._position.items() if place in sources}
        begin = self._begin(start, sources)
        self._check_end(ended, sources)
        ranges = [
            OffsetRange(*place, begin[place], end)
            for place, end in ended.items()
            if begin[place] < end
        ]
        return await tasks_of(ranges, sources, self._options.slice_bytes, Wanted())

    def _check_end(self, ended: dict[Place, int], sources: Mapping[Place, Source]) -> None:
        """A log that is shorter than it was is another one."""
        for place, end in ended.items():
            now = sources[place].scan.end_sequence_id
            if now < end:
                lost = [OffsetRange(*place, now, end)]
                tell_lost(lost, "the log ends before them now", self._options.fail_on_data_loss)
                ended[place] = now

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, SlicePartition):
            yield from read_task(partition.task, self._options)

    def commit(self, end: Offsets) -> None:
        """The checkpoint says it all."""

    def stop(self) -> None:
        sources, self._sources = self._sources, None
        link, self._link = self._link, None
        if sources is not None:
            sources.close()
        if link is not None:
            link.close()

    def _connected(self) -> Link:
        if self._link is None:
            self._link = Link(self._options.metadata, self._options.tls)
        return self._link

    def _known(self) -> Sources:
        if self._sources is None:
            self._sources = Sources(self._connected().storage, self._options)
        return self._sources

    def _look(self) -> dict[Place, Source]:
        return self._connected().run(self._known().look())


def _json(offsets: Mapping[Place, int]) -> Offsets:
    return json.loads(offsets_json({(p.topic, p.partition): at for p, at in offsets.items()}))


def _places(offsets: Offsets) -> dict[Place, int]:
    return {
        Place(topic, int(partition)): offset
        for topic, partitions in offsets.items()
        for partition, offset in partitions.items()
    }
