"""A bookie as operators run it: `python -m ledger serve`, one process on a loopback port.

Its port and directory outlive stop, kill and restart, so that it comes back as the same bookie.
The process ends with the thread that started it: a thread of an event loop ends with its loop.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from tests.peers import install
from tests.peers.processes import ServerProcess

# Its disk is everybody's here, so a share of it says nothing: only --disk-free-min
# makes it read-only.
SHARED_DISK = ("--disk-used-max", "100%", "--disk-used-resume", "99%")
# Short, so that a lost bookie is noticed soon; longer than a busy machine stands still.
SESSION = "3s"
_STARTED = re.compile(r"^started bookie=(\S+) address=(\S+):(\d+)$", re.MULTILINE)


class BookieProcess(ServerProcess):
    """One bookie. `zookeeper` is what `--zookeeper` takes, chroot included."""

    start_s_max = 60.0
    again_after = frozenset({os.EX_UNAVAILABLE})

    def __init__(
        self,
        data: Path,
        zookeeper: str,
        options: Sequence[str] = (),
        *,
        name: str = "bookie",
        rack: str = "/default-rack",
        session: str = SESSION,
    ) -> None:
        super().__init__(data)
        self.zookeeper = zookeeper
        self.options = list(options)
        self.name = name
        self.rack = rack
        self.session = session
        # The interpreter of another release, empty for this tree.
        self.python = ""
        self._id = ""

    @property
    def id(self) -> str:
        """As it said when it started last."""
        assert self._id, "not started"
        return self._id

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def argv(self) -> list[str]:
        place = ["--zookeeper", self.zookeeper, "--data", str(self.data), "--port", str(self.port)]
        who = ["--name", self.name, "--rack", self.rack, "--session", self.session]
        words = [*place, *who, *SHARED_DISK, *self.options]
        return [self.python or install.gateway_python(), "-m", "ledger", "serve", *words]

    def prepare(self) -> None:
        self._id = ""

    def serves(self) -> bool:
        """Return True once it has logged `started`; that line gives its id and port."""
        found = _STARTED.search(self.output())
        if found is not None:
            self._id, self.port = found[1], int(found[3])
        return found is not None
