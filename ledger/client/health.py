"""The health and load of bookies as one process sees them, shared by its writers and readers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any, NamedTuple

from ledger.client.config import LedgerClientConfig
from ledger.core import placement
from ledger.core.bookie_health import Greylist, Greylisted, SlowDetection
from ledger.core.latency import SampleKind
from ledger.core.load import DecayingLoad
from ledger.core.placement import RandomSource
from ledger.core.read_plan import read_order
from ledger.ids import BookieId, EntryId, LedgerId
from ledger.ports.bookies import BookieInfo, Bookies, Status
from ledger.tasks import start_once

OnCorrupt = Callable[[BookieId, LedgerId, EntryId], None]
Probe = Callable[[BookieId], Coroutine[Any, Any, None]]
"""Sends the same request to this bookie too, and counts the outcome. Drops the answer."""

PROBES_AT_ONCE = 4
"""Most probes of each kind in flight. Each holds the bytes of one answer."""

_FORGET_EVERY_S = 60.0  # how often records of bookies that are gone are looked for

NEW_FRAGMENT_BYTES = 1024 * 1024
"""The load that a new fragment counts for, so that empty fragments are spread too."""

UNHEALTHY = (
    Status.UNREACHABLE,
    Status.WRONG_INSTANCE,
    Status.IO_ERROR,
    Status.OVERLOADED,
    Status.PERMISSION_DENIED,  # of one bookie among others, it is a fault of its configuration
)
"""Answers that count as a failure of the bookie, not of the request."""

_UNKNOWN = BookieInfo()
_NOBODY: frozenset[BookieId] = frozenset()


class Answer(NamedTuple):
    """What the latency of an answer depends on, if all bookies are alike."""

    kind: SampleKind
    size: int  # bytes
    replicas: tuple[BookieId, ...]  # the bookies that hold the entry


class GreylistEntry(NamedTuple):
    """One bookie of the greylist, with times relative to now, because the clock has no date."""

    found: Greylisted
    since_s: float
    left_s: float


class BookieHealth:
    """Failures, latency and load by bookie, and the choice of bookies that follows from them."""

    __slots__ = (
        "_bookies",
        "_config",
        "_forget_at_s",
        "_greylist",
        "_load",
        "_now_s",
        "_probes",
        "_racks",
        "_random",
        "corrupt_entries",
        "on_corrupt",
        "probes",
        "speculative_lac_reads",
        "speculative_reads",
    )

    def __init__(
        self,
        bookies: Bookies,
        config: LedgerClientConfig,
        now_s: Callable[[], float],
        random: RandomSource,
    ) -> None:
        """`now_s` is any clock that never goes back. `random` decides between equal bookies."""
        self._bookies = bookies
        self._config = config
        self._now_s = now_s
        self._random = random
        self._greylist = Greylist(config.health_rules())
        # When records of bookies that are gone are looked for next.
        self._forget_at_s = 0.0
        # Probes in flight by kind, oldest first, at most `PROBES_AT_ONCE` of each. A probe leaves
        # when it ends.
        self._probes: dict[SampleKind, dict[asyncio.Task[None], None]] = {
            kind: {} for kind in SampleKind
        }
        self._load = DecayingLoad(config.load_half_life_s)
        # The last known rack of every bookie. Lost bookies stay, because ensembles may still name
        # them.
        self._racks: dict[BookieId, str] = {}
        # Counters for metrics, which only rise. The first two count extra requests that were sent
        # because an entry, or the LAC at the tail, was late. `probes` counts those that were sent
        # to compare bookies.
        self.speculative_reads = 0
        self.speculative_lac_reads = 0
        self.probes = 0
        self.corrupt_entries = 0
        # Called for each copy with a wrong digest, so that the copy is repaired. The process sets
        # it.
        self.on_corrupt: OnCorrupt | None = None

    @property
    def detection(self) -> SlowDetection:
        """Return what this process does about slow bookies."""
        return self._config.reader_slow_shards_detection

    def on_result(self, bookie: BookieId, ok: bool) -> None:
        """Count the outcome of a request. `ok` is True if the bookie did its work."""
        now_s = self._now_s()
        self._greylist.on_result(bookie, ok, now_s)
        if now_s >= self._forget_at_s:
            self._forget_at_s = now_s + _FORGET_EVERY_S
            self._greylist.forget_gone(self._bookies.registered(), now_s)

    def on_sample(
        self, bookie: BookieId, answer: Answer, seconds: float, beside: Collection[BookieId] = ()
    ) -> None:
        """Count the latency of an answer. Bookies `beside` got the same request."""
        now_s, one = self._now_s(), self._greylist
        if one.on_sample(bookie, answer.kind, answer.size, seconds, now_s, beside):
            one.judge(bookie, answer.kind, answer.size, now_s, answer.replicas)

    def start_probe(
        self, bookie: BookieId, kind: SampleKind, replicas: Collection[BookieId], probe: Probe
    ) -> BookieId | None:
        """Send a request to `bookie` to another replica too, if a comparison is due.

        Returns that replica. A process has at most `PROBES_AT_ONCE` probes of each kind in flight.
        At the tail the oldest one makes room: its ledger has no news, so it compares nothing.
        """
        probes = self._probes[kind]
        full = len(probes) >= PROBES_AT_ONCE
        if full and kind is not SampleKind.TAIL:
            return None
        other = self._greylist.choose_probe(bookie, kind, replicas, self._now_s())
        if other is None:
            return None
        if full:
            oldest = next(iter(probes))
            del probes[oldest]
            oldest.cancel()
        self.probes += 1
        task = start_once("a probe of a bookie", probe(other))
        probes[task] = None
        task.add_done_callback(lambda ended: probes.pop(ended, None))
        return other

    def on_placed(self, bookies: Iterable[BookieId], size: int = NEW_FRAGMENT_BYTES) -> None:
        """Count `size` more bytes as load of each of `bookies`."""
        now_s = self._now_s()
        for bookie in bookies:
            self._load.add(bookie, size, now_s)

    def suspects(self) -> frozenset[BookieId]:
        """Return the bookies to ask after all others."""
        return self._greylist.suspects(self._now_s())

    def ask_last(
        self, bookies: tuple[BookieId, ...], most: int, kind: SampleKind
    ) -> frozenset[BookieId]:
        """Return those of `bookies` to ask last: at most `most` with those that are down."""
        now_s = self._now_s()
        if self._greylist.asks_all_alike(now_s, kind):
            return _NOBODY
        registered = self._bookies.registered()
        down = [bookie for bookie in bookies if bookie not in registered]
        return self._greylist.ask_last(bookies, down, now_s, most, kind)

    def read_order(
        self,
        bookies: tuple[BookieId, ...],
        last_good: BookieId | None,
        most: int,
        kind: SampleKind,
    ) -> tuple[BookieId, ...]:
        """Return the bookies that may have an entry, in the order in which to ask them.

        At most `most` bookies that are down or greylisted are moved to the end: Qw - 1, so that
        a whole write set is never avoided.
        """
        last = self.ask_last(bookies, most, kind)
        near: Collection[BookieId] = ()
        rack = self._config.rack
        if rack is not None:
            known = self._bookies.registered()
            near = [name for name in bookies if known.get(name, _UNKNOWN).rack == rack]
        elif not last and (last_good is None or last_good == bookies[0]):
            return bookies
        return read_order(bookies, suspects=last, near=near, last_good=last_good)

    def greylist(self) -> list[GreylistEntry]:
        """Return the greylist for commands and metrics, with bookies that are only observed."""
        now_s = self._now_s()
        return [
            GreylistEntry(one, now_s - one.since_s, one.until_s - now_s)
            for one in self._greylist.entries(now_s)
        ]

    def on_speculative_read(self) -> None:
        """Count a read that asked one more replica."""
        self.speculative_reads += 1

    def on_speculative_lac_read(self) -> None:
        """Count a poll at the tail that asked one more bookie."""
        self.speculative_lac_reads += 1

    def avoid(self, keep: int) -> frozenset[BookieId]:
        """Return bookies that should get no new entries, leaving at least `keep` others."""
        return self._greylist.avoid(self._now_s(), self._bookies.available(), keep)

    def load(self) -> Mapping[BookieId, float]:
        """Return the bytes that this process placed on each bookie. Older bytes count less."""
        return self._load.at(self._now_s())

    def report_corrupt(self, bookie: BookieId, ledger: LedgerId, entry: EntryId) -> None:
        """Report that the digest of a copy does not match."""
        self.corrupt_entries += 1
        if self.on_corrupt is not None:
            self.on_corrupt(bookie, ledger, entry)

    def choose_ensemble(self, ensemble_size: int, write_quorum: int) -> tuple[BookieId, ...]:
        """Choose E live bookies for a new ledger, and count the load. Raises NotEnoughBookies."""
        chosen = placement.choose_ensemble(
            self._candidates(),
            ensemble_size=ensemble_size,
            write_quorum=write_quorum,
            load=self.load(),
            avoid=self.avoid(ensemble_size),
            local_rack=self._config.rack,
            enforce_racks=self._config.enforce_racks,
            random=self._random,
        )
        self.on_placed(chosen)
        return chosen

    def choose_replacement(
        self,
        ensemble: tuple[BookieId, ...],
        index: int,
        *,
        write_quorum: int,
        failed: Collection[BookieId],
    ) -> BookieId | None:
        """Choose a live bookie for `index`, none of `failed`, and count its load.

        Returns None if there is none.
        """
        candidates = self._candidates()
        for bookie in failed:
            candidates.pop(bookie, None)
        chosen = placement.choose_replacement(
            candidates,
            ensemble,
            index,
            write_quorum=write_quorum,
            racks=self._racks,
            load=self.load(),
            avoid=self.avoid(len(ensemble)),
            enforce_racks=self._config.enforce_racks,
            random=self._random,
        )
        if chosen is not None:
            self.on_placed((chosen,))
        return chosen

    def summary(self) -> str:
        """Describe for errors and logs how many bookies take writes."""
        known = self._bookies.registered()
        short = sum(info.read_only for info in known.values())
        why = f" ({short} read-only: low on disk space)" if short else ""
        return f"{len(self._bookies.available())} of {len(known)} bookies take writes{why}"

    def _candidates(self) -> dict[BookieId, str]:
        """Return the racks of writable bookies, and remember the racks of all registered ones."""
        registered = self._bookies.registered()
        self._racks.update((bookie, info.rack) for bookie, info in registered.items())
        return {
            bookie: registered.get(bookie, _UNKNOWN).rack for bookie in self._bookies.available()
        }
