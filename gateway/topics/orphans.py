"""Finds and deletes orphans: streams of deleted topics, and ledgers that no stream lists.

A ledger is created before the segment list names it, and removed from the list before it is
deleted. A crash between the two steps leaves an orphan. Source: LedgerChaining, "orphans are empty
or deleted".
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from gateway.topics.catalog import Catalog
from ledger.errors import CorruptFormat, LedgerError, NoSuchLedger
from ledger.ids import LedgerId
from ledger.streams.segment_store import delete_stream, ledgers_of, list_streams
from ledger.streams.stream import STREAM_KEY, StreamServices
from subscriptions.segments.log_claim import SUBSCRIPTION_KEY
from subscriptions.segments.log_read import ledgers_of as ledgers_of_subscription

LEDGER_AGE_MS_MIN = 3_600_000  # a younger ledger may not be in its segment list yet
_LISTINGS = 2


async def delete_stream_and_ledgers(services: StreamServices, name: str) -> None:
    """Delete the stream and its data. Completes an earlier attempt that stopped half way."""
    for ledger in await ledgers_of(services.metadata, name):
        await _delete_ledger(services, ledger)
    await delete_stream(services.metadata, name)


async def orphaned_streams(catalog: Catalog, services: StreamServices) -> set[str]:
    """Return the streams that have no topic now."""
    names = await list_streams(services.metadata)
    return {name for name in names if await _is_orphan(catalog, name)}


async def delete_orphans(catalog: Catalog, services: StreamServices, streams: Iterable[str]) -> int:
    """Delete these streams if they are still orphans, and orphaned ledgers. Return their number.

    After LedgerError, try again later.
    """
    removed = 0
    for name in streams:
        if await _is_orphan(catalog, name):
            try:
                await delete_stream_and_ledgers(services, name)
                removed += 1
            except LedgerError:
                continue  # a stream that cannot be deleted must not stop the others
    for ledger in await _orphaned_ledgers(services):
        await _delete_ledger(services, ledger)
        removed += 1
    return removed


async def _is_orphan(catalog: Catalog, name: str) -> bool:
    """Return whether the stream has no topic. Call this right before the deletion of the stream.

    A topic whose metadata cannot be read is offline, not deleted, so its data stays. The data of a
    topic that only the store has stays too. Another broker may have created this topic, or this
    broker may have created it and lost the reply.
    """
    text, _, _ = name.rpartition("-")
    try:
        topic_id = UUID(text)
    except ValueError:
        return False  # this name is not the name of a topic's stream
    if any(path.endswith(f"/{topic_id}") for path in catalog.unreadable):
        return False
    if catalog.by_id(topic_id) is not None or await catalog.is_stored(topic_id):
        return False
    # Must be the last check, with no await before the deletion.
    return catalog.by_id(topic_id) is None


async def _orphaned_ledgers(services: StreamServices) -> list[LedgerId]:
    """Return old ledgers of streams and subscriptions that no stream or subscription lists.

    All ledgers are listed before the segments, so that a new ledger is not taken for an orphan.
    Segments are listed twice, because a segment moves to another node when it is completed. A
    single listing could read both nodes at the wrong time and miss the segment.
    """
    ledgers = set(await services.client.list_ledgers())
    for _ in range(_LISTINGS):
        for name in await list_streams(services.metadata):
            ledgers.difference_update(await ledgers_of(services.metadata, name))
    oldest_ms = services.steady_clock.now_ms() - LEDGER_AGE_MS_MIN
    orphans: list[LedgerId] = []
    for ledger in sorted(ledgers):
        try:
            metadata = await services.client.read_metadata(ledger)
        except NoSuchLedger:
            continue
        if metadata.created_ms is None or metadata.created_ms >= oldest_ms:
            continue
        subscription = metadata.custom.get(SUBSCRIPTION_KEY)
        if subscription is not None:
            named = await _is_named(services, subscription, ledger)
        else:
            # A ledger without this key was not created by a gateway, so it is kept.
            named = STREAM_KEY not in metadata.custom
        if not named:
            orphans.append(ledger)
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
