"""Requests of `gateway bookie` to the storage tier, with their results as plain data."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from gateway.admin.client import AdminError
from gateway.admin.ledgers import stats_of, status_of
from gateway.admin.storage import Storage
from ledger.errors import NoNode
from ledger.ids import BookieId, LedgerId
from ledger.ports.bookies import Status
from ledger.registry.cookie import cookie_path
from ledger.registry.layout import COOKIES
from ledger.repair.checker import bookies_of
from ledger.repair.election import current_auditor

Row = dict[str, Any]
OnDrained = Callable[[int, int], None]
"""Called with two counts: ledgers that moved off the bookie, and ledgers that still name it."""

_LOOK_S = 1.0


async def list_bookies(storage: Storage) -> list[Row]:
    """List by id every bookie that is registered, has a cookie, or is named by a ledger."""
    named: dict[BookieId, int] = {}
    async for metadata in storage.auditor.all_metadata():
        for bookie in bookies_of(metadata):
            named[bookie] = named.get(bookie, 0) + 1
    return await _rows(storage, named)


async def list_known_bookies(storage: Storage) -> list[Row]:
    """List bookies as `list_bookies` does, without reading all ledgers and counting theirs."""
    rows = await _rows(storage, {})
    return [{key: row[key] for key in row if key != "ledgers"} for row in rows]


async def _rows(storage: Storage, named: Mapping[BookieId, int]) -> list[Row]:
    registered = storage.bookies.registered()
    names = sorted({*registered, *named, *await _cookies(storage)})
    stats = await asyncio.gather(*[stats_of(storage, name) for name in names])
    draining = await storage.underreplicated.draining()
    rows: list[Row] = []
    for name, one in zip(names, stats, strict=True):
        info = registered.get(name)
        answered = one.status is Status.OK
        status = status_of(storage, name, one)
        rows.append(
            {
                "bookie": name,
                "address": None if info is None else f"{info.host}:{info.main_port}",
                "rack": None if info is None else info.rack,
                "status": f"{status},emptying" if name in draining else status,
                "ledgers": named.get(name, 0),
                "disk_bytes": one.disk_bytes if answered else None,
                "free_bytes": one.free_bytes if answered else None,
            }
        )
    return rows


async def _cookies(storage: Storage) -> list[BookieId]:
    try:
        return [BookieId(name) for name in await storage.store.children(COOKIES)]
    except NoNode:
        return []


async def decommission(
    storage: Storage,
    bookie: BookieId,
    *,
    even_if_writable: bool,
    timeout_s: float | None,
    on_drained: OnDrained | None,
) -> Row:
    """Move all copies off the bookie, then delete its cookie, which removes it from the cluster.

    Raises AdminError. Copies that moved before the error stay at their new bookies. The bookie
    stays marked as draining until a later call succeeds, or until `keep` runs.
    """
    await _check_known(storage, bookie)
    if _is_writable(storage, bookie) and not even_if_writable:
        raise AdminError(
            f"bookie {bookie} is registered as writable: stop it first, or add --even-if-writable",
            "STILL_WRITABLE",
        )
    await storage.underreplicated.prepare()
    await storage.underreplicated.drain(bookie)
    if await _ledgers_of(storage, bookie) and await current_auditor(storage.store) is None:
        raise AdminError(
            "no repair worker is running: start `bookie audit`, then run this command again; "
            f"bookie {bookie} is marked as draining",
            "NO_AUDITOR",
        )
    moved = await _wait_until_empty(storage, bookie, timeout_s, on_drained)
    if _is_writable(storage, bookie):
        raise AdminError(
            f"all copies moved off bookie {bookie}, but it is still registered as writable: stop "
            "it, then run this command again",
            "STILL_WRITABLE",
        )
    await _remove_cookie(storage, bookie)
    await storage.underreplicated.end_drain(bookie)
    return {"bookie": bookie, "moved_ledgers": moved, "cookie_removed": True}


async def keep(storage: Storage, bookie: BookieId) -> None:
    """Stop draining the bookie. Copies that moved stay at their new bookies."""
    await storage.underreplicated.end_drain(bookie)


async def _check_known(storage: Storage, bookie: BookieId) -> None:
    known = bookie in storage.bookies.registered() or bookie in await _cookies(storage)
    if not known and not await _ledgers_of(storage, bookie):
        raise AdminError(f"there is no bookie {bookie}; see `gateway bookie list`", "NO_BOOKIE")


def _is_writable(storage: Storage, bookie: BookieId) -> bool:
    info = storage.bookies.registered().get(bookie)
    return info is not None and not info.read_only


async def _ledgers_of(storage: Storage, bookie: BookieId) -> list[LedgerId]:
    """Return the ledgers that name the bookie."""
    return [
        metadata.ledger
        async for metadata in storage.auditor.all_metadata()
        if bookie in bookies_of(metadata)
    ]


async def _wait_until_empty(
    storage: Storage, bookie: BookieId, timeout_s: float | None, on_drained: OnDrained | None
) -> int:
    """Mark all ledgers that name the bookie, and wait until none names it.

    Returns the number of marked ledgers.
    """
    seen: set[LedgerId] = set()
    show = on_drained or _ignore
    try:
        async with asyncio.timeout(timeout_s):
            while left := await _mark_left(storage, bookie, seen):
                show(len(seen) - left, left)
                await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        raise AdminError(await _why_not_empty(storage, bookie, timeout_s), "TIMEOUT") from None
    show(len(seen), 0)
    return len(seen)


def _ignore(moved: int, left: int) -> None:
    return None


async def _mark_left(storage: Storage, bookie: BookieId, seen: set[LedgerId]) -> int:
    """Mark the ledgers that name the bookie and are not in `seen`.

    Returns the number of all ledgers that name the bookie.
    """
    left = await _ledgers_of(storage, bookie)
    for ledger in left:
        if ledger not in seen:
            await storage.underreplicated.mark(ledger, [bookie])
            seen.add(ledger)
    return len(left)


async def _why_not_empty(storage: Storage, bookie: BookieId, timeout_s: float | None) -> str:
    left = await _ledgers_of(storage, bookie)
    text = f"after {timeout_s:g} s {len(left)} ledgers still name bookie {bookie}"
    for ledger in left[:1]:
        reasons = (await storage.underreplicated.note(ledger)).reasons
        if reasons:
            text += f"; ledger {ledger}: {reasons[0]}"
    return text


async def _remove_cookie(storage: Storage, bookie: BookieId) -> None:
    try:
        await storage.store.delete(cookie_path(bookie))
    except NoNode:
        return  # an earlier call deleted the cookie
