"""What the web page costs: the time and size of every page, and what it costs producers.

    make bench-page                             writes docs/benchmarks-page.md

    python -m tests.bench.page [--runs 3] [--quick]

One embedded gateway has 100 topics of 3 partitions and 100 groups, another one 10,000 of each. Each
page is requested 200 times in a row on one connection, after the figures of all topics and groups
are known; nothing is cached between a request and its answer. Then a producer sends one record at a
time, while no page is open and while two are requested every second by another process
(`page_produce`). Each figure is the worst of all runs. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from tests.bench.page_browser import Browser
from tests.bench.page_produce import measure_produce, p99
from tests.bench.scale_cluster import Bar, spread
from tests.bench.scale_wire import CREATE_TOPICS, OFFSET_COMMIT, Wire
from tests.house import ROOT
from tests.peers.gateway import Gateway
from tests.peers.install import CACHE
from tests.peers.processes import wait_until

PAGE = ROOT / "docs" / "benchmarks-page.md"
PARTITIONS = 3
TOPICS_AT_ONCE, AT_ONCE, FILL_S_MAX = 50, 16, 3_600.0
KNOWN_S_MAX = 600.0
RATIO_MAX, P99_MS_MAX, PRODUCE_RATIO_MAX, BYTES_MAX = 2.0, 200.0, 1.1, 60 * 1024
_EXISTS = 36


class Size(NamedTuple):
    """How much a run measures."""

    small: int
    large: int
    requests: int
    rounds: int  # of a producer, without and with open pages
    seconds: float  # of each


FULL = Size(100, 10_000, 200, 3, 15.0)
QUICK = Size(20, 200, 50, 1, 5.0)


def topic_name(number: int) -> str:
    return f"topic-{number:05d}"


def group_name(number: int) -> str:
    return f"group-{number:05d}"


def pages() -> dict[str, str]:
    """The path of each page, by name."""
    return {
        "overview": "/",
        "topics": "/topics?sort=rate",
        "topics, searched": "/topics?search=9",
        "topic": f"/topics/{topic_name(7)}",
        "groups": "/groups?sort=lag",
        "group": f"/groups/{group_name(7)}",
        "cluster": "/cluster",
        "events": "/events",
        "spark": "/spark",
    }


# -- a gateway full of topics and groups --------------------------------------------------------


async def fill(bootstrap: str, count: int) -> None:
    """Create topics and groups with an offset each."""
    until_s = time.monotonic() + FILL_S_MAX
    async with Wire(bootstrap) as wire:

        async def create(first: int, _: int) -> None:
            topics = tuple(
                {
                    "name": topic_name(number),
                    "num_partitions": PARTITIONS,
                    "replication_factor": 1,
                    "assignments": (),
                    "configs": (),
                }
                for number in range(first, min(count, first + TOPICS_AT_ONCE))
            )
            asked = {"topics": topics, "timeout_ms": 60_000, "validate_only": False}
            answer = await wire.ask(CREATE_TOPICS, asked)
            codes = {each.error_code.value for each in answer.topics}
            assert codes <= {0, _EXISTS}, f"topics from {first}: errors {codes}"

        async def commit(number: int, _: int) -> None:
            position = {
                "partition_index": 0,
                "committed_offset": 0,
                "committed_leader_epoch": -1,
                "committed_metadata": "",
            }
            asked = {
                "group_id": group_name(number),
                "generation_id_or_member_epoch": -1,
                "member_id": "",
                "group_instance_id": None,
                "topics": ({"name": topic_name(number), "partitions": (position,)},),
            }
            while True:
                answer = await wire.ask(OFFSET_COMMIT, asked)
                if answer.topics[0].partitions[0].error_code.value == 0:
                    return
                assert time.monotonic() < until_s
                await asyncio.sleep(0.05)

        firsts = range(0, count, TOPICS_AT_ONCE)
        bar = Bar(f"{count:,} topics", len(firsts))
        await spread(firsts, create, bar, at_once=2, until_s=until_s)
        bar = Bar(f"{count:,} groups", count)
        await spread(range(count), commit, bar, at_once=AT_ONCE, until_s=until_s)


@contextmanager
def filled(directory: Path, count: int):
    """A gateway with its page, whose figures of all topics and groups are listed."""
    with Gateway(directory, ["--http-port", "0"]) as gateway:
        asyncio.run(fill(gateway.bootstrap, count))
        site = Browser(page_address(gateway))
        wait_until(
            lambda: min(site.total("/topics"), site.total("/groups")) >= count,
            "the page to list all topics and groups",
            KNOWN_S_MAX,
        )
        yield gateway, site
        site.close()


def page_address(gateway: Gateway) -> str:
    """Return host and port of the page of a gateway."""
    address = re.search(r"page: http://([^/\s]+)/", gateway.process.output())
    assert address is not None, "the gateway serves no page"
    return address[1]


# -- runs ---------------------------------------------------------------------------------------


def measure(scratch: Path, size: Size) -> dict[str, Any]:
    """One run: the times of every page in both clusters, sizes, and a producer."""
    times: dict[str, dict[str, float]] = {name: {} for name in pages()}
    sizes: dict[str, int] = {}
    produce: dict[str, float] = {}
    for key, count in (("small_ms", size.small), ("large_ms", size.large)):
        with filled(scratch / key, count) as (gateway, site):
            for name, path in pages().items():
                site.get(path)
                times[name][key] = p99(site.times_ms(path, size.requests))
                sizes[name] = max(sizes.get(name, 0), site.gzipped_bytes(path))
            if key == "small_ms":
                produce = measure_produce(
                    gateway,
                    site.address,
                    topic_name(1),
                    scratch,
                    rounds=size.rounds,
                    seconds=size.seconds,
                )
    for row in times.values():
        row["ratio"] = row["large_ms"] / row["small_ms"]
    return {"pages": times, "gzipped_bytes": sizes, "produce": produce}


def worst(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The largest of each figure."""
    first = runs[0]
    found: dict[str, Any] = {}
    for key, value in first.items():
        if isinstance(value, dict):
            found[key] = worst([run[key] for run in runs])
        else:
            found[key] = round(max(run[key] for run in runs), 3)
    return found


