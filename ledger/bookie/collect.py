"""Gives the disk back: ledgers that metadata no longer names, then files that nobody needs."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, NamedTuple

from ledger.bookie.bookie import Bookie
from ledger.errors import CorruptFormat
from ledger.ids import LedgerId

ListLedgers = Callable[[], Awaitable[Iterable[LedgerId]]]
"""Every ledger that metadata names, as of now (linearizable); raises when it cannot tell."""

StillNamed = Callable[[LedgerId], Awaitable[bool]]
"""Whether metadata names this one ledger, as of now; raises when it cannot tell."""

_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)


class Collected(NamedTuple):
    """What one collection did."""

    ledgers: int
    files_dropped: int
    files_rewritten: int
    files_damaged: int = 0  # kept: what is in them is not known for certain


async def collect(
    bookie: Bookie,
    list_ledgers: ListLedgers,
    *,
    still_named: StillNamed | None = None,
    rewrite_share: float = 0.0,
    rewrite_bytes_max: int = 64 * 1024 * 1024,
) -> Collected:
    """Ledgers missing in two listings are deleted; files without a living byte are unlinked.

    A ledger counts only if the bookie knew it before the first listing: metadata is written
    before the first entry, so a newborn ledger is never taken for a dead one. `still_named` asks
    for each that was missing twice, in case that a listing was not whole. The live file is
    left behind when it is mostly dead. Files of which less than `rewrite_share` lives are
    rewritten, `rewrite_bytes_max` at most, and never into the last room on the disk; damaged ones
    stay. Raises whatever the listing raises (nothing was deleted then) and OSError.
    Source: seed 001, garbage collection.
    """
    upkeep = bookie.upkeep
    async with upkeep.cleaning:
        missing = await _missing(bookie, list_ledgers, still_named)
        if missing:
            await bookie.delete_ledgers(missing)
        await upkeep.roll_if_dead()
        dropped, damaged = await _drop_dead(bookie)
        rewritten, unreadable = await _rewrite_mostly_dead(bookie, rewrite_share, rewrite_bytes_max)
        if rewritten:
            dropped += (await _drop_dead(bookie))[0]
        return Collected(len(missing), dropped, rewritten, damaged + unreadable)


async def _missing(
    bookie: Bookie, list_ledgers: ListLedgers, still_named: StillNamed | None
) -> list[LedgerId]:
    """Ledgers of the bookie that are in no listing: two were made, and each was asked for."""
    missing = bookie.ledgers()
    for _ in range(2):
        if missing:
            living = set(await list_ledgers())
            missing = [ledger for ledger in missing if ledger not in living]
    if still_named is None:
        return missing
    return [ledger for ledger in missing if not await still_named(ledger)]


async def _drop_dead(bookie: Bookie) -> tuple[int, int]:
    """Files that nobody needs are gone; how many went, and how many were kept for damage."""
    upkeep = bookie.upkeep
    dead = [file.file_id for file in upkeep.files() if file.bytes_used == 0]
    sound = [file_id for file_id in dead if await upkeep.is_sound(file_id)]
    if sound:
        await upkeep.drop_files(sound)
    return len(sound), len(dead) - len(sound)


async def _rewrite_mostly_dead(bookie: Bookie, share: float, bytes_max: int) -> tuple[int, int]:
    """How many files were rewritten, and how many could not be read for it."""
    upkeep = bookie.upkeep
    rewritten = unreadable = 0
    for file in upkeep.files():
        room = min(bytes_max, upkeep.spare_bytes)
        if not 0 < file.bytes_used < share * upkeep.file_bytes or file.bytes_used > room:
            continue
        if not await _rewrite(bookie, file.file_id):
            unreadable += 1
            continue
        bytes_max -= file.bytes_used
        rewritten += 1
    return rewritten, unreadable


async def _rewrite(bookie: Bookie, file_id: int) -> bool:
    """False if the file cannot be read: it stays, and the others have their turn."""
    try:
        await bookie.upkeep.rewrite_file(file_id)
    except CorruptFormat:
        return False
    except OSError as error:
        if bookie.failure is not None or error.errno in _NO_ROOM:
            raise
        return False
    return True
