"""Goal: the recipe for Delta Lake keeps each record once, whenever it dies.

Method: the program of docs/spark.md runs as written except for port and directory. It is killed
at a step of a batch and started again, with its checkpoint or without. `delta_log` reads the
tables. Planted mistakes must be found by the same check.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.peers.gateway import Gateway
from tests.peers.recipes import RecipeRun, documented, shown
from tests.pipelines.delta_log import read_rows, transactions

pytestmark = [pytest.mark.spark, pytest.mark.proof, pytest.mark.timeout(3600)]

KIND = "python with Delta"
FLIGHTS = 1000
UPDATES = 600
BATCH_ROWS = 400  # maxOffsetsPerTrigger


class Rig:
    """A topic with two partitions, and runs of one program over it."""

    def __init__(self, gateway: Gateway, work: Path, change: Callable[[str], str]) -> None:
        self._gateway, self._work, self._runs = gateway, work, 0
        text = documented(KIND).replace("127.0.0.1:9092", gateway.bootstrap)
        self._program = change(text.replace('"data/delta"', repr(str(work / "delta"))))
        self.produced: list[dict[str, Any]] = []
        admin = AdminClient({"bootstrap.servers": gateway.bootstrap})
        admin.create_topics([NewTopic("flights", 2)])["flights"].result(60)

    def produce(self, numbers: range, round_number: int = 0) -> None:
        """Produce one record for each flight, in the partition of the flight."""
        producer = Producer({"bootstrap.servers": self._gateway.bootstrap})
        ends = Counter(each["partition"] for each in self.produced)
        for number in numbers:
            partition = number % 2
            value = {"flight": number, "hour": number % 24, "miles": number * 3 + round_number}
            producer.produce("flights", json.dumps(value), partition=partition)
            self.produced.append({**value, "partition": partition, "offset": ends[partition]})
            ends[partition] += 1
        assert producer.flush(60) == 0

    def produce_without_flight(self) -> None:
        """Produce a tombstone, an empty value and an object without a flight."""
        producer = Producer({"bootstrap.servers": self._gateway.bootstrap})
        end = sum(each["partition"] == 0 for each in self.produced)
        for offset, value in enumerate((None, b"", b'{"miles": 3}'), end):
            producer.produce("flights", value, partition=0)
            miles = 3 if value else None
            row = {"flight": None, "hour": None, "miles": miles, "partition": 0, "offset": offset}
            self.produced.append(row)
        assert producer.flush(60) == 0

    def _started(self, stop: dict[str, Any]) -> RecipeRun:
        self._runs += 1
        return RecipeRun(self._work / f"run-{self._runs}", {KIND: self._program}, stop)

    def kill_at(self, step: str, batch: int) -> None:
        """Run until the step of the batch, and kill the whole process there."""
        with self._started({"step": step, "batch": batch}) as run:
            run.wait_stopped()

    def run(self) -> str:
        """Run to the end. Return what it printed."""
        with self._started({}) as run:
            result = run.results()[KIND]
        assert not result["error"], result["error"]
        return result["printed"]

    def lose_checkpoint(self) -> None:
        shutil.rmtree(self._work / "delta" / "checkpoint")

    def problems(self) -> list[str]:
        """Compare both tables with what was produced. Returns the kinds of differences."""
        history = read_rows(self._work / "delta" / "history")
        found = Counter((each["partition"], each["offset"]) for each in history)
        produced = {(each["partition"], each["offset"]): each for each in self.produced}
        newest = {each["flight"]: each for each in self.produced if each["flight"] is not None}
        upserted = read_rows(self._work / "delta" / "miles")
        checks = {
            "missing in history": produced.keys() - found.keys(),
            "doubled in history": [each for each, count in found.items() if count > 1],
            "other values in history": [
                each for each in history if produced[each["partition"], each["offset"]] != each
            ],
            "other rows in miles": [
                each for each in upserted if newest.get(each["flight"]) != each
            ],
            "missing in miles": newest.keys() - {each["flight"] for each in upserted},
            "doubled in miles": range(len({each["flight"] for each in upserted}), len(upserted)),
        }
        return [name for name, wrong in checks.items() if wrong]

    def transactions(self) -> list[tuple[str, int]]:
        return transactions(self._work / "delta" / "history")


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    with Gateway(tmp_path / "gateway", ("--journal-sync", "never")) as started:
        yield started


def test_each_record_is_there_once_after_kills_and_a_lost_checkpoint(
    gateway: Gateway, tmp_path: Path
) -> None:
    rig = Rig(gateway, tmp_path, lambda text: text)
    rig.produce(range(FLIGHTS))
    rig.kill_at("merge", 1)
    rig.kill_at("commit", 1)
    assert rig.run().split() == shown(KIND).split()
    assert rig.problems() == []
    first, *others = rig.transactions()
    assert [first, *others] == [(first[0], number) for number in range(3)]

    rig.produce(range(UPDATES), 1)
    rig.produce_without_flight()
    rig.lose_checkpoint()
    rig.kill_at("commit", 0)
    rig.lose_checkpoint()
    rig.run()
    assert rig.problems() == []
    assert len({app for app, _ in rig.transactions()}) == 3


def test_without_transactions_a_repeated_batch_is_doubled(gateway: Gateway, tmp_path: Path) -> None:
    rig = Rig(gateway, tmp_path, lambda text: text.replace(".options(**once)", ""))
    rig.produce(range(FLIGHTS))
    rig.kill_at("commit", 1)
    rig.run()
    assert rig.problems() == ["doubled in history"]


def test_with_a_fixed_id_a_new_checkpoint_loses_records(gateway: Gateway, tmp_path: Path) -> None:
    rig = Rig(
        gateway, tmp_path, lambda text: text.replace('"txnAppId": query_id', '"txnAppId": "fixed"')
    )
    rig.produce(range(FLIGHTS))
    rig.run()
    assert rig.problems() == []
    rig.produce(range(UPDATES), 1)
    rig.lose_checkpoint()
    rig.run()
    assert rig.problems() == ["missing in history"]
