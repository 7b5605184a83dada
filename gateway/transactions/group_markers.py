"""Brings the markers for `__consumer_offsets` to the groups that have pending offsets.

    a marker for a partition ─▶ the index of its groups ─▶ this broker coordinates it: ended here
                                                       └▶ another one does: asked for this group

A marker names a partition, and its groups can have different coordinators. The answer is NONE once
every group of the partition has ended the transaction, or has none of this producer. A request to
another broker names the group behind the topic, as no topic can be called: `__consumer_offsets/g`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, Protocol

from kio.schema.errors import ErrorCode

from gateway.cluster.peer_links import Encode, OnAnswer
from gateway.cluster.port import Cluster
from gateway.core.partition_transactions import EndMarker
from gateway.groups.transactional_groups import TransactionalGroups
from gateway.groups.transactional_offsets import TransactionalOffsets
from gateway.transactions.local_markers import GROUP_PREFIX, OnMarked
from gateway.wire.marker_request import MarkedTopic, RequestedMarker, encode_markers
from ledger.errors import LedgerError
from ledger.tasks import start_once

_WRITE_TXN_MARKERS: Final = 27
_GROUPS_AT_ONCE: Final = 16  # of one marker
_MARKERS_AT_ONCE: Final = 1_000  # more answer COORDINATOR_NOT_AVAILABLE, and are sent again
_RETRIABLE: Final = ErrorCode.coordinator_not_available


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
        # The markers under way. `close` ends them.
        self._running: set[asyncio.Task[None]] = set()
        self._closed = False  # True after `close`, for ever

    def end(self, index: int, marker: EndMarker, on_marked: OnMarked) -> None:
        """End the transaction for all groups of a partition, on whichever broker they are."""
        self._start(self._end_all(index, marker, on_marked), on_marked)

    def end_in_group(self, group: str, marker: EndMarker, on_marked: OnMarked) -> None:
        """End the transaction for one group, if this broker coordinates it."""
        self._start(self._end_here(group, marker, on_marked), on_marked)

    async def close(self) -> None:
        """End what runs. No marker is answered any more."""
        self._closed = True
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _start(self, work: Any, on_marked: OnMarked) -> None:
        if self._closed or len(self._running) >= _MARKERS_AT_ONCE:
            work.close()
            on_marked(_RETRIABLE)
            return
        task = start_once("a marker for groups", work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _end_here(self, group: str, marker: EndMarker, on_marked: OnMarked) -> None:
        code = _RETRIABLE
        try:
            code = await self._here(group, marker)
        finally:
            on_marked(code)

    async def _end_all(self, index: int, marker: EndMarker, on_marked: OnMarked) -> None:
        code = _RETRIABLE
        try:
            code = await self._each(await self._index.of(index), index, marker)
        except LedgerError:
            pass  # the index cannot be read now; the marker is sent again
        finally:
            on_marked(code)

    async def _each(self, groups: Sequence[str], index: int, marker: EndMarker) -> ErrorCode:
        """Return NONE if all groups have ended the transaction, otherwise one of the errors."""
        codes: list[ErrorCode] = []
        for at in range(0, len(groups), _GROUPS_AT_ONCE):
            some = groups[at : at + _GROUPS_AT_ONCE]
            codes += await asyncio.gather(*(self._one(each, index, marker) for each in some))
        return next((code for code in codes if code is not ErrorCode.none), ErrorCode.none)

    async def _one(self, group: str, index: int, marker: EndMarker) -> ErrorCode:
        code = await self._here(group, marker)
        if code is not ErrorCode.not_coordinator:
            return code
        member = await self._cluster.coordinator(group)
        if member is None or member.node_id == self._cluster.node_id:
            return _RETRIABLE  # it changes now
        return await self._ask(member.node_id, group, index, marker)

    async def _here(self, group: str, marker: EndMarker) -> ErrorCode:
        if self._offsets is None:
            return ErrorCode.not_coordinator
        return await self._offsets.end(group, marker)

    async def _ask(self, node_id: int, group: str, index: int, marker: EndMarker) -> ErrorCode:
        answered: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        requested = RequestedMarker(
            marker.producer_id,
            marker.epoch,
            marker.commit,
            (MarkedTopic(GROUP_PREFIX + group, (index,)),),
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


def _code_of(answer: Any) -> ErrorCode:
    """Return the only error code of an answer, or a retriable one if it has none."""
    codes = [
        row.error_code
        for marker in (() if answer is None else answer.markers)
        for topic in marker.topics
        for row in topic.partitions
    ]
    return codes[0] if len(codes) == 1 else _RETRIABLE
