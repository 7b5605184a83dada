"""Records Apache Kafka's answers, compares the gateway's with them, and writes docs/kafka-api.md.

`python -m tests.compat.differential --key 19 --case duplicates` does so for some cases only.
Exits with 1 if a difference is not intended.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tests.compat.differential import document, servers
from tests.compat.differential.intended import INTENDED, explanations
from tests.compat.differential.intended_on_cluster import ON_CLUSTER
from tests.compat.differential.outcome import Difference, Recorded, outcome
from tests.compat.differential.play import Player
from tests.compat.differential.recording import recorded, recorded_cases, write_recorded
from tests.compat.differential.script import Case, case_files, cases_of
from tests.peers.broker import Broker

NewPlayer = Callable[[str], Player]
_LABEL = re.compile(r"\[[^\]]*\]")
_PREFIX = re.compile(r"[kt]\d\d-v\d+-[a-z0-9-]+--")


def chosen(keys: Sequence[int], name: str, transactions: bool) -> list[Case]:
    """Return the cases of these APIs, of all if none is named, whose names contain `name`."""
    return [
        case
        for key in keys or sorted(case_files(transactions))
        for case in cases_of(key, transactions)
        if name in case.name
    ]


def record(broker: Broker, cases: Sequence[Case]) -> int:
    """Play the cases on Kafka, and write the recordings. Returns how many could not be played."""
    played: dict[tuple[int, bool, int, str], Recorded] = {}
    for case in cases:
        steps = case.steps()
        try:
            answers = servers.player(broker).play(steps)
        except AssertionError as error:
            print(f"not recorded: key {case.key} v{case.version} {case.name}: {error}")
            continue
        place = case.key, case.transactions, case.version, case.name
        played[place] = recorded(case, steps, answers)
    for file in sorted({(case.key, case.transactions) for case in cases}):
        known = {(*file, each.version, each.name): each for each in recorded_cases(*file)}
        known |= {place: each for place, each in played.items() if place[:2] == file}
        wanted = [(*file, case.version, case.name) for case in cases_of(*file)]
        key, transactions = file
        write_recorded(key, [known[place] for place in wanted if place in known], transactions)
    return len(cases) - len(played)


def compare(
    new_player: NewPlayer, cases: Sequence[Case], *, one_node: bool = False
) -> tuple[list[Difference], int]:
    """Replay the recorded cases on a server or a cluster.

    Returns every difference, intended or not, and how many cases were not compared.
    """
    wanted = {(case.key, case.transactions, case.version, case.name) for case in cases}
    found: list[Difference] = []
    compared = 0
    for file in sorted({(case.key, case.transactions) for case in cases}):
        for each in recorded_cases(*file):
            if (*file, each.version, each.name) not in wanted:
                continue
            try:
                found += outcome(each, new_player(each.title).play(each.steps), one_node=one_node)
                compared += 1
            except AssertionError as error:
                print(f"not compared: {each.title}: {error}")
    return found, len(cases) - compared


def brief(found: Sequence[Difference]) -> list[str]:
    """Return one line for each field of a step, with the versions in which it differs."""
    versions: dict[tuple[int, str, int, str, str, str], list[int]] = {}
    for each in found:
        texts = (_LABEL.sub("[*]", each.path), _in_line(each.kafka), _in_line(each.ours))
        versions.setdefault((each.key, each.case, each.step, *texts), []).append(each.version)
    return [
        f"key {key} {case} step {step} v{min(row)}-{max(row)}: {path}: Kafka {kafka} | ours {ours}"
        for (key, case, step, path, kafka, ours), row in versions.items()
    ]


def _in_line(value: object) -> str:
    return _PREFIX.sub("", repr(value))[:160]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.compat.differential", description=__doc__
    )
    parser.add_argument("--key", type=int, action="append", default=[], help="an API key; all")
    parser.add_argument("--case", default="", help="a part of the names of cases")
    parser.add_argument("--replay", action="store_true", help="do not start Kafka, do not record")
    parser.add_argument("--brief", action="store_true", help="a line for each field, not the bytes")
    parser.add_argument("--page", action="store_true", help="only write docs/kafka-api.md")
    parser.add_argument(
        "--transactions",
        action="store_true",
        help="only the cases about transactions",
    )
    parser.add_argument(
        "--cluster", action="store_true", help="compare a cluster of two gateways, do not record"
    )
    options = parser.parse_args()
    if options.page:
        document.PAGE.write_text(document.page())
        return 0
    plain = [] if options.transactions else chosen(options.key, options.case, False)
    transactional = chosen(options.key, options.case, True)
    left_out = 0
    with tempfile.TemporaryDirectory() as directory:
        if not options.replay and not options.cluster:
            begin = time.monotonic()
            with servers.kafka(Path(directory) / "kafka") as broker:
                servers.warm_up(broker)
                left_out = record(broker, [*plain, *transactional])
            count = len(plain) + len(transactional)
            print(f"recorded {count} cases in {time.monotonic() - begin:.0f} s")
        compared = on_cluster if options.cluster else on_gateway
        found, skipped = compared(Path(directory), [*plain, *transactional])
    entries = (*INTENDED, *ON_CLUSTER) if options.cluster else INTENDED
    unexplained = [each for each in found if not explanations(each, entries)]
    for line in brief(unexplained) if options.brief else unexplained:
        print(line)
    print(f"{len(found)} differences, {len(unexplained)} of them not intended")
    print(f"{left_out} cases not recorded, {skipped} not compared")
    document.PAGE.write_text(document.page())
    return 1 if unexplained or left_out or skipped else 0


def on_gateway(directory: Path, cases: Sequence[Case]) -> tuple[list[Difference], int]:
    """Compare the cases on one gateway."""
    with servers.embedded(directory / "gateway") as broker:
        servers.warm_up(broker)
        begin = time.monotonic()
        found, skipped = compare(partial(servers.player, broker), cases)
    print(f"compared {len(cases)} cases in {time.monotonic() - begin:.0f} s")
    return found, skipped


def on_cluster(directory: Path, cases: Sequence[Case]) -> tuple[list[Difference], int]:
    """As `on_gateway`, on a cluster of two."""
    with servers.cluster(directory / "cluster") as both:
        servers.warm_up_cluster(both)
        begin = time.monotonic()
        player = partial(servers.redirected, both)
        found, skipped = compare(player, cases, one_node=True)
    print(f"compared {len(cases)} cases on a cluster in {time.monotonic() - begin:.0f} s")
    return found, skipped


if __name__ == "__main__":
    sys.exit(main())
