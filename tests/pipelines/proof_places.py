"""The servers of a proof on Spark: one gateway, or a cluster in which each part can be killed."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from tests.house import ROOT
from tests.peers.compose import LocalCluster
from tests.peers.gateway import Gateway
from tests.peers.processes import Lifecycle, TookTooLong, wait_until
from tests.peers.spark_cluster import SparkCluster

EXECUTOR_S_MAX = 300.0


class OneGateway(Lifecycle):
    """One gateway with its bookie in one process. The driver of a job is its executor too."""

    kinds: tuple[str, ...] = ("gateway",)
    copies = 1
    conf: Mapping[str, str] = {}
    master = "local[2]"

    def __init__(self, work: Path) -> None:
        self._gateway = Gateway(work / "data")

    @property
    def bootstrap(self) -> str:
        return self._gateway.bootstrap

    @property
    def metadata(self) -> str:
        return self._gateway.ledgers

    def start(self) -> Self:
        self._gateway.start()
        return self

    def stop(self) -> None:
        if self._gateway.running:
            self._gateway.stop()

    def kill(self, kind: str, _: random.Random) -> str:
        """Kill a part and start it again. Returns its name."""
        assert kind == "gateway", kind
        assert self._gateway.running, "the gateway has ended by itself"
        self._gateway.restart(kill=True)
        return kind


class Cluster(Lifecycle):
    """The services of `make cluster`, and a master of Spark with a worker.

    The executors of a job are processes of their own.
    """

    kinds: tuple[str, ...] = ("executor", "gateway", "bookie")
    copies = 3
    # Two jobs at once share the worker, and a job that was killed may still have its executor.
    conf: Mapping[str, str] = {
        "spark.cores.max": "1",
        "spark.executor.memory": "640m",
        "spark.executorEnv.PYTHONPATH": str(ROOT),
    }

    def __init__(self, work: Path) -> None:
        self._services = LocalCluster(work / "cluster")
        self._spark = SparkCluster(work / "spark")

    @property
    def bootstrap(self) -> str:
        return self._services.bootstrap

    @property
    def metadata(self) -> str:
        return f"zk://{self._services.zookeeper.servers}"

    @property
    def master(self) -> str:
        return self._spark.master

    def start(self) -> Self:
        self._services.start()
        try:
            self._spark.start()
        except BaseException:
            self._services.stop()
            raise
        return self

    def stop(self) -> None:
        self._spark.stop()
        self._services.stop()

    def kill(self, kind: str, chance: random.Random) -> str:
        """Kill a part and start it again; Spark starts executors.

        Returns its name, or an empty text if there was no executor to kill.
        """
        if kind == "executor":
            return self._kill_executor(chance)
        services = self._services
        name = chance.choice({"gateway": services.gateways, "bookie": services.bookies}[kind])
        assert services.processes[name].exit_code is None, f"{name} has ended by itself"
        services.processes[name].kill()
        services.start_one(name)
        services.wait_started(name)
        return name

    def _kill_executor(self, chance: random.Random) -> str:
        with suppress(TookTooLong):
            wait_until(self._spark.executors, "an executor", EXECUTOR_S_MAX, pause_s=0.1)
        found = self._spark.executors()
        if not found:
            return ""
        os.kill(chance.choice(found), signal.SIGKILL)
        return "executor"
