"""The operator of a cluster: the commands as a user runs them, each a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from typing import Any

from tests.command_output import check_output
from tests.peers import install

Row = dict[str, Any]

COMMAND_S_MAX = 180


class WrongExit(AssertionError):
    """A command ended with another exit code than it should have."""


class Operator:
    """Commands for the cluster whose metadata is at `zookeeper`."""

    def __init__(self, zookeeper: str) -> None:
        self._zookeeper = zookeeper

    def run(self, *words: str, codes: tuple[int, ...] = (0,)) -> str:
        """Return what `gateway WORDS` printed. Raises WrongExit unless it exits with a code."""
        argv = [install.gateway_python(), "-m", "gateway", *words]
        environment: Mapping[str, str] = {**os.environ, "GATEWAY_ZOOKEEPER": self._zookeeper}
        done = subprocess.run(
            argv,
            env=environment,
            capture_output=True,
            text=True,
            timeout=COMMAND_S_MAX,
            check=False,
        )
        if done.returncode not in codes or "Traceback" in done.stderr:
            told = f"`gateway {' '.join(words)}` exited with {done.returncode}, not {codes}:"
            raise WrongExit(f"{told}\n{(done.stdout + done.stderr)[-3000:]}")
        check_output(words, done.stdout, done.returncode)
        return done.stdout

    def json(self, *words: str, codes: tuple[int, ...] = (0,)) -> Any:
        return json.loads(self.run(*words, "-o", "json", codes=codes))

    # -- losses ----------------------------------------------------------------------------------

    def gaps(self, topic: str) -> list[Row]:
        """Return the gaps of a topic, but for those that truncation left."""
        rows = self.json("topic", "gaps", topic, codes=(0, 1))
        return [row for row in rows if row["kind"] != "TRIM"]

    def accept(self, row: Row, give_up: tuple[str, ...] = ()) -> None:
        """Accept one loss as it was listed."""
        words = ["--give-up", *give_up] if give_up else []
        first, last = row["offsets"]
        place = ("-p", str(row["partition"]), "--offsets", f"{first}-{last}")
        self.run("topic", "accept-loss", row["topic"], *place, *words, "--yes")

    def accept_ledger(self, ledger: int) -> Row:
        """Close a ledger, by force if too few bookies are left, and accept what is lost."""
        return self.json("ledger", "recover", str(ledger), "--accept-loss", "--yes")

    # -- bookies ---------------------------------------------------------------------------------

    def decommission(self, bookie: str) -> None:
        """Remove a bookie whose disk is gone, once its copies are elsewhere."""
        self.run("bookie", "decommission", bookie, "--yes", "--timeout", "120s")

    def ledgers(self, topic: str) -> list[Row]:
        """Return the ledgers of a topic."""
        return [row for row in self.json("ledger", "list") if row["topic"] == topic]
