"""Gives back what deleted ledgers held: now and then, and when asked to.

A ledger is deleted here only when metadata say twice, as of now, that it is gone, and once more
when asked for it alone; and only if these are the metadata of this very cluster, not older than
the bookie's own start. Whoever cannot be reached, or says something odd, deletes nothing.
"""

from __future__ import annotations

import asyncio
from typing import Any

from ledger.bookie.bookie import Bookie
from ledger.bookie.collect import Collected, collect
from ledger.client import metadata_format
from ledger.errors import LedgerError, MetadataError, NoNode
from ledger.ids import LedgerId
from ledger.node.identity import Identity
from ledger.node.losses import list_ledgers
from ledger.ports.metadata import MetadataStore
from ledger.registry.cookie import cookie_path
from ledger.registry.layout import read_instance_id


class OddMetadata(MetadataError):
    """These are not the metadata that this bookie started with. Nothing is deleted."""


class GarbageCollector:
    """Collects for one bookie from `start` to `stop`."""

    def __init__(
        self,
        bookie: Bookie,
        store: MetadataStore,
        identity: Identity,
        *,
        interval_s: float,
        rewrite_share: float,
        log: Any,
    ) -> None:
        self._bookie = bookie
        self._store = store
        self._identity = identity
        self._interval_s = interval_s
        self._rewrite_share = rewrite_share
        self._log = log
        self._asked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """A first look follows after one interval."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    def soon(self) -> None:
        """A look follows at once."""
        self._asked.set()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def collect(self) -> Collected:
        """One look now. Raises what `ledger.bookie.collect` raises; OddMetadata."""
        return await collect(
            self._bookie,
            self._list_living,
            still_named=self._still_named,
            rewrite_share=self._rewrite_share,
        )

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._interval_s):
                    await self._asked.wait()
            except TimeoutError:
                pass
            self._asked.clear()
            try:
                done = await self.collect()
            except (LedgerError, OSError) as error:
                self._log().warning("nothing was collected, tried again later", reason=str(error))
                continue
            if any(done):
                self._log().info("collected", **done._asdict())

    async def _list_living(self) -> list[LedgerId]:
        living = await list_ledgers(self._store)
        await self._check_metadata()
        return living

    async def _check_metadata(self) -> None:
        """Raises OddMetadata if they are another cluster's, or were put back to an older state."""
        identity = self._identity
        cluster = await read_instance_id(self._store)
        if cluster != identity.cluster:
            raise OddMetadata(f"cluster {cluster} instead of {identity.cluster}")
        try:
            counted = (await self._store.get(cookie_path(self._bookie.bookie_id))).version + 1
        except NoNode:
            counted = 0
        if counted != identity.counted:
            raise OddMetadata(f"{counted} starts of this bookie instead of {identity.counted}")

    async def _still_named(self, ledger: LedgerId) -> bool:
        return await self._store.exists(metadata_format.ledger_path(ledger))
