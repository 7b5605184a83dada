"""Gives the disk back: ledgers that metadata no longer names, then files that nobody needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from ledger.bookie.bookie import Bookie
from ledger.ids import LedgerId

ListLedgers = Callable[[], Awaitable[Iterable[LedgerId]]]
"""Every ledger that metadata names, as of now (linearizable); raises when it cannot tell."""


class Collected(NamedTuple):
    """What one collection did."""

    ledgers: int
    files_dropped: int
    files_rewritten: int


async def collect(
    bookie: Bookie,
    list_ledgers: ListLedgers,
    *,
    rewrite_share: float = 0.0,
    rewrite_bytes_max: int = 64 * 1024 * 1024,
) -> Collected:
    """Ledgers missing in two listings are deleted; files without a living byte are unlinked.

    A ledger counts only if the bookie knew it before the first listing: metadata is written
    before the first entry, so a newborn ledger is never taken for a dead one. The live file is
    left behind when it is mostly dead. Files of which less than `rewrite_share` lives are
    rewritten, `rewrite_bytes_max` at most. Raises whatever the listing raises (nothing was
    deleted then) and OSError. Source: seed 001, garbage collection.
    """
    async with bookie.cleaning:
        known = bookie.ledgers()
        living = set(await list_ledgers())
        missing = [ledger for ledger in known if ledger not in living]
        if missing:
            living = set(await list_ledgers())
            missing = [ledger for ledger in missing if ledger not in living]
        if missing:
            await bookie.delete_ledgers(missing)
        await bookie.roll_if_dead()
        rewritten = await _rewrite_mostly_dead(bookie, rewrite_share, rewrite_bytes_max)
        dead = [file.file_id for file in bookie.files() if file.bytes_used == 0]
        if dead:
            await bookie.drop_files(dead)
        return Collected(len(missing), len(dead), rewritten)


async def _rewrite_mostly_dead(bookie: Bookie, share: float, bytes_max: int) -> int:
    rewritten = 0
    for file in bookie.files():
        limit = share * bookie.file_bytes
        if 0 < file.bytes_used < limit and file.bytes_used <= bytes_max:
            await bookie.rewrite_file(file.file_id)
            bytes_max -= file.bytes_used
            rewritten += 1
    return rewritten
