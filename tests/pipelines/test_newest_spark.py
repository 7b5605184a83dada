"""Goal: format("ledger") uses what later versions of PySpark offer, and returns the same rows.

Method: one run on the newest PySpark, in its own environment, beside a gateway. The other tests run
on the oldest PySpark.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.compat.clients.base import ProducerOptions
from tests.compat.clients.with_aiokafka import Aiokafka
from tests.house import ROOT
from tests.peers.gateway import Gateway
from tests.peers.install import newest_spark_python
from tests.pipelines.direct_rig import records

pytestmark = [pytest.mark.spark, pytest.mark.proof]

RUN_S_MAX = 280
COUNT = 50  # records of each of two partitions


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    work = tmp_path_factory.mktemp("newest")
    with Gateway(work / "gateway", ("--journal-sync", "never")) as gateway:
        loader = Aiokafka(gateway.bootstrap)
        loader.create_topic("t", 2)
        for partition in range(2):
            producer = loader.producer(ProducerOptions())
            producer.send("t", records(0, COUNT), partition)
            producer.wait()
            producer.close()
        loader.close()
        return run(gateway.ledgers, gateway.bootstrap, "t", str(work / "spark"))


def run(*words: str) -> dict[str, Any]:
    Path(words[-1]).mkdir()
    argv = [newest_spark_python(), "-m", "tests.pipelines.newest_spark", *words]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=RUN_S_MAX)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_the_rows_are_those_of_the_kafka_source(found: dict[str, Any]) -> None:
    assert found["version"] >= "4.2"
    assert found["differences"] == 0


def test_filters_leave_out_tasks(found: dict[str, Any]) -> None:
    assert (found["tasks"], found["filtered_tasks"]) == (2, 1)
    assert found["filtered"] == [40, 41, 42, 43, 44]


def test_available_now_reads_all_in_limited_triggers(found: dict[str, Any]) -> None:
    assert sum(found["available_now"]) == 2 * COUNT
    assert len(found["available_now"]) >= 4
    assert max(found["available_now"]) <= 32  # the limit, and at least one of each partition
    assert found["available_now_again"] == []


def test_once_reads_all_whatever_the_limit_is(found: dict[str, Any]) -> None:
    assert found["once"] == [2 * COUNT]
