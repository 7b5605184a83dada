"""Groups of many members beside Apache Kafka 4.3, one after the other: a line of JSON for each row.

    make bench-groups
    python -m tests.bench.groups --members 100 --runs 1 --rows classic

One client in this process is all members, for both sides: `group_members`. The rows:
- `consumer`, `classic`: a group of the protocol. Heartbeats a second, and the CPU of the broker for
  one; seconds until the group is stable after all members joined at once, and after one more
  joined, left, or died; bytes of records that were written then.
- `assignor-uniform`, `assignor-range`: milliseconds of the assignors alone, for a new group and for
  one with a member more: the first time in a process, and once Java has compiled Kafka's.

Times must be at most twice Kafka's: `within` says so. With `--write`, the page of the figures is
written too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import shutil
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from ledger.core.journal_format import BLOCK_BYTES, GROUP_HEADER_BYTES, decode_group_header
from tests.bench.group_members import CLASSIC_SESSION_S, PROTOCOLS, TOPIC, ClassicGroup, Group
from tests.bench.scale_wire import Wire
from tests.bench.sides import create_topic
from tests.compat.assignors import __main__ as kafkas
from tests.compat.assignors import cases
from tests.peers.broker import Broker
from tests.peers.gateway import Gateway
from tests.peers.install import CACHE
from tests.peers.kafka import ONE_NODE, ApacheKafka

SIDES = ("kafka", "gateway")
PAGE = Path(__file__).parents[2] / "docs" / "benchmarks-groups.md"
MEMBERS, PARTITIONS = 1_000, 1_000
HEARTBEATS = 40_000
RATIO_MAX = 2.0
COORDINATOR_S_MAX, AGAIN_S = 150.0, 0.1
KAFKA_TIMES, OUR_TIMES = 300, 50  # repetitions of an assignor, which Java compiles meanwhile
ROUNDS = 9  # of both sides in turn: the speed of a core may change from second to second


class Size(NamedTuple):
    """A group of the bench."""

    members: int
    partitions: int
    classic_session_s: float


Row = dict[str, Any]
Sides = dict[str, dict[str, float]]
"""The figures of each side, by name."""


def new_side(side: str, data: Path) -> Broker:
    """Return a broker, not started, without fsync."""
    if side == "kafka":
        return ApacheKafka(data, ONE_NODE, heap="1g")
    return Gateway(data, ["--journal-sync", "never", "--group-initial-rebalance-delay", "0s"])


def written_bytes(broker: Broker) -> int:
    """Return the bytes that were written for groups so far."""
    if isinstance(broker, ApacheKafka):
        logs = (broker.data / "logs").glob("__consumer_offsets-*/*.log")
        return sum(each.stat().st_size for each in logs)
    logs = sorted((broker.data / "bookie-1").glob("log-*"))
    return sum(map(_payload_bytes, logs))


def _payload_bytes(log: Path) -> int:
    """Return the bytes of the records in a log file, without what fills its blocks."""
    total, at, file_id = 0, BLOCK_BYTES, int(log.name.removeprefix("log-"), 16)
    with log.open("rb") as file:
        while True:
            file.seek(at)
            header = decode_group_header(file.read(GROUP_HEADER_BYTES), file_id, at)
            if header is None:
                return total
            total += header.length
            at = header.end


async def topic_id(broker: Broker) -> uuid.UUID:
    async with Wire(broker.bootstrap) as wire:
        (topic,) = (await wire.metadata([TOPIC])).topics
        return topic.topic_id


async def coordinated(broker: Broker, group: str) -> None:
    """Wait until the coordinator of a group answers. Kafka creates its topic of offsets first."""
    async with Wire(broker.bootstrap) as wire, asyncio.timeout(COORDINATOR_S_MAX):
        while group not in await wire.coordinators([group]):
            await asyncio.sleep(AGAIN_S)
        while (await wire.committed(group))[0] in (14, 15, 16):
            await asyncio.sleep(AGAIN_S)


class Measured:
    """The figures of one group on one side."""

    def __init__(self, broker: Broker, group: Group) -> None:
        self._broker, self._group = broker, group
        self.figures: dict[str, float] = {}

    async def change(self, name: str, work: Callable[[], Awaitable[float | None]]) -> None:
        """Measure the seconds until the group is stable, and the bytes that were written."""
        before = written_bytes(self._broker)
        begun_s = time.monotonic()
        session_over_s = await work()
        await self._group.settle()
        now_s = time.monotonic()
        self.figures[f"{name}_s"] = now_s - begun_s
        if session_over_s is not None:
            self.figures[f"{name}_past_session"] = now_s - session_over_s
        await asyncio.sleep(0.2)  # Kafka appends the last records while it answers
        self.figures[f"{name}_bytes"] = written_bytes(self._broker) - before

    async def heartbeats(self) -> None:
        rounds = max(1, HEARTBEATS // len(self._group.members))
        await self._group.heartbeats(rounds // 2)  # Java compiles meanwhile
        cpu_s, begun_s = self._broker.usage().cpu_s, time.monotonic()
        count = await self._group.heartbeats(rounds)
        self.figures["heartbeats_per_s"] = count / (time.monotonic() - begun_s)
        self.figures["heartbeat_cpu_us"] = 1e6 * (self._broker.usage().cpu_s - cpu_s) / count


async def grouped(broker: Broker, protocol: str, size: Size) -> dict[str, float]:
    """Return the figures of a group of this protocol."""
    await coordinated(broker, protocol)
    topic = await topic_id(broker)
    made = PROTOCOLS[protocol](broker.bootstrap, protocol, size.partitions, topic)
    if isinstance(made, ClassicGroup):
        made.session_s = size.classic_session_s
    async with made as group:
        measured = Measured(broker, group)
        await measured.change("all_joined", lambda: group.join(size.members - 1))
        await measured.heartbeats()
        await measured.change("one_joined", lambda: group.join(1))
        await measured.change("one_left", group.leave)
        await measured.change("one_died", group.die)
        return measured.figures


def _assignor(name: str, size: Size) -> Sides:
    """Return the milliseconds of Kafka's assignor and of ours, for the same groups."""
    topics = [[1 << 40, 7, size.partitions]]
    base: list[dict[str, Any]] = [
        {"name": str(uuid.uuid4()), "instance": None, "topics": [0], "before": {}}
        for _ in range(size.members - 1)
    ]
    case = {"assignor": name, "alike": True, "topics": topics, "members": base}
    found: Sides = {side: {} for side in SIDES}
    _take_times(found, "new", case)
    more = [{**each, "before": target} for each, target in zip(base, cases.ours(case), strict=True)]
    more.append({"name": str(uuid.uuid4()), "instance": None, "topics": [0], "before": {}})
    _take_times(found, "one_more", {**case, "members": more})
    return found


