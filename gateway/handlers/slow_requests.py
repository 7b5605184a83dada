"""The flight recorder: the slowest requests of an API with their stages, of the last hour.

Times are compared without the time for which a Fetch waited because its client asked to wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappush, heapreplace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast
from uuid import UUID

from ledger.add_times import add_times
from ledger.ids import Buffer

if TYPE_CHECKING:
    from gateway.handlers.api import Context, Request

FirstSynced = Callable[["Request", float], "float | None"]
"""Returns when the first bookie had synced the batches of a Produce that ended at this time.

Both times are on the clock of `measured_s`. None is unknown.
"""

SLOWEST: Final = 100
WINDOW_S: Final = 1800.0
"""Requests are kept in two windows: those of the last half hour at least, of an hour at most."""
PARTITIONS_MAX: Final = 100  # of one Produce whose ledgers are looked up
TEXT_MAX: Final = 200  # characters of what a client chose

PRODUCE: Final = 0
FETCH: Final = 1


@dataclass(slots=True)
class SlowRequest:
    """One slow request. Stages are in seconds, and None where they are unknown.

    They do not overlap, but their sum may be less than the total: the rest is the handler's work.
    """

    seconds: float  # from its whole frame until its reply was ready
    wait_s: float | None  # of a Fetch that waited for records: how long its client let it wait
    version: int
    client_id: str | None
    address: str
    topic: str | None  # the first that it names, or its id
    topics: int  # how many it names
    bytes: int  # of the records of a Produce, otherwise of the reply
    error: int  # Kafka's code of the first error
    queue_s: float | None  # behind earlier requests of its connection
    decode_s: float | None  # of a small Produce or Fetch it is not known, and in `append_s`
    append_s: float | None  # a Produce: until its batches were checked and in the writer's queue
    journal_s: float | None  # from there until the first bookie had synced them; else in `quorum_s`
    quorum_s: float | None  # from there until enough bookies had
    write_s: float | None  # from the reply until it was handed to the socket; 0: at once
    ended_s: float  # monotonic time at which the reply was ready
    at_ms: int | None = None  # wall time of its begin, once it was asked for

    @property
    def own_s(self) -> float:
        """The time by which requests are compared."""
        return self.seconds - (self.wait_s or 0.0)


class SlowRequests:
    """The slowest requests of one API, at most `SLOWEST` of each window."""

    __slots__ = ("_before", "_begun_s", "_first_synced", "_heap", "_now_s", "_number", "above_s")

    def __init__(self, now_s: Callable[[], float], first_synced: FirstSynced | None = None) -> None:
        self._now_s = now_s
        self._first_synced = first_synced
        # The slowest of the present window as a heap, and those of the one before. The number
        # decides between equal times.
        self._heap: list[tuple[float, int, SlowRequest]] = []
        self._before: list[tuple[float, int, SlowRequest]] = []
        self._number = 0
        self._begun_s = now_s()
        # Requests that were not slower are of no interest.
        self.above_s = 0.0

    def age(self, now_s: float) -> bool:
        """Begin a new window if the present one is over. Returns whether it did."""
        windows = int((now_s - self._begun_s) // WINDOW_S)
        if windows <= 0:
            return False
        self._before = self._heap if windows == 1 else []
        self._heap = []
        self._begun_s += windows * WINDOW_S
        self.above_s = 0.0
        return True

    def offer(
        self, request: Request, seconds: float, reply: Sequence[Buffer]
    ) -> SlowRequest | None:
        """Keep a request if it is one of the slowest. Returns its record then."""
        wait_s = _wanted_wait_s(request)
        own_s = seconds - (wait_s or 0.0)
        if own_s <= self.above_s:
            return None
        self._number += 1
        noted = _noted(request, seconds, wait_s, reply, self._first_synced)
        item = (own_s, self._number, noted)
        if len(self._heap) < SLOWEST:
            heappush(self._heap, item)
        else:
            heapreplace(self._heap, item)
        if len(self._heap) == SLOWEST:
            self.above_s = self._heap[0][0]
        return noted

    def slowest(self) -> list[SlowRequest]:
        """Return the slowest requests of both windows, the slowest first."""
        self.age(self._now_s())
        found = sorted([*self._heap, *self._before], key=lambda item: item[:2], reverse=True)
        return [noted for _, _, noted in found[:SLOWEST]]


def _wanted_wait_s(request: Request) -> float | None:
    """Return the seconds for which a Fetch could wait for records.

    None for one that was answered at once, and for other requests.
    """
    if request.key != FETCH or not hasattr(request, "accepted_s"):
        return None
    return max(0, getattr(request.body, "wait_ms", 0)) / 1000


class _Stages(NamedTuple):
    append_s: float | None = None
    journal_s: float | None = None
    quorum_s: float | None = None


def _stages(
    request: Request, decoded_s: float, ended_s: float, first_synced: FirstSynced | None
) -> _Stages:
    """Return the stages of a Produce that was accepted. Of another request they are unknown."""
    accepted_s: float | None = getattr(request, "accepted_s", None)
    if request.key != PRODUCE or accepted_s is None:
        return _Stages()
    append_s, synced_s = accepted_s - decoded_s, None
    if first_synced is not None and not request.error:
        synced_s = first_synced(request, ended_s)
    if synced_s is None:
        return _Stages(append_s, None, ended_s - accepted_s)
    synced_s = max(synced_s, accepted_s)  # the batches may have been sent before the stamp
    return _Stages(append_s, synced_s - accepted_s, ended_s - synced_s)


def _noted(
    request: Request,
    seconds: float,
    wait_s: float | None,
    reply: Sequence[Buffer],
    first_synced: FirstSynced | None,
) -> SlowRequest:
    ended_s = request.begun_s + seconds
    decoded_s: float | None = getattr(request, "decoded_s", None)
    started_s: float | None = getattr(request, "started_s", None)
    known_s = request.begun_s if decoded_s is None else decoded_s
    stages = _stages(request, known_s, ended_s, first_synced)
    topic, topics, record_bytes = _topics_of(request)
    return SlowRequest(
        seconds=seconds,
        wait_s=wait_s,
        version=request.version,
        client_id=None if request.client_id is None else request.client_id[:TEXT_MAX],
        address=f"{request.peer.host}:{request.peer.port}",
        topic=topic,
        topics=topics,
        bytes=sum(map(len, reply)) if record_bytes is None else record_bytes,
        error=request.error,
        queue_s=None if started_s is None else started_s - known_s,
        decode_s=None if decoded_s is None else decoded_s - request.begun_s,
        append_s=stages.append_s,
        journal_s=stages.journal_s,
        quorum_s=stages.quorum_s,
        write_s=0.0,
        ended_s=ended_s,
    )


def first_synced_s(ctx: Context, request: Request, ended_s: float) -> float | None:
    """Implement `FirstSynced` by the acknowledgements that the ledger client remembers.

    Looks at the newest ledgers of the partitions, at most `PARTITIONS_MAX`.
    """
    ledgers: set[int] = set()
    for topic, index in islice(_places_of(request), PARTITIONS_MAX):
        known = ctx.catalog.by_name_or_id(topic)
        partition = None if known is None else ctx.partitions.led(known.name, index)
        if partition is not None and partition.stream.segments:
            ledgers.add(partition.stream.segments[-1].ledger)
    if not ledgers:
        return None
    begun_s = getattr(request, "started_s", request.begun_s)
    sent_s = (begun_s, getattr(request, "accepted_s", ended_s))
    return add_times.first_s(ledgers, sent_s, ended_s)


def _places_of(request: Request) -> Iterator[tuple[str | UUID, int]]:
    data: Any = getattr(request.body, "topic_data", ())
    for topic in data:
        name = getattr(topic, "name", None) or getattr(topic, "topic_id", "")
        for part in topic.partition_data:
            yield name, part.index


def _topics_of(request: Request) -> tuple[str | None, int, int | None]:
    """Return the first topic, the number of topics, and the bytes of records of a Produce."""
    body = request.body
    if request.key == PRODUCE:
        data: Any = getattr(body, "topic_data", ())
        size = sum(len(part.records or b"") for topic in data for part in topic.partition_data)
        named = [getattr(topic, "name", None) or getattr(topic, "topic_id", "") for topic in data]
        return _first(named), len(named), size
    topics: Any = getattr(body, "topics", None) or ()
    named = [_name_of(each) for each in topics[:1]]
    return _first(named), len(topics), None


def _name_of(topic: Any) -> Any:
    """Return the name or id of a topic of a request: a text, a tuple of Fetch, or kio's entity."""
    if isinstance(topic, tuple):
        return cast("tuple[Any, ...]", topic)[0]
    if isinstance(topic, str):
        return topic
    return getattr(topic, "name", None) or getattr(topic, "topic_id", None)


def _first(named: Sequence[Any]) -> str | None:
    if not named or not isinstance(named[0], (str, UUID)):
        return None
    return str(named[0])[:TEXT_MAX]
