"""A client of a real cluster: metadata in ZooKeeper, bookies over TCP, and what it was told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ledger.adapters.links.link_config import TlsFiles
from ledger.adapters.open_bookies import open_bookies
from ledger.client import metadata_format
from ledger.core.ledger_metadata import Fragment, LedgerMetadata
from ledger.ids import BookieId, EntryId, LedgerId
from ledger.ports.bookies import BookieTransport, ReadReply, Status
from ledger.registry import layout
from ledger.registry.discovery import Discovery
from tests.ledger.zookeeper_rig import lasting
from tests.peers.zookeeper import ZooKeeper
from tests.sim.bookie_world import KEY, entry_buffers

WAIT_S_MAX = 60.0


class Cluster:
    """Use with `async with`. `bookie` of each call is a bookie's id."""

    def __init__(self, zookeeper: str, tls: TlsFiles | None = None) -> None:
        self._zookeeper = zookeeper
        self._tls = tls

    async def __aenter__(self) -> Cluster:
        self.store = await lasting(self._zookeeper)
        await layout.init_layout(self.store, lambda: "11111111-2222-3333-4444-555555555555")
        self.discovery = Discovery(self.store)
        await self.discovery.start()
        self.bookies = open_bookies(self.discovery.registered, BookieTransport.TCP, self._tls)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.bookies.close()
        await self.discovery.stop()
        await self.store.close()

    async def until(self, holds: Callable[[], bool | Awaitable[bool]], what: str) -> None:
        """Returns when it holds."""
        until_s = asyncio.get_running_loop().time() + WAIT_S_MAX
        while asyncio.get_running_loop().time() < until_s:
            found = holds()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"not within {WAIT_S_MAX:.0f} s: {what}")

    async def until_registered(self, bookie: str, *, read_only: bool = False) -> None:
        def registered() -> bool:
            info = self.discovery.registered().get(BookieId(bookie))
            return info is not None and info.read_only == read_only

        await self.until(registered, f"{bookie} to be registered, read-only: {read_only}")

    async def until_serves(self, bookie: str) -> None:
        """Registered, and our connection is to this very process."""

        async def answers() -> bool:
            stats = await self.bookies.stats(BookieId(bookie))
            reply = await self.read(bookie, 0, 0)
            return Status.UNREACHABLE not in (stats.status, reply.status)

        await self.until_registered(bookie)
        await self.until(answers, f"{bookie} to answer")

    async def until_gone(self, bookie: str) -> None:
        await self.until(lambda: bookie not in self.discovery.registered(), f"{bookie} to be gone")

    def add(
        self, bookie: str, ledger: int, entry: int, payload: bytes = b"x", *, recovery: bool = False
    ) -> asyncio.Future[Status]:
        done: asyncio.Future[Status] = asyncio.get_running_loop().create_future()
        self.bookies.add(
            *(BookieId(bookie), LedgerId(ledger), EntryId(entry), KEY),
            entry_buffers(ledger, entry, payload),
            lambda status: None if done.done() else done.set_result(status),
            recovery=recovery,
        )
        return done

    async def read(self, bookie: str, ledger: int, entry: int) -> ReadReply:
        return await self.bookies.read(BookieId(bookie), LedgerId(ledger), EntryId(entry))

    async def name_ledger(self, bookie: str, ledger: int, *, closed_at: int | None = None) -> None:
        """Metadata name the ledger, with this one bookie."""
        metadata = LedgerMetadata(
            ledger=LedgerId(ledger),
            ensemble_size=1,
            write_quorum=1,
            ack_quorum=1,
            fragments=(Fragment(EntryId(0), (BookieId(bookie),)),),
        )
        if closed_at is not None:
            metadata = metadata.close(EntryId(closed_at), 1)
        data = metadata_format.encode(metadata)
        await self.store.create(path_of(ledger), data, parents=True)

    async def forget_ledger(self, ledger: int) -> None:
        await self.store.delete(path_of(ledger))

    async def spend_ids(self, count: int) -> None:
        """The next ledger created by anybody gets an id of at least `count`."""
        node = ""
        while not node or int(node[-10:]) < count - 1:
            node = await self.store.create(
                f"{layout.ID_GENERATOR}/ID-", ephemeral=True, sequential=True, parents=True
            )
            await self.store.delete(node)


def path_of(ledger: int) -> str:
    return metadata_format.ledger_path(LedgerId(ledger))


def laid_out(zookeeper: ZooKeeper) -> str:
    """A chroot with a cluster in which no bookie has been."""
    chroot = zookeeper.unused_chroot()

    async def lay_out() -> None:
        async with Cluster(zookeeper.servers + chroot):
            pass

    asyncio.run(lay_out())
    return chroot
