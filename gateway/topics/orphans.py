"""Finds and deletes orphans: streams of deleted topics, and ledgers that no stream lists.

A ledger is created before the segment list names it, and removed from the list before it is
deleted. A crash between the two steps leaves an orphan. Source: LedgerChaining, "orphans are empty
or deleted".

In a cluster another broker may be between the two steps now. Its wall clock may differ from that
of this process by any amount, so the age of a ledger proves nothing. An orphan is therefore deleted
only if this process saw it as an orphan before, by its monotonic clock. It may be the old ledger of
a segment that another broker has cleaned, so it also stays for `file.delete.delay.ms` of its topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar
from uuid import UUID

from gateway.log import logger
from gateway.topics.catalog import Catalog
from ledger.errors import CorruptFormat, LedgerError, MetadataUnavailable, NoSuchLedger
from ledger.ids import STREAM_KEY, LedgerId
from ledger.streams.segment_store import delete_stream, ledgers_of, list_streams
from ledger.streams.services import StreamServices
from subscriptions.segments.log_claim import SUBSCRIPTION_KEY
from subscriptions.segments.log_read import ledgers_of as ledgers_of_subscription

LEDGER_AGE_MS_MIN = 3_600_000  # a younger ledger may not be in its segment list yet
SEEN_S_MIN = 1_800.0  # much longer than a new ledger or a new topic's stream stays unnamed
_LISTINGS = 2

T = TypeVar("T")


class Orphans:
    """The orphans that this process knows. Call `round` once an hour."""

    def __init__(self, catalog: Catalog, services: StreamServices) -> None:
        self._catalog = catalog
        self._services = services
        # The monotonic time at which each orphaned stream and ledger was first seen. One that the
        # last round did not see is removed.
        self._streams_s: dict[str, float] = {}
        self._ledgers_s: dict[LedgerId, float] = {}

    def forget(self) -> None:
        """Forget what was seen, because another broker has the rounds now."""
        self._streams_s.clear()
        self._ledgers_s.clear()

    async def round(self, *, alone: bool) -> int:
        """Delete the orphans that were seen long ago, or all if no other broker exists.

        Returns the number of those deleted. One that cannot be deleted stops no other. Raises
        MetadataUnavailable: try again later.
        """
        streams = await orphaned_streams(self._catalog, self._services)
        self._streams_s = self._seen(self._streams_s, streams)
        removed = 0
        for name in self._due(self._streams_s, alone):
            removed += await self._delete_stream(name)
        ledgers = await orphaned_ledgers(self._services)
        self._ledgers_s = self._seen(self._ledgers_s, ledgers)
        for ledger in self._due(self._ledgers_s, alone):
            seen_s = self._services.clock.monotonic_s() - self._ledgers_s[ledger]
            if alone or seen_s >= self._delay_s(ledgers[ledger]):
                removed += await self._try_delete(ledger)
        return removed

    def _delay_s(self, stream: str) -> float:
        """Return for how long readers of the stream may need a ledger that it lists no more."""
        topic_id = _topic_id(stream)
        topic = None if topic_id is None else self._catalog.by_id(topic_id)
        return 0.0 if topic is None else self._catalog.config(topic).truncated_keep_ms / 1000

    async def _try_delete(self, ledger: LedgerId) -> bool:
        """Delete the ledger. Returns False if it cannot be deleted, such as without its bookies."""
        try:
            await _delete_ledger(self._services, ledger)
        except MetadataUnavailable:
            raise
        except LedgerError as error:
            logger().warning("orphaned ledger is not deleted", ledger=ledger, why=str(error))
            return False
        return True

    def _seen(self, before_s: Mapping[T, float], found: Iterable[T]) -> dict[T, float]:
        now_s = self._services.clock.monotonic_s()
        return {each: before_s.get(each, now_s) for each in found}

    def _due(self, seen_s: Mapping[T, float], alone: bool) -> list[T]:
        now_s = self._services.clock.monotonic_s()
        return [each for each, at_s in seen_s.items() if alone or now_s - at_s >= SEEN_S_MIN]

    async def _delete_stream(self, name: str) -> bool:
        """Delete the stream if it is still an orphan. False if it is not, or cannot be deleted."""
        if not await _is_orphan(self._catalog, name):
            return False
        try:
            await delete_stream_and_ledgers(self._services, name)
        except LedgerError:
            return False  # a stream that cannot be deleted must not stop the others
        return True


async def delete_stream_and_ledgers(services: StreamServices, name: str) -> None:
    """Delete the stream and its data. Completes an earlier attempt that stopped half way."""
    for ledger in await ledgers_of(services.metadata, name):
        await _delete_ledger(services, ledger)
    await delete_stream(services.metadata, name)


async def orphaned_streams(catalog: Catalog, services: StreamServices) -> set[str]:
    """Return the streams that have no topic now."""
    names = await list_streams(services.metadata)
    return {name for name in names if await _is_orphan(catalog, name)}


async def _is_orphan(catalog: Catalog, name: str) -> bool:
    """Return whether the stream has no topic. Call this right before the deletion of the stream.

    A topic whose metadata cannot be read is offline, not deleted, so its data stays. The data of a
    topic that only the store has stays too. Another broker may have created this topic, or this
    broker may have created it and lost the reply.
    """
    topic_id = _topic_id(name)
    if topic_id is None:
        return False
    if any(path.endswith(f"/{topic_id}") for path in catalog.unreadable):
        return False
    if catalog.by_id(topic_id) is not None or await catalog.is_stored(topic_id):
        return False
    # Must be the last check, with no await before the deletion.
    return catalog.by_id(topic_id) is None


def _topic_id(stream: str) -> UUID | None:
    """Return the id of the topic that the stream is part of, or None if it is of no topic."""
    try:
        return UUID(stream.rpartition("-")[0])
    except ValueError:
        return None


async def orphaned_ledgers(services: StreamServices) -> dict[LedgerId, str]:
    """Return old ledgers of streams and subscriptions that no stream or subscription lists.

    Each has the name of its stream, "" if it is of a subscription.
    All ledgers are listed before the segments, so that a new ledger is not taken for an orphan.
    Segments are listed twice, because a segment moves to another node when it is completed. A
    single listing could read both nodes at the wrong time and miss the segment. A stream whose
    segments cannot be read may list each ledger that was created for it, so these are kept.
    """
    ledgers = set(await services.client.list_ledgers())
    unreadable: set[bytes] = set()
    for _ in range(_LISTINGS):
        for name in await list_streams(services.metadata):
            try:
                ledgers.difference_update(await ledgers_of(services.metadata, name))
            except CorruptFormat:
                unreadable.add(name.encode())
    oldest_ms = services.steady_clock.now_ms() - LEDGER_AGE_MS_MIN
    orphans: dict[LedgerId, str] = {}
    for ledger in sorted(ledgers):
        if services.is_kept(ledger):
            continue  # the cleaner of this process writes it, or just replaced it
        try:
            metadata = await services.client.read_metadata(ledger)
        except (NoSuchLedger, CorruptFormat):
            continue  # one with unreadable metadata is kept
        if metadata.created_ms is None or metadata.created_ms >= oldest_ms:
            continue
        subscription = metadata.custom.get(SUBSCRIPTION_KEY)
        stream = metadata.custom.get(STREAM_KEY)
        if subscription is not None:
            named = await _is_named(services, subscription, ledger)
        else:
            # A ledger without this key was not created by a gateway, so it is kept.
            named = stream is None or stream in unreadable
        if not named:
            orphans[ledger] = (stream or b"").decode(errors="replace")
    return orphans


async def _is_named(services: StreamServices, subscription: bytes, ledger: LedgerId) -> bool:
    """Return whether the subscription lists the ledger. True if the subscription is unreadable."""
    try:
        return ledger in await ledgers_of_subscription(services.metadata, subscription.decode())
    except (CorruptFormat, UnicodeDecodeError):
        return True


async def _delete_ledger(services: StreamServices, ledger: LedgerId) -> None:
    try:
        await services.client.delete(ledger)
    except NoSuchLedger:
        pass  # an earlier attempt deleted the ledger
