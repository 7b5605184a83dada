"""The recorded assignments of Apache Kafka's assignors, and the same groups for ours."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import zstandard

from gateway.core.consumer_assignors import ASSIGNORS, AssignmentSpec, MemberSpec, result_of

RECORDED = Path(__file__).with_name("recorded.jsonl.zst")


class save:
    """Reads and writes cases, one JSON object a line."""

    @staticmethod
    def decode(line: str) -> list[dict[str, list[int]]]:
        return json.loads(line)

    @staticmethod
    def write(path: Path, cases: Iterable[dict[str, Any]]) -> int:
        lines = [json.dumps(each, separators=(",", ":")) for each in cases]
        path.write_bytes(zstandard.compress("\n".join(lines).encode(), 19))
        return len(lines)

    @staticmethod
    def read(path: Path = RECORDED) -> Iterator[dict[str, Any]]:
        return map(json.loads, zstandard.decompress(path.read_bytes()).decode().split("\n"))


def is_homogeneous(subscriptions: Sequence[Sequence[int]]) -> bool:
    return all(each == subscriptions[0] for each in subscriptions)


def milliseconds(case: dict[str, Any], times: int) -> tuple[float, float]:
    """Return the times of our assignor for a group: of the first time, and the median."""
    spec, _ = _spec(case)
    took_s: list[float] = []
    for _ in range(times):
        begun_s = time.perf_counter()
        result_of(ASSIGNORS[case["assignor"]](spec))
        took_s.append(time.perf_counter() - begun_s)
    return took_s[0] * 1e3, statistics.median(took_s) * 1e3


def ours(case: dict[str, Any]) -> list[dict[str, list[int]]]:
    """Return our assignment of a recorded group, as the recording has Kafka's."""
    spec, ids = _spec(case)
    found = result_of(ASSIGNORS[case["assignor"]](spec))
    numbers = {topic: str(number) for number, topic in enumerate(ids)}
    return [
        {numbers[topic]: sorted(some) for topic, some in found[each["name"]].items()}
        for each in case["members"]
    ]


def _spec(case: dict[str, Any]) -> tuple[AssignmentSpec, list[UUID]]:
    """Return a recorded group as our assignors take it, and the ids of its topics."""
    ids = [UUID(int=(high % 2**64) << 64 | low % 2**64) for high, low, _ in case["topics"]]
    counts = {topic: row[2] for topic, row in zip(ids, case["topics"], strict=True)}
    members = {
        each["name"]: MemberSpec(
            frozenset(ids[number] for number in each["topics"]),
            {ids[int(key)]: frozenset(some) for key, some in each["before"].items()},
            each["instance"],
        )
        for each in case["members"]
    }
    return AssignmentSpec(members, counts, case["alike"]), ids


def moves(case: dict[str, Any], after: list[dict[str, list[int]]]) -> int:
    """Return how many partitions a member has to give to another one."""
    return sum(
        len(set(some) - set(target.get(key, ())))
        for member, target in zip(case["members"], after, strict=True)
        for key, some in member["before"].items()
        if int(key) in member["topics"]
    )
