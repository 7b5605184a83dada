"""Many groups with one position each, on one gateway; then another one takes all of them over.

Once while they are at work, once when they rest.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from tests.bench.scale_cluster import Bar, Cluster, megabytes, seconds, spread
from tests.bench.scale_wire import PROBE_TOPIC, Wire
from tests.peers.gateway import ClusterGateway

STORE = "--log-segment-based-subscriptions-store-enabled"
CONNECTIONS, AT_ONCE = 4, 128
AGAIN_S = 0.02
REST_S_MIN, REST_S_MAX = 65.0, 150.0  # groups that nobody asks for are let go after a minute
REST_LOOK_S = 5.0
OPEN_AT_REST_MAX = 2  # one of the topic's partition, one of who was asked a moment ago
ASKED_MAX = 20_000  # of the largest size: a sample


class Lost(AssertionError):
    """A group's position is not what was committed."""


async def measure(
    directory: Path, count: int, budget_s: float, *, rest: bool, tree: Path | None = None
) -> dict[str, Any]:
    """Figures of one size. `budget_s` bounds each of its parts.

    The first gateway is killed while each group's segment is open, the second when all of them
    `rest`: their segments are closed, and nobody has claimed them.
    """
    with Cluster(directory, [STORE], tree) as cluster:
        first = cluster.gateway()
        async with Wire(first.bootstrap) as wire:
            assert await wire.create(PROBE_TOPIC, 1, 3, 60_000) == 0
            await wire.coordinators(["warm"])
            assert await _commit_patiently(wire, "warm", 1) == 0
        empty_mb, _ = megabytes(first)
        began_s = time.monotonic()
        made = await _commit_all(first, count, began_s + budget_s)
        commits_per_s = len(made) / (time.monotonic() - began_s)
        figures = {"groups": len(made), "first_commits_per_s": round(commits_per_s), **_held(first)}
        figures["empty_mb"] = empty_mb
        figures["open_ledgers"] = await cluster.open_ledgers()
        second = cluster.gateway()
        first.kill()
        figures |= await _take_over(second, made, time.monotonic() + budget_s)
        figures["loaded_mb"], _ = megabytes(second)
        if not rest:
            return figures
        figures |= await _at_rest(cluster, second)
        third = cluster.gateway()
        second.kill()
        resting = await _take_over(third, made, time.monotonic() + budget_s)
        return figures | {f"rest_{name}": value for name, value in resting.items()}


def _held(gateway: ClusterGateway) -> dict[str, float]:
    pss_mb, rss_mb = megabytes(gateway)
    return {"held_mb": pss_mb, "held_rss_mb": rss_mb}


def _name(number: int) -> str:
    return f"group-{number:06d}"


async def _commit_patiently(wire: Wire, group: str, offset: int) -> int:
    while code := await wire.commit(group, offset):
        if code not in (14, 15, 16):  # it loads, or there is no coordinator yet
            return code
        await asyncio.sleep(AGAIN_S)
    return 0


async def _commit_all(gateway: ClusterGateway, count: int, until_s: float) -> list[int]:
    """Group n has committed offset n + 1. Those that could be made in the time."""
    async with AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(_wire(gateway)) for _ in range(CONNECTIONS)]

        async def commit(number: int, worker: int) -> None:
            wire = wires[worker % CONNECTIONS]
            code = await _commit_patiently(wire, _name(number), number + 1)
            assert code == 0, f"the commit of {_name(number)} failed with {code}"

        bar = Bar(f"{count:,} groups: commit", count)
        return await spread(range(count), commit, bar, at_once=AT_ONCE, until_s=until_s)


def _wire(gateway: ClusterGateway) -> Wire:
    return Wire(gateway.bootstrap)


async def _at_rest(cluster: Cluster, gateway: ClusterGateway) -> dict[str, float]:
    """After groups that nobody asks for were let go, if they are within the bound."""
    bar, began_s = Bar("wait until they rest", int(REST_S_MAX)), time.monotonic()
    left = -1
    while (waited_s := time.monotonic() - began_s) < REST_S_MAX:
        bar.show(int(waited_s))
        await asyncio.sleep(REST_LOOK_S)
        left, before = await cluster.open_ledgers(), left
        if waited_s > REST_S_MIN and (left <= OPEN_AT_REST_MAX or left == before):
            break
    bar.show(int(REST_S_MAX))
    pss_mb, _ = megabytes(gateway)
    return {
        "rest_mb": pss_mb,
        "rest_open_ledgers": left,
        "rest_after_s": round(time.monotonic() - began_s),
    }


async def _take_over(
    gateway: ClusterGateway, made: Sequence[int], until_s: float
) -> dict[str, float]:
    """The gateway answers for every group, or every one of a sample, with the right position."""
    killed_s = time.monotonic()
    asked = made[:: -(-len(made) // ASKED_MAX)]
    took_s: list[float] = []
    async with AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(_wire(gateway)) for _ in range(CONNECTIONS)]

        async def ask(number: int, worker: int) -> None:
            await _answered(wires[worker % CONNECTIONS], number)
            took_s.append(time.monotonic() - killed_s)

        bar = Bar(f"{len(asked):,} groups: answered again", len(asked))
        done = await spread(asked, ask, bar, at_once=AT_ONCE, until_s=until_s)
    shown = seconds(took_s)
    span_s = max(0.001, shown["last_s"] - shown["first_s"])
    return {
        "asked": len(asked),
        "answered": len(done),
        "loads_per_s": round(len(done) / span_s),
        **{f"load_{name}": value for name, value in shown.items()},
    }


async def _answered(wire: Wire, number: int) -> None:
    """The right position came; until then the coordinator said that it is not ready."""
    while True:
        code, offset = await wire.committed(_name(number))
        if code == 0 and offset == number + 1:
            return
        if code == 0:
            raise Lost(f"{_name(number)} is at {offset}, and {number + 1} was committed")
        if code not in (14, 15, 16):
            raise Lost(f"{_name(number)} is answered with error {code}")
        await asyncio.sleep(AGAIN_S)
