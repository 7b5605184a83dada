"""Goal: what a bookie may have lost is never taken for the end of a log, and has a way out.

Method: the real process without syncs, killed; its mark of unsynced writes is made that of another
boot, as after a power cut. Then the partition is offline until its owner accepts the loss.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.command_output import check_output
from tests.crash.load import read_all
from tests.peers import install
from tests.peers.gateway import Gateway

UNSYNCED = ("--journal-sync", "never")
RECORDS = 100


def produce(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "log_level": 0})
    for number in range(RECORDS):
        producer.produce("log", b"%d" % number, partition=0)
    assert producer.flush(30.0) == 0


def command(gateway: Gateway, word: str, *more: str) -> str:
    """What a command about the topic printed."""
    argv = [install.gateway_python(), "-m", "gateway", "topic", word, "log", *more]
    done = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60)
    check_output(argv[3:], done.stdout)
    return done.stdout


def gaps(gateway: Gateway) -> list[dict[str, Any]]:
    """The gaps of the topic, without any that nobody accepted."""
    return json.loads(command(gateway, "gaps", "-z", gateway.ledgers, "-o", "json"))


@pytest.mark.proof
def test_a_lost_boot_keeps_its_partitions_offline_until_the_loss_is_accepted(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    gateway = Gateway(data, UNSYNCED).start()
    produce(gateway.bootstrap)
    gateway.kill()
    (data / "bookie-1" / "UNSYNCED").write_bytes(b"another boot of this machine")

    with Gateway(data, UNSYNCED) as offline:
        consumer = Consumer({"bootstrap.servers": offline.bootstrap, "group.id": "g"})
        try:
            consumer.get_watermark_offsets(TopicPartition("log", 0), timeout=3.0, cached=False)
        except Exception as error:
            told = str(error)
        else:
            told = "an end of the log"
        finally:
            consumer.close()
        assert told != "an end of the log"
        assert "may have lost entries" in offline.process.output()
        hint = "`gateway topic gaps log` shows lost records"
        assert hint in command(offline, "describe", "-b", offline.bootstrap)
        offline.options.append("--accept-loss")
        offline.restart()
        found = read_all(offline.bootstrap, "log", 1)
        written = [b"%d" % n for n in range(RECORDS)]
        assert found[0] == list(enumerate(written))
        [gap] = gaps(offline)
        assert (gap["state"], gap["offsets"][0]) == ("accepted", RECORDS)
        assert gap["accepted_by"] == "gateway dev --accept-loss"
        produce(offline.bootstrap)
        following = enumerate(written, gap["offsets"][1] + 1)
        assert read_all(offline.bootstrap, "log", 1)[0] == [*enumerate(written), *following]