def _take_times(found: Sides, kind: str, case: dict[str, Any]) -> None:
    """Add the milliseconds of both sides for one group: the first ones, and the median round."""
    rounds = [
        (kafkas.milliseconds(case, KAFKA_TIMES), cases.milliseconds(case, OUR_TIMES))
        for _ in range(ROUNDS)
    ]
    for side, times in zip(SIDES, zip(*rounds, strict=True), strict=True):
        medians_ms = [median_ms for _, median_ms in times]
        found[side] |= {
            f"{kind}_first_ms": times[0][0],
            f"{kind}_ms": statistics.median(medians_ms),
        }


def measured(scratch: Path, row: str, size: Size) -> Sides:
    """Return the figures of both sides of one run of a row."""
    if row.startswith("assignor-"):
        return _assignor(row.removeprefix("assignor-"), size)
    found: Sides = {}
    for side in SIDES:
        with new_side(side, scratch / side) as broker:
            create_topic(broker, TOPIC, size.partitions)
            found[side] = asyncio.run(grouped(broker, row, size))
        shutil.rmtree(scratch / side, ignore_errors=True)
        print(json.dumps({side: found[side]}), file=sys.stderr, flush=True)
    return found


def worst(row: str, runs: list[Sides]) -> Row:
    """Return the figures and the ratios of the runs: the worst of each."""
    figures: Sides = {side: {} for side in SIDES}
    ratios: dict[str, float] = {}
    for name in runs[0]["gateway"]:
        most = name != "heartbeats_per_s"
        pick = max if most else min
        for side in SIDES:
            figures[side][name] = round(pick(each[side][name] for each in runs), 3)
        of = [each["gateway"][name] / max(each["kafka"][name], 1e-9) for each in runs]
        ratios[name] = round(pick(of), 3)
    late = sorted(each for each in ratios if _is_late(each, ratios[each]))
    return {"figures": figures, "ratios": ratios, "late": late, "within": not late}


