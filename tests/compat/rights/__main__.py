"""Records the answers of Apache Kafka 4.3 to the cases of rights, and compares the gateway's.

`python -m tests.compat.rights --key 3` does so for one API, and records nothing. `--replay` starts
no Kafka. Exits with 1 if an answer differs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.compat.rights import servers
from tests.compat.rights.all_cases import CASES
from tests.compat.rights.intended import reason_of
from tests.compat.rights.recording import read_recorded, write_recorded


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.compat.rights", description=__doc__)
    parser.add_argument("--key", type=int, action="append", default=[], help="an API key; all")
    parser.add_argument("--replay", action="store_true", help="start no Kafka")
    options = parser.parse_args()
    cases = [case for case in CASES if not options.key or case.key in options.key]
    with tempfile.TemporaryDirectory() as directory:
        if options.replay:
            theirs = read_recorded()
            prefixes = tuple(f"{case} |" for case in cases)
            theirs = {title: each for title, each in theirs.items() if title.startswith(prefixes)}
        else:
            with servers.kafka(Path(directory) / "kafka") as broker:
                theirs = servers.answers_of(broker, cases)
            if not options.key:
                write_recorded(theirs)
        with servers.gateway(Path(directory) / "gateway") as broker:
            ours = servers.answers_of(broker, cases)
    found = list(servers.differences(theirs, ours))
    unexplained = [line for line in found if reason_of(line) is None]
    for line in unexplained:
        print(line)
    print(f"{len(theirs)} answers, {len(found)} differ, {len(unexplained)} of them not intended")
    return 1 if unexplained else 0


sys.exit(main())
