"""One topic: its partitions as rows of segments, with their leaders and figures."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from gateway.access import Operation
from gateway.admin.client import AdminError, Unreachable
from gateway.cluster.port import StreamKey
from gateway.figures.parts import mirror_of
from gateway.http.asking import may
from gateway.http.pages import Refused
from gateway.http.views.listing import argument, following, place_of, silent_rows
from gateway.http.views.segment_rows import SegmentPlaces, read_segment_rows
from gateway.http.views.topics import topic_row
from ledger.errors import LedgerError

if TYPE_CHECKING:
    from gateway.figures.merged import HeldPartition
    from gateway.http.pages import Asked, Json
    from gateway.http.site import Site
    from gateway.topics.catalog import Topic

_SEE_CONFIGS: Final = Operation.DESCRIBE_CONFIGS
_READ_S_MAX: Final = 3.0  # for all segments of one page


async def topic(asked: Asked, site: Site) -> Json:
    """Return a topic and some of its partitions, each with its newest segments."""
    name = asked.path["topic"]
    known = site.ctx.catalog.by_name(name)
    if known is None:
        raise Refused(404, "UNKNOWN_TOPIC_OR_PARTITION", f"Topic '{name}' does not exist.")
    at = place_of(asked, known.partitions)
    indexes = range(at, min(known.partitions, at + asked.limit))
    mirror = await mirror_of(site.ctx).fresh()
    segments, missing = await _segments(site, known, indexes)
    figures = mirror.topic(name)
    whole: Json = {} if figures is None else topic_row(figures)
    held = mirror.partitions(name)
    return {
        **whole,
        "name": name,
        "topic_id": str(known.topic_id),
        "partitions": known.partitions,
        "replication_factor": known.replication_factor,
        "configs": dict(known.configs) if may(site, asked, _SEE_CONFIGS, name) else {},
        "rows": [
            _row(site, known, index, held.get(index), segments.get(index)) for index in indexes
        ],
        "next": following(indexes.stop, known.partitions),
        "total": known.partitions,
        "segments_missing": missing,
        "silent_gateways": silent_rows(mirror),
    }


def _row(
    site: Site,
    topic: Topic,
    index: int,
    held: HeldPartition | None,
    places: SegmentPlaces | None,
) -> Json:
    cluster = site.ctx.cluster
    key = StreamKey(topic.topic_id, index)
    leader = cluster.leader(key)
    figures = None if held is None else held.figures
    current = held is not None and not held.silent
    return {
        "partition": index,
        "state": _state(leader.node_id, held, places),
        "leader": leader.node_id,
        "leader_epoch": None if leader.epoch < 0 else leader.epoch,
        "log_start_offset": None if figures is None else figures.start,
        "log_end_offset": None if figures is None else figures.end,
        "records": None if figures is None else figures.records,
        "size_bytes": None if figures is None else figures.size_bytes,
        "records_per_s": figures.records_per_s if figures is not None and current else None,
        "bytes_per_s": figures.bytes_per_s if figures is not None and current else None,
        "segments": _count(figures, places),
        "segment_rows": None if places is None else places.rows,
    }


def _count(figures: Any, places: SegmentPlaces | None) -> int | None:
    if figures is not None:
        return figures.segments
    return None if places is None else places.total


def _state(leader: int, held: HeldPartition | None, places: SegmentPlaces | None) -> str:
    """Return what matters most about a partition, as one word."""
    if leader < 0:
        return "offline"
    states = {row["state"] for row in places.rows} if places is not None else set[str]()
    if "lost" in states or (held is not None and held.figures.lost_records):
        return "lost"
    if held is not None and held.figures.blocked:
        return "blocked"
    if "under-replicated" in states:
        return "under-replicated"
    if held is None:
        return "unknown"
    return "silent" if held.silent else "ok"


async def _segments(
    site: Site, topic: Topic, indexes: Sequence[int]
) -> tuple[dict[int, SegmentPlaces], str | None]:
    """Return the segments of these partitions, and why there are none."""
    if not topic.has_streams or not indexes:
        return {}, None
    try:
        async with asyncio.timeout(_READ_S_MAX):
            storage = await site.storage()
            return await read_segment_rows(storage, str(topic.topic_id), indexes), None
    except TimeoutError:
        return {}, f"the metadata of the ledgers did not come within {_READ_S_MAX:g} s"
    except (AdminError, Unreachable, LedgerError) as error:
        return {}, str(error)


def command(asked: Asked) -> str:
    """Return the command that describes the same topic."""
    return shlex.join(["gateway", "topic", "describe", *argument(asked.path["topic"])])
