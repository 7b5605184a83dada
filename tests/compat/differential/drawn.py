"""Compares random sequences of requests, on Apache Kafka 4.3 and on the gateway.

`python -m tests.compat.differential.drawn --machine groups --seed 7 --examples 500` repeats and
extends a run. Exits with 1 if a difference is not intended. `--keep` records the shortest sequence
that differs, and `--keep-equal 5` five that do not, so that `make test` replays them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from tests.compat.differential import servers
from tests.compat.differential.machine_groups import Groups
from tests.compat.differential.machine_producers import Producers
from tests.compat.differential.machine_topics import Topics
from tests.compat.differential.machine_transactions import Transactions
from tests.compat.differential.recording import keep, most_varied
from tests.compat.differential.sequences import Compared, Result, run
from tests.peers.broker import Broker

MACHINES: dict[str, type[Compared]] = {
    each.name: each for each in (Producers, Groups, Topics, Transactions)
}
SEED = 1
EXAMPLES = 40


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.compat.differential.drawn", description=__doc__
    )
    parser.add_argument("--machine", choices=sorted(MACHINES), help="only this one [all]")
    parser.add_argument("--seed", type=int, default=SEED, help=f"of all choices [{SEED}]")
    parser.add_argument(
        "--examples", type=int, default=EXAMPLES, help=f"sequences of each machine [{EXAMPLES}]"
    )
    parser.add_argument("--keep", action="store_true", help="record what differs")
    parser.add_argument(
        "--keep-equal", type=int, default=0, help="record so many sequences without a difference"
    )
    options = parser.parse_args()
    names = [options.machine] if options.machine else sorted(MACHINES)
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        with servers.kafka(place / "kafka") as kafka, servers.embedded(place / "gateway") as ours:
            for each in (kafka, ours):
                servers.warm_up(each)
            found = [compare(name, (kafka, ours), options) for name in names]
    shortest = [each.shortest for each in found if each.shortest is not None]
    if options.keep:
        keep(shortest)
    for each in found:
        keep(most_varied(each.equal, options.keep_equal))
    return 1 if shortest else 0


def compare(name: str, brokers: tuple[Broker, Broker], options: argparse.Namespace) -> Result:
    """Run one machine, and print its figures and the differences."""
    begin = time.monotonic()
    kafka, ours = (partial(servers.player, broker) for broker in brokers)
    found = run(MACHINES[name], kafka, ours, options.seed, options.examples)
    print(
        f"machine={name} seed={options.seed} sequences={found.sequences} answers={found.answers} "
        f"seconds={time.monotonic() - begin:.0f} differs={'yes' if found.shortest else 'no'}",
        flush=True,
    )
    if found.differences:
        print(found.differences)
    return found


if __name__ == "__main__":
    sys.exit(main())
