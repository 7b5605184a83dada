"""Find under-replicated ledgers and put them on the list.

    a bookie is absent longer than the delay ─▶ every ledger that names it, by metadata alone
    a bookie joined, came back or restarted  ─▶ its ledgers, by the entries it lists;
                                                ledgers created narrower than wanted
    a bookie announced that it is in limbo   ─▶ its ledgers, closed ones too
    periodically                             ─▶ all metadata again; rarely, every bookie's lists
    a bookie did not list its entries        ─▶ the same ledgers are asked about again

A read-only bookie counts as alive. An unresponsive one counts as neither alive nor lost: only the
registry decides who is absent. Nothing is marked while no bookie at all is registered.
Source: BookKeeper, `replication/Auditor*.java`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from ledger.client.config import LedgerClientConfig
from ledger.client.metadata_format import ledger_of_path
from ledger.client.update_metadata import LedgerMetadataStore
from ledger.core.ledger_metadata import LedgerMetadata
from ledger.errors import (
    CorruptFormat,
    MetadataUnavailable,
    NoNode,
    NoSuchLedger,
    NotEnoughBookies,
)
from ledger.ids import BookieId, LedgerId
from ledger.ports.bookies import BookieInfo, Bookies
from ledger.ports.clock import Clock
from ledger.ports.metadata import MetadataStore
from ledger.registry.layout import LEDGERS, UNDERREPLICATION
from ledger.registry.limbo_bookies import announced_limbo, settle_limbo
from ledger.registry.underreplication_format import LOST_BOOKIE_DELAY
from ledger.repair.accepted_entries import AcceptedEntries, nothing_accepted
from ledger.repair.checker import UNKNOWN_CONTENTS, bookies_of, check_ledger
from ledger.repair.config import RepairConfig
from ledger.repair.entry_copier import CopyBudget, EntryCopier, RepairProgress
from ledger.repair.entry_ranges import EMPTY, EntryRanges
from ledger.repair.plan import wider_quorum
from ledger.repair.underreplicated_ledgers import UnderreplicatedLedgers

FULL_CHECK_TIME: Final = f"{UNDERREPLICATION}/checkallledgersctime"
_RETRY_S: Final = 1.0
_AGAIN_S_MAX: Final = 60.0

T = TypeVar("T")


class _Lists(NamedTuple):
    """What the lists of a ledger's bookies say."""

    incomplete: frozenset[BookieId]  # bookies that report missing entries, or are in limbo
    silent: frozenset[BookieId]  # bookies that listed nothing, so that entries may be missing


