"""What crashes leave behind: streams of topics that are gone, ledgers that no stream names.

A ledger is made before the segment list names it, and taken off the list before it is deleted; a
crash in between leaves it to nobody. Source: "orphans are empty or deleted", LedgerChaining.
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

LEDGER_AGE_MS_MIN = 3_600_000  # a younger one may be about to be named
_LOOKS = 2


async def delete_stream_and_ledgers(services: StreamServices, name: str) -> None:
    """The stream and its data are gone; also when an earlier attempt came half way."""
    for ledger in await ledgers_of(services.metadata, name):
        await _delete_ledger(services, ledger)
    await delete_stream(services.metadata, name)


async def left_over_streams(catalog: Catalog, services: StreamServices) -> set[str]:
    """Streams that no topic names now."""
    names = await list_streams(services.metadata)
    return {name for name in names if await _is_left_over(catalog, name)}


async def remove_left_overs(
    catalog: Catalog, services: StreamServices, streams: Iterable[str]
) -> int:
    """How many of these streams, and of the ledgers of nobody, were removed.

    Raises LedgerError: try again later.
    """
    removed = 0
    for name in streams:
        if await _is_left_over(catalog, name):
            try:
                await delete_stream_and_ledgers(services, name)
                removed += 1
            except LedgerError:
                continue  # one that cannot be deleted does not keep the others
    for ledger in await _orphans(services):
        await _delete_ledger(services, ledger)
        removed += 1
    return removed


async def _is_left_over(catalog: Catalog, name: str) -> bool:
    """Asked right before deleting: a topic may be created while we look.

    A topic whose metadata cannot be read is offline, not gone: its data stays. So does what the
    store knows and this process does not: another gateway may have made it, or the answer to our
    own making was lost.
    """
    text, _, _ = name.rpartition("-")
    try:
        topic_id = UUID(text)
    except ValueError:
        return False  # not one of ours
    if any(path.endswith(f"/{topic_id}") for path in catalog.unreadable):
        return False
    if catalog.by_id(topic_id) is not None or await catalog.is_stored(topic_id):
        return False
    return catalog.by_id(topic_id) is None  # last, with nothing between it and the deletion


async def _orphans(services: StreamServices) -> list[LedgerId]:
    """Ledgers made for a stream or a subscription, old enough, that none names. First all, then
    the named.

    Looked for twice: a segment changes its node when it is completed, once, and where a stream is
    read node by node, it may be seen under neither name.
    """
    ledgers = set(await services.client.list_ledgers())
    for _ in range(_LOOKS):
        for name in await list_streams(services.metadata):
            ledgers.difference_update(await ledgers_of(services.metadata, name))
    oldest_ms = services.clock.now_ms() - LEDGER_AGE_MS_MIN
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
            named = STREAM_KEY not in metadata.custom  # not one of ours: hands off
        if not named:
            orphans.append(ledger)
    return orphans


async def _is_named(services: StreamServices, subscription: bytes, ledger: LedgerId) -> bool:
    """The subscription of that path has the ledger. One that cannot be read may have it."""
    try:
        return ledger in await ledgers_of_subscription(services.metadata, subscription.decode())
    except (CorruptFormat, UnicodeDecodeError):
        return True


async def _delete_ledger(services: StreamServices, ledger: LedgerId) -> None:
    try:
        await services.client.delete(ledger)
    except NoSuchLedger:
        pass  # an earlier deletion came so far
