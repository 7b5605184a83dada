"""One of many is the auditor: each casts an ephemeral, numbered vote, and the lowest one leads.

The others watch the vote before their own, so that its end wakes one of them and not all. Two
that both believe to lead for a moment do no harm: an auditor only marks ledgers.
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

_LOOK_AGAIN_S = 5.0  # a watch wakes earlier; a lost one costs no more than this


class AuditorElection:
    """One candidate, `voter`; no other process may use the same name."""

    def __init__(self, store: MetadataStore, voter: BookieId) -> None:
        self.leads = False
        self._store = store
        self._voter = voter
        self._changed = asyncio.Event()
        self._unwatch: list[Unwatch] = []

    async def run(self, lead: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """`lead` runs while this candidate leads, and is cancelled when it does no more.

        Until cancelled; then the vote is withdrawn. What `lead` raises comes out here.
        """
        unwatch_session = self._store.watch_session(self._changed.set)
        leading: asyncio.Task[None] | None = None
        try:
            while True:
                self._changed.clear()
                await self._stand()
                if self.leads and leading is None:
                    leading = asyncio.create_task(lead())
                elif not self.leads and leading is not None:
                    await _end(leading)
                    leading = None
                await self._wait(leading)
        finally:
            unwatch_session()
            self._disarm()
            if leading is not None:
                await _end(leading)
            await self._withdraw()

    async def _wait(self, leading: asyncio.Task[None] | None) -> None:
        """Until votes changed, the leading ended or some time is over."""
        changed = asyncio.create_task(self._changed.wait())
        waiting: set[asyncio.Task[Any]] = {changed}
        if leading is not None:
            waiting.add(leading)
        try:
            await asyncio.wait(waiting, timeout=_LOOK_AGAIN_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
        if leading is not None and leading.done():
            leading.result()

    async def _stand(self) -> None:
        """`leads` says how it is, and what can change that is watched."""
        try:
            names = await _votes(self._store)
            mine = await self._my_vote(names)
            if mine is None:
                await self._store.create(
                    VOTE, encode_vote(self._voter), ephemeral=True, sequential=True, parents=True
                )
                self._changed.set()  # look where it came in
                return
        except MetadataUnavailable:
            return  # as it was: nobody can tell now
        before = names[: names.index(mine)]
        self.leads = not before
        self._disarm()
        for name in (mine, *before[-1:]):
            path = f"{ELECTION}/{name}"
            self._unwatch.append(self._store.watch(path, self._changed.set))
        if before and not await self._exists(before[-1]):
            self._changed.set()  # it went before it was watched

    async def _exists(self, name: str) -> bool:
        try:
            return await self._store.exists(f"{ELECTION}/{name}")
        except MetadataUnavailable:
            return True

    async def _my_vote(self, names: list[str]) -> str | None:
        """Found by its content: the reply to its creation may have been lost."""
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
            async with asyncio.timeout(_LOOK_AGAIN_S):
                mine = await self._my_vote(await _votes(self._store))
                if mine is not None:
                    await self._store.delete(f"{ELECTION}/{mine}")
        except (NoNode, MetadataUnavailable, TimeoutError):
            pass  # it ends with the session
        self.leads = False

    def _disarm(self) -> None:
        for unwatch in self._unwatch:
            unwatch()
        self._unwatch.clear()


async def current_auditor(store: MetadataStore) -> BookieId | None:
    """Who is the auditor now; None: nobody stands. Raises MetadataUnavailable."""
    for name in await _votes(store):
        try:
            return decode_vote((await store.get(f"{ELECTION}/{name}")).data)
        except (NoNode, CorruptFormat):
            continue
    return None


async def _votes(store: MetadataStore) -> list[str]:
    """Names of the votes, the oldest first."""
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
