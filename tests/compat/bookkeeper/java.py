"""Apache BookKeeper's own classes in one Java process, asked line by line (`Interop.java`)."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from ledger.adapters.zookeeper.zookeeper_metadata import ZooKeeperMetadata
from tests.ledger.zookeeper_rig import lasting
from tests.peers import install
from tests.peers.bookkeeper import JVM_QUIET
from tests.peers.java_tools import JVM_SHORT
from tests.peers.zookeeper import ZooKeeper

SOURCE = Path(__file__).with_name("Interop.java")
T = TypeVar("T")


class JavaError(AssertionError):
    """Java raised; the text is the class and message of the innermost cause."""


class Java:
    """One process for a whole test session: a JVM with these classes takes seconds to start."""

    def __init__(self, servers: str, log: Path) -> None:
        classpath = install.bookkeeper_classes(SOURCE)
        archive = Path(classpath.split(":")[0]).with_suffix(".jsa")
        self._archive, self._made = archive, archive.with_suffix(f".{os.getpid()}")
        classes = "SharedArchiveFile" if archive.exists() else "ArchiveClassesAtExit"
        kept = archive if archive.exists() else self._made
        words = [*JVM_SHORT, *JVM_QUIET, "-Xlog:disable", f"-XX:{classes}={kept}"]
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [install.java(), *words, "-cp", classpath, SOURCE.stem, servers],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def ask(self, do: str, **fields: Any) -> Any:
        """Java's answer to `do`. Raises JavaError."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **fields}) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise JavaError(f"{do}: {answer['error']}")
        return answer["is"]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._process.communicate(timeout=60)  # the end of its input ends it
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        if self._made.exists():
            self._made.rename(self._archive)


class Cluster:
    """One `/ledgers` tree of its own, seen from Java and from here."""

    def __init__(self, java: Java, zookeeper: ZooKeeper) -> None:
        self._java = java
        self._zookeeper = zookeeper
        self._root = zookeeper.unused_chroot()
        self.ask("cluster.mkdir")

    def ask(self, do: str, **fields: Any) -> Any:
        return self._java.ask(do, root=self._root, **fields)

    def run(self, step: Callable[[ZooKeeperMetadata], Awaitable[T]]) -> T:
        """What `step` returns, on a session that lasts as long as it does."""

        async def main() -> T:
            store = await lasting(self._zookeeper.servers, chroot=self._root)
            try:
                return await step(store)
            finally:
                await store.close()

        return asyncio.run(main())