def _is_late(name: str, ratio: float) -> bool:
    if name == "heartbeats_per_s":
        return ratio < 1 / RATIO_MAX
    return name.endswith(("_s", "_ms")) and ratio > RATIO_MAX


_NAMES = {
    "heartbeats_per_s": "heartbeats a second",
    "heartbeat_cpu_us": "CPU of the broker for a heartbeat, µs",
    "all_joined_s": "all members but one join at once, s until stable",
    "one_joined_s": "one more joins, s until stable",
    "one_left_s": "one leaves, s until stable",
    "one_died_s": "one dies, s from its last heartbeat until stable",
    "one_died_past_session": "the same, s from the end of its session",
    "all_joined_bytes": "bytes written when all join",
    "one_joined_bytes": "bytes written when one more joins",
    "one_left_bytes": "bytes written when one leaves",
    "one_died_bytes": "bytes written when one dies",
    "new_first_ms": "a new group, ms, the first time in a process",
    "new_ms": "a new group, ms, once Java has compiled",
    "one_more_first_ms": "one member more, ms, the first time in a process",
    "one_more_ms": "one member more, ms, once Java has compiled",
}


def page(rows: dict[str, Row], members: int, partitions: int, runs: int) -> str:
    """Return the page of the figures."""
    where = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    lines = [
        "# Benchmarks of groups",
        "",
        f"`make bench-groups`: groups of {members:,} members and {partitions:,} partitions of one "
        "topic, beside Apache Kafka 4.3 on the same machine, one after the",
        "other, neither with fsync. One client in one process is all members, for both sides, and "
        "shares the two cores with the broker. No member",
        "pauses: after a change all of them send a heartbeat at once, and again until the group is "
        "stable. Both sides make a target assignment of the",
        "consumer protocol at most once a second (`consumer.assignment.interval.ms`), which is "
        "part of its times. So Java compiles its assignor after",
        "minutes of changes.",
        "",
        f"The worst of {runs} run{'s' if runs > 1 else ''}, written on {date.today()}, {where}. "
        "The goal is a ratio of at most 2 for times, and of at least 0.5 for heartbeats",
        "a second.",
        "",
    ]
    for name, row in rows.items():
        lines += [f"## {name}", "", "| figure | Kafka | gateway | ratio |", "|---|---|---|---|"]
        for figure, ratio in row["ratios"].items():
            sides = " | ".join(f"{row['figures'][side][figure]:,.10g}" for side in SIDES)
            late = " (above the goal)" if figure in row["late"] else ""
            lines.append(f"| {_NAMES[figure]} | {sides} | {ratio:g}{late} |")
        lines.append("")
    return "\n".join(lines)


ROWS = ("consumer", "classic", "assignor-uniform", "assignor-range")


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Groups beside Apache Kafka 4.3.")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--members", type=int, default=MEMBERS)
    parser.add_argument("--partitions", type=int, default=PARTITIONS)
    parser.add_argument("--classic-session", type=float, default=CLASSIC_SESSION_S, metavar="S")
    parser.add_argument("--rows", default=",".join(ROWS), help="names, with commas between them")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks-groups.md too")
    asked = parser.parse_args(words)
    size = Size(asked.members, asked.partitions, asked.classic_session)
    rows: dict[str, Row] = {}
    for name in asked.rows.split(","):
        runs: list[Sides] = []
        for _ in range(asked.runs):
            with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
                runs.append(measured(Path(scratch), name, size))
        rows[name] = worst(name, runs)
        about = {"bench": "groups", "row": name, "members": asked.members, "runs": asked.runs}
        print(json.dumps({**about, **rows[name]}), flush=True)
    if asked.write:
        PAGE.write_text(page(rows, asked.members, asked.partitions, asked.runs))
    return 0 if all(row["within"] for row in rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
