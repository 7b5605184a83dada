"""Harms to a cluster of copy jobs, each at a named point of a transaction.

A job waits at a point of its transaction. The victim is then killed or stopped, and the job goes
on. The cluster is whole again when a harm returns.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.cluster.copies import ABORT, COMMIT
from tests.cluster.copying import GROUP, SESSION_MS, TRANSACTION, WAIT_S_MAX, Copying, Job
from tests.gateway.admin_commands import invoke
from tests.peers.gateway import ClusterGateway, Gateway
from tests.peers.processes import Process, ServerProcess, TookTooLong, wait_until

POINTS = ("init", "ongoing", "pending", "prepared", "markers", "marked", "ending", "fence", "swap")
VICTIMS = ("coordinator", "owner", "group", "bookie", "client", "cleaner")
EMBEDDED_POINTS = ("init", "ongoing", "pending", "ending", "fence", "swap")
EMBEDDED_VICTIMS = ("coordinator", "client", "cleaner")  # the one gateway has all other roles
AT_END = ("prepared", "markers", "marked")  # they need an owner that stands still
LATE_S_MAX = 0.1  # after the job has begun to end its transaction
SLEEP_S = 2 * SESSION_MS / 1_000
CLIENT_SLEEP_S = 8.0  # longer than the session of a member of a group
CLEANER_S_MAX = 20.0  # below the timeout of a transaction
PREPARED = ("PrepareCommit", "PrepareAbort")


class NotReached(Exception):
    """The point or the victim did not occur in time: the harm is not counted."""


class Cleaner(NamedTuple):
    """The cleaner process of a gateway; the gateway starts another one."""

    pid: int

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


Victim = ServerProcess | Process | Cleaner


class Harms:
    """Choices are drawn from one seed; the processes have their own timing."""

    def __init__(self, stage: Copying, draw: random.Random) -> None:
        self._stage, self._draw = stage, draw
        self.job = ""  # of the harm under way
        self.outcome = ""  # that its transaction shall have
        self.state = ""  # of the transaction, when the victim was killed

    def kill(self, point: str, victim: str) -> str:
        """Kill a victim at a point with -9; returns the point that was hit. Raises NotReached."""
        job = self._begin()
        before = job.ended
        if point == "swap":
            dies = self._kill_at_swap(job, victim)
        else:
            held = "pending" if point in (*AT_END, "ending", "fence") else point
            gate = self._hold(job, held)
            try:
                dies = self._victim(job, victim)
                point = self._kill_at(point, job, dies, gate)
            finally:
                gate.unlink(missing_ok=True)
        self._heal(job, before, dies)
        return point

    def sleep(self, victim: str) -> None:
        """Stop a victim past its session while a transaction ends, and let it go on."""
        job = self._begin()
        before = job.ended
        gate = self._hold(job, "pending")
        try:
            sleeper = self._victim(job, victim)
            assert not isinstance(sleeper, Cleaner)
            process = sleeper if isinstance(sleeper, Process) else sleeper.process
            process.pause()
            try:
                gate.unlink()
                seconds = CLIENT_SLEEP_S if sleeper is job.process else SLEEP_S
                threading.Event().wait(seconds)
            finally:
                process.resume()
        finally:
            gate.unlink(missing_ok=True)
        self._heal(job, before, sleeper)

    def _begin(self) -> Job:
        job = self._draw.choice(self._stage.jobs)
        self.job, self.outcome, self.state = job.name, self._draw.choice((COMMIT, ABORT)), ""
        return job

    # -- points ----------------------------------------------------------------------------------

    def _hold(self, job: Job, point: str) -> Path:
        """Wait until the job stands at this point; returns the gate that it waits for."""
        with self._stage.watched:
            if point == "init":
                job.process.kill()
                job.process = job.another()
            gate = job.close(point, self.outcome)

        def stands() -> bool:
            nonlocal gate
            with self._stage.watched:
                if job.gate != gate:  # its process has ended; there is another one
                    gate.unlink(missing_ok=True)
                    gate = job.close(point, self.outcome)
                return job.stands_at(point)

        wait_until(stands, f"{job.name} at {point}", WAIT_S_MAX)
        return gate

    def _kill_at(self, point: str, job: Job, dies: Victim, gate: Path) -> str:
        if point in AT_END:
            return self._kill_after_prepare(point, job, dies, gate)
        if point == "ending":
            self._kill_while_ending(job, dies, gate)
        elif point == "fence":
            self._kill_while_fencing(job, dies, gate)
        else:
            self._kill(dies)
            gate.unlink()
        return point

    def _kill_after_prepare(self, point: str, job: Job, dies: Victim, gate: Path) -> str:
        """Kill after Prepare is durable, while the owner of a partition stands still.

        prepared: as soon as the state is seen. markers: when another owner has its marker, but this
        one lacks it. marked: the owner goes on, and the kill follows its marker, before Complete if
        it comes in time.
        """
        stage = self._stage
        coordinator = stage.coordinator(TRANSACTION, job.name)
        still = stage.owner(job.kind.target, other_than=coordinator)
        if still is coordinator:
            raise NotReached("one gateway has all roles")
        producer_id = stage.producer_id(job, coordinator)
        others = [each for each in stage.gateways if each is not still and each.running]
        still.pause()
        try:
            gate.unlink()
            self.state = wait_until(
                lambda: (state := stage.state(job, *others)) != "Ongoing" and state,
                "the end of a transaction",
                WAIT_S_MAX,
                pause_s=0,
            )
            if self.state not in PREPARED:
                point = "ending"  # this owner had no part in the transaction
            elif point == "markers":
                self._wait_marked(job, others, producer_id)
            elif point == "marked":
                still.resume()
                self._wait_marked(job, [still], producer_id)
                self.state = stage.state(job, coordinator)
            self._kill(dies)
        finally:
            still.resume()
        return point

    def _wait_marked(self, job: Job, owners: Sequence[Gateway], producer_id: int) -> None:
        try:
            wait_until(
                lambda: any(self._stage.marked(job, each, producer_id) for each in owners),
                f"a marker of {job.name}",
                10.0,
                pause_s=0,
            )
        except TookTooLong as slow:
            raise NotReached(str(slow)) from None

    def _kill_while_ending(self, job: Job, dies: Victim, gate: Path) -> None:
        """Kill up to `LATE_S_MAX` after the end began."""
        coordinator = self._stage.coordinator(TRANSACTION, job.name)
        gate.unlink()
        wait_until(
            lambda: "ending" in job.newest_lines().rpartition("held pending")[2],
            "the end",
            WAIT_S_MAX,
            pause_s=0.002,
        )
        threading.Event().wait(self._draw.uniform(0, LATE_S_MAX))
        self.state = self._stage.state(job, coordinator)
        self._kill(dies)

    def _kill_while_fencing(self, job: Job, dies: Victim, gate: Path) -> None:
        """Kill while a second producer of the id aborts the transaction of the first."""
        first = job.process
        coordinator = self._stage.coordinator(TRANSACTION, job.name)
        with self._stage.watched:
            job.process = second = job.another()
        wait_until(
            lambda: self._stage.state(job, coordinator) != "Ongoing",
            "the second producer to abort",
            WAIT_S_MAX,
            pause_s=0,
        )
        self._kill(second if dies is first else dies)

        def begun() -> bool:
            with self._stage.watched:
                return "init" in job.process.output()

        wait_until(begun, "the second producer to begin", WAIT_S_MAX)
        if first is job.process or first.exit_code is not None:
            return
        ended = first.output().count("\nended ")
        gate.unlink()
        first.wait_exit(WAIT_S_MAX)
        if COMMIT in "".join(first.output().split("\nended ")[ended + 1 :]):
            self._stage.faults.append(f"{job.name} committed although it was fenced")

    def _kill_at_swap(self, job: Job, victim: str) -> Victim:
        """Kill while a compacted topic is cleaned, at any part of a round."""
        stage = self._stage
        topic, share = job.kind.newest, self._draw.random()

        def cleaned() -> bool:
            code, out, _ = invoke(
                "topic", "cleaning", topic, "-o", "json", bootstrap=stage.gateways.bootstrap
            )
            progress = [row["progress"] for row in json.loads(out)] if code == 0 else []
            return any(each is not None and each >= share for each in progress)

        try:
            wait_until(cleaned, f"a round of {topic}", CLEANER_S_MAX)
        except TookTooLong as slow:
            raise NotReached(str(slow)) from None
        dies = self._victim(job, victim, topic)
        self._kill(dies)
        return dies

    # -- victims ---------------------------------------------------------------------------------

    def _victim(self, job: Job, victim: str, topic: str = "") -> Victim:
        stage = self._stage
        if victim == "client":
            return job.process
        if victim == "bookie":
            return self._draw.choice(stage.world.bookies)
        if victim == "group":
            return stage.coordinator(GROUP, job.kind.group)
        if victim == "cleaner":
            return self._cleaner()
        coordinator = stage.coordinator(TRANSACTION, job.name)
        if victim == "coordinator":
            return coordinator
        return stage.owner(topic or job.kind.target, other_than=coordinator)

    def _cleaner(self) -> Cleaner:
        try:
            found = wait_until(self._stage.cleaners, "a cleaner at work", CLEANER_S_MAX)
        except TookTooLong as slow:
            raise NotReached(str(slow)) from None
        return Cleaner(self._draw.choice(found))

    def _kill(self, dies: Victim) -> None:
        """Kill a process; with it, half of the time, the child that closes its session."""
        if isinstance(dies, ClusterGateway) and self._draw.random() < 0.5:
            os.kill(dies.process.pid, signal.SIGKILL)
            dies.process.wait_exit(WAIT_S_MAX)
        else:
            dies.kill()
        if self._stage.embedded and isinstance(dies, ServerProcess):
            dies.start()

    def _heal(self, job: Job, before: tuple[int, int], dies: Victim) -> None:
        """Wait until the job has ended another transaction, without the victim in a cluster."""

        def goes_on() -> bool:
            with self._stage.watched:
                return job.ended > before and job.ended[1] > 0

        wait_until(goes_on, f"{job.name} to go on", WAIT_S_MAX, pause_s=0.1)
        if isinstance(dies, ServerProcess) and not dies.running:
            dies.start()
