"""Draws histories of groups, gives them to Apache Kafka's assignors, and records what they return.

`python -m tests.compat.assignors --seed 1 --histories 120` writes recorded.jsonl.zst, which the
tests of a commit replay without Java. A target of Kafka is the assignment before of its next step.
"""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from tests.compat.assignors.cases import RECORDED, is_homogeneous, save
from tests.peers import install

SOURCE = Path(__file__).with_name("Assignors.java")


class Kafka:
    """A process with Kafka's assignors. With `times` it returns how long they take."""

    def __init__(self, times: int = 0) -> None:
        jars = sorted(install.kafka_jars().glob("*.jar"))
        argv = [install.java(), "-cp", install.compiled(SOURCE, jars), "Assignors"]
        argv += [str(times)] if times else []
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=quiet, text=True
        )

    def assign(self, case: dict[str, Any]) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(_line(case) + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline()

    def close(self) -> None:
        self._process.communicate()


def milliseconds(case: dict[str, Any], times: int) -> tuple[float, float]:
    """Return the times of Kafka's assignor for a group: in a new process, and once compiled."""
    kafka = Kafka(times)
    try:
        first, compiled = kafka.assign(case).split()
    finally:
        kafka.close()
    return int(first) / 1e6, int(compiled) / 1e6


def _line(case: dict[str, Any]) -> str:
    words: list[Any] = [case["assignor"], str(case["alike"]).lower(), len(case["topics"])]
    for high, low, count in case["topics"]:
        words += [high, low, count]
    words.append(len(case["members"]))
    for member in case["members"]:
        words += [member["name"], member["instance"] or "-", len(member["topics"])]
        words += [*member["topics"], len(member["before"])]
        for topic, partitions in member["before"].items():
            words += [topic, len(partitions), *partitions]
    return " ".join(map(str, words))


def histories(kafka: Kafka, draw: Random, count: int) -> Iterator[dict[str, Any]]:
    """Yield each step of each history with Kafka's result."""
    for number in range(count):
        assignor = draw.choice(["range", "uniform", "uniform", "uniform"])
        alike = draw.random() < 0.6
        topics = [
            [draw.getrandbits(64) - 2**63, draw.getrandbits(64) - 2**63, draw.randint(1, 40)]
            for _ in range(draw.randint(1, 6))
        ]
        members: list[dict[str, Any]] = []
        for _ in range(draw.randint(2, 8)):
            _change(draw, number, topics, members, alike=alike)
            case = {
                "assignor": assignor,
                "alike": is_homogeneous([each["topics"] for each in members]),
                "topics": [list(each) for each in topics],
                "members": [dict(each) for each in members],
            }
            found = save.decode(kafka.assign(case))
            yield case | {"after": found}
            for member, target in zip(members, found, strict=True):
                member["before"] = target


def _change(
    draw: Random, number: int, topics: list[Any], members: list[dict[str, Any]], *, alike: bool
) -> None:
    """Let members come and go, topics grow, and subscriptions change."""
    for _ in range(draw.randint(0, 3)):
        if len(members) > 1 and draw.random() < 0.6:
            members.pop(draw.randrange(len(members)))
    every = list(range(len(topics)))
    for _ in range(draw.randint(0 if members else 1, 5)):
        own = every if alike else sorted(draw.sample(every, draw.randint(1, len(every))))
        name = f"{number}-{draw.getrandbits(48):012x}"
        instance = f"i{draw.getrandbits(24)}" if draw.random() < 0.2 else None
        members.append({"name": name, "instance": instance, "topics": own, "before": {}})
    if draw.random() < 0.3:
        draw.choice(topics)[2] += draw.randint(1, 9)
    if not alike and draw.random() < 0.3:
        draw.choice(members)["topics"] = sorted(draw.sample(every, draw.randint(1, len(every))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--histories", type=int, default=120)
    asked = parser.parse_args()
    kafka = Kafka()
    count = save.write(RECORDED, histories(kafka, Random(asked.seed), asked.histories))
    kafka.close()
    print(f"{count} assignments are in {RECORDED}")


if __name__ == "__main__":
    main()
