"""Records the answers of Apache Kafka 4.3 to logins by SASL, and compares those of our port.

`python -m tests.compat.logins --replay` starts no Kafka. Exits with 1 if an answer differs.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tests.compat.logins import servers
from tests.compat.logins.cases import CASES
from tests.compat.logins.intended import reason_of


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.compat.logins", description=__doc__)
    parser.add_argument("--replay", action="store_true", help="start no Kafka")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        if not options.replay:
            with servers.SecureKafka(Path(directory) / "kafka") as kafka:
                servers.add_users(kafka)
                servers.write_recorded(asyncio.run(servers.answers_of_kafka(kafka, CASES)))
        theirs = servers.read_recorded()
        ours = asyncio.run(servers.answers_of_ours(CASES, Path(directory)))
    different = [name for name in theirs if theirs[name] != ours.get(name)]
    unexplained = [name for name in different if reason_of(name) is None]
    for name in unexplained:
        print(f"{name}\n   Kafka {theirs[name]}\n   ours  {ours.get(name)}")
    print(f"{len(theirs)} logins, {len(different)} differ, {len(unexplained)} not intended")
    return 1 if unexplained or theirs.keys() != ours.keys() else 0


sys.exit(main())
