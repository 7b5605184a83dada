"""The load of transactions that is judged, also at Apache Kafka as the oracle.

    python -m tests.histories.transactional [--kills 1] [--write]

librdkafka and aiokafka write transactions that also read each other's records. librdkafka copies
all of them twice, as two groups, with the offsets in the same transactions. A quarter of all
transactions is aborted. `--write` puts the history where `test_transactional.py` reads it.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.histories import with_aiokafka_transactions as by_aiokafka
from tests.histories import with_confluent_transactions as by_librdkafka
from tests.histories.checker import bad
from tests.histories.history import OK, key_of, save
from tests.histories.recorder import Recorder
from tests.histories.report import table
from tests.histories.transactions import COMMIT, check_transactions
from tests.histories.with_confluent import read
from tests.histories.workload import make_topic
from tests.peers.broker import Broker
from tests.peers.kafka import ApacheKafka
from tests.peers.processes import TookTooLong, wait_until

FILE = Path(__file__).parent / "apache_kafka_transactions.jsonl.gz"
PARTITIONS = 3
GROUPS = ("copies-1", "copies-2")
IDS = ("l-mix", "a-mix", "l-copy-1", "l-copy-2")
PROGRESS_S_MAX = 90.0
THREADS_MAX = 16


class Load:
    """All clients on one broker, from `start` to `end`."""

    def __init__(self, recorder: Recorder, bootstrap: str) -> None:
        self._recorder = recorder
        self._bootstrap = bootstrap
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(THREADS_MAX, "client")
        self._clients: list[Future[Any]] = []
        self._mixed = make_topic(bootstrap, "mixed", PARTITIONS, 1)
        make_topic(bootstrap, "copied", len(GROUPS), 1)
        self._copied = [key_of("copied", number) for number in range(len(GROUPS))]

    def start(self) -> None:
        both = (self._recorder, self._bootstrap, self._mixed)
        self._begin(by_librdkafka.mix, *both, IDS[0], self._stop)
        self._begin(asyncio.run, by_aiokafka.mix(*both, IDS[1], self._stop))
        for target, group, name in zip(self._copied, GROUPS, IDS[2:], strict=True):
            self._begin(by_librdkafka.copy, *both, target, group, name, self._stop)
        self._begin(read, *both, "l-reader", self._stop)
        self._begin(by_librdkafka.fetch, *both, GROUPS, self._stop)

    def _begin(self, client: Callable[..., Any], *words: Any) -> None:
        self._clients.append(self._pool.submit(client, *words))

    def wait_for(self, more: int) -> None:
        """Wait until each id has committed that many further transactions."""
        before = committed(self._recorder)

        def enough() -> bool:
            for client in self._clients:
                if client.done():
                    client.result()
            now = committed(self._recorder)
            return all(now[name] >= before[name] + more for name in IDS)

        try:
            wait_until(enough, f"{more} transactions of each id", PROGRESS_S_MAX, pause_s=0.05)
        except TookTooLong as late:
            since = {
                name: count - before[name] for name, count in committed(self._recorder).items()
            }
            errors = dict(self._recorder.errors.most_common(10))
            raise TookTooLong(f"{late}; committed since: {since}; errors: {errors}") from None

    def end(self) -> None:
        """Let every transaction end; then read everything."""
        self.stop()
        for client in self._clients:
            client.result(PROGRESS_S_MAX)
        for name in IDS:
            _ = by_librdkafka.new_producer(self._bootstrap, name, threading.Event())
        by_librdkafka.read_all(self._recorder, self._bootstrap, [*self._mixed, *self._copied])
        by_librdkafka.fetch(self._recorder, self._bootstrap, self._mixed, GROUPS, self._stop)

    def stop(self) -> None:
        self._stop.set()


def committed(recorder: Recorder) -> dict[str, int]:
    """Commits that each id knows of."""
    counts = dict.fromkeys(IDS, 0)
    for op in recorder.ops[:]:
        if op.kind == "end" and op.value[1] == COMMIT and op.result == OK:
            counts[op.process] += 1
    return counts


def record(broker: Broker, *, kills: int, each: int) -> Recorder:
    """Return what happened in a run: `each` commits of every id before and after each kill -9."""
    recorder = Recorder()
    load = Load(recorder, broker.bootstrap)
    try:
        load.start()
        load.wait_for(each)
        for _ in range(kills):
            broker.restart(kill=True)
            load.wait_for(each)
        load.end()
    finally:
        load.stop()
    return recorder


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--kills", type=int, default=0)
    flags.add_argument("--each", type=int, default=20)
    flags.add_argument("--write", action="store_true")
    chosen = flags.parse_args()
    with tempfile.TemporaryDirectory() as directory, ApacheKafka(Path(directory) / "k") as broker:
        recorder = record(broker, kills=chosen.kills, each=chosen.each)
    findings = check_transactions(recorder.ops)
    print(table(recorder.ops, findings))
    for error, count in recorder.errors.most_common(10):
        print(f"{count:>5} {error}")
    if chosen.write:
        save(recorder.ops, FILE)
        print(f"{FILE}: {len(recorder.ops)} ops, {FILE.stat().st_size} bytes")
    return 1 if bad(findings) else 0


if __name__ == "__main__":
    sys.exit(main())