_WHOLE: Final = _Lists(frozenset(), frozenset())


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
        accepted: AcceptedEntries = nothing_accepted,
    ) -> None:
        # Marks set or renewed by this process. Never falls.
        self.marked = 0
        self._store = store
        self._bookies = bookies
        self._clock = clock
        self._underreplicated = underreplicated
        self._config = config
        self._accepted = accepted
        self._client_config = client_config or LedgerClientConfig()
        self._metadata = LedgerMetadataStore(store, self._client_config)
        # The time at which each absent bookie was first seen absent. Removed when the bookie
        # registers again.
        self._away_since: dict[BookieId, float] = {}
        # Absent bookies whose ledgers are marked. A bookie is removed when it registers again.
        self._lost: set[BookieId] = set()
        # Bookies registered at the last round, or None before the first round.
        self._seen: Mapping[BookieId, BookieInfo] | None = None
        # Time of the last audit, or None before the first audit.
        self._audited_s: float | None = None
        # Ledgers whose lists were due, with the bookies that did not answer. A ledger is removed
        # once its bookies have answered or were replaced. The one asked longest ago comes first.
        self.unanswered: dict[LedgerId, frozenset[BookieId]] = {}
        # Ledgers whose metadata did not parse when it was last read. Nothing else is known of them.
        self.unreadable: set[LedgerId] = set()
        # The time of the next question about `unanswered`, and the wait after it. The wait doubles
        # while nobody answers.
        self._again_at_s = 0.0
        self._again_s = config.poll_s
        # The start of a full check that has looked at every ledger and is not recorded yet, because
        # `unanswered` is not empty or the metadata store failed.
        self._unrecorded_s: float | None = None
        # Bookies that joined or announced limbo, and whose lists were not compared yet. An audit
        # that succeeds removes them.
        self._joined: set[BookieId] = set()
        # Announcements of limbo whose ledgers this process has examined, by bookie and version. An
        # announcement is removed once it is deleted.
        self._examined: dict[BookieId, int] = {}
        # Set when the registered bookies changed; `run` clears it before each round.
        self._woken = asyncio.Event()

    def on_bookies_changed(self) -> None:
        """Start a round now: the registered bookies changed, or one announced its limbo."""
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
        announced = await announced_limbo(self._store)
        self._joined |= self._track_bookies() | self._to_examine(announced)
        joined = frozenset(self._joined)
        now_s = self._clock.monotonic_s()
        over = {b for b, since_s in self._away_since.items() if now_s - since_s >= delay_s}
        if self._audit_due(now_s) or joined or over - self._lost:
            await self.audit(over, joined)
            self._joined -= joined
            self._examined |= {b: announced[b] for b in joined.intersection(announced)}
        if await self._full_check_due():
            await self.full_check()
        if self.unanswered and (joined or self._clock.monotonic_s() >= self._again_at_s):
            await self.check_again()
        await self._record_when_answered()
        await self._settle(announced)
        return self._wait_s(delay_s)

    def _to_examine(self, announced: Mapping[BookieId, int]) -> frozenset[BookieId]:
        """Return the registered bookies that announced limbo since their ledgers were examined."""
        here = self._bookies.registered().keys()
        return frozenset(
            bookie
            for bookie, version in announced.items()
            if bookie in here and self._examined.get(bookie) != version
        )

    async def _settle(self, announced: Mapping[BookieId, int]) -> None:
        """Delete the announcements of bookies that have answered for all their ledgers."""
        silent = self._silent()
        for bookie, version in announced.items():
            if self._examined.get(bookie) == version and bookie not in silent:
                await settle_limbo(self._store, bookie, version)
                del self._examined[bookie]

    async def _delay_s(self) -> float:
        """Return the cluster's setting, or the configured delay."""
        try:
            return float((await self._store.get(LOST_BOOKIE_DELAY)).data.decode())
        except (NoNode, ValueError):
            return self._config.delay_s

    def _track_bookies(self) -> frozenset[BookieId]:
        """Update which bookies are absent and since when. Returns the bookies that joined.

        A bookie that restarts replaces its node, so it may never be seen absent. Its adds in flight
        are lost all the same, so it counts as one that joined.
        """
        now_s = self._clock.monotonic_s()
        here = self._bookies.registered()
        for bookie in here:
            self._away_since.pop(bookie, None)
        self._lost -= here.keys()
        before = self._seen
        self._seen = here
        if before is None:
            return frozenset()
        for bookie in before.keys() - here.keys():
            self._away_since.setdefault(bookie, now_s)
        return frozenset(
            bookie
            for bookie, info in here.items()
            if bookie not in before or before[bookie].start != info.start
        )

    def _audit_due(self, now_s: float) -> bool:
        return self._audited_s is None or now_s - self._audited_s >= self._config.interval_s

    def _wait_s(self, delay_s: float) -> float:
        now_s = self._clock.monotonic_s()
        assert self._audited_s is not None
        times_s = [self._audited_s + self._config.interval_s]
        times_s += [s + delay_s for b, s in self._away_since.items() if b not in self._lost]
        if self.unanswered:
            times_s.append(self._again_at_s)
        return max(0.001, min(times_s) - now_s)

    async def audit(
        self, lost: Collection[BookieId], joined: Collection[BookieId] = ()
    ) -> list[LedgerId]:
        """Check the metadata of every ledger. Returns the ledgers marked now.

        `lost` are bookies whose copies no longer count, unless they have registered again. `joined`
        are bookies whose lists are compared with their shares.
        """
        now_s = self._clock.monotonic_s()
        marked: list[LedgerId] = []
        gone = set(lost)
        async for some in self._batches():
            for metadata in some:
                for bookie in bookies_of(metadata) - self._bookies.registered().keys():
                    self._away_since.setdefault(bookie, now_s)
            gone -= self._bookies.registered().keys()
            found = await asyncio.gather(*[self._audit_ledger(one, gone, joined) for one in some])
            gone -= self._bookies.registered().keys()
            marked += [ledger for ledger in found if ledger is not None]
        self._count_lost(gone)
        self._audited_s = now_s
        return marked

    async def _audit_ledger(
        self, metadata: LedgerMetadata, lost: Collection[BookieId], joined: Collection[BookieId]
    ) -> LedgerId | None:
        """Audit one ledger. Returns its id if it was marked."""
        away = bookies_of(metadata) - self._bookies.registered().keys()
        lists = await self._read_lists(metadata, joined)
        self._note_silent(metadata.ledger, lists.silent)
        missing = away.intersection(lost) | lists.incomplete
        if (missing or self._may_widen(metadata)) and await self._mark(metadata, missing):
            return metadata.ledger
        return None

    def _count_lost(self, gone: set[BookieId]) -> None:
        """Stop asking bookies of which every ledger is marked: none registered meanwhile."""
        self._lost |= gone
        for ledger, silent in list(self.unanswered.items()):
            del self.unanswered[ledger]
            self._note_silent(ledger, silent)

    def check_registered(self) -> None:
        """Raise NotEnoughBookies if no bookie is registered, because nothing is marked then."""
        if not self._bookies.registered():
            raise NotEnoughBookies("no bookie is registered")

    async def away(self) -> frozenset[BookieId]:
        """Return unregistered bookies that some ledger names."""
        named: set[BookieId] = set()
        async for metadata in self.all_metadata():
            named |= bookies_of(metadata)
        return frozenset(named - self._bookies.registered().keys())

    def silent_and_away(self) -> frozenset[BookieId]:
        """Return the bookies that gave no answer and are no longer registered."""
        return self._silent() - self._bookies.registered().keys()

    def _silent(self) -> frozenset[BookieId]:
        return frozenset[BookieId]().union(*self.unanswered.values())

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
            metadata = (await self._metadata.read(ledger)).metadata
        except CorruptFormat:
            self.unreadable.add(ledger)
            return None
        except NoSuchLedger:
            metadata = None
        self.unreadable.discard(ledger)
        return metadata

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
        """Compare every bookie's lists with its shares. Returns the ledgers marked now.

        The check is recorded once every bookie has answered: see `check_again`. A check that an
        exception ends is not recorded, and is due again at once.
        """
        marked: list[LedgerId] = []
        started_s = self._clock.monotonic_s()
        self._unrecorded_s = None
        self.unanswered.clear()
        async for some in self._batches():
            found = await asyncio.gather(*[self._check_one(one) for one in some])
            marked += [ledger for ledger in found if ledger is not None]
        self._unrecorded_s = started_s
        self._again_s = self._config.poll_s
        self._again_at_s = self._clock.monotonic_s() + self._again_s
        await self._record_when_answered()
        return marked

    async def check_again(self) -> list[LedgerId]:
        """Compare the lists of the `unanswered` ledgers. Returns the ledgers marked now.

        Stops after a batch without an answer, so that a hanging bookie costs one timeout.
        """
        marked: list[LedgerId] = []
        waiting, at_once = list(self.unanswered), self._config.checks_at_once
        self._again_s = min(2 * self._again_s, _AGAIN_S_MAX)
        for start in range(0, len(waiting), at_once):
            batch = waiting[start : start + at_once]
            found = await asyncio.gather(*map(self._check_one_again, batch))
            marked += [ledger for ledger in found if ledger is not None]
            if self.unanswered.keys() >= set(batch):
                break
            self._again_s = self._config.poll_s
        self._again_at_s = self._clock.monotonic_s() + self._again_s
        await self._record_when_answered()
        return marked

    async def _check_one_again(self, ledger: LedgerId) -> LedgerId | None:
        metadata = await self._read(ledger)
        if metadata is None:
            self.unanswered.pop(ledger, None)
            return None
        return await self._check_one(metadata)

    async def _check_one(self, metadata: LedgerMetadata) -> LedgerId | None:
        """Compare the lists of one ledger's bookies with their shares. Returns its id if it was
        marked.
        """
        lists = await self._read_lists(metadata, None)
        self.unanswered.pop(metadata.ledger, None)
        self._note_silent(metadata.ledger, lists.silent)
        if lists.incomplete and await self._mark(metadata, lists.incomplete):
            return metadata.ledger
        return None

    def _note_silent(self, ledger: LedgerId, silent: frozenset[BookieId]) -> None:
        silent -= self._lost
        if silent:
            self.unanswered[ledger] = silent | self.unanswered.get(ledger, frozenset())

    async def _read_lists(
        self, metadata: LedgerMetadata, among: Collection[BookieId] | None
    ) -> _Lists:
        """Compare the lists of the ledger's bookies with their shares.

        `among` restricts the result to bookies that just joined. Gaps in the open last fragment do
        not count, because entries may be in flight. A bookie of that fragment that just joined
        always counts.
        """
        asked = bookies_of(metadata)
        if among is not None:
            asked = asked.intersection(among)
            if not asked:
                return _WHOLE
        nothing = CopyBudget(1, 0), RepairProgress()
        copier = EntryCopier(metadata, self._bookies, *nothing, self._config, self._client_config)
        lac = await copier.read_lac()
        replicas = await copier.list_replicas(asked)
        incomplete = {b for b, replica in replicas.items() if replica.limbo}
        silent: set[BookieId] = set()
        if not metadata.closed:  # what its bookies lack shows later
            open_at = asked.intersection(metadata.last_fragment.ensemble)
            silent |= {b for b in open_at if not replicas.get(b, UNKNOWN_CONTENTS).complete}
            if among is not None:  # the writer continued without those that joined
                incomplete |= open_at
        found = check_ledger(metadata, lac, replicas)
        if found.gaps:
            accepted = await self._accepted_of(metadata)
            found = check_ledger(metadata, lac, replicas, accepted=accepted)
        for gap in found.gaps:
            if gap.fragment.closed and gap.bookie in asked:
                known = replicas.get(gap.bookie, UNKNOWN_CONTENTS).complete
                (incomplete if known else silent).add(gap.bookie)
        return _Lists(frozenset(incomplete), frozenset(silent - incomplete))

    async def _accepted_of(self, metadata: LedgerMetadata) -> EntryRanges:
        """Return the entries whose loss was accepted, none if that cannot be read."""
        try:
            return await self._accepted(metadata)
        except CorruptFormat:
            return EMPTY

    async def _full_check_due(self) -> bool:
        now_s = self._clock.monotonic_s()
        if (
            self._unrecorded_s is not None
            and now_s - self._unrecorded_s < self._config.full_check_s
        ):
            return False
        try:
            data = (await self._store.get(FULL_CHECK_TIME)).data
        except NoNode:
            return True
        elapsed_ms = self._clock.now_ms() - _decode_time(data)
        # A time in the future comes from a wall clock that was ahead. Waiting for it could take
        # years without a check.
        return not 0 <= elapsed_ms < self._config.full_check_s * 1000

    async def _record_when_answered(self) -> None:
        """Record the full check in the metadata, unless it still lacks an answer."""
        if self._unrecorded_s is None or self.unanswered:
            return
        data = _encode_time(self._clock.now_ms())
        if await self._store.exists(FULL_CHECK_TIME):
            await self._store.set(FULL_CHECK_TIME, data, -1)
        else:
            await self._store.create(FULL_CHECK_TIME, data, parents=True)
        self._unrecorded_s = None


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
