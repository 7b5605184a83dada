"""What one add costs in the ledger writer and its pipeline, apart from bookies and disks.

Run `python -m tests.bench.ledger_add`. A bookie here only remembers the callback; every round
answers all callbacks of 100 adds, as a group commit does. Best of several rounds, CPU time.
"""

import asyncio
import time

from crc32c import crc32c

from ledger.adapters.system.clock import SystemClock
from ledger.client.client import LedgerClient
from ledger.client.config import LedgerClientConfig
from ledger.ports.bookies import BookieInfo, Status
from tests.sim.metadata import SimMetadata

ROUNDS, ADDS, GROUP = 15, 5_000, 100


class RememberingBookies:
    def __init__(self, count):
        self.ids = tuple(f"b{n}" for n in range(count))
        self.waiting = []

    def available(self):
        return self.ids

    def registered(self):
        return dict.fromkeys(self.ids, BookieInfo())

    def add(self, bookie, ledger, entry, master_key, body, on_added, *, recovery=False):
        self.waiting.append(on_added)


async def measure(quorums, payload):
    e, qw, qa = quorums
    bookies = RememberingBookies(e)
    config = LedgerClientConfig(pending_entries_max=2 * GROUP)
    client = LedgerClient(SimMetadata(), bookies, SystemClock(), config)
    writer = await client.create(ensemble_size=e, write_quorum=qw, ack_quorum=qa)
    confirmed = []
    on_confirmed = confirmed.append
    best_s = float("inf")
    for _ in range(ROUNDS):
        started_s = time.process_time()
        for _ in range(ADDS // GROUP):
            for _ in range(GROUP):
                writer.add(payload, on_confirmed)
            waiting, bookies.waiting = bookies.waiting, []
            for on_added in waiting:
                on_added(Status.OK)
        best_s = min(best_s, time.process_time() - started_s)
    assert len(confirmed) == ROUNDS * ADDS
    return best_s / ADDS * 1e6


def main():
    payload = [b"h" * 30, bytes(1024)]
    started_s = time.process_time()
    for _ in range(ADDS):
        crc32c(payload[1])
    crc_us = (time.process_time() - started_s) / ADDS * 1e6
    for quorums in [(1, 1, 1), (3, 3, 2), (3, 2, 2)]:
        us = asyncio.run(measure(quorums, payload))
        print(f"E/Qw/Qa {quorums}: {us:.2f} us per entry, of it crc of the payload {crc_us:.2f}")


if __name__ == "__main__":
    main()
