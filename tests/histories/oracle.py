"""Records what Apache Kafka does under the same load, with a kill -9 in the middle.

    python -m tests.histories.oracle [--seconds 6] [--write]

`--write` puts it where `test_oracle.py` reads it. Needs Java 17.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from pathlib import Path

from tests.histories.background import Background
from tests.histories.checker import bad, check
from tests.histories.history import save
from tests.histories.recorder import Recorder
from tests.histories.report import table
from tests.histories.workload import Workload, make_topic
from tests.peers.broker import Broker
from tests.peers.kafka import ApacheKafka

FILE = Path(__file__).parent / "apache_kafka.jsonl.gz"
PARTITIONS = 3


def record(broker: Broker, seconds: float, pace: float) -> Recorder:
    """What happened in a run on one broker, killed and started again halfway."""
    recorder = Recorder()
    keys = make_topic(broker.bootstrap, "judged", PARTITIONS, 1)
    load = Workload(recorder, [("127.0.0.1", broker.port)], keys, pace=pace)
    with Background() as clients:
        try:
            clients.run(load.start())
            threading.Event().wait(seconds / 2)
            broker.restart(kill=True)
            threading.Event().wait(seconds / 2)
            load.fail_if_ended()
            clients.run(load.end())
        finally:
            load.stop()
    return recorder


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--seconds", type=float, default=6.0)
    flags.add_argument("--pace", type=float, default=3.0, help="pauses are that much longer")
    flags.add_argument("--write", action="store_true")
    chosen = flags.parse_args()
    with tempfile.TemporaryDirectory() as directory, ApacheKafka(Path(directory) / "k") as broker:
        recorder = record(broker, chosen.seconds, chosen.pace)
    ops = recorder.ops
    findings = check(ops)
    print(table(ops, findings))
    for error, count in recorder.errors.most_common(10):
        print(f"{count:>5} {error}")
    if chosen.write:
        save(ops, FILE)
        print(f"{FILE}: {len(ops)} ops, {FILE.stat().st_size} bytes")
    return 1 if bad(findings) else 0


if __name__ == "__main__":
    sys.exit(main())
