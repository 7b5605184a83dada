"""Harms to a cluster of copy jobs, each at a named point of a transaction.

A job waits at a point of its transaction. The victim is then killed or stopped, and the job goes
on. The cluster is whole again when a harm returns.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from pathlib import Path

from tests.cluster.copying import GROUP, SESSION_MS, TRANSACTION, WAIT_S_MAX, Copying, Job
from tests.peers.gateway import ClusterGateway
from tests.peers.processes import Process, ServerProcess, wait_until

POINTS = ("init", "ongoing", "pending", "markers", "ending", "fence")
VICTIMS = ("coordinator", "owner", "group", "bookie", "client")
EMBEDDED_POINTS = ("init", "ongoing", "pending", "ending", "fence")
EMBEDDED_VICTIMS = ("coordinator", "client")  # the one gateway has all the roles
LATE_S_MAX = 0.1  # after the job has begun to end its transaction
SLEEP_S = 2 * SESSION_MS / 1_000
CLIENT_SLEEP_S = 8.0  # longer than the session of a member of a group
PREPARED = ("PrepareCommit", "PrepareAbort")


class Harms:
    """Choices are drawn from one seed; the processes have their own timing."""

    def __init__(self, stage: Copying, draw: random.Random) -> None:
        self._stage, self._draw = stage, draw

    def kill(self, point: str, victim: str) -> str:
        """Kill a victim at a point with -9; returns the point that was hit."""
        job = self._draw.choice(self._stage.jobs)
        before = job.ended
        gate = self._hold(job, "pending" if point in ("markers", "ending", "fence") else point)
        dies = self._victim(job, victim)
        if point == "markers":
            point = self._kill_between_markers(job, dies, gate)
        elif point == "ending":
            point = self._kill_while_ending(job, dies, gate)
        elif point == "fence":
            self._kill_while_fencing(job, dies, gate)
        else:
            self._kill(dies)
            gate.unlink()
        self._heal(job, before, dies)
        return point

    def sleep(self, victim: str) -> str:
        """Stop a victim past its session while a transaction ends, and let it go on."""
        job = self._draw.choice(self._stage.jobs)
        before = job.ended
        gate = self._hold(job, "pending")
        sleeper = self._victim(job, victim)
        process = sleeper if isinstance(sleeper, Process) else sleeper.process
        process.pause()
        try:
            gate.unlink()
            seconds = CLIENT_SLEEP_S if sleeper is job.process else SLEEP_S
            threading.Event().wait(seconds)
        finally:
            process.resume()
        self._heal(job, before, sleeper)
        return "pending"

    # -- points ----------------------------------------------------------------------------------

    def _hold(self, job: Job, point: str) -> Path:
        """Wait until the job stands at this point; returns the gate that it waits for."""
        outcome = self._draw.choice(("commit", "commit", "abort"))
        with self._stage.watched:
            if point == "init":
                job.process.kill()
                job.process = job.another()
            gate = job.close(point, outcome)

        def stands() -> bool:
            nonlocal gate
            with self._stage.watched:
                if job.gate != gate:  # the process ended meanwhile; there is another one
                    gate.unlink(missing_ok=True)
                    gate = job.close(point, outcome)
                return job.stands_at(point)

        wait_until(stands, f"{job.name} at {point}", WAIT_S_MAX)
        return gate

    def _kill_between_markers(self, job: Job, dies: ServerProcess | Process, gate: Path) -> str:
        """Kill after Prepare, while the owner of a partition stands still."""
        coordinator = self._stage.coordinator(TRANSACTION, job.name)
        still = self._stage.owner(job.kind.target, other_than=coordinator)
        still.pause()
        try:
            gate.unlink()

            def prepared() -> str:
                state = self._stage.state(job, coordinator)
                return state if state != "Ongoing" else ""

            state = wait_until(prepared, "the end of a transaction", WAIT_S_MAX, pause_s=0)
            self._kill(dies)
        finally:
            still.resume()
        return "markers" if state in PREPARED else "ended"

    def _kill_while_ending(self, job: Job, dies: ServerProcess | Process, gate: Path) -> str:
        """Kill up to `LATE_S_MAX` after the end began; returns the state then seen."""
        coordinator = self._stage.coordinator(TRANSACTION, job.name)
        gate.unlink()
        wait_until(lambda: "ending" in job.process.output()[-40:], "the end", WAIT_S_MAX, pause_s=0)
        threading.Event().wait(self._draw.uniform(0, LATE_S_MAX))
        state = self._stage.state(job, coordinator)
        self._kill(dies)
        return f"ending, {state or 'unknown'}"

    def _kill_while_fencing(self, job: Job, dies: ServerProcess | Process, gate: Path) -> None:
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
        if not self._is_alone(job, first):
            return
        ended = first.output().count("\nended ")
        gate.unlink()
        first.wait_exit(WAIT_S_MAX)
        if "commit" in "".join(first.output().split("\nended ")[ended + 1 :]):
            self._stage.faults.append(f"{job.name} committed although it was fenced")

    @staticmethod
    def _is_alone(job: Job, first: Process) -> bool:
        return first is not job.process and first.exit_code is None

    # -- victims ---------------------------------------------------------------------------------

    def _victim(self, job: Job, victim: str) -> ServerProcess | Process:
        stage = self._stage
        if victim == "client":
            return job.process
        if victim == "bookie":
            return self._draw.choice(stage.world.bookies)
        if victim == "group":
            return stage.coordinator(GROUP, job.kind.group)
        coordinator = stage.coordinator(TRANSACTION, job.name)
        if victim == "coordinator":
            return coordinator
        return stage.owner(job.kind.target, other_than=coordinator)

    def _kill(self, dies: ServerProcess | Process) -> None:
        """Kill a process; with it, half of the time, the child that closes its session."""
        if isinstance(dies, ClusterGateway) and self._draw.random() < 0.5:
            os.kill(dies.process.pid, signal.SIGKILL)
            dies.process.wait_exit(WAIT_S_MAX)
        else:
            dies.kill()
        if self._stage.embedded and isinstance(dies, ServerProcess):
            dies.start()

    def _heal(self, job: Job, before: tuple[int, int], dies: ServerProcess | Process) -> None:
        """Wait until the job has ended another transaction, without the victim in a cluster."""

        def goes_on() -> bool:
            with self._stage.watched:
                return job.ended > before and job.ended[1] > 0

        wait_until(goes_on, f"{job.name} to go on", WAIT_S_MAX, pause_s=0.1)
        if isinstance(dies, ServerProcess) and not dies.running:
            dies.start()
