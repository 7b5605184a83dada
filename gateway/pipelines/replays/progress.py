"""The progress of a replay on a terminal, from the target's end offsets rather than from Spark."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from gateway.admin.client import AdminClient, Unreachable
from gateway.admin.topics import LATEST, offsets
from gateway.pipelines.replays.plan import ReplayPlan
from gateway.pipelines.replays.replay_job import ReplayWatcher
from gateway.pipelines.shared.errors import JobError
from gateway.wire.client_link import AdminError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.progress import Progress

T = TypeVar("T")
_REFRESH_S = 1.0


@contextmanager
def show_progress(spark: SparkSession, bootstrap: str) -> Generator[ReplayWatcher]:
    """Show a bar on stderr if it is a terminal. Print a line for each retry in any case."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        yield _Bar(spark, bootstrap, bar)


class _Lines(ReplayWatcher):
    def on_retry(self, error: JobError, wait_s: float) -> None:
        print(f"gateway: {error}; again in {wait_s:.0f} s", file=sys.stderr)


class _Bar(_Lines):
    """Polls the target's end offsets while Spark works in another thread."""

    def __init__(self, spark: SparkSession, bootstrap: str, bar: Progress) -> None:
        self._spark = spark
        self._bootstrap = bootstrap
        self._bar = bar
        self._task = bar.add_task("measured", total=None)
        self._plan: ReplayPlan | None = None

    def on_planned(self, plan: ReplayPlan, written: int) -> None:
        self._plan = plan
        total = sum(each.count for each in plan.partitions)
        self._bar.update(self._task, description="replayed", total=total, completed=written)

    def run(self, work: Callable[[], T]) -> T:
        return asyncio.run(self._run(work))

    async def _run(self, work: Callable[[], T]) -> T:
        working = asyncio.create_task(asyncio.to_thread(work))
        try:
            while not (await asyncio.wait([working], timeout=_REFRESH_S))[0]:
                await self._refresh()
            return await working
        except asyncio.CancelledError:
            self._spark.sparkContext.cancelAllJobs()  # the thread ends when its job does
            raise

    async def _refresh(self) -> None:
        """Update the bar. Does nothing if the server does not answer."""
        plan = self._plan
        assert plan is not None
        partitions = {plan.target: [each.partition for each in plan.partitions]}
        try:
            async with asyncio.timeout(_REFRESH_S), AdminClient(self._bootstrap) as client:
                ends = await offsets(client, partitions, LATEST)
        except (AdminError, Unreachable, TimeoutError):
            return
        done = 0
        for each in plan.partitions:
            end = ends.get((plan.target, each.partition), each.base_offset)
            done += max(0, min(each.count, end - each.base_offset))
        self._bar.update(self._task, completed=done)