def document(found: dict[str, Any], size: Size, runs: int) -> str:
    """The page about these figures."""
    lines = [
        "# Benchmarks of the web page",
        "",
        f"`make bench-page`: one embedded gateway with {size.small:,} topics of {PARTITIONS} "
        f"partitions and {size.small:,} groups, and one with {size.large:,} of each. p99 of "
        f"{size.requests} requests in a row, which nothing caches, each the worst of {runs} runs. "
        f"Written on {datetime.now(UTC):%Y-%m-%d}, Linux {platform.release()}, Python "
        f"{platform.python_version()}.",
        "",
        f"The goals: a ratio of at most {RATIO_MAX:g}, less than {P99_MS_MAX:g} ms, and at most "
        f"{BYTES_MAX // 1024} KiB gzipped with all that a page loads.",
        "",
        f"| page | p99, {size.small:,} | p99, {size.large:,} | ratio | gzipped |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {name} | {row['small_ms']:.1f} ms | {row['large_ms']:.1f} ms | {row['ratio']:.2f} | "
        f"{found['gzipped_bytes'][name] / 1024:.1f} KiB |"
        for name, row in found["pages"].items()
    ]
    produce = found["produce"]
    lines += [
        "",
        f"A producer that sends one record at a time has a p99 of {produce['closed_ms']:.2f} ms "
        f"while no page is open, and of {produce['open_ms']:.2f} ms while two are requested each "
        f"second by another process: a ratio of {produce['ratio']:.2f}; the goal is "
        f"{PRODUCE_RATIO_MAX:g}. The phases alternate: {size.rounds} of {size.seconds:g} s each. "
        f"The gateway uses {produce['closed_cpu_ms_per_s']:.0f} and "
        f"{produce['open_cpu_ms_per_s']:.0f} ms of a processor per second.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--runs", type=int, default=3)
    words.add_argument("--quick", action="store_true", help="one small run, which writes nothing")
    asked = words.parse_args()
    size, runs = (QUICK, 1) if asked.quick else (FULL, asked.runs)
    CACHE.mkdir(exist_ok=True)
    found: list[dict[str, Any]] = []
    for _ in range(runs):
        scratch = Path(tempfile.mkdtemp(prefix="bench-page-", dir=CACHE))
        try:
            found.append(measure(scratch, size))
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    result = worst(found)
    text = document(result, size, runs)
    print(text)
    if not asked.quick:
        PAGE.write_text(text)
    print(json.dumps({"bench": "page", "runs": runs, **size._asdict(), **result}))


if __name__ == "__main__":
    main()
