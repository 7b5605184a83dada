"""The progress of a replay on a terminal, computed from the target's end offsets."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from gateway.admin.client import AdminClient, Unreachable
from gateway.admin.topics import LATEST, offsets
from gateway.interrupt import run_interruptibly
from gateway.pipelines.replays.plan import ReplayPlan
from gateway.pipelines.replays.replay_job import ReplayWatcher
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.kafka_servers import KafkaServers
from gateway.wire.client_link import AdminError
from ledger.command_line.output import note
from ledger.command_line.progress import ProgressLine
from ledger.tasks import in_thread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
_REFRESH_S = 1.0


@contextmanager
def show_progress(spark: SparkSession, bootstrap: KafkaServers) -> Generator[ReplayWatcher]:
    """Show a bar on stderr if stderr is a terminal. A line for each retry is always printed."""
    line = ProgressLine()
    if not sys.stderr.isatty():
        yield _Lines(line)
        return
    try:
        yield _Bar(spark, bootstrap, line)
    finally:
        line.clear()


class _Lines(ReplayWatcher):
    def __init__(self, line: ProgressLine) -> None:
        self._line = line

    def on_retry(self, error: JobError, wait_s: float) -> None:
        self._line.clear()
        note(f"gateway: {error}; retrying in {wait_s:.0f} s")


class _Bar(_Lines):
    """A progress bar that polls the target's end offsets while Spark works in a thread."""

    def __init__(self, spark: SparkSession, bootstrap: KafkaServers, line: ProgressLine) -> None:
        super().__init__(line)
        self._spark = spark
        self._bootstrap = bootstrap
        self._plan: ReplayPlan | None = None  # None until the records are counted
        line.text("counting records")

    def on_planned(self, plan: ReplayPlan, written: int) -> None:
        self._plan = plan
        self._show(written)

    def _show(self, done: int) -> None:
        assert self._plan is not None
        whole = sum(each.count for each in self._plan.partitions)
        self._line.bar(done, whole, "records replayed")

    def run(self, work: Callable[[], T]) -> T:
        return run_interruptibly(self._run(work))

    async def _run(self, work: Callable[[], T]) -> T:
        working = asyncio.create_task(in_thread(work))
        try:
            while not (await asyncio.wait([working], timeout=_REFRESH_S))[0]:
                await self._refresh()
            return await working
        except asyncio.CancelledError:
            # Spark's thread ends when its job is cancelled.
            self._spark.sparkContext.cancelAllJobs()
            raise

    async def _refresh(self) -> None:
        """Update the bar, unless the server does not answer."""
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
        self._show(done)
