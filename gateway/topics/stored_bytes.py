"""Finds how many bytes of a partition each bookie stores, from the metadata of its ledgers.

A bookie's share of a ledger is an estimate where the ensemble changed or entries are striped: the
metadata name the entries of each bookie, and all entries count as equally large.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ledger.errors import NoSuchLedger
from ledger.ids import BookieId, LedgerId
from ledger.streams.segment_store import ledgers_of
from ledger.streams.stream import StreamServices

_KNOWN_MAX = 100_000
_REMEMBER_S = 60.0

Shares = Mapping[BookieId, int]


class StoredBytes:
    """The bytes of partitions by bookie. Closed ledgers are remembered for a while.

    A repair may move copies of them meanwhile, so the memory is emptied after `_REMEMBER_S`, and at
    `_KNOWN_MAX` ledgers.
    """

    def __init__(self, services: StreamServices) -> None:
        self._services = services
        # The shares of closed ledgers.
        self._known: dict[LedgerId, Shares] = {}
        # When `_known` was last empty, on the monotonic clock.
        self._emptied_s = services.clock.monotonic_s()

    async def of(self, stream: str) -> Shares:
        """Return the bytes of a stream by bookie. Raises LedgerError.

        Of a segment in progress, only what this process wrote is known.
        """
        now_s = self._services.clock.monotonic_s()
        if len(self._known) >= _KNOWN_MAX or now_s - self._emptied_s > _REMEMBER_S:
            self._known.clear()
            self._emptied_s = now_s
        total: Counter[BookieId] = Counter()
        for ledger in await ledgers_of(self._services.metadata, stream):
            shares = self._known.get(ledger)
            total.update(await self._shares(ledger) if shares is None else shares)
        return total

    async def _shares(self, ledger: LedgerId) -> Shares:
        client = self._services.client
        try:
            metadata = await client.read_metadata(ledger)
        except NoSuchLedger:
            return {}  # the segment was deleted meanwhile
        part = metadata.write_quorum / metadata.ensemble_size
        last = metadata.last_entry
        if last is None:
            written = round(client.written_bytes(ledger) * part)
            return dict.fromkeys(metadata.last_fragment.ensemble, written)
        entries: Counter[BookieId] = Counter()
        ends = [min(fragment.first, last + 1) for fragment in metadata.fragments[1:]]
        for fragment, end in zip(metadata.fragments, [*ends, last + 1], strict=True):
            entries.update(dict.fromkeys(fragment.ensemble, max(end - fragment.first, 0)))
        per_entry = metadata.length * part / (last + 1) if last >= 0 else 0.0
        shares = {bookie: round(count * per_entry) for bookie, count in entries.items()}
        self._known[ledger] = shares
        return shares
