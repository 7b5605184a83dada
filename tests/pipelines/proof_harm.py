"""Jobs on Spark under `kill -9`, and a supervisor that starts a job again if a server was away."""

from __future__ import annotations

import json
import random
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.peers.processes import Process, wait_until
from tests.peers.spark import conf_words, environment
from tests.pipelines.proof_places import Cluster, OneGateway
from tests.pipelines.proof_stores import Store

JOB_S_MAX = 900.0
RESTARTS_MAX = 60
AWAY = frozenset({"SPARK_FAILED", "FILE_SYSTEM", "UNREACHABLE", "NO_LEADER", "SPARK_GONE"})
"""Codes with which a job may end because a server was away. Any other one fails the proof."""
DIFFERS = 3
_CODE = re.compile(r'"code": "([A-Za-z_]+)"')
_FOLLOWS = "gateway: metrics"
_STORE_AWAY_S_MAX = 3.0


class Jobs:
    """`gateway job ...` as processes, beside the servers of the proof."""

    def __init__(self, work: Path, place: OneGateway | Cluster, store: Store) -> None:
        self.work, self.place, self.store = work, place, store
        settings = {**place.conf, **store.conf}
        more = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
        self._conf = ["--master", place.master, *conf_words(work / "spark"), *more]
        self._count = 0

    def begin(self, *words: str) -> Process:
        self._count += 1
        argv = [sys.executable, "-m", "gateway", "job", *words, "--bootstrap"]
        argv += [self.place.bootstrap, *self._conf, "-o", "json"]
        log = self.work / f"job-{self._count:03}-{words[0]}.log"
        return Process(argv, log, environment(self.work / "spark"))


class Supervised:
    """A job that is started again when it ends because a server was away.

    `restarts` counts the codes with which it has ended.
    """

    def __init__(self, jobs: Jobs, words: Sequence[str], restarts: Counter[str]) -> None:
        self._jobs, self._words = jobs, words
        self._restarts = restarts
        self.process = jobs.begin(*words)

    def kill(self) -> None:
        """Kill -9 the driver, and start the job again."""
        self.process.kill()
        self._begin()

    def _begin(self) -> None:
        self.process = self._jobs.begin(*self._words)

    def is_done(self) -> bool:
        """Return whether the job has ended well, or as an audit that found differences."""
        if self.process.exit_code is None:
            return False
        if self.process.exit_code in (0, DIFFERS):
            return True
        self._expect_away()
        self._begin()
        return False

    def _expect_away(self) -> None:
        codes = _CODE.findall(said := self.process.output())
        assert codes and codes[-1] in AWAY, f"{self._words}\n{said[-4000:]}"
        self._restarts[codes[-1]] += 1
        print(f"{self._words[0]} ended: {codes[-1]}", flush=True)
        assert self._restarts.total() <= RESTARTS_MAX, f"{self._words}\n{said[-4000:]}"

    def wait_follows(self) -> None:
        """Wait until the running job follows its topics. It needs a page of metrics."""

        def follows() -> bool:
            return self.is_done() or _FOLLOWS in self.process.output()

        wait_until(follows, "the job to follow", JOB_S_MAX, pause_s=0.1)

    def wait_done(self) -> dict[str, Any]:
        """Wait until the job has ended well, and return its report."""
        wait_until(self.is_done, f"{self._words[0]} to end", JOB_S_MAX, pause_s=0.1)
        return self.report()

    def end_follow(self) -> dict[str, Any]:
        """End a job that follows its topics; returns its report, empty if a server was away."""
        self.wait_follows()  # before, a signal ends it at once
        code = self.process.stop(60.0)
        if code:
            self._expect_away()
            return {}
        return self.report()

    def report(self) -> dict[str, Any]:
        said = self.process.output()
        start = said.find("{\n")
        assert start >= 0, said[-2000:]
        return json.JSONDecoder().raw_decode(said[start:])[0]


def count_done(jobs: Sequence[Supervised]) -> int:
    """Look at each job, and return how many are done."""
    return sum(job.is_done() for job in jobs)


class Harm:
    """Kills processes at moments drawn from the seed, all kinds in turn."""

    def __init__(self, jobs: Jobs, chance: random.Random) -> None:
        self._jobs, self._chance = jobs, chance
        away = ("store",) if jobs.store.server is not None else ()
        self._kinds = ("job", *jobs.place.kinds, *away)
        self._left: list[str] = []
        self.done: Counter[str] = Counter()
        self.restarts: Counter[str] = Counter()

    def supervise(self, *words: str) -> Supervised:
        return Supervised(self._jobs, words, self.restarts)

    def under(
        self, jobs: Sequence[Supervised], thresholds: Sequence[int], progress: Callable[[], int]
    ) -> None:
        """Kill something whenever `progress` has come to one of these thresholds."""
        for threshold in thresholds:

            def reached(threshold: int = threshold) -> bool:
                return progress() >= threshold or count_done(jobs) == len(jobs)

            wait_until(reached, f"progress to come to {threshold}", JOB_S_MAX, pause_s=0.05)
            # At a random moment after the step, not at the step itself.
            self._pause(0.5)
            self.strike(jobs, f"at {threshold}")

    def strike(self, jobs: Sequence[Supervised], when: str, kind: str = "") -> None:
        """Kill one process, of this kind or of the one whose turn it is.

        Kills nothing, and counts nothing, once all jobs are done. A job that has ended by itself
        with an error fails the proof, or is started again first.
        """
        working = [job for job in jobs if not job.is_done()]
        if not working:
            return
        kind = kind or self._next()
        if kind == "job":
            self._chance.choice(working).kill()
            name = kind
        elif kind == "store":
            name = self._kill_store()
        else:
            name = self._jobs.place.kill(kind, self._chance)
        if name:
            self.done[kind] += 1
            print(f"kill -9 {when}: {name}", flush=True)

    def kinds_but(self, *others: str) -> list[str]:
        """Return the kinds of processes without these."""
        return [each for each in self._kinds if each not in others]

    def _next(self) -> str:
        if not self._left:
            self._left = self._chance.sample(self._kinds, len(self._kinds))
        return self._left.pop()

    def _kill_store(self) -> str:
        server = self._jobs.store.server
        assert server is not None
        server.kill()
        self._pause(_STORE_AWAY_S_MAX)
        server.start()
        return server.name

    def _pause(self, s_max: float) -> None:
        threading.Event().wait(self._chance.uniform(0.0, s_max))

    def in_the_middle(self, job: Supervised, took_s: float) -> None:
        """Wait for a random part of the time that such a job took, unless it ends earlier."""
        until_s = time.monotonic() + took_s * self._chance.uniform(0.2, 0.9)
        what = "a moment of the job"
        wait_until(
            lambda: time.monotonic() >= until_s or job.is_done(), what, JOB_S_MAX, pause_s=0.05
        )
