"""The election of the auditor: each candidate creates a numbered vote, and the lowest vote leads.

Votes are ephemeral. Each candidate watches the vote before its own, so that the end of a vote wakes
only one candidate. Two auditors for a moment do no harm, because an auditor only marks ledgers.
Source: BookKeeper, `meta/ZkLedgerAuditorManager.java`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from ledger.errors import CorruptFormat, MetadataUnavailable, NoNode
from ledger.ids import BookieId
from ledger.ports.metadata import MetadataStore, Unwatch
from ledger.registry.underreplication_format import ELECTION, VOTE, decode_vote, encode_vote

_POLL_S = 5.0  # time between two reads of the votes, in case a watch is lost


class AuditorElection:
    """One candidate for auditor. `voter` must be unique among processes."""

    def __init__(self, store: MetadataStore, voter: BookieId) -> None:
        # True while this candidate's vote was the lowest when last read. Kept while metadata is
        # unavailable.
        self.leads = False
        self._store = store
        self._voter = voter
        # Set by watches; the next round reads the votes again.
        self._changed = asyncio.Event()
        # Watches on this vote and on the vote before it. Replaced by each round.
        self._unwatch: list[Unwatch] = []

    async def run(self, lead: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `lead` while this candidate leads; cancel `lead` when another candidate does.

        Runs until cancelled, then withdraws the vote. Exceptions of `lead` propagate.
        """
        unwatch_session = self._store.watch_session(self._changed.set)
        leading: asyncio.Task[None] | None = None
        try:
            while True:
                self._changed.clear()
                await self._update()
                if self.leads and leading is None:
                    leading = asyncio.create_task(lead())
                elif not self.leads and leading is not None:
                    await _end(leading)
                    leading = None
                await self._wait(leading)
        finally:
            unwatch_session()
            self._stop_watching()
            if leading is not None:
                await _end(leading)
            await self._withdraw()

    async def _wait(self, leading: asyncio.Task[None] | None) -> None:
        """Wait until votes change, `lead` ends, or `_POLL_S` has passed."""
        changed = asyncio.create_task(self._changed.wait())
        waiting: set[asyncio.Task[Any]] = {changed}
        if leading is not None:
            waiting.add(leading)
        try:
            await asyncio.wait(waiting, timeout=_POLL_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
        if leading is not None and leading.done():
            leading.result()

    async def _update(self) -> None:
        """Update `leads`, and watch the votes that can change the leader."""
        try:
            names = await _votes(self._store)
            mine = await self._my_vote(names)
            if mine is None:
                await self._store.create(
                    VOTE, encode_vote(self._voter), ephemeral=True, sequential=True, parents=True
                )
                self._changed.set()  # read the votes again to find the new vote's number
                return
        except MetadataUnavailable:
            return  # the votes cannot be read: keep the last state
        before = names[: names.index(mine)]
        self.leads = not before
        self._stop_watching()
        for name in (mine, *before[-1:]):
            path = f"{ELECTION}/{name}"
            self._unwatch.append(self._store.watch(path, self._changed.set))
        if before and not await self._exists(before[-1]):
            self._changed.set()  # the vote before this one ended before it was watched

    async def _exists(self, name: str) -> bool:
        try:
            return await self._store.exists(f"{ELECTION}/{name}")
        except MetadataUnavailable:
            return True

    async def _my_vote(self, names: list[str]) -> str | None:
        """Return the name of this candidate's vote, or None.

        The vote is found by content, because the reply of its creation may be lost.
        """
        for name in names:
            try:
                data = (await self._store.get(f"{ELECTION}/{name}")).data
                if decode_vote(data) == self._voter:
                    return name
            except (NoNode, CorruptFormat):
                continue
        return None

    async def _withdraw(self) -> None:
        try:
            async with asyncio.timeout(_POLL_S):
                mine = await self._my_vote(await _votes(self._store))
                if mine is not None:
                    await self._store.delete(f"{ELECTION}/{mine}")
        except (NoNode, MetadataUnavailable, TimeoutError):
            pass  # the vote ends with the session
        # A withdrawn candidate no longer leads.
        self.leads = False

    def _stop_watching(self) -> None:
        for unwatch in self._unwatch:
            unwatch()
        self._unwatch.clear()


async def current_auditor(store: MetadataStore) -> BookieId | None:
    """Return the current auditor, or None if there are no candidates.

    Raises MetadataUnavailable.
    """
    for name in await _votes(store):
        try:
            return decode_vote((await store.get(f"{ELECTION}/{name}")).data)
        except (NoNode, CorruptFormat):
            continue
    return None


async def _votes(store: MetadataStore) -> list[str]:
    """List the names of the votes, oldest first."""
    prefix = VOTE.rpartition("/")[2]
    try:
        names = await store.children(ELECTION)
    except NoNode:
        return []
    return sorted(
        (name for name in names if name.startswith(prefix)),
        key=lambda name: int(name.removeprefix(prefix)),
    )


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
