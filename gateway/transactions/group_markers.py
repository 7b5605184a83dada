"""Brings the markers for `__consumer_offsets` to the groups that have pending offsets.

    a marker for a partition ─▶ the index of its groups ─▶ this broker coordinates it: ended here
                                                       └▶ another one does: asked for this group

A marker names a partition, and its groups can have different coordinators. The answer is NONE once
every group of the partition has ended the transaction, or has none of this producer. A request to
another broker names the group behind the topic, as no topic can be called: `__consumer_offsets/g`.
In place of a topic's id it has the ownership under which the index has the group.

A copy that was given up takes no effect later (docs/decisions/0021-late-markers.md): the index is
read while this broker has its lease and the marker is wanted, and the group compares ownerships.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, Protocol
from uuid import UUID

from kio.schema.errors import ErrorCode

from gateway.cluster.peer_links import Encode, OnAnswer
from gateway.cluster.port import Cluster
from gateway.core.partition_transactions import EndMarker
from gateway.groups.loaded_groups import LOAD_WAIT_S
from gateway.groups.transactional_groups import ListedGroup, TransactionalGroups
from gateway.groups.transactional_offsets import TransactionalOffsets
from gateway.transactions.local_markers import GROUP_PREFIX, OnMarked
from gateway.wire.marker_request import MarkedTopic, RequestedMarker, encode_markers
from ledger.errors import LedgerError
from ledger.tasks import start_once

_WRITE_TXN_MARKERS: Final = 27
_GROUPS_AT_ONCE: Final = 16  # of one marker
_MARKERS_AT_ONCE: Final = 1_000  # more answer COORDINATOR_NOT_AVAILABLE, and are sent again
_LISTED_MAX: Final = 200_000  # groups of all markers under way; more markers are sent again
_PER_TURN: Final = 10  # groups that each of these handles before other tasks run
_RETRIABLE: Final = ErrorCode.coordinator_not_available


_Work = Callable[[], Coroutine[Any, Any, ErrorCode]]


class Links(Protocol):
    """The connections to other gateways, as `PeerLinks` has them."""

    def ask(self, node_id: int, key: int, encode: Encode, on_answer: OnAnswer) -> None: ...


class ClusterGroupMarkers:
    """The groups of all brokers, as the receivers of markers."""

    def __init__(
        self,
        index: TransactionalGroups,
        offsets: TransactionalOffsets | None,
        cluster: Cluster,
        links: Links,
    ) -> None:
        """Without `offsets` this gateway keeps no pending offsets; other ones may."""
        self._index = index
        self._offsets = offsets
        self._cluster = cluster
        self._links = links
        # The markers under way, each with its sender if it has one. `stop` and `close` end them.
        self._running: dict[asyncio.Task[None], object] = {}
        self._listed = 0  # groups that the index listed for the markers under way
        self._closed = False  # True after `close`

    def end(self, index: int, marker: EndMarker, on_marked: OnMarked, sender: object) -> None:
        """End the transaction for all groups of a partition, on whichever broker they are."""
        self._start(partial(self._end_all, index, marker), on_marked, sender)

    def end_in_group(
        self, group: str, marker: EndMarker, ownership: UUID | None, on_marked: OnMarked
    ) -> None:
        """End the transaction for one group, if this broker coordinates it.

        Another gateway sent the marker, and every request behind it would wait for a load of the
        group. So the answer to a group that is not loaded is COORDINATOR_LOAD_IN_PROGRESS, and the
        load goes on.
        """
        listed = ListedGroup(group, ownership)
        self._start(partial(self._here, listed, marker, wait_s=0.0), on_marked, None)

    def stop(self, sender: object) -> None:
        """Give up the markers of a sender. What was sent may still be written, in its own place."""
        for task, each in self._running.items():
            if each is sender:
                task.cancel()

    async def close(self) -> None:
        """End what runs. No marker is answered any more."""
        self._closed = True
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _start(self, work: _Work, on_marked: OnMarked, sender: object) -> None:
        if self._closed or len(self._running) >= _MARKERS_AT_ONCE:
            on_marked(_RETRIABLE)
            return
        task = start_once("a marker for groups", _answered(work, on_marked))
        self._running[task] = sender
        task.add_done_callback(self._running.pop)

    async def _end_all(self, index: int, marker: EndMarker) -> ErrorCode:
        """Return NONE if all groups have ended the transaction, otherwise one of the errors."""
        groups = await self._index.of(index)
        if not self._cluster.lease_held():
            return _RETRIABLE  # another coordinator may have ended this transaction before
        if self._listed and self._listed + len(groups) > _LISTED_MAX:
            return _RETRIABLE
        self._listed += len(groups)
        try:
            return await self._each(groups, index, marker)
        finally:
            self._listed -= len(groups)

    async def _each(
        self, groups: Sequence[ListedGroup], index: int, marker: EndMarker
    ) -> ErrorCode:
        waiting = iter(groups)
        codes: set[ErrorCode] = set()

        async def end_some() -> None:
            for number, each in enumerate(waiting, 1):
                codes.add(await self._one(each, index, marker))
                if number % _PER_TURN == 0:
                    await asyncio.sleep(0)

        await asyncio.gather(*(end_some() for _ in groups[:_GROUPS_AT_ONCE]))
        return next((code for code in codes if code is not ErrorCode.none), ErrorCode.none)

    async def _one(self, listed: ListedGroup, index: int, marker: EndMarker) -> ErrorCode:
        code = await self._here(listed, marker)
        if code is not ErrorCode.not_coordinator:
            return code
        try:
            member = await self._cluster.coordinator(listed.group)
        except LedgerError:
            return _RETRIABLE
        if member is None or member.node_id == self._cluster.node_id:
            return _RETRIABLE  # it changes now
        return await self._ask(member.node_id, listed, index, marker)

    async def _here(
        self, listed: ListedGroup, marker: EndMarker, *, wait_s: float = LOAD_WAIT_S
    ) -> ErrorCode:
        if self._offsets is None:
            return ErrorCode.not_coordinator
        return await self._offsets.end(listed.group, marker, listed.ownership, wait_s=wait_s)

    async def _ask(
        self, node_id: int, listed: ListedGroup, index: int, marker: EndMarker
    ) -> ErrorCode:
        answered: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        requested = RequestedMarker(
            marker.producer_id,
            marker.epoch,
            marker.commit,
            (MarkedTopic(GROUP_PREFIX + listed.group, (index,), listed.ownership, (0,)),),
            marker.coordinator_epoch,
            marker.version,
            marker.number,
        )

        def on_answer(answer: Any) -> None:
            if not answered.done():
                answered.set_result(_code_of(answer))

        self._links.ask(
            node_id,
            _WRITE_TXN_MARKERS,
            lambda version: encode_markers(version, (requested,)),
            on_answer,
        )
        return await answered


async def _answered(work: _Work, on_marked: OnMarked) -> None:
    """Run the work, and give its outcome. After an error or a cancellation it is retriable."""
    code = _RETRIABLE
    try:
        code = await work()
    except LedgerError:
        pass  # the index cannot be read now; the marker is sent again
    finally:
        on_marked(code)


def _code_of(answer: Any) -> ErrorCode:
    """Return the only error code of an answer, or a retriable one if it has none."""
    codes = [
        row.error_code
        for marker in (() if answer is None else answer.markers)
        for topic in marker.topics
        for row in topic.partitions
    ]
    return codes[0] if len(codes) == 1 else _RETRIABLE
