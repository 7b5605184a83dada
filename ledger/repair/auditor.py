"""Find under-replicated ledgers and put them on the list.

    a bookie is absent longer than the delay ─▶ every ledger that names it, by metadata alone
    a bookie came back, or a new one joined  ─▶ its ledgers, by the entries it lists;
                                                ledgers created narrower than wanted
    periodically                             ─▶ all metadata again; rarely, every bookie's lists

A read-only bookie counts as alive. An unresponsive one counts as neither alive nor lost: only the
registry decides who is absent. Nothing is marked while no bookie at all is registered.
Source: BookKeeper, `replication/Auditor*.java`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from typing import Any, Final, TypeVar

from ledger.client.config import LedgerClientConfig
from ledger.client.metadata_format import ledger_of_path
from ledger.client.update_metadata import LedgerMetadataStore
from ledger.core.ledger_metadata import LedgerMetadata
from ledger.errors import CorruptFormat, MetadataUnavailable, NoNode, NoSuchLedger
from ledger.ids import BookieId, LedgerId
from ledger.ports.bookies import Bookies
from ledger.ports.clock import Clock
from ledger.ports.metadata import MetadataStore
from ledger.registry.layout import LEDGERS, UNDERREPLICATION
from ledger.registry.underreplication_format import LOST_BOOKIE_DELAY
from ledger.repair.checker import bookies_of, check_ledger
from ledger.repair.config import RepairConfig
from ledger.repair.entry_copier import CopyBudget, EntryCopier, RepairProgress
from ledger.repair.plan import wider_quorum
from ledger.repair.underreplicated_ledgers import UnderreplicatedLedgers

FULL_CHECK_TIME: Final = f"{UNDERREPLICATION}/checkallledgersctime"
_RETRY_S: Final = 1.0

T = TypeVar("T")


class Auditor:
    """The auditor of a cluster. Call `run` in the elected process, or `audit` once."""

    def __init__(
        self,
        store: MetadataStore,
        bookies: Bookies,
        clock: Clock,
        underreplicated: UnderreplicatedLedgers,
        config: RepairConfig,
        client_config: LedgerClientConfig | None = None,
    ) -> None:
        # Marks set or renewed by this process. Never falls.
        self.marked = 0
        self._store = store
        self._bookies = bookies
        self._clock = clock
        self._underreplicated = underreplicated
        self._config = config
        self._client_config = client_config or LedgerClientConfig()
        self._metadata = LedgerMetadataStore(store, self._client_config)
        # The time at which each absent bookie was first seen absent. Removed when the bookie
        # registers again.
        self._away_since: dict[BookieId, float] = {}
        # Absent bookies whose ledgers are marked. A bookie is removed when it registers again.
        self._lost: set[BookieId] = set()
        # Bookies registered at the last round, or None before the first round.
        self._seen: frozenset[BookieId] | None = None
        # Time of the last audit, or None before the first audit.
        self._audited_s: float | None = None
        # Set when the registered bookies changed; `run` clears it before each round.
        self._woken = asyncio.Event()

    def on_bookies_changed(self) -> None:
        """Start a round now, because the registered bookies have changed."""
        self._woken.set()

    async def run(self) -> None:
        """Mark ledgers as bookies leave and join. Runs until cancelled."""
        await self._retry_metadata(self._underreplicated.prepare)
        while True:
            self._woken.clear()
            wait_s = await self._retry_metadata(self._step)
            try:
                async with asyncio.timeout(wait_s):
                    await self._woken.wait()
            except TimeoutError:
                continue

    async def _retry_metadata(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Repeat the call until metadata is available."""
        while True:
            try:
                return await call()
            except MetadataUnavailable:
                await asyncio.sleep(_RETRY_S)

    async def _step(self) -> float:
        """Run the audits that are due. Returns the seconds until the next round."""
        if not await self._underreplicated.enabled():
            return self._config.poll_s
        delay_s = await self._delay_s()
        joined = self._track_bookies()
        now_s = self._clock.monotonic_s()
        over = {b for b, since_s in self._away_since.items() if now_s - since_s >= delay_s}
        if self._audit_due(now_s) or joined or over - self._lost:
            await self.audit(over, joined)
        if await self._full_check_due():
            await self.full_check()
        return self._wait_s(delay_s)

    async def _delay_s(self) -> float:
        """Return the cluster's setting, or the configured delay."""
        try:
            return float((await self._store.get(LOST_BOOKIE_DELAY)).data.decode())
        except (NoNode, ValueError):
            return self._config.delay_s

    def _track_bookies(self) -> frozenset[BookieId]:
        """Update which bookies are absent and since when. Returns the bookies that joined."""
        now_s = self._clock.monotonic_s()
        here = frozenset(self._bookies.registered())
        for bookie in here:
            self._away_since.pop(bookie, None)
        self._lost -= here
        before = self._seen
        self._seen = here
        if before is None:
            return frozenset()
        for bookie in before - here:
            self._away_since.setdefault(bookie, now_s)
        return here - before

    def _audit_due(self, now_s: float) -> bool:
        return self._audited_s is None or now_s - self._audited_s >= self._config.interval_s

    def _wait_s(self, delay_s: float) -> float:
        now_s = self._clock.monotonic_s()
        assert self._audited_s is not None
        times_s = [self._audited_s + self._config.interval_s]
        times_s += [s + delay_s for b, s in self._away_since.items() if b not in self._lost]
        return max(0.001, min(times_s) - now_s)

    async def audit(
        self, lost: Collection[BookieId], joined: Collection[BookieId] = ()
    ) -> list[LedgerId]:
        """Check the metadata of every ledger. Returns the ledgers marked now.

        `lost` are bookies whose copies no longer count, unless they have registered again. `joined`
        are bookies whose lists are compared with their shares.
        """
        self._audited_s = now_s = self._clock.monotonic_s()
        marked: list[LedgerId] = []
        async for some in self._batches():
            for metadata in some:
                for bookie in bookies_of(metadata) - self._bookies.registered().keys():
                    self._away_since.setdefault(bookie, now_s)
            found = await asyncio.gather(*[self._audit_ledger(one, lost, joined) for one in some])
            marked += [ledger for ledger in found if ledger is not None]
        self._lost |= set(lost) - self._bookies.registered().keys()
        return marked

    async def _audit_ledger(
        self, metadata: LedgerMetadata, lost: Collection[BookieId], joined: Collection[BookieId]
    ) -> LedgerId | None:
        """Audit one ledger. Returns its id if it was marked."""
        away = bookies_of(metadata) - self._bookies.registered().keys()
        missing = away.intersection(lost) | await self._find_incomplete(metadata, joined)
        if (missing or self._may_widen(metadata)) and await self._mark(metadata, missing):
            return metadata.ledger
        return None

    async def away(self) -> frozenset[BookieId]:
        """Return unregistered bookies that some ledger names."""
        named: set[BookieId] = set()
        async for metadata in self.all_metadata():
            named |= bookies_of(metadata)
        return frozenset(named - self._bookies.registered().keys())

    async def all_metadata(self) -> AsyncIterator[LedgerMetadata]:
        """Yield the metadata of every ledger, except unparsable or deleted ones."""
        async for some in self._batches():
            for metadata in some:
                yield metadata

    async def _batches(self) -> AsyncIterator[list[LedgerMetadata]]:
        """Yield all metadata in batches."""
        paths = await self._store.paths(LEDGERS)
        found = (ledger_of_path(path) for path in paths)
        ledgers = [ledger for ledger in found if ledger is not None]
        at_once = self._config.checks_at_once
        for start in range(0, len(ledgers), at_once):
            some = await asyncio.gather(*map(self._read, ledgers[start : start + at_once]))
            yield [metadata for metadata in some if metadata is not None]

    async def _read(self, ledger: LedgerId) -> LedgerMetadata | None:
        try:
            return (await self._metadata.read(ledger)).metadata
        except (NoSuchLedger, CorruptFormat):
            return None

    def _may_widen(self, metadata: LedgerMetadata) -> bool:
        """True if the ledger is narrower than wanted and another bookie could take more copies."""
        if wider_quorum(metadata) is None:
            return False
        spare = frozenset(self._bookies.available())
        return all(spare - frozenset(one.ensemble) for one in metadata.fragments)

    async def _mark(self, metadata: LedgerMetadata, missing: frozenset[BookieId]) -> bool:
        """Mark the ledger. False if it is marked already, or if no bookie is registered."""
        if not self._bookies.registered():
            return False
        # Read the lock before the mark. A worker that locks the ledger later also examines it
        # later, and finds the same gaps.
        at_work = await self._underreplicated.locked_by(metadata.ledger) is not None
        known = await self._underreplicated.get(metadata.ledger)
        if known is not None and missing <= known.missing and not at_work:
            return False
        await self._underreplicated.mark(metadata.ledger, missing)
        self.marked += 1
        return True

    async def full_check(self) -> list[LedgerId]:
        """Compare every bookie's lists with its shares. Returns the ledgers marked now."""
        marked: list[LedgerId] = []
        async for some in self._batches():
            found = await asyncio.gather(*[self._check_one(one) for one in some])
            marked += [ledger for ledger in found if ledger is not None]
        await self._record_full_check()
        return marked

    async def _check_one(self, metadata: LedgerMetadata) -> LedgerId | None:
        """Compare the lists of one ledger's bookies with their shares. Returns its id if it was
        marked.
        """
        missing = await self._find_incomplete(metadata, None)
        return metadata.ledger if missing and await self._mark(metadata, missing) else None

    async def _find_incomplete(
        self, metadata: LedgerMetadata, among: Collection[BookieId] | None
    ) -> frozenset[BookieId]:
        """Return registered bookies of the ledger that report missing entries, or are in limbo.

        `among` restricts the result to bookies that just joined. Gaps in the open last fragment do
        not count, because entries may be in flight. A bookie of that fragment that just joined
        always counts.
        """
        asked = bookies_of(metadata)
        if among is not None:
            asked = asked.intersection(among)
            if not asked:
                return frozenset()
        nothing = CopyBudget(1, 0), RepairProgress()
        copier = EntryCopier(metadata, self._bookies, *nothing, self._config, self._client_config)
        lac = await copier.read_lac()
        replicas = await copier.list_replicas(asked)
        incomplete = {b for b, replica in replicas.items() if replica.limbo}
        if among is not None and not metadata.closed:
            # The writer continued without these bookies; missed entries show once the ledger is
            # closed.
            incomplete.update(asked.intersection(metadata.last_fragment.ensemble))
        for gap in check_ledger(metadata, lac, replicas).gaps:
            replica = replicas.get(gap.bookie)
            if gap.fragment.closed and replica is not None and replica.complete:
                incomplete.add(gap.bookie)
        return frozenset(incomplete)

    async def _full_check_due(self) -> bool:
        try:
            data = (await self._store.get(FULL_CHECK_TIME)).data
        except NoNode:
            return True
        elapsed_ms = self._clock.now_ms() - _decode_time(data)
        # A time in the future comes from a wall clock that was ahead. Waiting for it could take
        # years without a check.
        return not 0 <= elapsed_ms < self._config.full_check_s * 1000

    async def _record_full_check(self) -> None:
        data = _encode_time(self._clock.now_ms())
        if await self._store.exists(FULL_CHECK_TIME):
            await self._store.set(FULL_CHECK_TIME, data, -1)
        else:
            await self._store.create(FULL_CHECK_TIME, data, parents=True)


def _encode_time(time_ms: int) -> bytes:
    """Encode the time as protobuf field 1, a varint. Source: BookKeeper,
    `CheckAllLedgersFormat`.
    """
    out = bytearray(b"\x08")
    while time_ms >= 0x80:
        out.append(time_ms & 0x7F | 0x80)
        time_ms >>= 7
    out.append(time_ms)
    return bytes(out)


def _decode_time(data: bytes) -> int:
    """Parse the time. Returns 0 if the data does not parse."""
    if data[:1] != b"\x08":
        return 0
    return sum((byte & 0x7F) << 7 * at for at, byte in enumerate(data[1:]))
