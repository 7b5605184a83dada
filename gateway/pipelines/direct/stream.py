"""format("ledger") as a stream: its offsets are those of the Kafka source, and ids of topics.

A checkpoint is of one topic, not of a name: offsets of a topic that was deleted and made anew are
other records'. Who goes on from them is told so, also where the new topic is the longer one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from gateway.pipelines.direct.checkpoint import Offsets, Position, from_json, to_json
from gateway.pipelines.direct.link import Link
from gateway.pipelines.direct.offsets import (
    Source,
    Sources,
    ends,
    not_lost,
    reached,
    starts,
    tell_lost,
    tell_made_anew,
    topic_ids,
)
from gateway.pipelines.direct.options import Options
from gateway.pipelines.direct.plan import Wanted, limited
from gateway.pipelines.direct.tasks import SlicePartition, Task, read_task, tasks_of
from gateway.pipelines.shared.partitions import OffsetRange, Place

if TYPE_CHECKING:
    import pyarrow as pa


class LedgerStreamReader(DataSourceStreamReader):
    """The driver's process keeps one for a query; `read` runs anywhere."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._link: Link | None = None
        self._sources: Sources | None = None
        self._first: Position | None = None  # where a query without a checkpoint begins
        self._position: Position | None = None  # where the next trigger begins
        self._last: Position | None = None  # where a query ends that is to end

    def initialOffset(self) -> Offsets:
        """Of a query without a checkpoint; Spark may ask for the latest before."""
        return to_json(self._beginning(self._look()))

    def _beginning(self, sources: Mapping[Place, Source]) -> Position:
        if self._first is None:
            begin = self._connected().run(starts(sources, self._options))
            self._first = Position(begin, topic_ids(sources))
        return self._first

    def latestOffset(self, start: Any = None, limit: Any = None) -> Offsets:
        """The end of the next trigger. Later Sparks say where it starts, this one remembers."""
        sources = self._look()
        position = from_json(start) if start else self._position or self._beginning(sources)
        self._connected().run(self._reached(position, sources))
        begin = self._begin(position, sources)
        end = self._ended(begin, sources)
        end = limited(self._options.offsets_per_trigger_max, begin, end)
        return to_json(Position(end, topic_ids(sources)))

    def _ended(
        self, begin: Mapping[Place, int], sources: Mapping[Place, Source]
    ) -> dict[Place, int]:
        """Where each place ends now, or where it did at the first look of a query that is to end
        there; what came later has no part in that one."""
        now = {place: source.scan.end_sequence_id for place, source in sources.items()}
        if self._options.ending is None:
            return now
        if self._last is None:
            last = self._connected().run(ends(sources, self._options))
            self._last = Position(last, topic_ids(sources))
        others = self._last.others(topic_ids(sources))
        last = {p: at for p, at in self._last.offsets.items() if p.topic not in others}
        return {p: max(at, min(now[p], last.get(p, at))) for p, at in begin.items()}

    def _begin(self, position: Position, sources: Mapping[Place, Source]) -> dict[Place, int]:
        """Where each place goes on; one that came later begins at 0, and a topic that was made
        anew at its start. Losses are told."""
        fail = self._options.fail_on_data_loss
        anew = tell_made_anew(position, sources, fail)
        gone = [
            OffsetRange(*p, at, at + 1)
            for p, at in position.offsets.items()
            if p not in sources and p.topic not in anew
        ]
        if gone:
            tell_lost(gone, "the partitions are not there any more", fail)
        begin = {
            place: source.scan.start_sequence_id
            if place.topic in anew
            else position.offsets.get(place, 0)
            for place, source in sources.items()
        }
        return not_lost(begin, sources, fail)

    def partitions(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        """Also how a query that goes on says where it is: `start` and `end` are the same then."""
        self._position = from_json(end)
        if start == end:
            return []
        work = self._tasks(from_json(start), self._position)
        return [SlicePartition(task) for task in self._connected().run(work)]

    async def _tasks(self, start: Position, end: Position) -> list[Task]:
        sources = await self._known().look()
        await self._reached(end, sources)
        begin = self._begin(start, sources)
        # Made anew since the batch was planned: its records are gone, and the next one begins anew.
        anew = tell_made_anew(end, sources, self._options.fail_on_data_loss)
        ended = {
            place: at
            for place, at in end.offsets.items()
            if place in sources and place.topic not in anew
        }
        self._check_end(ended, sources)
        ranges = [
            OffsetRange(*place, begin[place], at)
            for place, at in ended.items()
            if begin[place] < at
        ]
        return await tasks_of(ranges, sources, self._options.slice_bytes, Wanted())

    async def _reached(self, position: Position, sources: Mapping[Place, Source]) -> None:
        """Its offsets are known here too, but for those of other topics of that name."""
        others = position.others(topic_ids(sources))
        mine = {place: at for place, at in position.offsets.items() if place.topic not in others}
        await reached(sources, mine)

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
