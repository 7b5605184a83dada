"""Starts one process of a cluster on this machine, and ends. A gateway runs it for its page.

Its arguments are the directory of the cluster and the name of the process.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from gateway.process.local_cluster.faults import LocalClusterError
from gateway.process.local_cluster.launcher import Launcher
from gateway.process.local_cluster.state import load_existing, locked


def main(arguments: Sequence[str]) -> int:
    """Start the process. Returns 1, with a line on stderr, if it runs or cannot be started."""
    directory, name = Path(arguments[0]), arguments[1]
    launcher = Launcher(directory, lambda _: None, jars=None)
    try:
        with locked(directory):
            state = load_existing(directory)
            if state.alive(name):
                raise LocalClusterError(f"{name} runs already", "RUNNING")
            if name not in state.ports and name not in state.processes:
                raise LocalClusterError(f"{name} was never started", "UNKNOWN_PROCESS")
            launcher.start_again(state, name)
    except LocalClusterError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
