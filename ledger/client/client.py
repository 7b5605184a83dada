"""The client of the ledger store: creates, opens, recovers and deletes ledgers."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from weakref import WeakValueDictionary

from ledger.client import metadata_format
from ledger.client.config import LedgerClientConfig
from ledger.client.health import BookieHealth
from ledger.client.reader import LedgerReader
from ledger.client.recover import Recovered
from ledger.client.recover_many import LedgerRecoveries
from ledger.client.tail import TailReader
from ledger.client.update_metadata import LedgerMetadataStore, RetryBudget
from ledger.client.writer import LedgerWriter
from ledger.core.ledger_metadata import Fragment, LedgerMetadata, Versioned
from ledger.core.placement import RandomSource
from ledger.core.seeded_random import seeded_random
from ledger.errors import (
    BadVersion,
    EntryUnknown,
    MetadataUnavailable,
    NodeExists,
    NoNode,
    NoSuchLedger,
    NotEmpty,
    NotEnoughBookies,
    WrongQuorum,
)
from ledger.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from ledger.ports.bookies import Bookies, BookieStats
from ledger.ports.clock import Clock, Histogram
from ledger.ports.metadata import MetadataStore
from ledger.registry.layout import LEDGERS
from ledger.registry.ledger_ids import TakenId, forget_ledger_id, take_ledger_id

WANTED_QUORUM = "wanted-quorum"
"""Key in the custom metadata of a ledger that was created with too few bookies. Its value is the
wanted `E,Qw,Qa`, in decimal."""


class LedgerClient:
    """The ledgers of one metadata store. Safe to use from many tasks of one event loop."""

    def __init__(
        self,
        metadata: MetadataStore,
        bookies: Bookies,
        clock: Clock,
        config: LedgerClientConfig | None = None,
        random: RandomSource | None = None,
    ) -> None:
        """`random` decides between equally good bookies.

        Its default is seeded with the time: processes differ, and a simulated clock repeats.
        """
        self._config = config or LedgerClientConfig()
        self._store = metadata
        self._metadata = LedgerMetadataStore(metadata, self._config)
        self._bookies = bookies
        self._clock = clock
        # Writers that this client created, for `confirmed`. A writer that is no longer referenced
        # disappears.
        self._writers: WeakValueDictionary[LedgerId, LedgerWriter] = WeakValueDictionary()
        random = random or seeded_random(clock.now_ms())
        self.health = BookieHealth(bookies, self._config, clock.monotonic_s, random)
        # Seconds from each add of its writers until the ack quorum confirmed it.
        self.added = Histogram()
        self.recoveries = LedgerRecoveries(self._metadata, bookies, self.health, self._config)

    async def create(
        self,
        *,
        ensemble_size: int,
        write_quorum: int,
        ack_quorum: int,
        custom: Mapping[str, bytes] | None = None,
    ) -> LedgerWriter:
        """Create an empty ledger on E live bookies, and return its one writer.

        With fewer live bookies the ensemble is smaller, but never below Qa. The wanted quorums are
        then in the custom metadata (`WANTED_QUORUM`). Raises NotEnoughBookies, WrongQuorum,
        MetadataUnavailable.
        """
        if not ensemble_size >= write_quorum >= ack_quorum >= 1:
            raise WrongQuorum(f"E {ensemble_size}, Qw {write_quorum}, Qa {ack_quorum}")
        for _ in range(self._config.ledger_id_attempts_max):
            taken = await self._take_id()
            metadata = self._new_metadata(
                taken.ledger, (ensemble_size, write_quorum, ack_quorum), custom or {}
            )
            # Both writes run concurrently, so that a store with group commit syncs once.
            created, _ = await asyncio.gather(
                self._metadata.create(metadata), forget_ledger_id(self._store, taken)
            )
            if created:
                writer = LedgerWriter(
                    Versioned(metadata, 0),
                    self._metadata,
                    self._bookies,
                    self.health,
                    self._config,
                    self.added,
                )
                self._writers[taken.ledger] = writer
                return writer
        raise NodeExists(f"no free ledger id after {self._config.ledger_id_attempts_max} attempts")

    def alive(self) -> list[BookieId]:
        """Return the bookies that are registered as alive, by id."""
        return sorted(self._bookies.registered())

    async def stats(self, count: int) -> dict[BookieId, BookieStats]:
        """Ask up to `count` bookies that are alive for their statistics, all at once."""
        names = self.alive()[:count]
        found = await asyncio.gather(*map(self._bookies.stats, names))
        return dict(zip(names, found, strict=True))

    def confirmed(self, ledger: LedgerId) -> EntryId:
        """Return the LAC of this client's writer of the ledger, or -1 if it has none."""
        writer = self._writers.get(ledger)
        return NO_ENTRY if writer is None else writer.lac

    def written_bytes(self, ledger: LedgerId) -> int:
        """Return the payload bytes that a writer of this client wrote, 0 if it wrote none."""
        writer = self._writers.get(ledger)
        return 0 if writer is None else writer.length

    def _new_metadata(
        self, ledger: LedgerId, wanted: tuple[int, int, int], custom: Mapping[str, bytes]
    ) -> LedgerMetadata:
        ensemble_size, write_quorum, ack_quorum = wanted
        live = len(self._bookies.available())
        if live < ack_quorum:
            raise NotEnoughBookies(f"{self.health.summary()}, but {ack_quorum} must acknowledge")
        custom = dict(custom)
        if live < ensemble_size:
            custom[WANTED_QUORUM] = b"%d,%d,%d" % wanted
            ensemble_size, write_quorum = live, min(live, write_quorum)
        ensemble = self.health.choose_ensemble(ensemble_size, write_quorum)
        return LedgerMetadata(
            ledger=ledger,
            ensemble_size=ensemble_size,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            fragments=(Fragment(EntryId(0), ensemble),),
            digest_type=self._config.digest_type,
            password=self._config.password,
            created_ms=self._clock.now_ms(),
            custom=custom,
            token=secrets.randbits(63),
        )

    async def _take_id(self) -> TakenId:
        """Take a ledger id that was never used before. A lost reply only wastes an id."""
        budget = RetryBudget(self._config)
        while True:
            try:
                return await take_ledger_id(self._store)
            except MetadataUnavailable as error:
                await budget.wait_or_raise(error)

    async def open(self, ledger: LedgerId, *, read_lac: bool = True) -> LedgerReader:
        """Open the ledger for reading up to its LAC, without recovery.

        If too few bookies return their LAC, the reader starts with the LAC from the metadata.
        Without `read_lac` none is asked, for a caller that reads the LAC next. Raises NoSuchLedger,
        MetadataUnavailable.
        """
        stored = await self._metadata.read(ledger)
        reader = self._reader(stored)
        try:
            if read_lac:
                await reader.read_lac(refresh=False)
        except EntryUnknown:
            pass  # a later read or read_lac retries, and reports the failure
        return reader

    async def recover(self, ledger: LedgerId) -> LedgerReader:
        """Recover the ledger, which is then fenced, complete and CLOSED, and return a reader.

        Raises NoSuchLedger. May be retried after EntryUnknown, AddFailed or MetadataUnavailable.
        """
        recovered = await self._recover(ledger)
        reader = self._reader(recovered.stored)
        reader.last_read = recovered.last
        return reader

    async def _recover(self, ledger: LedgerId) -> Recovered:
        return await self.recoveries.recover(ledger)

    def _reader(self, stored: Versioned) -> LedgerReader:
        return LedgerReader(stored, self._metadata, self._bookies, self._config, self.health)

    def tail(self, reader: LedgerReader) -> TailReader:
        """Return a tail reader that waits for new entries. The caller must close it."""
        return TailReader(reader, self._bookies, self._config, self.health)

    async def delete(self, ledger: LedgerId) -> None:
        """Delete the metadata of the ledger. Its bookies delete the data later.

        A ledger that is not closed is recovered first: its writer must not acknowledge entries that
        are about to be deleted. Deleting a closed ledger needs no bookie. Raises NoSuchLedger and
        the errors of `recover`.
        """
        budget = RetryBudget(self._config)
        path = metadata_format.ledger_path(ledger)
        unanswered = False
        while True:
            try:
                stored = (await self._recover(ledger)).stored
                await self._store.delete(path, stored.version)
            except NoSuchLedger:
                if unanswered:
                    break
                raise
            except NoNode as error:
                raise NoSuchLedger(f"ledger {ledger}") from error
            except BadVersion:
                continue
            except MetadataUnavailable as error:
                unanswered = True
                await budget.wait_or_raise(error)
                continue
            break
        await self._remove_empty_parents(path)

    async def _remove_empty_parents(self, path: str) -> None:
        parent = path.rpartition("/")[0]
        try:
            while parent != LEDGERS:
                await self._store.delete(parent)
                parent = parent.rpartition("/")[0]
        except (NotEmpty, NoNode, MetadataUnavailable):
            pass  # the parent holds another ledger; an empty leftover node does no harm

    async def list_ledgers(self) -> list[LedgerId]:
        """Return all ledger ids, ascending. A ledger created meanwhile may be missing."""
        budget = RetryBudget(self._config)
        while True:
            try:
                return await self._list_ledgers()
            except MetadataUnavailable as error:
                await budget.wait_or_raise(error)

    async def _list_ledgers(self) -> list[LedgerId]:
        """List only numeric nodes. Bookies, cookies, marks and counters have named nodes."""
        try:
            tops = [name for name in await self._store.children(LEDGERS) if name.isdigit()]
        except NoNode:
            return []
        found: list[LedgerId] = []
        for top in tops:
            paths = await self._store.paths(f"{LEDGERS}/{top}")
            ledgers = map(metadata_format.ledger_of_path, paths)
            found += [ledger for ledger in ledgers if ledger is not None]
        return sorted(found)

    async def read_metadata(self, ledger: LedgerId) -> LedgerMetadata:
        """Read the metadata. Raises NoSuchLedger, CorruptFormat, MetadataUnavailable."""
        return (await self._metadata.read(ledger)).metadata
