"""What Apache Kafka and the gateway have in common as processes: start, stop, kill, restart."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.peers.processes import Process, Usage, answers_metadata, free_port


class Broker:
    """One broker process on a loopback port; its data directory outlives restarts."""

    name = "broker"
    start_s_max = 60.0

    def __init__(self, data: Path) -> None:
        self.data = data
        self.port = free_port()
        self.start_s = 0.0
        self._process: Process | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def process(self) -> Process:
        assert self._process is not None, "not started"
        return self._process

    @property
    def running(self) -> bool:
        return self._process is not None

    def argv(self) -> list[str]:
        raise NotImplementedError

    def prepare(self) -> None:
        """Whatever must be on disk before the first start."""

    def ready(self) -> bool:
        return answers_metadata(self.port)

    def start(self) -> Self:
        """Start it; returns when it answers Metadata. `start_s` is that time."""
        assert self._process is None, "already started"
        self.data.mkdir(parents=True, exist_ok=True)
        self.prepare()
        log = self.data.with_name(f"{self.data.name}.log")
        self._process = Process(self.argv(), log)
        try:
            self._process.wait_for(self.ready, f"{self.name} to start", self.start_s_max)
        except BaseException:
            self.kill()
            raise
        self.start_s = time.monotonic() - self._process.started_at_s
        return self

    def stop(self) -> int:
        """End it politely; returns its exit code."""
        process, self._process = self.process, None
        return process.stop()

    def kill(self) -> None:
        process, self._process = self.process, None
        process.kill()

    def restart(self, *, kill: bool = False) -> Self:
        """Stop (or kill -9) and start again, on the same data directory and port."""
        if kill:
            self.kill()
        else:
            self.stop()
        return self.start()

    def usage(self) -> Usage:
        return self.process.usage()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self.stop()
