"""What one process has seen of the bookies: shared by all its ledger writers and readers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from ledger.client.config import LedgerClientConfig
from ledger.core import placement
from ledger.core.load import DecayingLoad
from ledger.core.placement import RandomSource
from ledger.core.quarantine import Quarantine
from ledger.core.read_plan import read_order
from ledger.ids import BookieId, EntryId, LedgerId
from ledger.ports.bookies import BookieInfo, Bookies, Status

OnCorrupt = Callable[[BookieId, LedgerId, EntryId], None]

NEW_FRAGMENT_BYTES = 1024 * 1024
"""What a fragment counts for before anything is known of it, so that empty ones are spread too."""

SICK = (Status.UNREACHABLE, Status.WRONG_INSTANCE, Status.IO_ERROR, Status.OVERLOADED)
"""Answers that speak against the bookie, not against what it was asked for."""

_UNKNOWN = BookieInfo()


class BookieHealth:
    """Who is to be avoided, who has much to do already, and what that means for placement.

    `on_corrupt` is told of each copy whose digest does not match, for whoever can mend it.
    """

    __slots__ = (
        "_bookies",
        "_config",
        "_load",
        "_now_s",
        "_quarantine",
        "_racks",
        "_random",
        "corrupt_entries",
        "on_corrupt",
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
        """`now_s` is any clock that never goes back."""
        self._bookies = bookies
        self._config = config
        self._now_s = now_s
        self._random = random
        self._quarantine = Quarantine(
            failures_max=config.quarantine_failures,
            first_s=config.quarantine_s,
            longest_s=config.quarantine_s_max,
            slow_factor=config.slow_factor,
            slow_s_min=config.slow_s_min,
        )
        self._load = DecayingLoad(config.load_half_life_s)
        self._racks: dict[BookieId, str] = {}  # also of bookies that are gone
        self.speculative_reads = 0  # a second replica was asked because the first was late
        self.speculative_lac_reads = 0  # the same at the tail
        self.corrupt_entries = 0
        self.on_corrupt: OnCorrupt | None = None

    def on_result(self, bookie: BookieId, ok: bool, seconds: float | None = None) -> None:
        """A request ended. `ok`: the bookie did its work, whatever it answered; `seconds` only
        of requests that are alike in what they cost, so that bookies can be compared."""
        self._quarantine.on_result(bookie, ok, seconds, self._now_s())

    def on_placed(self, bookies: Iterable[BookieId], count: int = NEW_FRAGMENT_BYTES) -> None:
        """So many bytes more went to, or are going to, each of `bookies`."""
        now_s = self._now_s()
        for bookie in bookies:
            self._load.add(bookie, count, now_s)

    def suspects(self) -> frozenset[BookieId]:
        """To be asked after all others."""
        return self._quarantine.suspects(self._now_s())

    def read_order(
        self, bookies: tuple[BookieId, ...], last_good: BookieId | None
    ) -> tuple[BookieId, ...]:
        """Whom to ask first, of those that hold an entry."""
        suspects = self._quarantine.suspects(self._now_s())
        near: Collection[BookieId] = ()
        rack = self._config.rack
        if rack is not None:
            known = self._bookies.registered()
            near = [name for name in bookies if known.get(name, _UNKNOWN).rack == rack]
        elif not suspects and (last_good is None or last_good == bookies[0]):
            return bookies
        return read_order(bookies, suspects=suspects, near=near, last_good=last_good)

    def on_speculative_read(self) -> None:
        self.speculative_reads += 1

    def on_speculative_lac_read(self) -> None:
        self.speculative_lac_reads += 1

    def avoid(self, keep: int) -> frozenset[BookieId]:
        """To get nothing new as long as others are there; at least `keep` are left."""
        return self._quarantine.avoid(self._now_s(), self._bookies.available(), keep)

    def load(self) -> Mapping[BookieId, float]:
        """Bytes placed by this process, older ones counting less."""
        return self._load.at(self._now_s())

    def report_corrupt(self, bookie: BookieId, ledger: LedgerId, entry: EntryId) -> None:
        """The copy there is not what was written."""
        self.corrupt_entries += 1
        if self.on_corrupt is not None:
            self.on_corrupt(bookie, ledger, entry)

    def choose_ensemble(self, ensemble_size: int, write_quorum: int) -> tuple[BookieId, ...]:
        """E live bookies for a new ledger, counted as load of theirs. Raises NotEnoughBookies."""
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
        """A live bookie to take place `index`, counted as load of it; none of `failed`."""
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
        """How many bookies take writes, of how many, in words."""
        known = self._bookies.registered()
        short = sum(info.read_only for info in known.values())
        why = f" ({short} read-only: short of room)" if short else ""
        return f"{len(self._bookies.available())} of {len(known)} bookies take writes{why}"

    def _candidates(self) -> dict[BookieId, str]:
        """Racks of those that take new entries; those of all others are kept in mind."""
        registered = self._bookies.registered()
        self._racks.update((bookie, info.rack) for bookie, info in registered.items())
        return {
            bookie: registered.get(bookie, _UNKNOWN).rack for bookie in self._bookies.available()
        }
